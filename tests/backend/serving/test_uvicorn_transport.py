"""What is written in one turn of the loop leaves in one write, in its order, before any end."""

import asyncio

from backend.serving.uvicorn_transport import Gathering


class Wire:
    """A transport that notes what it is told."""

    def __init__(self):
        self.told = []
        self.closing = False

    def write(self, data):
        self.told.append(data)

    def write_eof(self):
        self.told.append("end")

    def close(self):
        self.told.append("closed")

    def is_closing(self):
        return self.closing

    def get_write_buffer_size(self):
        return 100


async def gathering():
    wire = Wire()
    return wire, Gathering(wire, asyncio.get_running_loop())


async def test_what_is_written_at_once_leaves_at_once():
    wire, transport = await gathering()
    transport.write(b"head")
    transport.write(b"body")
    assert wire.told == []
    assert transport.get_write_buffer_size() == 108
    await asyncio.sleep(0)
    assert wire.told == [b"headbody"]
    assert transport.get_write_buffer_size() == 100
    transport.write(b"more")
    await asyncio.sleep(0)
    assert wire.told == [b"headbody", b"more"]


async def test_an_end_comes_after_what_was_written():
    for end, told in (("close", "closed"), ("write_eof", "end")):
        wire, transport = await gathering()
        transport.write(b"answer")
        getattr(transport, end)()
        await asyncio.sleep(0)
        assert wire.told == [b"answer", told]


async def test_nothing_is_written_to_a_connection_that_is_gone():
    wire, transport = await gathering()
    transport.write(b"answer")
    wire.closing = True
    await asyncio.sleep(0)
    assert wire.told == []
