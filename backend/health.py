"""Wait until something answers `/health` with 200."""

import asyncio

from backend.errors import EngineError
from backend.transport import AiohttpTransport

_FIRST_PAUSE_SECONDS = 0.1
# a large model loads for minutes: asked less and less often, but told of at most this late
_LONGEST_PAUSE_SECONDS = 1.0
# SGLang's /health takes at least a second: it runs a token through the model
_PROBE_SECONDS = 5.0


async def wait_until_healthy(url: str, *, seconds: float) -> bool:
    """Ask `url`/health again and again.

    Args:
        url: address of an engine or of the API.
        seconds: how long to keep asking.

    Returns:
        Whether it became healthy in time.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    transport = AiohttpTransport(url)
    pause = _FIRST_PAUSE_SECONDS
    try:
        while (now := loop.time()) < deadline:
            try:
                probe_deadline = min(deadline, now + _PROBE_SECONDS)
                status, _ = await transport.get("/health", deadline=probe_deadline)
            except EngineError:
                status = 0
            if status == 200:
                return True
            await asyncio.sleep(pause)
            pause = min(1.2 * pause, _LONGEST_PAUSE_SECONDS)
        return False
    finally:
        await transport.aclose()
