"""Driving the lifespan of applications that behave, refuse, hang, or know nothing of it."""

import asyncio

import pytest

from backend import lifespan
from backend.lifespan import Lifespan, StartupRefused


class Application:
    def __init__(self, *replies):
        self.replies = replies
        self.events = []
        self.cancelled = False
        self.hangs = asyncio.Event()

    async def __call__(self, scope, receive, send):
        assert scope["type"] == "lifespan"
        try:
            for reply in self.replies:
                self.events.append((await receive())["type"])
                if reply is None:
                    self.hangs.set()
                    await asyncio.Event().wait()
                await send({"type": reply} if isinstance(reply, str) else reply)
            await receive()
        except asyncio.CancelledError:
            self.cancelled = True
            raise


async def test_startup_then_shutdown():
    app = Application("lifespan.startup.complete", "lifespan.shutdown.complete")
    driver = Lifespan(app)
    await driver.startup()
    assert app.events == ["lifespan.startup"]
    await driver.shutdown(1)
    assert app.events == ["lifespan.startup", "lifespan.shutdown"]


@pytest.mark.parametrize(
    ("extra", "shown"), [({"message": "no model"}, "no model"), ({}, "no reason")]
)
async def test_a_refused_startup_gives_the_reason(extra, shown):
    driver = Lifespan(Application({"type": "lifespan.startup.failed", **extra}))
    with pytest.raises(StartupRefused, match=shown):
        await driver.startup()
    await driver.shutdown(1)


async def test_a_startup_without_an_answer_is_refused(monkeypatch):
    monkeypatch.setattr(lifespan, "_STARTUP_SECONDS", 0.05)
    app = Application(None)
    with pytest.raises(StartupRefused, match="no answer"):
        await Lifespan(app).startup()
    assert app.cancelled


async def test_an_application_without_lifespan_is_served_all_the_same():
    async def plain(scope, receive, send):
        raise ValueError("only http")

    driver = Lifespan(plain)
    await driver.startup()
    await driver.shutdown(1)


async def test_an_application_can_say_later_that_it_can_never_work():
    certain = asyncio.Event()

    async def refused():
        await certain.wait()
        return "The tokenizer does not fit."

    async def app(scope, receive, send):
        await receive()
        scope["state"]["refused"] = refused
        await send({"type": "lifespan.startup.complete"})
        await receive()

    driver = Lifespan(app)
    await driver.startup()
    waiting = asyncio.create_task(driver.refused())
    await asyncio.sleep(0)
    assert not waiting.done()
    certain.set()
    assert await waiting == "The tokenizer does not fit."
    await driver.shutdown(1)


async def test_an_application_that_offers_no_such_thing_never_refuses():
    driver = Lifespan(Application("lifespan.startup.complete"))
    await driver.startup()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(driver.refused(), 0.01)
    await driver.shutdown(1)


async def test_a_shutdown_that_takes_too_long_is_cut_short(caplog):
    app = Application("lifespan.startup.complete", None)
    driver = Lifespan(app)
    await driver.startup()
    await driver.shutdown(0.05)
    assert app.cancelled
    assert "did not shut down" in caplog.text


async def test_cancelling_the_shutdown_ends_the_application():
    app = Application("lifespan.startup.complete", None)
    driver = Lifespan(app)
    await driver.startup()
    task = asyncio.create_task(driver.shutdown(60))
    await app.hangs.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert app.cancelled


async def test_shutdown_without_startup_does_nothing():
    app = Application()
    await Lifespan(app).shutdown(1)
    assert app.events == []
