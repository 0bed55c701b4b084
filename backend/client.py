"""One-token calls to an engine.

Bounds how many are under way, keeps what is known to kill an engine from being sent, and makes a
cancelled call cost the engine nothing more. Knows no questions and no labels' texts; raises only
`backend.errors`.
"""

import asyncio
import json
import logging
import uuid
from collections.abc import Sequence

from backend.description import (
    EngineDescription,
    ServerDetails,
    longest_input,
    parse_details,
    parse_served_model,
)
from backend.errors import EngineError, EngineRejected, EngineUnavailable
from backend.fan_out import FanOut
from backend.protocol import Call, LabelLogprobs, failure, parse_tokens, tokenize_body
from backend.slots import Slots
from backend.token_ids import TokenIds
from backend.transport import ConnectionPool, Transport

logger = logging.getLogger(__name__)

_ABORT_SECONDS = 2.0


class EngineClient:
    """Calls to the engine at `base_url`, or to a router in front of several.

    Attributes:
        vocabulary_size: see `backend.engine.Engine`, of which this is the real one.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        max_in_flight: int = 64,
        transport: Transport | None = None,
    ) -> None:
        self.vocabulary_size: int | None = None
        self._transport = transport or ConnectionPool(base_url, api_key=api_key)
        self._slots = Slots(max_in_flight)
        self._max_aborts = 2 * max_in_flight
        self._aborts: set[asyncio.Task[None]] = set()
        self._has_abort: bool | None = None  # None: not asked yet
        self._max_input_tokens: int | None = None

    async def label_logprobs(
        self, calls: Sequence[Call], *, deadline: float, routing_key: str
    ) -> list[LabelLogprobs]:
        """Evaluate inputs and give the log-probability of each label as the next token.

        All calls are made at the same time, as far as there are slots. The first failure, the
        deadline or a cancellation ends them all: connections of those under way are closed and,
        where the engine has the route, these are aborted by their rids in the background.

        Args:
            calls: what to ask; long inputs that begin alike are best made of one `TokenIds`.
            deadline: of everything, waiting for a free slot included; loop time in seconds.
            routing_key: the same for all calls of an evaluation, so that a router sends them to
                the replica that has their prefix.

        Returns:
            One answer for each call, in their order.

        Raises:
            EngineError: of the kind `backend.errors` describes.
        """
        for call in calls:
            self._check(call)
        fan_out = FanOut(
            calls,
            transport=self._transport,
            slots=self._slots,
            abort=self._abort,
            deadline=deadline,
            routing_key=routing_key,
        )
        return await fan_out.answers()

    async def describe(self, *, deadline: float) -> EngineDescription:
        """Ask the engine what it serves and can do, and keep to it from then on.

        One real call is part of it: only that shows whether label log-probabilities come back.

        Raises:
            EngineError: an answer is missing or unusable.
        """
        model, context_length = parse_served_model(await self._fetch("/v1/models", deadline))
        details = await self._fetch_details(deadline)
        status, _ = await self._transport.post(
            "/abort_request", _abort_body("openjev.none"), deadline=deadline
        )
        self._has_abort = status == 200
        self._max_input_tokens = longest_input(context_length, details)
        if details.warms_up:
            await self._require_warm(deadline)
        # SGLang refuses a rid that is in use, by another server like this one, say
        probe_id = f"openjev.describe.{uuid.uuid4().hex}"
        (probe,) = await self.label_logprobs(
            [Call(TokenIds.of([0]), [0], probe_id)], deadline=deadline, routing_key=probe_id
        )
        return EngineDescription(
            model=model,
            context_length=context_length,
            max_input_tokens=self._max_input_tokens,
            front=details.front,
            version=details.version,
            has_abort=self._has_abort,
            reports_cached=probe.cached_tokens is not None,
            flags=details.flags,
        )

    async def tokenize(self, text: str, *, deadline: float) -> list[int] | None:
        """Give the engine's own tokens of `text`, control tokens in it recognised.

        Returns:
            Token ids; `None` where the engine has no such route, or no tokenizer.

        Raises:
            EngineError: it did not answer, or not with token ids.
        """
        status, answer = await self._transport.post(
            "/tokenize", tokenize_body(text), deadline=deadline
        )
        if status == 200:
            return parse_tokens(answer)
        error = failure(status, answer)
        if isinstance(error, EngineUnavailable):
            raise error
        return None

    async def is_healthy(self, *, deadline: float) -> bool:
        """Whether the engine answers that it works; never raises.

        Its scheduler is asked for its state, between two steps. SGLang's `/health` would make it
        run a request without log-probabilities, and one of those beside ours in a batch kills it
        (its issue 34719). A router, which has no such state, says whether an engine is behind it.
        """
        status = 404
        for path in ("/server_info", "/readiness"):
            if status == 404:
                try:
                    status, _ = await self._transport.get(path, deadline=deadline)
                except EngineError:
                    return False
        return status == 200

    async def aclose(self) -> None:
        """Give aborts under way a moment to arrive, then close the connections."""
        if self._aborts:
            await asyncio.wait(self._aborts, timeout=_ABORT_SECONDS)
        aborts = list(self._aborts)
        for task in aborts:
            task.cancel()
        await asyncio.gather(*aborts, return_exceptions=True)
        await self._transport.aclose()

    async def _fetch(self, path: str, deadline: float) -> bytes:
        status, body = await self._transport.get(path, deadline=deadline)
        if status != 200:
            raise failure(status, body)
        return body

    async def _require_warm(self, deadline: float) -> None:
        """Keep out of the way of SGLang's warm-up, which asks for no log-probabilities.

        Only its `/health` tells when that is over; from then on we leave it alone (`is_healthy`).
        """
        status, _ = await self._transport.get("/health", deadline=deadline)
        if status != 200:
            raise EngineUnavailable("The engine is still warming up.")

    async def _fetch_details(self, deadline: float) -> ServerDetails:
        for path in ("/get_server_info", "/server_info"):
            status, body = await self._transport.get(path, deadline=deadline)
            if status == 200:
                return parse_details(path, body)
        return ServerDetails()

    def _check(self, call: Call) -> None:
        tokens = call.input_ids
        if self._max_input_tokens is not None and tokens.length >= self._max_input_tokens:
            raise EngineRejected(
                f"The input has {tokens.length} tokens; the engine takes fewer than "
                f"{self._max_input_tokens}. Shorten it, or start the engine with a longer context.",
                status=400,
            )
        if not (tokens.length and call.label_ids):
            raise EngineRejected("There are no tokens to send.", status=400)
        is_negative = b"-" in tokens.encoded or min(call.label_ids) < 0
        highest = max(tokens.highest, *call.label_ids)
        if is_negative or highest >= (self.vocabulary_size or 2**31):
            raise EngineRejected(
                "A token id, of the input or of a label, is outside the vocabulary; nothing was "
                "sent.",
                status=400,
            )

    def _abort(self, rid: str, routing_key: str) -> None:
        if self._has_abort is False or len(self._aborts) >= self._max_aborts:
            return  # closing the connection has to do
        task = asyncio.create_task(self._post_abort(rid, routing_key))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def _post_abort(self, rid: str, routing_key: str) -> None:
        try:
            status, _ = await self._transport.post(
                "/abort_request",
                _abort_body(rid),
                deadline=asyncio.get_running_loop().time() + _ABORT_SECONDS,
                headers={"x-smg-routing-key": routing_key},
            )
        except EngineError:
            logger.debug("The abort of %s did not reach the engine.", rid)
            return
        if status in {401, 403, 404, 405}:
            self._has_abort = False


def _abort_body(rid: str) -> bytes:
    return json.dumps({"rid": rid, "abort_all": False}).encode()
