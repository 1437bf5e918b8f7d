"""Limits that users write down: sizes such as "2GB", durations such as "5m", and how much memory there is."""

from __future__ import annotations

import math
import os
import re
import sys
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it takes seconds to import, which a run without it need not wait for
    import torch

MODEST_MACHINE = 4 * 10**9  # bytes, taken where the system does not say how much memory there is

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_NUMBER = r"([0-9]+\.?[0-9]*|\.[0-9]+)"
_DURATION = rf"\s*(?:{_NUMBER}\s*h)?\s*(?:{_NUMBER}\s*m(?:in)?)?\s*(?:{_NUMBER}\s*s?)?\s*"


def parse_bytes(size: int | float | str) -> int:
    """Bytes from a number or from text such as "500MB", "2 GB" (powers of 1000) or "1GiB" (powers of 1024)."""
    if isinstance(size, str):
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([kmgt]i?)?b?\s*", size, flags=re.IGNORECASE)
        value = float(match[1]) * _UNITS[(match[2] or "").lower()] if match else 0.0
    elif isinstance(size, Real) and not isinstance(size, bool):
        value = float(size)
    else:
        value = 0.0
    if not 1.0 <= value < float("inf"):
        raise ValueError(f'a memory size must be a positive number of bytes or text such as "2GB", got {size!r}')
    return int(value)


def parse_seconds(duration: int | float | str | None) -> float:
    """Seconds from a number or from text such as "90s", "5m", "1.5h" or "1h30m"; infinity for None."""
    if duration is None:
        return math.inf
    value = math.nan
    if isinstance(duration, str):
        match = re.fullmatch(_DURATION, duration, flags=re.IGNORECASE)
        if match and match[0].strip():
            value = sum(float(part) * unit for part, unit in zip(match.groups(), (3600, 60, 1), strict=True) if part)
    elif isinstance(duration, Real) and not isinstance(duration, bool):
        value = float(duration)
    if not value > 0.0:
        raise ValueError(
            f'a time limit must be a positive number of seconds, text such as "5m", or None, got {duration!r}'
        )
    return value


def written(limit: int | float | str | None, unit: str) -> str | None:
    """A limit as the user wrote it; numbers get their unit. None where there is no limit."""
    return limit if limit is None or isinstance(limit, str) else f"{limit:g}{unit}"


def memory_budget(limit: int | float | str | None, device: torch.device) -> int:
    """The limit in bytes; without one, half of the memory that is free on the device."""
    return parse_bytes(limit) if limit is not None else free_memory(device) // 2


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory could not be allocated; on a CPU torch has no class of its own for that."""
    torch = sys.modules.get("torch")  # where nobody has imported it, nobody raises its exceptions
    kinds = (MemoryError,) if torch is None else (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, kinds) or "can't allocate memory" in str(error)


def free_memory(device: torch.device) -> int:
    """Bytes that can be allocated now without swapping."""
    if device.type == "cuda":
        return int(sys.modules["torch"].cuda.mem_get_info(device)[0])  # whose device this is
    try:
        meminfo = Path("/proc/meminfo").read_text(encoding="ascii")
        kilobytes = next(line.split()[1] for line in meminfo.splitlines() if line.startswith("MemAvailable:"))
        return min(int(kilobytes) * 1024, _left_in_container())
    except (OSError, StopIteration):  # not Linux: there is no portable way to ask what is free
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return MODEST_MACHINE


def _left_in_container() -> int:
    """What a container's memory limit leaves, where there is one."""
    try:
        limit, used = (int(Path("/sys/fs/cgroup", f"memory.{name}").read_text()) for name in ("max", "current"))
        return max(limit - used, 0)
    except (OSError, ValueError):  # no such files, or "max" for no limit
        return sys.maxsize
