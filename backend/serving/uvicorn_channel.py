"""One connection of uvicorn's: how much a request may be, and how long it and its answer may take.

uvicorn bounds neither what it keeps beside a body nor the time it waits for a client that says
nothing or an application that forgets to answer, and answers in plain text what breaks HTTP. How
large a body may be is the application's business: uvicorn hands it over as it comes. Nothing here
knows what a request is about.
"""

import asyncio
import re
from itertools import chain
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from backend.serving.refusals import last_answer
from backend.serving.uvicorn_transport import Gathering

REQUEST_SECONDS = 60.0
"""From the first wait for a request to the end of its head, and as long again for its body."""

OVERHEAD_BYTES = 64 * 2**10
"""How long head and framing of a request may be, beside as much framing as there is body."""

MAX_HEADERS = 500

LINGER_SECONDS = 10.0
"""How long a refused client may go on sending what is no longer read."""

LINGER_BYTES = 64 * 2**20
"""How much of it."""

_AUTHORITY = re.compile(rb"\Ahttps?://[^/?]*/?", re.IGNORECASE)


class Channel(HttpToolsProtocol):
    """Refuses in JSON, with an id, what does not become a request.

    Args:
        answer_seconds: after which an unanswered request is given up, from when all of it is here.
        args: uvicorn's.
    """

    def __init__(self, *args: Any, answer_seconds: float) -> None:
        super().__init__(*args)
        self._answer_seconds = answer_seconds
        self._late: asyncio.TimerHandle | None = None
        self._awaited: asyncio.TimerHandle | None = None
        self._answering: RequestResponseCycle | None = None
        self._head_began = False
        self._overhead = 0
        self._body_bytes = 0
        self._refused = False
        self._last_answer = b""
        self._discarded = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(cast("asyncio.Transport", Gathering(transport, self.loop)))
        self._await_more()

    def connection_lost(self, exc: Exception | None) -> None:
        """End; uvicorn tells it only the latest request, which may still wait for its turn."""
        self._stop_waiting()
        if self._answering is not None and not self._answering.response_complete:
            self._leave(self._answering)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take in bytes; a client that is waited for has a limited time."""
        if self._refused:
            self._discard(len(data))
            return
        self._unset_keepalive_if_required()
        self._overhead += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._parse_without_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError:
            self._refuse(400, "its first line, a header or its length is not valid HTTP")
            return
        if self._overhead > OVERHEAD_BYTES + self._body_bytes:
            self._refuse(400, "its head, or what frames its body, is too long")
        else:
            self._await_rest()

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._head_began = True
        self._body_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take in a header; what follows a body is dropped.

        Raises:
            ValueError: there are too many, or the body is encoded in a way that nobody decodes; the
                parser makes an error of its own of it.
        """
        if not self._head_began:
            return
        if len(self.headers) >= MAX_HEADERS:
            raise ValueError("too many headers")
        if name.lower() == b"transfer-encoding" and value.strip().lower() != b"chunked":
            raise ValueError("unknown transfer encoding")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Hand over a request; an address in the form that proxies are sent is one of ours, too.

        Raises:
            ValueError: its head is too long; the parser makes an error of its own of it.
        """
        if self.parser.should_upgrade():
            return
        if self._overhead > OVERHEAD_BYTES < len(self.url) + sum(map(len, chain(*self.headers))):
            raise ValueError("too long a head")
        self._stop_waiting()
        self._head_began = False
        if self.parser.get_http_version() == "1.0":  # which knows no such answer
            self.expect_100_continue = False
        if not self.url.startswith(b"/"):
            self.url = _AUTHORITY.sub(b"/", self.url, count=1)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Hand over a part of the body."""
        self._overhead -= len(body)
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        if self.parser.should_upgrade():
            return
        self._overhead = 0
        self._stop_waiting()
        super().on_message_complete()
        if self._unanswered is self._answering:
            self._await_answer(self.cycle)

    def on_response_complete(self) -> None:
        """Go on to what comes next."""
        is_last = not self.pipeline
        if self._late is not None:
            self._late.cancel()
        super().on_response_complete()
        if not is_last:
            self._await_rest()  # of a body whose turn has come
        elif self._last_answer and not self.transport.is_closing():
            self._end(self._last_answer)

    def drop(self) -> None:
        """Give the connection up; the application learns that the client has left."""
        self.transport.abort()

    @property
    def is_busy(self) -> bool:
        """Whether an answer is being made, or is not on the wire yet."""
        return self._unanswered is not None or self.transport.get_write_buffer_size() > 0

    @property
    def _unanswered(self) -> RequestResponseCycle | None:
        """The latest request, until its answer is complete or it is given up."""
        latest = cast("RequestResponseCycle | None", self.cycle)
        is_over = latest is None or latest.response_complete or latest.disconnected
        return None if is_over else latest

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        if not cycle.more_body:
            self._await_answer(cycle)
        super()._start_asgi_task(cycle, app)

    def _await_answer(self, cycle: RequestResponseCycle) -> None:
        self._late = self.loop.call_later(self._answer_seconds, self._cut_off, cycle)

    def _cut_off(
        self,
        cycle: RequestResponseCycle,
        status: int = 503,
        reason: str = "the application has not answered",
    ) -> None:
        """Give up a request; the application learns that nobody waits for it any more."""
        self._refused = True
        self._leave(cycle)
        self._end(b"" if cycle.response_started else last_answer(status, reason))

    def _leave(self, cycle: RequestResponseCycle) -> None:
        if self._late is not None:
            self._late.cancel()
        cycle.disconnected = True
        cycle.message_event.set()

    def _parse_without_upgrade(self, rest: bytes) -> None:
        """Begin the request anew; there is no other protocol to change to, whoever wishes so.

        The parser would skip the body, and read nothing after it.
        """
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(400, "it asks for a tunnel, which this server is not")
            return
        lines = [b"%s %s HTTP/%s" % (method, self.url, self.parser.get_http_version().encode())]
        lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self._overhead = 0
        self.data_received(b"\r\n".join([*lines, b"", rest]))

    def _is_incomplete(self) -> bool:
        """Whether the client is to go on, and not we: a body may also wait for its turn."""
        unanswered = self._unanswered
        if self._head_began or unanswered is None:
            return True
        return unanswered.more_body and unanswered is self._answering

    def _await_rest(self) -> None:
        if self._awaited is None and self._is_incomplete():
            self._await_more()

    def _await_more(self) -> None:
        self._awaited = self.loop.call_later(REQUEST_SECONDS, self._give_up)

    def _stop_waiting(self) -> None:
        if self._awaited is not None:
            self._awaited.cancel()
            self._awaited = None

    def _give_up(self) -> None:
        self._awaited = None
        if self._head_began or self._unanswered is not None:
            self._refuse(408, f"not complete after {REQUEST_SECONDS:g} seconds")
        else:
            self.transport.close()

    def _refuse(self, status: int, reason: str) -> None:
        """Give the last answer, after those to the good requests before."""
        self._refused = True
        self._stop_waiting()
        unanswered = self._unanswered
        if unanswered is not None and unanswered.more_body:  # it has turned out to be no request
            if self.pipeline:
                self.pipeline.popleft()
                before = self.pipeline[0][0] if self.pipeline else self._answering
                self.cycle = unanswered = cast("RequestResponseCycle", before)
            else:
                self._cut_off(unanswered, status, reason)
                return
        if unanswered is not None:
            self._last_answer = last_answer(status, reason)
        else:
            self._end(last_answer(status, reason))

    def _end(self, answer: bytes) -> None:
        """Read on for a while, so that a client that sends can see the answer."""
        self._stop_waiting()
        self._unset_keepalive_if_required()
        self._last_answer = b""
        self.flow.resume_reading()
        self.transport.write(answer)
        self.transport.write_eof()
        self._awaited = self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _discard(self, count: int) -> None:
        self._discarded += count
        if self._discarded > LINGER_BYTES:
            self.transport.close()
