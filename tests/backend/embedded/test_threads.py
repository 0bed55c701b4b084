"""How many cores count, and a pool that shares jobs and reports their errors."""

import os
import threading
from pathlib import Path

import pytest

from backend.embedded.threads import ComputePool, Scratch, available_cores


@pytest.fixture
def four_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)


def topology(directory: Path) -> Path:
    """Two cores with two hardware threads each."""
    for cpu in range(4):
        path = directory / f"cpu{cpu}" / "topology"
        path.mkdir(parents=True)
        (path / "thread_siblings_list").write_text(f"{cpu % 2},{cpu % 2 + 2}\n")
    return directory


@pytest.mark.usefixtures("four_processors")
def test_hyper_threads_count_once(tmp_path: Path) -> None:
    assert available_cores(tmp_path, topology(tmp_path / "cpus")) == 2
    assert available_cores(tmp_path, tmp_path / "unknown") == 4


@pytest.mark.usefixtures("four_processors")
@pytest.mark.parametrize(
    ("quota", "cores"), [("150000 100000", 2), ("50000 100000", 1), ("max 100000", 4), ("odd", 4)]
)
def test_container_quota_counts(tmp_path: Path, quota: str, cores: int) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    assert available_cores(tmp_path, tmp_path / "unknown") == cores


@pytest.mark.usefixtures("four_processors")
@pytest.mark.parametrize(("quota", "cores"), [("300000", 3), ("-1", 4)])
def test_old_container_quota_counts(tmp_path: Path, quota: str, cores: int) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert available_cores(tmp_path, tmp_path / "unknown") == cores


def test_system_without_affinity(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert available_cores(tmp_path, tmp_path) == 3


@pytest.mark.parametrize("threads", [1, 3])
def test_every_job_is_done_once(threads: int) -> None:
    pool = ComputePool(threads)
    done: list[int] = []
    pool.run(lambda job, scratch: done.append(job), range(100))
    pool.run(lambda job, scratch: done.append(job), [])
    pool.close()
    assert sorted(done) == list(range(100))


def test_threads_really_work_side_by_side() -> None:
    pool = ComputePool(2)
    both = threading.Barrier(2, timeout=20)
    pool.run(lambda job, scratch: both.wait(), range(2))
    pool.close()
    assert not both.broken


@pytest.mark.parametrize("threads", [1, 2])
def test_error_of_a_job_is_raised_and_the_rest_dropped(threads: int) -> None:
    pool = ComputePool(threads)
    done: list[int] = []

    def work(job: int, scratch: Scratch) -> None:
        if job == 0:
            raise ValueError("no")
        done.append(job)

    with pytest.raises(ValueError, match="no"):
        pool.run(work, range(10**5))
    assert len(done) < 10**5
    pool.run(work, [1])
    pool.close()


def test_error_in_another_thread_is_raised() -> None:
    pool = ComputePool(2)
    caller = threading.get_ident()
    entered = threading.Barrier(2, timeout=20)

    def work(job: int, scratch: Scratch) -> None:
        entered.wait()
        if threading.get_ident() != caller:
            raise ValueError("elsewhere")

    with pytest.raises(ValueError, match="elsewhere"):
        pool.run(work, range(2))
    pool.close()


@pytest.mark.parametrize("count", [0, 1, 31, 64, 1000])
def test_rows_are_shared_without_gap_or_overlap(count: int) -> None:
    pool = ComputePool(3)
    ranges: list[slice] = []
    pool.run_rows(ranges.append, count)
    pool.close()
    rows = [row for part in sorted(ranges, key=lambda r: r.start) for row in range(count)[part]]
    assert rows == list(range(count))
    assert len(ranges) == (1 if count < 64 else min(3, count // 32))


def test_scratch_is_reused_and_grows() -> None:
    scratch = Scratch()
    first = scratch.floats((4, 2))
    assert scratch.floats((3,)).base is first.base
    assert scratch.floats((100,)).shape == (100,)
    assert scratch.codes((2, 2)).dtype == "uint8"
    assert scratch.codes((2,)).shape == (2,)
