"""An engine without sockets that answers at once, in SGLang's shape, and computes nothing.

What is measured in front of it is the product, client included, and never the engine.
"""

import asyncio
import json
import math
import re
from collections.abc import Callable, Mapping

from backend.connection import Answer
from backend.transport import Exchange
from tests.support.fake_engine import shapes

_RID = re.compile(rb'"rid":"([^"]*)"')
_LABELS = re.compile(rb'"token_ids_logprob":(\[[^\]]*\])')


class InstantEngine:
    """Stands in for `backend.transport.Transport`.

    Attributes:
        calls: answered so far, those of the start-up included.
    """

    def __init__(self, model: str, context_length: int) -> None:
        self.calls = 0
        self._model = model
        self._context_length = context_length

    async def get(self, path: str, *, deadline: float) -> tuple[int, bytes]:
        """Describe the engine."""
        length = self._context_length
        found = {
            "/v1/models": shapes.models(self._model, length),
            "/server_info": shapes.server_info(self._model, length, front="rust", api_key=None),
        }
        return (200, json.dumps(found[path]).encode()) if path in found else (404, b"{}")

    async def post(
        self, path: str, body: bytes, *, deadline: float, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Answer that there is no such route."""
        return 404, b"{}"

    def begin_post(
        self,
        path: str,
        body: bytes,
        tell: Callable[[Answer], object],
        *,
        deadline: float,
        headers: Mapping[str, str],
    ) -> Exchange:
        """Answer in the loop's next turn, whose handle can be cancelled like an exchange."""
        self.calls += 1
        return asyncio.get_running_loop().call_soon(tell, (200, _answer(body)))

    async def aclose(self) -> None:
        """Nothing is open."""


def _answer(body: bytes) -> bytes:
    """Make every label as likely as the next."""
    rid, labels = _RID.search(body), _LABELS.search(body)
    assert rid is not None
    assert labels is not None
    ids = json.loads(labels[1])
    logprob = -math.log(len(ids)) - 0.1
    meta = {
        "id": rid[1].decode(),
        "finish_reason": {"type": "length", "length": 1},
        "prompt_tokens": body.count(b",", body.index(b'"input_ids"')) + 1,
        "completion_tokens": 1,
        "output_token_ids_logprobs": [[[logprob, label, None] for label in ids]],
    }
    return json.dumps({"text": "", "meta_info": meta}).encode()
