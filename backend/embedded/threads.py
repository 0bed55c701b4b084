"""How many threads may compute, and the small pool they work in.

NumPy's element-wise loops run on one core and BLAS parallelises only its own products. Here each
thread does both for its own piece of a layer, so BLAS itself must stay single-threaded (see
`single_threaded_blas`). The calling thread works too; idle threads block and cost nothing.
"""

import math
import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

Job = TypeVar("Job")
_CGROUP = Path("/sys/fs/cgroup")
_CPUS = Path("/sys/devices/system/cpu")
# Waking another thread takes about as long as element-wise work on so many rows.
_ROWS_WORTH_A_THREAD = 32


def single_threaded_blas() -> None:
    """Keep BLAS to the calling thread, for the rest of the process."""
    threadpool_limits(limits=1, user_api="blas")


def available_cores(cgroup: Path = _CGROUP, cpus: Path = _CPUS) -> int:
    """Physical cores this process may use: affinity, container quota and hyper-threads counted.

    Args:
        cgroup: where the kernel shows the limits of the process's control group.
        cpus: where the kernel shows which processors share a core.
    """
    if hasattr(os, "sched_getaffinity"):
        allowed = os.sched_getaffinity(0)
    else:  # macOS and Windows have no affinity to ask for
        allowed = set(range(os.cpu_count() or 1))
    cores = {_core_of(cpu, cpus) for cpu in allowed}
    return max(1, min(len(cores), _quota(cgroup)))


def _core_of(cpu: int, cpus: Path) -> str:
    try:
        return (cpus / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _quota(cgroup: Path) -> int:
    """CPUs' worth of time the control group (v2, then v1) may use, rounded up."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return 2**16
    if not quota.isdecimal() or not period.isdecimal():  # "max", or -1 in v1: no limit
        return 2**16
    return max(1, math.ceil(int(quota) / int(period)))


class Scratch:
    """Buffers of one thread that are reused from job to job, so that they stay in its cache."""

    def __init__(self) -> None:
        self._floats = np.empty(0, np.float32)
        self._codes = np.empty(0, np.uint8)

    def floats(self, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """An uninitialised float32 array; it is overwritten by the thread's next job."""
        count = math.prod(shape)
        if count > self._floats.size:
            self._floats = np.empty(count, np.float32)
        return self._floats[:count].reshape(shape)

    def codes(self, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
        """An uninitialised uint8 array; it is overwritten by the thread's next job."""
        count = math.prod(shape)
        if count > self._codes.size:
            self._codes = np.empty(count, np.uint8)
        return self._codes[:count].reshape(shape)


class ComputePool:
    """Threads that share lists of independent jobs.

    Attributes:
        threads: how many, the calling thread included.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._scratch = [Scratch() for _ in range(threads)]
        self._others = ThreadPoolExecutor(max(1, threads - 1), "compute")

    def run(self, work: Callable[[Job, Scratch], None], jobs: Iterable[Job]) -> None:
        """Do `work` on every job and return when all are done; only one caller at a time.

        Raises:
            Exception: the first one a job raised; jobs not yet begun are dropped.
        """
        waiting = deque(jobs)

        def share(scratch: Scratch) -> None:
            try:
                while True:
                    try:
                        job = waiting.popleft()
                    except IndexError:
                        return
                    work(job, scratch)
            except BaseException:
                waiting.clear()
                raise

        helpers = min(self.threads, len(waiting)) - 1
        others = [self._others.submit(share, self._scratch[1 + n]) for n in range(helpers)]
        try:
            share(self._scratch[0])
        finally:
            errors = [other.exception() for other in others]
        for error in errors:
            if error is not None:
                raise error

    def run_rows(self, work: Callable[[slice], None], count: int) -> None:
        """Do `work` on ranges that together make up `count` rows, one range for each thread.

        For work that takes microseconds a row: few rows are left to the calling thread.
        """
        pieces = max(1, min(self.threads, count // _ROWS_WORTH_A_THREAD))
        bounds = [count * piece // pieces for piece in range(pieces + 1)]
        self.run(lambda rows, _: work(rows), [slice(*both) for both in pairwise(bounds)])

    def close(self) -> None:
        """End the threads; a running job is finished first."""
        self._others.shutdown()
