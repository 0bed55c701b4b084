"""Every benchmark in one go, what each prints kept in a folder.

    python -m benchmarks [--output bench-results] [--only api growth] [--profile embedded]

One after another, because two at a time would measure each other. Ends with exit code 1 if one of
them does, which they do when they miss a goal.
"""

import argparse
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from backend.config import load_config
from backend.embedded.threads import available_cores
from backend.embedded.weights import locate
from backend.profiles import PROFILES

ROOT = Path(__file__).resolve().parents[1]


def steps(output: Path) -> Mapping[str, Sequence[str]]:
    """The benchmarks in their order: name, and what follows `python -m benchmarks.`."""
    return {
        "api": (
            *("api", "--output", f"{output}/api.json"),
            *("--picture", f"{output}/api.svg"),
        ),
        "growth": (
            *("api.growth", "--output", f"{output}/growth.json"),
            *("--picture", f"{output}/growth.svg"),
        ),
        "stalls": ("api.stalls",),
        "endurance": ("api.endurance",),
        "transport": ("transport",),
        "embedded": ("embedded", "--gguf", "{gguf}", "--output", f"{output}/embedded.json"),
    }


def machine() -> str:
    """What it runs on, and how busy that is: no figure means anything without it."""
    told = Path("/proc/cpuinfo").read_text() if sys.platform == "linux" else ""
    names = [line.partition(":")[2].strip() for line in told.splitlines() if "model name" in line]
    cores, memory = available_cores(), psutil.virtual_memory().total / 2**30
    busy = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    return (
        f"{names[0] if names else platform.machine()}, {cores} cores, {memory:.0f} GiB, "
        f"Python {platform.python_version()}; load of the last minutes: {busy}"
    )


def run(name: str, command: Sequence[str], output: Path) -> int:
    """Run one benchmark; show what it prints and keep it; return its exit code."""
    print(f"\n== {name}: python -m benchmarks.{' '.join(command)}", flush=True)
    begun = time.monotonic()
    with (output / f"{name}.txt").open("w") as kept:
        process = subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.{command[0]}", *command[1:]],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                kept.write(line)
            code = process.wait()
        finally:
            process.terminate()
            process.wait()
    print(f"== {name} took {time.monotonic() - begun:.0f} s, exit code {code}", flush=True)
    return code


def main() -> int:
    """Run what was asked for; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, default=ROOT / "bench-results", metavar="FOLDER")
    parser.add_argument("--only", nargs="+", choices=list(steps(Path())), metavar="NAME")
    parser.add_argument(
        "--profile",
        choices=[name for name, profile in PROFILES.items() if profile.engine == "embedded"],
        default="embedded",
        help="whose weights the embedded engine is measured with",
    )
    options = parser.parse_args()
    # ended from outside, this process still ends what it started
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    output = options.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    about = machine()
    (output / "machine.txt").write_text(about + "\n")
    print(about)
    failed = []
    for name, command in steps(output).items():
        if options.only and name not in options.only:
            continue
        if "{gguf}" in command:
            config, _ = load_config({**os.environ, "OPENJEV_PROFILE": options.profile})
            gguf = str(locate(config))
            command = [gguf if part == "{gguf}" else part for part in command]
        if run(name, command, output):
            failed.append(name)
    print(f"\nAll of it lies in {output}.")
    if failed:
        print(f"Missed a goal, or failed: {', '.join(failed)}.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
