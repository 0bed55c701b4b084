"""Modal's control plane, as far as `modal deploy` and `modal run` of one server need it.

It speaks the real protocol on a local port, builds and runs nothing, and remembers what it was
asked for: that is what Modal would build and run.
"""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message
from grpclib import GRPCError, Status
from grpclib.server import Server, Stream
from modal_proto import api_grpc, api_pb2

_ids = count(1)
_BUILT = {
    "result": api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_SUCCESS),
    "metadata": api_pb2.ImageMetadata(
        python_version_info="Python 3.12.3", image_builder_version="2025.06"
    ),
}
_ENVIRONMENT = api_pb2.EnvironmentMetadata(
    name="main", settings=api_pb2.EnvironmentSettings(image_builder_version="2025.06")
)


def _with_id(response: type[Message], field: str, prefix: str, **more: Any) -> Callable:
    return lambda request: response(**{field: f"{prefix}-{next(_ids)}"}, **more)


def _always(response: Message) -> Callable:
    return lambda request: response


class ControlPlane(api_grpc.ModalClientBase):
    """Answers the calls listed in `_answers`, keeps every call, and implements no other.

    Args:
        server_url: the address that the server is said to have.

    Attributes:
        calls: method name and request, in the order received.
    """

    def __init__(self, server_url: str) -> None:
        self.calls: list[tuple[str, Any]] = []
        self._handle = api_pb2.FunctionHandleMetadata(
            function_name="OpenJev",
            function_type=api_pb2.Function.FUNCTION_TYPE_FUNCTION,
            _experimental_flash_urls=[server_url],
        )
        self._answers: Mapping[str, Callable[[Any], Message]] = {
            "AppGetByDeploymentName": _always(api_pb2.AppGetByDeploymentNameResponse()),
            "AppCreate": _with_id(api_pb2.AppCreateResponse, "app_id", "ap"),
            "AppHeartbeat": _always(Empty()),
            "AppPublish": _always(api_pb2.AppPublishResponse(url="https://x", deployed_at=1.0)),
            "AppGetLogs": _always(api_pb2.TaskLogsBatch(app_done=True)),
            "AppClientDisconnect": _always(Empty()),
            "EnvironmentGetOrCreate": _with_id(
                api_pb2.EnvironmentGetOrCreateResponse,
                "environment_id",
                "en",
                metadata=_ENVIRONMENT,
            ),
            "VolumeGetOrCreate": _with_id(api_pb2.VolumeGetOrCreateResponse, "volume_id", "vo"),
            "SecretGetOrCreate": _with_id(api_pb2.SecretGetOrCreateResponse, "secret_id", "st"),
            "MountBatchedCheckExistence": _always(api_pb2.MountBatchedCheckExistenceResponse()),
            "MountGetOrCreate": _with_id(api_pb2.MountGetOrCreateResponse, "mount_id", "mo"),
            "ImageGetOrCreate": _with_id(
                api_pb2.ImageGetOrCreateResponse, "image_id", "im", **_BUILT
            ),
            "FunctionPrecreate": _always(
                api_pb2.FunctionPrecreateResponse(function_id="fu-1", handle_metadata=self._handle)
            ),
            "FunctionCreate": self._created,
        }

    def requests(self, method: str) -> list[Any]:
        """The requests of one kind."""
        return [request for name, request in self.calls if name == method]

    @property
    def server(self) -> api_pb2.Function:
        """The definition of the one server that was created."""
        (request,) = self.requests("FunctionCreate")
        return request.function

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the secrets made on the spot: what a container's environment holds."""
        pairs: dict[str, str] = {}
        for request in self.requests("SecretGetOrCreate"):
            pairs |= request.env_dict
        return pairs

    @property
    def files(self) -> list[str]:
        """Where the files that go along are put."""
        return [f.filename for r in self.requests("MountGetOrCreate") for f in r.files]

    @property
    def dockerfile(self) -> list[str]:
        """The commands of all image layers, in the order built."""
        layers = self.requests("ImageGetOrCreate")
        return [command for request in layers for command in request.image.dockerfile_commands]

    def _created(self, request: Any) -> Message:
        ranked = api_pb2.FunctionData.RankedFunction(function=request.function)
        return api_pb2.FunctionCreateResponse(
            function_id="fu-1",
            handle_metadata=self._handle,
            function_data=api_pb2.FunctionData(ranked_functions=[ranked]),
        )

    async def answer(self, method: str, stream: Stream[Any, Any]) -> None:
        """Answer one call."""
        request = await stream.recv_message()
        self.calls.append((method, request))
        if method not in self._answers:
            raise GRPCError(Status.UNIMPLEMENTED, f"the stand-in does not know {method}")
        await stream.send_message(self._answers[method](request))


def _method(name: str) -> Callable:
    async def method(self: ControlPlane, stream: Stream[Any, Any]) -> None:
        await self.answer(name, stream)

    return method


for _name in api_grpc.ModalClientBase.__abstractmethods__:
    setattr(ControlPlane, _name, _method(_name))
ControlPlane.__abstractmethods__ = frozenset()


class Modal:
    """The `modal` command, in front of a stand-in of Modal.

    Attributes:
        plane: what it was asked for.
    """

    def __init__(self, plane: ControlPlane, url: str, home: Path) -> None:
        self.plane = plane
        self._environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("OPENJEV_", "MODAL_"))},
            "HOME": str(home),
            "MODAL_SERVER_URL": url,
            "MODAL_TOKEN_ID": "ak-of-nobody",
            "MODAL_TOKEN_SECRET": "as-of-nobody",
        }

    async def __call__(self, *arguments: str, **environment: str) -> tuple[int, str]:
        """Run the command; returns its exit code and all it wrote."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "modal", *arguments),
            env=self._environment | environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            written, _ = await asyncio.wait_for(process.communicate(), 60)
        except TimeoutError:
            process.kill()
            written, _ = await process.communicate()
        return process.returncode or 0, written.decode()


@asynccontextmanager
async def modal_command(home: Path, *, server_url: str) -> AsyncIterator[Modal]:
    """The `modal` command and the stand-in that it talks to.

    Args:
        home: an empty directory, so that nobody's credentials are found.
        server_url: the address that a created server is said to have.
    """
    plane = ControlPlane(server_url)
    server = Server([plane])
    listening = socket.create_server(("127.0.0.1", 0))
    await server.start(sock=listening)
    try:
        yield Modal(plane, f"http://127.0.0.1:{listening.getsockname()[1]}", home)
    finally:
        server.close()
        await server.wait_closed()
