"""HTTP to one engine: bytes in, status and bytes out, with a deadline.

Knows connections and nothing of what is said over them. The engine's calls are idempotent, so a
connection that turns out to have been closed while it idled costs one second try on a fresh
connection; no other failure is ever tried again.
"""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Protocol

import aiohttp

from backend.errors import EngineProtocolError, EngineTimeout, EngineUnavailable

# shorter than the 5 s after which SGLang closes an idle connection
_KEEP_ALIVE_SECONDS = 3.0
_MAX_ANSWER_BYTES = 4 * 2**20
_CLOSED = (
    aiohttp.ServerDisconnectedError,
    aiohttp.ClientOSError,
    aiohttp.ClientConnectionResetError,
)


class Transport(Protocol):
    """What the client needs of HTTP; every method raises only `backend.errors`.

    Deadlines are readings of the running loop's clock, in seconds.
    """

    async def get(self, path: str, *, deadline: float) -> tuple[int, bytes]:
        """Fetch `path`; return status and body."""
        ...

    async def post(
        self, path: str, body: bytes, *, deadline: float, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Post JSON to `path`; return status and body. Cancelling closes the connection."""
        ...

    async def aclose(self) -> None:
        """Close every connection; later calls fail."""
        ...


class AiohttpTransport:
    """A pool of connections to `base_url`, made on the loop that first uses it."""

    def __init__(self, base_url: str, *, api_key: str | None = None) -> None:
        self._base_url = base_url.rstrip("/")
        self._headers = {"Content-Type": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._pooled: aiohttp.ClientSession | None = None
        self._fresh: aiohttp.ClientSession | None = None
        self._closed = False

    async def get(self, path: str, *, deadline: float) -> tuple[int, bytes]:
        """Fetch `path`; return status and body."""
        return await self._send("GET", path, None, deadline, {})

    async def post(
        self, path: str, body: bytes, *, deadline: float, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Post JSON to `path`; return status and body. Cancelling closes the connection."""
        return await self._send("POST", path, body, deadline, headers or {})

    async def aclose(self) -> None:
        """Close every connection; later calls fail."""
        self._closed = True
        for session in (self._pooled, self._fresh):
            if session is not None:
                await session.close()

    async def _send(
        self,
        method: str,
        path: str,
        body: bytes | None,
        deadline: float,
        headers: Mapping[str, str],
    ) -> tuple[int, bytes]:
        connection = SimpleNamespace(reused=False)
        try:
            async with asyncio.timeout_at(deadline):
                pooled, fresh = self._sessions()
                try:
                    answer = await self._exchange(pooled, method, path, body, headers, connection)
                except _CLOSED:
                    if not connection.reused:
                        raise
                    answer = await self._exchange(fresh, method, path, body, headers, connection)
        except TimeoutError:
            raise EngineTimeout("The engine gave no answer before the deadline.") from None
        except (aiohttp.ClientPayloadError, aiohttp.ClientResponseError):
            raise EngineProtocolError("The engine's answer broke off or is not HTTP.") from None
        except aiohttp.ClientConnectorError:
            raise EngineUnavailable("The engine cannot be reached.") from None
        except (aiohttp.ClientError, OSError):
            raise EngineUnavailable("The engine closed the connection without an answer.") from None
        return answer

    async def _exchange(
        self,
        session: aiohttp.ClientSession,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        connection: SimpleNamespace,
    ) -> tuple[int, bytes]:
        async with session.request(
            method,
            self._base_url + path,
            data=body,
            headers=headers,
            allow_redirects=False,
            trace_request_ctx=connection,
        ) as response:
            connection.reused = False  # an answer has begun: from here on nothing is repeated
            answer = bytearray()
            async for chunk in response.content.iter_any():
                answer += chunk
                if len(answer) > _MAX_ANSWER_BYTES:
                    raise EngineProtocolError("The engine's answer is too large to be one.")
            return response.status, bytes(answer)

    def _sessions(self) -> tuple[aiohttp.ClientSession, aiohttp.ClientSession]:
        if self._closed:
            raise EngineUnavailable("The connection to the engine has been closed.")
        if self._pooled is None or self._fresh is None:
            # limit=0: the client bounds its calls, and aborts must not queue behind them
            self._pooled = self._session(
                aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_SECONDS)
            )
            self._fresh = self._session(aiohttp.TCPConnector(limit=0, force_close=True))
        return self._pooled, self._fresh

    def _session(self, connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_note_reuse)
        return aiohttp.ClientSession(
            connector=connector,
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None),
            cookie_jar=aiohttp.DummyCookieJar(),
            trace_configs=[trace],
        )


async def _note_reuse(
    session: aiohttp.ClientSession,
    context: SimpleNamespace,
    params: aiohttp.TraceConnectionReuseconnParams,
) -> None:
    context.trace_request_ctx.reused = True
