"""The most memory that a run has had resident: what its peak_memory_mb says."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class PeakMemory:
    """The most memory that this process has had resident, without what is used in `uncounted`."""

    def __init__(self) -> None:
        self._earlier = 0.0  # MB, before the system's own maximum was reset

    def peak_mb(self) -> float:
        """The most so far."""
        return max(self._earlier, peak_memory_mb())

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """For figures that only the trace needs: their memory is not the method's. Only Linux can reset the peak."""
        self._earlier = self.peak_mb()
        yield
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_memory_mb() -> float:
    """The most memory that this process has had resident so far."""
    try:  # Linux: unlike that of getrusage, this figure does not start from the parent's
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))) * 1024 / 1e6
    except (OSError, StopIteration):
        import resource  # Windows has none

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6
