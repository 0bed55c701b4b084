"""What prefix reuse and packing save on the embedded engine, and what the engine costs.

    python -m benchmarks.embedded --gguf PATH [--prefix 500 --questions 4 --question-tokens 65]

One state of `--prefix` tokens, `--questions` questions of `--question-tokens` tokens each; random
token ids, because the arithmetic does not depend on what they mean. In one process, in this order:

* alone: every question with the whole prompt and no cache (`--alone` of them are measured, and the
  time is scaled to all);
* sequential: the state once, then the questions one after another on the cached prefix;
* packed: the state once, then all questions at once (what the product does);
* again: only the questions, at once, on the prefix that is still cached.

Prints seconds, ratios, prefill speed, memory, loading time, and by how much the label probabilities
of the ways differ. Each figure is a single run; trust the ratios, which come from one process.
"""

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from backend.embedded.model import Model
from backend.embedded.requests import Request, Result
from backend.embedded.scheduler import Scheduler
from backend.embedded.threads import ComputePool, available_cores, single_threaded_blas

LABELS = 26
FOREVER = 3600.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit code."""
    options = _parser().parse_args(arguments)
    single_threaded_blas()
    threads = options.threads or available_cores()
    pool = ComputePool(threads)
    begin = time.perf_counter()
    model = Model(options.gguf, pool)
    report: dict[str, Any] = {
        "model": options.gguf.name,
        "threads": threads,
        "prefix_tokens": options.prefix,
        "questions": options.questions,
        "question_tokens": options.question_tokens,
        "load_seconds": time.perf_counter() - begin,
        "weight_megabytes": model.weight_bytes / 1e6,
    }
    generator = np.random.default_rng(0)
    vocabulary = model.architecture.vocabulary
    state = generator.integers(0, vocabulary, options.prefix).tolist()
    suffixes = generator.integers(
        0, vocabulary, (options.questions, options.question_tokens)
    ).tolist()
    labels = generator.integers(0, vocabulary, LABELS).tolist()
    report |= _measure(model, state, suffixes, labels, options.alone)
    report["resident_megabytes"] = _resident() / 1e6
    print(json.dumps(report, indent=2))
    if options.output:
        options.output.write_text(json.dumps(report, indent=2) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.embedded",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--gguf", type=Path, required=True, help="the weights file")
    parser.add_argument("--prefix", type=int, default=500, help="tokens of the state")
    parser.add_argument("--questions", type=int, default=4)
    parser.add_argument("--question-tokens", type=int, default=65)
    parser.add_argument("--alone", type=int, default=1, help="questions measured alone; 0: none")
    parser.add_argument("--threads", type=int, default=None, help="default: cores available")
    parser.add_argument("--output", type=Path, default=None, help="also write the JSON here")
    return parser


def _measure(
    model: Model, state: list[int], suffixes: list[list[int]], labels: list[int], alone: int
) -> dict[str, Any]:
    prompts = [state + suffix for suffix in suffixes]

    def run(*steps: Callable[[Scheduler], list[Result]], cache_bytes: int = 2**32) -> list[_Step]:
        scheduler = Scheduler(lambda stop: model, cache_bytes=cache_bytes, queue_limit=10**4)
        scheduler.start()
        scheduler.ready.result(FOREVER)
        timed = []
        for step in steps:
            begin = time.perf_counter()
            results = step(scheduler)
            timed.append(_Step(time.perf_counter() - begin, results))
        scheduler.close()
        return timed

    def together(scheduler: Scheduler, several: list[list[int]]) -> list[Result]:
        requests = [Request(str(n), tuple(ids), tuple(labels)) for n, ids in enumerate(several)]
        scheduler.submit(requests)
        return [request.future.result(FOREVER) for request in requests]

    def in_turn(scheduler: Scheduler, several: list[list[int]]) -> list[Result]:
        return [result for ids in several for result in together(scheduler, [ids])]

    def read_state(scheduler: Scheduler) -> list[Result]:
        return together(scheduler, [state])

    def ask_in_turn(scheduler: Scheduler) -> list[Result]:
        return in_turn(scheduler, prompts)

    def ask_together(scheduler: Scheduler) -> list[Result]:
        return together(scheduler, prompts)

    run(lambda scheduler: together(scheduler, [state[:8]]))  # first use of everything
    prefill, one_by_one = run(read_state, ask_in_turn)
    prefill_again, packed, again = run(read_state, ask_together, ask_together)
    sequential_seconds = prefill.seconds + one_by_one.seconds
    packed_seconds = prefill_again.seconds + packed.seconds
    report: dict[str, Any] = {
        "prefill_tokens_per_second": len(state) / min(prefill.seconds, prefill_again.seconds),
        "sequential_seconds": sequential_seconds,
        "packed_seconds": packed_seconds,
        "again_seconds": again.seconds,
        "cached_tokens_again": sorted({result.cached_tokens for result in again.results}),
        "sequential_to_packed": sequential_seconds / packed_seconds,
        "questions_sequential_to_packed": one_by_one.seconds / packed.seconds,
        "packed_difference": _difference(one_by_one.results, packed.results),
    }
    if alone:
        (single,) = run(lambda scheduler: in_turn(scheduler, prompts[:alone]), cache_bytes=0)
        seconds = single.seconds * len(prompts) / alone
        report["alone_measured"] = alone
        report["alone_seconds"] = seconds
        report["alone_to_packed"] = seconds / packed_seconds
        report["cached_difference"] = _difference(single.results, packed.results[:alone])
    return report


@dataclass(frozen=True, slots=True)
class _Step:
    seconds: float
    results: list[Result]


def _difference(left: Sequence[Result], right: Sequence[Result]) -> float:
    """Largest difference of normalised label probabilities."""
    pairs = zip(left, right, strict=True)
    return max(float(np.abs(_normalised(a) - _normalised(b)).max()) for a, b in pairs)


def _normalised(result: Result) -> np.ndarray[Any, np.dtype[np.float64]]:
    weights = np.exp(np.array(result.logprobs) - max(result.logprobs))
    normalised: np.ndarray[Any, np.dtype[np.float64]] = weights / weights.sum()
    return normalised


def _resident() -> int:
    """Memory of this process in bytes: now where Linux says so, else at its peak."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return pages * resource.getpagesize()


if __name__ == "__main__":
    sys.exit(main())
