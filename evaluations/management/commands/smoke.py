"""`manage.py smoke`: put a running server through the smoke test and say what was found."""

import json
import math
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any

import httpx
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from backend.launch import is_loopback
from backend.setting_values import http_url
from evaluations.smoke import Report, run

_ROUGH = "The server works, but its model is rough: answers marked ✗ above make no sense"
_VERDICTS = {
    "ok": "The server works and its answers make sense.",
    "rough": (
        f"{_ROUGH}. Use a better model, or pass --allow-rough where only the mechanics matter."
    ),
    "failed": "The server does not work as it should.",
}


class Command(BaseCommand):
    """Arguments in, report out; the checks themselves are `evaluations.smoke`."""

    help = (
        "Ask a running server questions of every type and check the answers: their form, their "
        "limits and their meaning. Waits for a server that is still starting. Exits 0 when all is "
        "well and 1 otherwise. Sends OPENJEV_API_KEY as Bearer key when it is set."
    )
    requires_system_checks = "__all__"

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the command line."""
        parser.add_argument(
            "url",
            nargs="?",
            type=_url,
            default="http://127.0.0.1:8000",
            help="base URL (default %(default)s)",
        )
        parser.add_argument(
            "--timeout",
            type=_seconds,
            default=1500,
            help="seconds for everything, waiting included (default %(default)g)",
        )
        parser.add_argument(
            "--output", type=_new_file, metavar="FILE", help="write the report as JSON"
        )
        parser.add_argument(
            "--allow-rough", action="store_true", help="exit 0 also when the answers make no sense"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the smoke test; raises `CommandError` (exit code 1) unless all is well."""
        key = settings.OPENJEV.api_key
        self._say(
            f"Asking {options['url']}, which may take up to {options['timeout']:g} s to be ready."
        )
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        with _client(options["url"], headers) as client:
            report = run(client, timeout=options["timeout"], say=self._say)
        self._print(report)
        if options["output"]:
            _write(report, options["output"])
        if report.verdict == "rough" and options["allow_rough"]:
            self.stdout.write(f"{_ROUGH}, which --allow-rough allows.")
            return
        if report.verdict != "ok":
            raise CommandError(" ".join([_VERDICTS[report.verdict], *report.faults]))
        self.stdout.write(_VERDICTS["ok"])

    def _say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()  # a pipe would keep it back until the end

    def _print(self, report: Report) -> None:
        self.stdout.write(f"{report.url}  {report.model or ''}".rstrip())
        for check in report.checks:
            mark = self.style.SUCCESS("✓") if check.passed else self.style.ERROR("✗")
            self.stdout.write(f"  {mark} {check.kind:9} {check.name} ({check.found})")
        for name, value in _figures(report):
            self.stdout.write(f"  {name}: {value}")


def _client(url: str, headers: dict[str, str]) -> httpx.Client:
    try:
        # no proxy leads to this very machine; what is to be trusted of it may be said there
        address = httpx.URL(url)
        trust_env = address.scheme == "https" or not is_loopback(address.host)
        return httpx.Client(base_url=url, headers=headers, trust_env=trust_env)
    except (OSError, ValueError, ImportError, httpx.InvalidURL) as error:
        raise CommandError(
            "HTTP cannot be used as the environment says (HTTPS_PROXY, NO_PROXY, SSL_CERT_FILE "
            f"and the like): {error}"
        ) from None


def _url(text: str) -> str:
    try:
        return http_url(text)
    except ValueError:
        raise ArgumentTypeError(
            f"{text!r} is no address: it must be one that begins with http:// or https://, "
            "without user, query or fragment"
        ) from None


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ArgumentTypeError(f"{text!r} is no time: it must be a number of seconds above 0")
    return seconds


def _new_file(text: str) -> Path:
    # known now, and not after the minutes that a cold start takes
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise ArgumentTypeError(
            f"{text!r} cannot be written: it must be a file in a directory that exists"
        )
    return path


def _write(report: Report, path: Path) -> None:
    text = json.dumps(report.as_json(), indent=2, ensure_ascii=False)
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise CommandError(
            f"The report could not be written to {path}: {error.strerror}."
        ) from None


def _figures(report: Report) -> list[tuple[str, str]]:
    """What is known, to be read by people; the JSON tells what is not."""
    seconds = {
        "waited": report.wait,
        "start-up": report.startup_seconds,
        "first request": report.latency_cold,
        "second request": report.latency_warm,
    }
    timing = ", ".join(f"{name} {value:.0f} ms" for name, value in report.server_timing.items())
    tokens = {"prefix tokens": report.prefix_tokens, "cached tokens": report.cached_tokens}
    return [
        *((name, f"{value:.2f} s") for name, value in seconds.items() if value is not None),
        *([("server timing", timing)] if timing else []),
        *((name, str(value)) for name, value in tokens.items() if value is not None),
    ]
