"""What Django's own ASGI handler costs beside ours, through all wrappers of the edge, no server.

    python -m benchmarks.handler [--requests 400] [--rounds 5] 2>/dev/null

The two take turns in one process; prints the CPU time of the process per request, the least of all
rounds, in milliseconds. The log lines of the refusals go to standard error. Needs no more than
OpenJev does.
"""

import argparse
import asyncio
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, cast
from unittest.mock import patch

import django
from asgiref.typing import ASGI3Application, HTTPScope
from django import db
from django.core import signals
from django.core.cache import close_caches
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.base import reset_urlconf

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "openjev_site.settings")
django.setup()

from django.conf import settings  # noqa: E402

from evaluations.runtime import get_runtime  # noqa: E402
from openjev_site.edge import build_application  # noqa: E402
from openjev_site.handler import Handler  # noqa: E402

_REQUESTS = (
    ("GET", "/health/live", b"", 200),
    ("GET", "/v1/limits", b"", 200),
    ("POST", "/v1/systemone", b"{}", 422),
)
# what Django connects, and `openjev_site.handler` takes away
_RECEIVERS = (
    (signals.request_started, db.reset_queries),
    (signals.request_started, db.close_old_connections),
    (signals.request_finished, db.close_old_connections),
    (signals.request_finished, close_caches),
    (signals.request_finished, reset_urlconf),
)


@contextmanager
def usual_receivers() -> Iterator[None]:
    """Connect what Django connects, while the context lasts."""
    for signal, receiver in _RECEIVERS:
        signal.connect(receiver)
    try:
        yield
    finally:
        for signal, receiver in _RECEIVERS:
            signal.disconnect(receiver)


def application(handler: type[ASGIHandler]) -> ASGI3Application:
    """The product's application around another handler."""
    with patch("openjev_site.edge.Handler", handler):
        return build_application(settings.OPENJEV, get_runtime)


async def ask(app: ASGI3Application, method: str, path: str, body: bytes) -> int:
    """Make one request as a server would; return the status."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 8000),
    }
    waiting = [{"type": "http.request", "body": body, "more_body": False}]
    statuses: list[int] = []

    async def receive() -> Any:
        if not waiting:
            await asyncio.Event().wait()
        return waiting.pop()

    async def send(event: Any) -> None:
        if event["type"] == "http.response.start":
            statuses.append(event["status"])

    await app(cast("HTTPScope", scope), receive, send)
    return statuses[0]


async def cpu_per_request(
    app: ASGI3Application, request: tuple[str, str, bytes, int], requests: int
) -> float:
    """Milliseconds of this process, threads included, for each of `requests`."""
    method, path, body, expected = request
    begun = time.process_time()
    for _ in range(requests):
        assert await ask(app, method, path, body) == expected
    return (time.process_time() - begun) / requests * 1e3


async def measure(requests: int, rounds: int) -> Mapping[tuple[str, str], list[float]]:
    """The times of each path for each handler, by their names."""
    stock, lean = application(ASGIHandler), application(Handler)
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for name, app, receivers in (
            ("Django's", stock, usual_receivers()),
            ("ours", lean, nullcontext()),
        ):
            with receivers:
                for request in _REQUESTS:
                    await cpu_per_request(app, request, 1)  # whatever is made at the first
                    taken = await cpu_per_request(app, request, requests)
                    times.setdefault((request[1], name), []).append(taken)
    return times


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    times = asyncio.run(measure(options.requests, options.rounds))
    for (path, name), taken in sorted(times.items()):
        print(f"{path:16} {name:8} {min(taken):.2f} ms of CPU per request")


if __name__ == "__main__":
    main()
