"""Taking connections beside other processes, and when there is no room for one."""

import asyncio
import errno
import socket

import pytest

from backend.launch import open_listener
from backend.serving import acceptor
from backend.serving.acceptor import Acceptor
from tests.support.loopback import free_port


@pytest.fixture
def listener():
    with open_listener("127.0.0.1", free_port(), "--port") as listener:
        yield listener


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - a plain list
            await asyncio.sleep(0.001)


async def test_each_of_several_listeners_takes_its_share(listener):
    address, taken = listener.getsockname(), ([], [])
    acceptors = [Acceptor(listener.dup(), share.append) for share in taken]
    clients = [socket.create_connection(address) for _ in range(16)]
    await until(lambda: len(taken[0]) + len(taken[1]) == 16)
    assert all(len(share) >= 4 for share in taken)
    assert not any(connection.getblocking() for connection in taken[0])
    acceptors[0].close()
    clients.append(socket.create_connection(address))
    await until(lambda: len(taken[0]) + len(taken[1]) == 17)
    acceptors[1].close()
    listener.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    for connection in (*taken[0], *taken[1], *clients):
        connection.close()


async def test_a_client_that_reads_nothing_is_given_up(listener, monkeypatch):
    monkeypatch.setattr(acceptor, "UNREAD_SECONDS", 0.3)
    taken = []
    taking = Acceptor(listener, taken.append)
    with socket.create_connection(listener.getsockname()):
        await until(lambda: taken)
        much = bytes(64 * 2**20)  # more than any system takes in by itself
        async with asyncio.timeout(20) as limit:
            with taken[0] as connection, pytest.raises(TimeoutError):
                await asyncio.get_running_loop().sock_sendall(connection, much)
        assert not limit.expired()
    taking.close()


class Failing:
    """A listening socket that fails for a while."""

    def __init__(self, listener, errors):
        self._listener, self._errors = listener, errors

    def accept(self):
        if self._errors:
            raise OSError(self._errors.pop(), "no room")
        return self._listener.accept()

    def __getattr__(self, name):
        return getattr(self._listener, name)


async def test_a_connection_that_finds_no_room_waits(listener, monkeypatch, caplog):
    monkeypatch.setattr(acceptor, "_PAUSE_SECONDS", 0.01)
    errors, taken = [errno.EMFILE, errno.EMFILE, errno.ECONNABORTED], []
    accepting = Acceptor(Failing(listener, errors), taken.append)
    with socket.create_connection(listener.getsockname()):
        await until(lambda: taken)
    assert caplog.text.count("No connection can be accepted: no room.") == 2
    taken[0].close()
    accepting.close()


async def test_it_may_be_closed_while_it_pauses_and_again(listener):
    accepting = Acceptor(Failing(listener, [errno.EMFILE]), lambda connection: None)
    with socket.create_connection(listener.getsockname()):
        await until(lambda: accepting._pause is not None)
    accepting.close()
    accepting.close()
