"""The limits of a product that serves in several processes: they hold for all of them together."""

from pathlib import Path

import httpx
import pytest

from tests.faults.outcomes import BODY
from tests.faults.test_processes import started
from tests.support.running import Asking

pytestmark = pytest.mark.process

SERVERS = ["daphne", "uvicorn"]


def statuses(url: str, number: int) -> set[int]:
    """What new clients are answered, who come to whichever process takes them."""
    return {httpx.post(url, json=BODY, timeout=60).status_code for _ in range(number)}


@pytest.mark.parametrize("server", SERVERS)
def test_limits_hold_for_all_processes_together(tiny_gguf: Path, server: str) -> None:
    options = ("--server", server, "--workers", "2")
    limits = {"MAX_CONCURRENT_REQUESTS": "4", "MAX_CONCURRENT_BRANCHES": "9"}
    with started(tiny_gguf, *options, **limits) as product:
        told = httpx.get(product.url.replace("systemone", "limits")).json()
        assert told["max_concurrent_requests"] == 4
        assert told["max_concurrent_branches"] == 9
        product.script(fault="hang", suffix=".0000")
        held = [Asking("POST", product.url, json=BODY) for _ in range(4)]
        product.until_running(4)
        assert statuses(product.url, 16) == {529}
        assert not any(one.answer for one in held)
        for worker in product.command.workers():  # with what it has counted
            worker.kill()
        product.script(fault="none", suffix=".0000")
        product.command.wait_for("ended by itself")
        product.until_running(0)
        for one in held:
            one.join(10)
            assert isinstance(one.answer, httpx.TransportError)
        assert statuses(product.url, 8) == {200}
