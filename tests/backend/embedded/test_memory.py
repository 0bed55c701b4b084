"""What counts as available memory, and the refusal that names the lighter profile."""

from pathlib import Path

import pytest

from backend.config import Config, load_config
from backend.embedded.memory import MemoryShort, available_memory, require_memory
from backend.embedded.weights import WeightsError

GIB = 2**30


def meminfo(directory: Path, kilobytes: int) -> Path:
    path = directory / "meminfo"
    path.write_text(f"MemTotal: 99 kB\nMemAvailable:  {kilobytes} kB\n")
    return path


def control_group(directory: Path, names: tuple[str, str], limit: str, used: int) -> Path:
    directory.mkdir(parents=True)
    (directory / names[0]).write_text(f"{limit}\n")
    (directory / names[1]).write_text(f"{used}\n")
    (directory / "memory.stat").write_text("anon 5\ninactive_file 100\nactive_file 7\n")
    return directory


def test_machine_alone(tmp_path: Path) -> None:
    assert available_memory(meminfo(tmp_path, 10), tmp_path) == 10 * 1024


def test_container_limit_counts_and_its_file_pages_are_free(tmp_path: Path) -> None:
    group = control_group(tmp_path / "two", ("memory.max", "memory.current"), "5000", 2000)
    assert available_memory(meminfo(tmp_path, 10), group) == 3100
    one = tmp_path / "one"
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
    control_group(one / "memory", names, "4000", 2000)
    assert available_memory(meminfo(tmp_path, 10), one) == 2100


def test_unlimited_container_does_not_count(tmp_path: Path) -> None:
    group = control_group(tmp_path / "two", ("memory.max", "memory.current"), "max", 2000)
    assert available_memory(meminfo(tmp_path, 10), group) == 10 * 1024


def test_unknown_system_is_not_refused(tmp_path: Path) -> None:
    assert available_memory(tmp_path / "none", tmp_path) is None
    (tmp_path / "empty").write_text("")
    assert available_memory(tmp_path / "empty", tmp_path) is None


def test_this_machine_has_memory() -> None:
    available = available_memory()
    assert available is None or available > 0


def settings(profile: str, **environ: str) -> Config:
    return load_config({"OPENJEV_PROFILE": profile, **environ})[0]


def test_short_memory_names_the_lighter_profile() -> None:
    with pytest.raises(MemoryShort, match=r"only 1\.1 GB are available.*embedded-0\.5b") as caught:
        require_memory(settings("embedded"), GIB)
    assert isinstance(caught.value, WeightsError)
    with pytest.raises(MemoryShort, match=r"lower that setting\.$"):
        require_memory(settings("embedded-0.5b"), GIB)


def test_cached_prefixes_count_as_they_are_set() -> None:
    require_memory(settings("embedded"), 4 * GIB)
    with pytest.raises(MemoryShort, match=r"6\.3 GB.*4\.3 GB of it.*OPENJEV_PREFIX_CACHE_BYTES"):
        require_memory(settings("embedded", OPENJEV_PREFIX_CACHE_BYTES=str(4 * GIB)), 4 * GIB)
    require_memory(settings("embedded", OPENJEV_PREFIX_CACHE_BYTES="0"), 2 * GIB)
