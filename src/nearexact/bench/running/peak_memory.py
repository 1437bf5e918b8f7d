"""The most memory that a run has had resident: what its peak_memory_mb says."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class PeakMemory:
    """The most memory that this process has had resident, as far as it counts."""

    def __init__(self) -> None:
        self._earlier = 0.0  # before the system's own mark was set back

    def peak_mb(self) -> float:
        """The most so far."""
        return max(self._earlier, peak_memory_mb())

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """What is only for the record is no memory that the method needs. Only Linux can forget a peak."""
        self._earlier = self.peak_mb()
        yield
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_memory_mb() -> float:
    """The most memory that this process has had resident so far."""
    try:  # where it is to be had, without what the parent process had before
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))) * 1024 / 1e6
    except (OSError, StopIteration):
        import resource  # Windows has none

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6
