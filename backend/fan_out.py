"""Calls to an engine that are made at the same time and fail together.

A task for each of them would cost as much as the call itself; here all of them tell one future.
What the engine or the network can cause is raised as one of `backend.errors`. Which calls are made,
and whether they may be, is the client's business.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from backend.connection import Answer
from backend.errors import EngineTimeout
from backend.protocol import (
    Call,
    LabelLogprobs,
    failure,
    generate_body,
    parse_label_logprobs,
)
from backend.slots import Slots
from backend.transport import Exchange, Transport


class FanOut:
    """Calls under way together: over with the last answer, or with the first failure.

    Args:
        calls: what to ask.
        transport: carries them.
        slots: places in the engine, one for each call.
        abort: told the rid and the routing key of a call that the engine need not finish.
        deadline: of all of them; loop time in seconds.
        routing_key: of all of them.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        *,
        transport: Transport,
        slots: Slots,
        abort: Callable[[str, str], None],
        deadline: float,
        routing_key: str,
    ) -> None:
        self._calls = calls
        self._transport = transport
        self._slots = slots
        self._abort = abort
        self._deadline = deadline
        self._routing_key = routing_key
        self._headers = {"x-smg-routing-key": routing_key}
        self._waiting: dict[int, Callable[[], None]] = {}
        self._under_way: dict[int, Exchange] = {}
        self._answers: dict[int, LabelLogprobs] = {}
        # a failure is a result here: an exception that nobody comes to fetch is logged by asyncio
        self._outcome: asyncio.Future[Exception | None]
        self._outcome = asyncio.get_running_loop().create_future()

    async def answers(self) -> list[LabelLogprobs]:
        """Make the calls; give their answers in their order. To be called once.

        Raises:
            EngineError: the first failure; no call is left under way.
        """
        late = None
        try:
            for number in range(len(self._calls)):
                self._ask(number)
            if self._waiting:
                late = self._outcome.get_loop().call_at(self._deadline, self._wait_no_longer)
            failed = await self._outcome if self._calls else None
        finally:
            if late is not None:
                late.cancel()
            self._end()
        if failed is not None:
            raise failed
        return [self._answers[number] for number in range(len(self._calls))]

    def _ask(self, number: int) -> None:
        begin = self._waiting[number] = partial(self._begin, number)
        self._slots.ask(begin)

    def _begin(self, number: int) -> None:
        del self._waiting[number]
        try:
            self._under_way[number] = self._transport.begin_post(
                "/generate",
                generate_body(self._calls[number]),
                partial(self._told, number),
                deadline=self._deadline,
                headers=self._headers,
            )
        except Exception as error:  # this may be another's turn, whom it does not concern
            self._settle(error)
            self._slots.give_back()

    def _told(self, number: int, answer: Answer) -> None:
        del self._under_way[number]
        call = self._calls[number]
        if isinstance(answer, Exception):  # not raised: this may be called while another is handled
            if isinstance(answer, EngineTimeout):
                self._abort(call.rid, self._routing_key)
            self._settle(answer)
        else:
            try:
                self._answers[number] = _read(answer, call)
            except Exception as error:  # whatever it is, the caller waits to hear of it
                self._settle(error)
        if len(self._answers) == len(self._calls):
            self._settle(None)
        self._slots.give_back()  # last: after a failure none of these calls may take it

    def _settle(self, failed: Exception | None) -> None:
        self._withdraw()
        if not self._outcome.done():  # the first failure is why others fail
            self._outcome.set_result(failed)

    def _withdraw(self) -> None:
        for begin in self._waiting.values():
            self._slots.withdraw(begin)
        self._waiting.clear()

    def _wait_no_longer(self) -> None:
        if self._waiting:
            self._settle(EngineTimeout("No engine call became free before the deadline."))

    def _end(self) -> None:
        self._withdraw()
        for number, exchange in self._under_way.items():
            exchange.cancel()
            self._abort(self._calls[number].rid, self._routing_key)
            self._slots.give_back()
        self._under_way.clear()


def _read(answer: tuple[int, bytes], call: Call) -> LabelLogprobs:
    status, body = answer
    if status != 200:
        raise failure(status, body)
    return parse_label_logprobs(body, call)
