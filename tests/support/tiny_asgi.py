"""A tiny ASGI application for tests of the server: health, a slow answer, and a lifespan log.

`/health` asks the engine that the settings name; `/pid` names the process; `/slow` answers after a
second, `/stuck` never; `/hang` blocks the loop; `/reactor-stop` stops Twisted behind our back;
everything else answers at once. On shut-down it waits for requests in flight and prints `drained`.
With `TINY_ASGI_REFUSES` set it refuses to start; with `TINY_ASGI_UNFIT` it finds out later that it
can never work.
"""

import asyncio
import os
import sys
import time

from django.conf import settings

from backend.client import EngineClient

in_flight = 0


async def application(scope, receive, send):
    """Serve one connection."""
    if scope["type"] == "lifespan":
        await _lifespan(scope, receive, send)
        return
    global in_flight
    in_flight += 1
    try:
        if scope["path"] == "/slow":
            _say("slow request")
            await asyncio.sleep(1.0)
        if scope["path"] == "/stuck":
            _say("stuck request")
            await asyncio.sleep(300.0)
        if scope["path"] == "/hang":
            time.sleep(300.0)  # noqa: ASYNC251 - that is the point
        if scope["path"] == "/reactor-stop":
            from twisted.internet import reactor

            reactor.stop()
        status = 200
        if scope["path"] == "/health" and not await _engine_is_healthy():
            status = 503
        await send({"type": "http.response.start", "status": status, "headers": []})
        body = b"%d" % os.getpid() if scope["path"] == "/pid" else b"done"
        await send({"type": "http.response.body", "body": body})
    finally:
        in_flight -= 1


def _say(line):
    # In one write: `print` makes two of a line, and several workers write to one pipe.
    os.write(sys.stderr.fileno(), f"{line}\n".encode())


async def _engine_is_healthy():
    client = EngineClient(settings.OPENJEV.backend_url)
    try:
        return await client.is_healthy(deadline=asyncio.get_running_loop().time() + 5)
    finally:
        await client.aclose()


async def _unfit():
    return "The tiny model does not fit."


async def _lifespan(scope, receive, send):
    while True:
        event = await receive()
        if event["type"] == "lifespan.startup":
            if os.environ.get("TINY_ASGI_REFUSES"):
                await send({"type": "lifespan.startup.failed", "message": "no readout"})
                return
            if os.environ.get("TINY_ASGI_UNFIT"):
                scope["state"]["refused"] = _unfit
            await send({"type": "lifespan.startup.complete"})
        else:
            while in_flight:  # noqa: ASYNC110 - a test's stand-in
                await asyncio.sleep(0.01)
            _say("drained")
            await send({"type": "lifespan.shutdown.complete"})
            return
