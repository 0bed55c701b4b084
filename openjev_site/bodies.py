"""Request bodies: their size, their coding, their length.

What reaches Django is one decoded body of at most `OPENJEV_MAX_BODY_BYTES` with its true
`Content-Length` (DRF sees a body without that header as empty). Everything else is answered here,
as soon as it is known and without keeping the rest. A body sent with GET or HEAD has no meaning
and is dropped. How long a body may take to arrive is the server's business.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import cast

from asgiref.typing import (
    ASGI3Application,
    ASGIReceiveCallable,
    ASGIReceiveEvent,
    ASGISendCallable,
    HTTPScope,
    Scope,
)

from openjev_site.decoding import CODINGS, CorruptBody, Decoder, OversizedBody
from openjev_site.replies import CLOSE, Headers, end_response, send_error

# A peer that is still sending sees a reset connection instead of the refusal, unless what it sends
# is taken in for a moment.
_LINGER_SECONDS = 2.0
_LINGER_BYTES = 64 * 2**20

# Below this, coded bytes are collected before a thread is asked to decode them.
_DECODE_BYTES = 64 * 1024

_FRAMING = frozenset({b"content-encoding", b"content-length", b"expect"})
# Django gets a body without coding and with its true length.
_DROPPED = frozenset({b"content-encoding", b"content-length", b"transfer-encoding"})

_TAKEN = ", ".join(name for name in CODINGS if not name.startswith("x-"))


class Refusal(Exception):
    """A body that is answered here.

    Attributes:
        status: the HTTP status.
        message: a complete sentence.
        headers: what the status needs beside the body.
    """

    def __init__(self, status: int, message: str, headers: Headers = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers


class Disconnected(Exception):
    """The client left before its body was complete."""


class _Upload:
    """A body on its way in.

    Attributes:
        asked: whether any of it has been asked for.
        taken: bytes received so far, as they were sent.
        complete: whether the last byte has come.
    """

    def __init__(self, receive: ASGIReceiveCallable) -> None:
        self._receive = receive
        self.asked = False
        self.taken = 0
        self.complete = False

    async def next_chunk(self) -> bytes:
        """Wait for the next bytes.

        Raises:
            Disconnected: the client left.
        """
        self.asked = True
        event = await self._receive()
        if event["type"] != "http.request":
            raise Disconnected
        chunk = event.get("body", b"")
        self.taken += len(chunk)
        self.complete = not event.get("more_body", False)
        return chunk

    async def discard(self) -> None:
        """Take in what is still coming, for a moment, and forget it."""
        until = self.taken + _LINGER_BYTES
        with suppress(TimeoutError, Disconnected):
            async with asyncio.timeout(_LINGER_SECONDS):
                while not self.complete and self.taken < until:
                    await self.next_chunk()


class Bodies:
    """ASGI wrapper that takes in, bounds and decodes request bodies."""

    def __init__(self, app: ASGI3Application, *, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["method"] in {"GET", "HEAD"}:
            await self._app(scope, _replay(b"", receive), send)
            return
        upload = _Upload(receive)
        framing, headers = _split(scope)
        try:
            body = await self._take(framing, upload)
        except Disconnected:
            return
        except Refusal as refusal:
            await self._refuse(refusal, scope, upload, send, expects=bool(framing.get(b"expect")))
            return
        headers.append((b"content-length", b"%d" % len(body)))
        plain = cast("HTTPScope", {**scope, "headers": headers})
        await self._app(plain, _replay(body, receive), send)

    async def _take(self, framing: Mapping[bytes, bytes], upload: _Upload) -> bytes:
        coding = _coding(framing.get(b"content-encoding", b""))
        declared = framing.get(b"content-length", b"").strip()
        if declared.isdigit() and int(declared) > self._max_bytes:
            raise self._too_large()
        decoder = Decoder(CODINGS[coding]) if coding else None
        try:
            if decoder is None:
                return await self._collect(upload)
            return await self._decode(upload, decoder)
        except OversizedBody:
            raise self._too_large() from None
        except CorruptBody:
            raise Refusal(
                400,
                f"The body is not valid {coding} data, or it ends too early. "
                "Compress the whole body, or send it without Content-Encoding.",
            ) from None

    async def _collect(self, upload: _Upload) -> bytes:
        chunks: list[bytes] = []
        while not upload.complete:
            chunks.append(await upload.next_chunk())
            if upload.taken > self._max_bytes:
                raise OversizedBody
        return b"".join(chunks)

    async def _decode(self, upload: _Upload, decoder: Decoder) -> bytes:
        decoded = bytearray()
        coded = bytearray()
        while not upload.complete:
            coded += await upload.next_chunk()
            if upload.taken > self._max_bytes:
                raise OversizedBody
            if len(coded) < _DECODE_BYTES and not upload.complete:
                continue
            room = self._max_bytes - len(decoded)
            decoded += await asyncio.to_thread(decoder.feed, bytes(coded), room)
            coded.clear()
        decoder.close()
        return bytes(decoded)

    def _too_large(self) -> Refusal:
        return Refusal(
            413,
            f"The body is larger than the limit of {self._max_bytes} bytes, which also holds for "
            "its decompressed size. Send a shorter state or fewer questions.",
        )

    async def _refuse(
        self,
        refusal: Refusal,
        scope: HTTPScope,
        upload: _Upload,
        send: ASGISendCallable,
        *,
        expects: bool,
    ) -> None:
        await send_error(
            scope,
            send,
            refusal.status,
            refusal.message,
            headers=[*refusal.headers, CLOSE],
            end=False,
        )
        # A client that waits for "100 Continue" has sent nothing yet, and asking would invite it.
        if upload.asked or not expects:
            await upload.discard()
        await end_response(send)


def _split(scope: HTTPScope) -> tuple[dict[bytes, bytes], list[tuple[bytes, bytes]]]:
    """Part the headers that say how the body comes, by name, from those that Django gets."""
    framing: dict[bytes, bytes] = {}
    others: list[tuple[bytes, bytes]] = []
    for pair in scope["headers"]:
        name, value = pair[0].lower(), pair[1]
        if name in _FRAMING:
            framing[name] = framing[name] + b"," + value if name in framing else value
        if name not in _DROPPED:
            others.append(pair)
    return framing, others


def _coding(named: bytes) -> str:
    """Name the coding of the body; empty for none."""
    if not named:
        return ""
    names = named.decode("latin-1").lower().split(",")
    codings = [coding for name in names if (coding := name.strip()) not in {"", "identity"}]
    if not codings:
        return ""
    if len(codings) > 1 or codings[0] not in CODINGS:
        raise Refusal(
            415,
            "The Content-Encoding of the body is not one this server takes. "
            f"Send one of {_TAKEN}, or none.",
            headers=[(b"accept-encoding", _TAKEN.encode())],
        )
    return codings[0]


def _replay(body: bytes, receive: ASGIReceiveCallable) -> Callable[[], Awaitable[ASGIReceiveEvent]]:
    """Hand out `body` once, then only what is not part of a body: the disconnect."""
    given = False

    async def replayed() -> ASGIReceiveEvent:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": body, "more_body": False}
        while (event := await receive())["type"] == "http.request":
            pass
        return event

    return replayed
