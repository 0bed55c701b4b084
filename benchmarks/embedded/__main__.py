"""What the embedded engine costs, what prefix reuse and packing save, and how cost grows.

    python -m benchmarks.embedded --gguf PATH [--only prefill ways growth] [--rounds 3]

Three parts, all in one process, with random tokens:

* prefill: reading a state, beside the bare matrix products of the model's linear layers;
* ways: the same questions alone, one by one on the cached state, packed, and packed again;
* growth: a request with 1 to 64 questions, and with a state of 100 to 8,000 tokens (one run each).

Times are seconds on the clock, with seconds of processor time (all threads) in brackets. Ends with
the goals, and exit code 1 if one is missed; those that are set for the default sizes are not
judged at others. Trust the ratios: what is compared takes turns, or where it does not, is compared
by its processor time.
"""

import argparse
import json
import resource
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from backend.embedded.model import Model
from backend.embedded.threads import ComputePool, available_cores, single_threaded_blas
from benchmarks.api.goals import Goal, settle
from benchmarks.embedded import growth, prefill, ways
from benchmarks.embedded.asking import Asked, Work
from benchmarks.embedded.taken import timed

_PARTS = ("prefill", "ways", "growth")
_APART = 1e-5
_RESIDENT_MB = 3000


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, judge."""
    parser = _parser()
    options = parser.parse_args(arguments)

    def is_usual(*sizes: str) -> bool:
        return all(getattr(options, size) == parser.get_default(size) for size in sizes)

    is_usual_shape = is_usual("prefix", "questions", "question_tokens")
    single_threaded_blas()
    pool = ComputePool(options.threads or available_cores())
    loading, model = timed(lambda: Model(options.gguf, pool))
    idle = _resident()
    print(
        f"{options.gguf.name}, {pool.threads} threads: loaded in {loading.seconds:.1f} s, "
        f"{model.weight_bytes / 1e6:.0f} MB of weights, {idle / 1e6:.0f} MB resident"
    )
    work = Work.random(
        model.architecture.vocabulary,
        state=options.prefix,
        questions=options.questions,
        question_tokens=options.question_tokens,
    )
    with Asked(model, work.labels) as engine:  # first use of everything
        engine.together([work.state[:8]])
    report: dict[str, Any] = {"model": options.gguf.name, "threads": pool.threads}
    goals: list[Goal] = []
    if "ways" in options.only:
        asked = ways.measure(model, work, options.rounds)
        shape = f"{options.prefix} tokens, {options.questions} x {options.question_tokens}"
        print(f"\n{shape}\n\n{asked}", flush=True)
        report["ways"] = asdict(asked)
        goals += [
            Goal("questions packed to one by one", asked.packing, 0.75, applies=is_usual_shape),
            Goal(
                "second request on a cached state to the first",
                asked.repeating,
                0.3,
                applies=is_usual_shape,
            ),
            Goal("difference of probabilities between the ways", asked.apart, _APART),
        ]
    goals.append(
        Goal(
            "resident MB, cache of one state included",
            _resident() / 1e6,
            _RESIDENT_MB,
            applies=is_usual_shape,
        )
    )
    if "growth" in options.only:
        report |= _growth(
            model, options.question_tokens, goals, is_usual=is_usual("question_tokens")
        )
    if "prefill" in options.only:  # last, because ready-made float32 weights take memory
        products = prefill.BareProducts(options.gguf, pool)
        read = prefill.measure(model, products, work.state, options.rounds)
        print(f"\n{read}", flush=True)
        report["prefill"] = asdict(read)
        goals.append(
            Goal(
                "prefill to bare products",
                read.share,
                0.75,
                at_least=True,
                applies=is_usual("prefix"),
            )
        )
    if options.output:
        options.output.write_text(json.dumps(report, indent=2) + "\n")
    print()
    settle(goals)


def _growth(
    model: Model, question_tokens: int, goals: list[Goal], *, is_usual: bool
) -> dict[str, Any]:
    vocabulary, most = model.architecture.vocabulary, growth.QUESTIONS[-1]
    many = Work.random(vocabulary, state=2000, questions=most, question_tokens=question_tokens)
    by_questions = growth.over_questions(model, many)
    print(f"\n{growth.table(by_questions)}", flush=True)
    saved = growth.to_single(by_questions[-1], by_questions[0])
    what = f"{most} questions in one request to {most} requests"
    goals.append(Goal(what, saved, 0.25, applies=is_usual))
    few = Work.random(
        vocabulary, state=growth.STATES[-1], questions=4, question_tokens=question_tokens
    )
    by_states = growth.over_states(model, few)
    print(f"\n{growth.table(by_states)}", flush=True)
    return {
        "by_questions": [asdict(point) for point in by_questions],
        "by_states": [asdict(point) for point in by_states],
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.embedded",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--gguf", type=Path, required=True, help="the weights file")
    parser.add_argument("--only", nargs="+", choices=_PARTS, default=list(_PARTS))
    parser.add_argument("--rounds", type=int, default=3, help="of prefill and ways")
    parser.add_argument("--prefix", type=int, default=2000, help="tokens of the state")
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--question-tokens", type=int, default=60)
    parser.add_argument("--threads", type=int, default=None, help="default: cores available")
    parser.add_argument("--output", type=Path, default=None, help="also write the times as JSON")
    return parser


def _resident() -> int:
    """Memory of this process in bytes: now where Linux says so, else at its peak."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main()
