"""What this process holds at the moment: tasks, connections to the engine, other processes."""

import asyncio
from typing import Any

import psutil

_OF_THE_FAKE_ENGINE = "RequestHandler."  # it is served by the same loop


def tasks() -> set[asyncio.Task[Any]]:
    """Everything that runs on this loop, besides the caller and the fake engine."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    return {task for task in others if not _name(task).startswith(_OF_THE_FAKE_ENGINE)}


def local_ports(engine_port: int) -> set[int]:
    """Our ends of this process's connections to the engine, the half-closed ones included."""
    return {
        connection.laddr.port
        for connection in psutil.Process().net_connections("tcp")
        if connection.raddr and connection.raddr.port == engine_port
    }


def _name(task: asyncio.Task[Any]) -> str:
    return getattr(task.get_coro(), "__qualname__", "")
