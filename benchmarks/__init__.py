"""Measurements of OpenJev, each a program of its own: `python -m benchmarks.NAME`.

Most need more than OpenJev does. Whichever is started says so in a sentence, and not with a
traceback, where something of that is missing.
"""

import sys
from importlib.util import find_spec
from types import TracebackType

_usual = sys.excepthook


def tell_missing(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Say what to install, where the program ends because a package is not installed."""
    name = (getattr(error, "name", None) or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or not name or find_spec(name):
        _usual(kind, error, trace)
        return
    print(
        f"{name} is not installed, which this benchmark needs. Run `{sys.executable} -m pip "
        "install -r requirements-bench.txt`.",
        file=sys.stderr,
    )


sys.excepthook = tell_missing
