"""The command's life: what ends it, with which code, and that nothing is left behind."""

import signal
import time

import psutil
import pytest

pytestmark = pytest.mark.process


def assert_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=5)
    assert alive == []


def test_a_killed_engine_ends_the_command_with_an_error_within_two_seconds(tiny_product):
    family = tiny_product.family()
    tiny_product.engine().kill()
    killed = time.monotonic()
    assert tiny_product.process.wait(10) == 1
    assert time.monotonic() - killed < 2
    assert_gone(family)
    assert "The engine ended by itself" in tiny_product.log.read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_polite_signal_ends_everything_with_zero(tiny_product, number):
    family = tiny_product.family()
    tiny_product.process.send_signal(number)
    assert tiny_product.process.wait(15) == 0
    assert_gone(family)


def test_a_killed_command_takes_its_engine_with_it(tiny_product):
    family = tiny_product.family()
    assert len(family) >= 2
    tiny_product.process.kill()
    tiny_product.process.wait(5)
    assert_gone(family)
