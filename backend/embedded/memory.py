"""How much memory may still be used, and the refusal to start without enough of it.

Running into the limit half-way through loading ends in a kill without a word; a sentence before is
better. Container limits count as well as the machine's memory.
"""

from pathlib import Path

from backend.config import Config
from backend.embedded.weights import WeightsError
from backend.profiles import PROFILES

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


class MemoryShort(WeightsError):
    """There is too little memory for the weights."""


def require_memory(config: Config, available: int | None = None) -> None:
    """Check that there is memory for the engine of an embedded profile and its prefix cache.

    Args:
        config: the settings, with the profile's own model.
        available: free memory in bytes; asked of the system by default.

    Raises:
        MemoryShort: there is less; the message says what to do.
    """
    free = available_memory() if available is None else available
    profile, cache = config.selected, config.prefix_cache_bytes
    needed = profile.memory_bytes + cache
    if free is None or free >= needed:
        return
    lighter = [
        f", or use the lighter profile {other.name} "
        f"({(other.memory_bytes + cache) / 1e9:.1f} GB, rough answers)"
        for other in PROFILES.values()
        if other.engine == "embedded" and other.memory_bytes < profile.memory_bytes
    ]
    raise MemoryShort(
        f"The profile {profile.name} needs {needed / 1e9:.1f} GB of free memory, {cache / 1e9:.1f} "
        f"GB of it for cached prefixes (OPENJEV_PREFIX_CACHE_BYTES), but only {free / 1e9:.1f} GB "
        f"are available. Free some memory or lower that setting{''.join(lighter)}."
    )


def available_memory(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int | None:
    """Memory this process may still use, in bytes; `None` where the system does not say.

    Args:
        meminfo: the kernel's account of the machine's memory.
        cgroup: the control group's directory (version 2, or the root of a version 1 hierarchy).
    """
    limits = [_machine(meminfo), _container(cgroup), _container_v1(cgroup / "memory")]
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None


def _machine(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _container(directory: Path) -> int | None:
    return _left(directory / "memory.max", directory / "memory.current", directory / "memory.stat")


def _container_v1(directory: Path) -> int | None:
    return _left(
        directory / "memory.limit_in_bytes",
        directory / "memory.usage_in_bytes",
        directory / "memory.stat",
    )


def _left(limit: Path, used: Path, statistics: Path) -> int | None:
    """What a control group has left; file pages that can be dropped count as free."""
    try:
        total, taken = limit.read_text().strip(), int(used.read_text())
        lines = statistics.read_text().splitlines()
    except (OSError, ValueError):
        return None
    if not total.isdecimal():  # "max": no limit
        return None
    droppable = sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
    return max(0, int(total) - taken + droppable)
