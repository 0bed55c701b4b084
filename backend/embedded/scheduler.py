"""The queue between the HTTP front and the one thread that computes.

Oldest first. A prompt that is no branch is read alone, in chunks; branches of the same cached
prompt that wait together are read in one packed pass. Requests nobody waits for any more are
dropped before they cost, and a pass all of whose requests are gone is abandoned at its next layer.
The thread blocks while there is nothing to do. It also loads the model, so that the front can
answer (503) meanwhile. If it fails in a way no request is to blame for, `failure` says so and the
process must end: an engine that accepts requests and never answers is worse than none.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from backend.embedded.model import Cancelled, KeyValues, Model
from backend.embedded.prefix_cache import Match, PrefixCache, as_ids
from backend.embedded.quantisation import Floats
from backend.embedded.requests import (
    Aborted,
    EngineFailed,
    QueueFull,
    Request,
    Result,
    abandoned,
    alive,
    fail,
    settle,
)

# Tokens of one forward pass: bounds its memory, and how long a newcomer waits for the next one.
# Only a single branch may be longer, up to the cache's MAX_BRANCH_TOKENS.
MAX_PASS_TOKENS = 512
# Branches of one evaluation arrive within milliseconds. Measured with 16 over HTTP: without
# waiting, the first is read alone in a pass of its own; with 2 ms, all are read in one.
_GATHER_STEP, _GATHER_LIMIT = 0.002, 0.02


class Scheduler:
    """The queue and its thread.

    Attributes:
        ready: done with the model once it is loaded.
        failure: done with the error that ended the thread.
    """

    def __init__(
        self,
        load: Callable[[Callable[[], bool]], Model],
        *,
        cache_bytes: int,
        queue_limit: int,
    ) -> None:
        """Prepare; `start` begins the work.

        Args:
            load: makes the model, in the thread; it is given a question whether to stop.
            cache_bytes: memory for cached prefixes.
            queue_limit: requests that may wait or run.
        """
        self._load = load
        self._cache = PrefixCache(cache_bytes)
        self._queue_limit = queue_limit
        self._changed = threading.Condition()
        self._waiting: list[Request] = []
        self._running: list[Request] = []
        self._closing = False
        self._flush = False
        self._thread = threading.Thread(target=self._work, name="scheduler", daemon=True)
        self.ready: Future[Model] = Future()
        self.failure: Future[BaseException] = Future()

    def start(self) -> None:
        """Begin loading the model, then serving."""
        self._thread.start()

    def close(self, seconds: float = 5.0) -> None:
        """Drop all requests and end the thread; wait for it at most so long."""
        with self._changed:
            self._closing = True
            dropped = self._waiting + self._running
            self._changed.notify()
        for request in dropped:
            request.future.cancel()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests together.

        Raises:
            QueueFull: they do not fit; none was queued.
        """
        with self._changed:
            self._waiting = alive(self._waiting)
            pending = len(self._waiting) + len(self._running)
            if self._closing or pending + len(requests) > self._queue_limit:
                raise QueueFull
            self._waiting += requests
            self._changed.notify()

    def abort(self, rid: str, *, everything: bool = False) -> None:
        """Abandon the requests whose name starts with `rid`, or all; unknown names are ignored."""
        with self._changed:
            known = self._waiting + self._running
        for request in known:
            if everything or (rid and request.rid.startswith(rid)):
                settle(request, Aborted())

    def flush(self) -> None:
        """Forget all cached prefixes, before the next pass."""
        with self._changed:
            self._flush = True
            self._changed.notify()

    @property
    def pending(self) -> tuple[int, int]:
        """Requests that run and that wait, without those nobody waits for."""
        with self._changed:
            return len(alive(self._running)), len(alive(self._waiting))

    def _work(self) -> None:
        try:
            model = self._load(lambda: self._closing)
            self.ready.set_result(model)
            while self._next(model):
                pass
        except Cancelled:
            return
        except BaseException as error:
            with self._changed:
                self._closing = True
                dropped = self._waiting
            fail(dropped, EngineFailed())
            self.failure.set_result(error)

    def _next(self, model: Model) -> bool:
        """Wait for work and do one step of it; false when closing."""
        with self._changed:
            self._await_work()
            if self._closing:
                return False
            if self._flush:
                self._cache.clear()
                self._flush = False
            batch, match = self._choose()
            self._running = batch
        try:
            if match.entry is not None and match.repeats:
                self._answer(model, batch, match.entry.hidden, match.tokens)
            elif batch and match.is_branch:
                self._read_branches(model, batch, match)
            elif batch:
                self._read_prompt(model, batch[0], match)
        except Cancelled:
            pass  # nobody is left who could be told
        except ArithmeticError as error:
            fail(batch, error)
        except BaseException:
            fail(batch, EngineFailed())
            raise
        finally:
            with self._changed:
                self._running = []
        return True

    def _await_work(self) -> None:
        """Block until there is work; after idleness, until its companions have arrived too."""
        if self._has_work():
            return
        self._changed.wait_for(self._has_work)
        end = time.monotonic() + _GATHER_LIMIT
        seen = 0
        while seen < len(self._waiting) and time.monotonic() < end:
            seen = len(self._waiting)
            self._changed.wait(_GATHER_STEP)

    def _has_work(self) -> bool:
        return bool(self._waiting) or self._closing or self._flush

    def _choose(self) -> tuple[list[Request], Match]:
        """Take the oldest request off the queue, with all that can be read in the same pass."""
        self._waiting = alive(self._waiting)
        if not self._waiting:
            return [], Match(None, 0, False)
        first = self._waiting[0]
        match = self._cache.match(as_ids(first.ids))
        batch, tokens = [first], len(first.ids) - match.tokens
        if match.entry is not None:
            self._cache.touch(match.entry)
        if match.is_branch and not match.repeats:
            for request in self._waiting[1:]:
                length = len(request.ids) - match.tokens
                if tokens + length <= MAX_PASS_TOKENS and self._goes_with(request, match):
                    batch.append(request)
                    tokens += length
        taken = set(map(id, batch))
        self._waiting = [one for one in self._waiting if id(one) not in taken]
        return batch, match

    def _goes_with(self, request: Request, match: Match) -> bool:
        other = self._cache.match(as_ids(request.ids))
        return (other.entry, other.tokens, other.is_branch) == (match.entry, match.tokens, True)

    def _read_branches(self, model: Model, batch: list[Request], match: Match) -> None:
        assert match.entry is not None  # noqa: S101 - a branch continues an entry by definition
        past = match.entry.state.first(match.tokens)
        branches = [request.ids[match.tokens :] for request in batch]
        hidden = model.forward(branches, past, stop=lambda: abandoned(batch))
        self._answer(model, batch, hidden, match.tokens)

    def _read_prompt(self, model: Model, request: Request, match: Match) -> None:
        ids = as_ids(request.ids)
        state = model.allocate(len(ids))
        if match.entry is not None:
            reused = match.entry.state.first(match.tokens)
            own = state.first(match.tokens)
            own.keys[...], own.values[...] = reused.keys, reused.values
        hidden = self._read_chunks(model, request, state, match.tokens)
        self._cache.store(ids, state, hidden)
        self._answer(model, [request], hidden, match.tokens)

    def _read_chunks(self, model: Model, request: Request, state: KeyValues, start: int) -> Floats:
        while True:
            stop = min(start + MAX_PASS_TOKENS, len(request.ids))
            last = stop == len(request.ids)
            hidden = model.forward(
                [request.ids[start:stop]],
                state.first(start),
                keep=state,
                ends=last,
                stop=lambda: abandoned([request]),
            )
            if last:
                return hidden
            start = stop

    def _answer(
        self,
        model: Model,
        batch: list[Request],
        hidden: Floats,
        cached: int,
    ) -> None:
        rows = model.log_probabilities(hidden, [request.label_ids for request in batch])
        for request, (token, logprob, asked) in zip(batch, rows, strict=True):
            settle(request, Result(token, logprob, tuple(asked), cached))
