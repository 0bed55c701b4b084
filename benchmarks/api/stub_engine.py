"""An engine that thinks nothing: answers `/generate` in SGLang's shape after a fixed delay.

So cheap that what is measured in front of it is not the stub: no framework, and nothing is
computed; every label gets the same log-probability. The benchmarks start it:
`python -m benchmarks.api.stub_engine --port N --model NAME [--delay SECONDS]`.
"""

import argparse
import asyncio
from typing import Any, cast

import httptools
import orjson
import uvloop

CONTEXT_LENGTH = 40_000
_LOGPROB = -1.5


class Connection(asyncio.Protocol):
    """One keep-alive connection, answered in order."""

    def __init__(self, model: str, delay: float) -> None:
        self._model = model
        self._delay = delay
        self._parser: Any = None
        self._url = b""
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        """Take in bytes."""
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        """Note the path."""
        self._url, self._body = url, []

    def on_body(self, body: bytes) -> None:
        """Collect the body."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Answer."""
        status, answer = self._answer()
        message = b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(answer), answer)
        if self._delay and self._url == b"/generate":
            asyncio.get_running_loop().call_later(self._delay, self._write, message)
        else:
            self._write(message)

    def _write(self, message: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(message)

    def _answer(self) -> tuple[bytes, bytes]:
        if self._url == b"/v1/models":
            model = {"id": self._model, "max_model_len": CONTEXT_LENGTH}
            return b"200 OK", orjson.dumps({"data": [model]})
        if self._url in {b"/health", b"/server_info"}:
            return b"200 OK", b"{}"
        if self._url != b"/generate":
            return b"404 Not Found", b"{}"
        asked = orjson.loads(b"".join(self._body))
        labels = asked["token_ids_logprob"]
        meta = {
            "id": asked["rid"],
            "finish_reason": {"type": "length", "length": 1},
            "prompt_tokens": len(asked["input_ids"]),
            "completion_tokens": 1,
            "cached_tokens": 0,
            "output_token_logprobs": [[_LOGPROB, labels[0], None]],
            "output_token_ids_logprobs": [[[_LOGPROB, label, None] for label in labels]],
        }
        answer = {"text": "A", "output_ids": labels[:1], "meta_info": meta}
        return b"200 OK", orjson.dumps(answer)


async def serve(port: int, model: str, delay: float) -> None:
    """Serve on loopback until cancelled."""
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(model, delay), "127.0.0.1", port
    )
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", required=True, help="the name it serves")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before each answer")
    options = parser.parse_args()
    uvloop.run(serve(options.port, options.model, options.delay))
