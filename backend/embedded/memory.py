"""How much memory may still be used, and the refusal to start without enough of it.

Running into the limit half-way through loading ends in a kill without a word; a sentence before is
better. Container limits count as well as the machine's memory.
"""

from pathlib import Path

from backend.embedded.weights import WeightsError
from backend.profiles import PROFILES, Profile

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


class MemoryShort(WeightsError):
    """There is too little memory for the weights."""


def require_memory(profile: Profile, available: int | None = None) -> None:
    """Check that the engine of an embedded profile has the memory it needs.

    Args:
        profile: whose `memory_bytes` are needed.
        available: free memory in bytes; asked of the system by default.

    Raises:
        MemoryShort: there is less; the message says what to do.
    """
    free = available_memory() if available is None else available
    if free is None or free >= profile.memory_bytes:
        return
    lighter = [
        f"{other.name} ({other.memory_bytes / 1e9:.1f} GB, rough answers)"
        for other in PROFILES.values()
        if other.engine == "embedded" and other.memory_bytes < profile.memory_bytes
    ]
    advice = f", or use the lighter profile {' or '.join(lighter)}" if lighter else ""
    raise MemoryShort(
        f"The profile {profile.name} needs {profile.memory_bytes / 1e9:.1f} GB of free memory, but "
        f"only {free / 1e9:.1f} GB are available. Free some memory{advice}."
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
