#!/usr/bin/env python3
"""Entry point for Django's management commands (`runbackend`, `smoke`, `check`, `spectacular`)."""

import os
import signal
import sys

_INTERRUPTED = 130


def main() -> None:
    """Run a command. A signal to end is no failure: what is open is closed, and nothing is shown.

    A command may handle signals in its own way.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup has the hang-up ignored
            signal.signal(number, signal.default_int_handler)
    try:
        from django.core.management import execute_from_command_line  # takes a while

        execute_from_command_line(sys.argv)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # only Python's own end is left


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "openjev_site.settings")
    main()
