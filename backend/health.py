"""Whether an engine, or the API, works: asked again and again until the answer is the awaited one.

Knows what is asked, and nothing of processes or of what the answer leads to.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from backend.client import EngineClient
from backend.config import Config
from backend.errors import EngineError, EngineMismatch
from backend.fit import HOPELESS, LOOK_SECONDS, require_described, why_hopeless
from backend.transport import ConnectionPool

_FIRST_PAUSE_SECONDS = 0.1
# a large model loads for minutes: asked less and less often, but told of at most this late
_LONGEST_PAUSE_SECONDS = 1.0
# the API asks its engine in turn, which may be busy
_PROBE_SECONDS = 5.0
_WATCH_PAUSE_SECONDS = 5.0


async def wait_until_healthy(url: str, *, seconds: float) -> bool:
    """Wait until the API's `/health` answers 200.

    Args:
        url: address of the API. Never an engine's: see `EngineClient.is_healthy`.
        seconds: how long to keep asking.

    Returns:
        Whether it became healthy in time.
    """
    transport = ConnectionPool(url)
    try:
        return await _is_so_within(seconds, partial(_answers_200, transport))
    finally:
        await transport.aclose()


async def wait_until_serving(config: Config, *, seconds: float) -> bool:
    """Wait until the engine has answered a real call for a label's log-probability.

    Args:
        config: the engine's address and key, and what it must be.
        seconds: how long to keep asking.

    Returns:
        Whether it did so in time.

    Raises:
        EngineMismatch: what answers is not what it must be.
    """
    client = EngineClient(config.backend_url, api_key=config.backend_api_key)
    try:
        return await _is_so_within(seconds, partial(_serves, client, config))
    finally:
        await client.aclose()


async def why_not_serving(config: Config) -> str:
    """Ask the engine once more, and say why it does not serve, for whoever runs the server.

    Takes at most 5 seconds.

    Args:
        config: the engine's address and key, and what it must be.

    Returns:
        One or more sentences that name the address; that it answers, if it does.
    """
    client = EngineClient(config.backend_url, api_key=config.backend_api_key)
    try:
        await require_described(client, config, deadline=_in(_PROBE_SECONDS))
    except HOPELESS as error:
        return why_hopeless(error, config)
    except EngineError as error:
        return f"Asked once more at {config.backend_url}: {error}"
    finally:
        await client.aclose()
    return f"The engine at {config.backend_url} answers."


async def wait_until_silent(config: Config, *, seconds: float) -> None:
    """Watch an engine that works; return when it has not been healthy for `seconds`.

    A question may take half of that: a busy SGLang answers it after the step it is at. Two
    questions in a row must fail, lest a pause of this very process counts as the engine's.

    Args:
        config: the engine's address and key.
        seconds: how long it may be silent.
    """
    loop = asyncio.get_running_loop()
    client = EngineClient(config.backend_url, api_key=config.backend_api_key)
    last, failed = loop.time(), 0
    try:
        while failed < 2 or loop.time() < last + seconds:
            if await client.is_healthy(deadline=_in(seconds / 2)):
                last, failed = loop.time(), 0
                await asyncio.sleep(min(_WATCH_PAUSE_SECONDS, seconds / 4))
            else:
                failed += 1
                await asyncio.sleep(min(_LONGEST_PAUSE_SECONDS, seconds / 4))
    finally:
        await client.aclose()


async def _is_so_within(seconds: float, ask: Callable[[], Awaitable[bool]]) -> bool:
    try:
        async with asyncio.timeout(seconds):
            for pause in _pauses():
                if await ask():
                    break
                await asyncio.sleep(pause)
    except TimeoutError:
        return False
    return True


async def _answers_200(transport: ConnectionPool) -> bool:
    try:
        status, _ = await transport.get("/health", deadline=_in(_PROBE_SECONDS))
    except EngineError:
        return False
    return status == 200


async def _serves(client: EngineClient, config: Config) -> bool:
    try:
        await require_described(client, config, deadline=_in(LOOK_SECONDS))
    except HOPELESS as error:
        raise EngineMismatch(why_hopeless(error, config)) from error
    except EngineError:
        return False
    return True


def _in(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


def _pauses() -> Iterator[float]:
    pause = _FIRST_PAUSE_SECONDS
    while True:
        yield pause
        pause = min(1.2 * pause, _LONGEST_PAUSE_SECONDS)
