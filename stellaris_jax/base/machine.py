"""Memory of this machine, the error for work that does not fit, and its processor."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax

from stellaris_jax.base.errors import ConfigError

GIB = 2**30
NAMED = 0.1
"""Share of the total below which the error does not list a part."""
BOUND = 64
"""Bytes of the lower and the upper bound of one number of an observation: Python floats in tuples."""
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files in which Linux states a container's memory limit."""


class Part(NamedTuple):
    """Memory need of one part of the work.

    Attributes:
      what: name of the part, for the error.
      device: bytes on the device.
      host: bytes on the host.
      settings: settings that decide the size, as `key=value`.
    """

    what: str
    device: int
    host: int = 0
    settings: tuple[str, ...] = ()


def return_freed_memory() -> None:
    """Give freed memory back to the system. glibc would keep what is free below memory in use."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def check_fits(parts: Iterable[Part]) -> None:
    """Raise ConfigError, with the sum, if all parts together need more memory than there is."""
    parts, device = list(parts), jax.local_devices()[0]
    if device.platform == "cpu":
        _check({part: part.device + part.host for part in parts}, of_host(), "memory")
        return
    _check({part: part.host for part in parts}, of_host(), "memory")
    _check({part: part.device for part in parts}, of_device(device), f"memory on the {device.platform}")


def of_host() -> float:
    """Bytes of memory still available to processes here; all memory if that is unknown."""
    try:
        fields = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
        kilobytes = {field[0].rstrip(":"): int(field[1]) for field in fields}
        free = 1024 * (kilobytes["MemAvailable"] + kilobytes["SwapFree"])
    except (OSError, KeyError):
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in map(Path, LIMITS):
        if file.is_file() and (limit := file.read_text().strip()).isdigit():
            free = min(free, int(limit))
    return free


def of_device(device: Any) -> float:
    """Free bytes of an accelerator's memory; infinite if it reports none."""
    stats = device.memory_stats() or {}
    return stats.get("bytes_limit", float("inf")) - stats.get("bytes_in_use", 0)


def _check(parts: dict[Part, int], there_is: float, kind: str) -> None:
    needed = sum(parts.values())
    if needed <= there_is:
        return
    sums = []
    for part, size in sorted(parts.items(), key=lambda item: item[1], reverse=True):
        if size >= NAMED * needed:
            sums.append(f"{_gib(size)} for {part.what} ({', '.join(part.settings)})")
    raise ConfigError(
        f"This takes {_gib(needed)} of {kind} at least, and there are {_gib(there_is)}: {', and '.join(sums)}."
    )


def _gib(size: float) -> str:
    return f"{size / GIB:.3g} GiB"


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def cpu_features() -> str:
    """Model and features of the processor, for which programs are compiled."""
    with suppress(OSError):
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
        return "\n".join(line for line in first if line.startswith(("model", "flags", "Features", "CPU", "vendor")))
    return f"{platform.machine()} {platform.processor()}"
