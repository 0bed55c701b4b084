"""`manage.py runbackend`: the engine and the public API, in one command.

Argument parsing only; `backend.serve` does the work.
"""

import sys
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from typing import Any

from django.core.management.base import BaseCommand, CommandError, DjangoHelpFormatter

from backend.launch import LaunchError
from backend.options import Options
from backend.profiles import DEFAULT_SGLANG_PROFILE, PROFILES
from backend.serve import serve
from backend.serving.servers import SERVERS

_MOST_WORKERS = 64

_HELP = """\
Start the engine and serve the public API.

The profile's model is fetched on the first start and verified on every one. Ctrl-C or SIGTERM
lets running evaluations finish, then ends both with exit code 0; a second one ends both at once,
with 130; if the engine dies, the command ends with 1. Limits, keys and times are set by
OPENJEV_* environment variables: README.md lists them.

Engines of the `embedded` profiles need nothing else. The others need SGLang: name the Python it is
installed for with --sglang-python, or the address of one that runs with --connect. What follows two
dashes goes to SGLang, and replaces what OpenJev would have given it:

  manage.py runbackend --sglang-python /opt/sglang/bin/python -- --mem-fraction-static 0.8

profiles:
"""


class _HelpFormatter(DjangoHelpFormatter, RawDescriptionHelpFormatter):
    """Django's order of options, and the line breaks of the text."""


class Command(BaseCommand):
    """Parse the arguments, then serve."""

    help = _HELP + "\n".join(f"  {p.name:<14} {p.summary}" for p in PROFILES.values())
    requires_system_checks: list[str] = []  # noqa: RUF012 - serve runs them, with --profile applied

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> Any:
        """Keep the line breaks of the help."""
        kwargs["formatter_class"] = _HelpFormatter
        return super().create_parser(prog_name, subcommand, **kwargs)

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "--profile", choices=list(PROFILES), help="model to serve; overrides OPENJEV_PROFILE"
        )
        parser.add_argument(
            "--host",
            default="127.0.0.1",
            help="address of the API (default %(default)s); 0.0.0.0 lets other machines in: set "
            "OPENJEV_API_KEY then",
        )
        parser.add_argument(
            "--port", type=_port, default=8000, help="port of the API (default %(default)s)"
        )
        parser.add_argument(
            "--backend-port",
            type=_port,
            default=30000,
            help="port of the engine, always on loopback (default %(default)s)",
        )
        what = parser.add_mutually_exclusive_group()
        what.add_argument(
            "--connect", metavar="URL", help="use the engine that answers there; start none"
        )
        what.add_argument(
            "--engine-only", action="store_true", help="start only the engine, not the API"
        )
        parser.add_argument(
            "--sglang-python",
            metavar="PATH",
            help=f"start SGLang with this Python; without a profile, {DEFAULT_SGLANG_PROFILE}",
        )
        parser.add_argument(
            "--frontend",
            choices=["rust", "python"],
            help="HTTP front of the SGLang that is started: rust (the default) starts faster, "
            "python checks OPENJEV_BACKEND_API_KEY and counts cached tokens; overrides "
            "OPENJEV_FRONTEND",
        )
        parser.add_argument(
            "--server",
            choices=SERVERS,
            default="daphne",
            help="what serves the API (default %(default)s); uvicorn is faster, and installed with "
            "requirements-fast.txt",
        )
        parser.add_argument(
            "--workers",
            type=_workers,
            default=1,
            metavar="N",
            help="processes that serve the API; all limits hold for them together "
            "(default %(default)s)",
        )
        parser.add_argument(
            "--print-command",
            action="store_true",
            help="show how the engine would be started, and start nothing; without "
            "--sglang-python, PATH_TO_PYTHON stands in its place",
        )
        parser.add_argument(
            "sglang_flags", nargs="*", metavar="FLAG", help="after two dashes: flags for SGLang"
        )

    def handle(self, **options: Any) -> None:
        """Serve until a signal or the engine's end."""
        chosen = Options(
            profile=options["profile"],
            host=options["host"],
            port=options["port"],
            backend_port=options["backend_port"],
            connect=options["connect"],
            engine_only=options["engine_only"],
            sglang_python=options["sglang_python"],
            frontend=options["frontend"],
            server=options["server"],
            workers=options["workers"],
            print_command=options["print_command"],
            sglang_flags=tuple(options["sglang_flags"]),
        )
        try:
            code = serve(chosen, say=self._say, check=self.check)
        except LaunchError as error:
            raise CommandError(str(error)) from None
        except KeyboardInterrupt:
            raise CommandError("Interrupted before anything was started.", returncode=130) from None
        sys.exit(code)

    def _say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise ArgumentTypeError(f"{text!r} is no port: it must be a whole number from 1 to 65535")
    return int(text)


def _workers(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_WORKERS:
        raise ArgumentTypeError(
            f"{text!r} is no number of workers: it must be a whole number from 1 to {_MOST_WORKERS}"
        )
    return int(text)
