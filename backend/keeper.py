"""Runs a command and takes its whole process group down once whoever started it is gone.

A program of its own that needs only the standard library: `python -P keeper.py [--remove FILE …]
COMMAND …`, started as the leader of a new session with a pipe as its standard input. The end of
that pipe means that the starter has died, by whatever signal: then the group is killed,
grandchildren included. (Linux' parent-death signal reaches only the direct child, and other systems
have none.) Requests to end are passed on to the command. The files to remove, which hold secrets of
the starter's, are gone once either has ended. The keeper never writes to standard output, which
belongs to the command.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress

NOT_FOUND = 127
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(argv: list[str]) -> int:
    """Run a command to its end.

    Args:
        argv: the command, perhaps behind `--remove FILE`, once for each file.

    Returns:
        Its exit code; 128 + N when signal N ended it.
    """
    files: list[str] = []
    while argv[0] == "--remove":
        files.append(argv[1])
        argv = argv[2:]
    try:
        return _run(argv, files)
    finally:
        _remove(files)


def _run(argv: list[str], files: list[str]) -> int:
    asked: list[int] = []
    # handlers instead of SIG_IGN: an ignored signal would stay ignored in the command
    for number in _PASSED_ON:
        signal.signal(number, lambda received, _frame: asked.append(received))
    try:
        command = subprocess.Popen(argv, stdin=subprocess.DEVNULL)  # noqa: S603 - the starter's
    except OSError as error:
        print(f"cannot run {argv[0]}: {error.strerror}", file=sys.stderr)
        return NOT_FOUND
    for number in _PASSED_ON:
        signal.signal(number, lambda received, _frame: command.send_signal(received))
    for received in asked:
        command.send_signal(received)
    threading.Thread(target=_end_all_at_end_of_input, args=(files,), daemon=True).start()
    code = command.wait()
    return code if code >= 0 else 128 - code


def _end_all_at_end_of_input(files: list[str]) -> None:
    while os.read(0, 1024):
        pass
    _remove(files)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _remove(files: Iterable[str]) -> None:
    for file in files:
        with suppress(OSError):  # most often the starter has removed it
            os.unlink(file)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
