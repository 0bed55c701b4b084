"""What to run for a profile, and whether it can run here: looked at before anything starts.

Pure, apart from the probe of a port. Keys travel in the environment, never in the argument list,
which any user of the machine can read.
"""

import errno
import ipaddress
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from backend.config import Config
from backend.description import RESERVED_TOKENS

# The least by which a context must be longer than `OPENJEV_MAX_INPUT_TOKENS`: what engines keep to
# themselves, and two tokens to spare.
CONTEXT_MARGIN = RESERVED_TOKENS + 2
PROJECT_ROOT = Path(__file__).resolve().parent.parent
ENGINE_HOST = "127.0.0.1"
_BACKLOG = 2048  # the kernel may allow fewer


class LaunchError(Exception):
    """Why nothing was started: a complete sentence that says what to change."""


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """A command line with its environment, which holds keys and is not shown.

    Attributes:
        argv: program and arguments.
        environment: the whole environment.
        secrets: texts that must not reach a log.
        private: files with secrets, which must not outlive the engine or whoever starts it.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)
    private: tuple[Path, ...] = ()


def engine_url(port: int) -> str:
    """The address of an engine that we start on `port`."""
    return f"http://{ENGINE_HOST}:{port}"


def embedded_command(
    config: Config, weights: Path, *, port: int, environ: Mapping[str, str] = os.environ
) -> EngineCommand:
    """How to start the embedded engine.

    Args:
        config: settings; the engine's key is handed on, the public API's is not.
        weights: the verified GGUF file.
        port: where it listens, on loopback.
        environ: environment to start from.
    """
    options = {
        "--gguf": str(weights.resolve()),
        "--host": ENGINE_HOST,
        "--port": str(port),
        "--served-model-name": config.served_model_name,
        "--context-length": str(config.max_input_tokens + CONTEXT_MARGIN),
        "--cache-bytes": str(config.prefix_cache_bytes),
    }
    environment = {name: value for name, value in environ.items() if name != "OPENJEV_API_KEY"} | {
        "OPENJEV_PROFILE": config.profile,
        "PYTHONUNBUFFERED": "1",
    }
    arguments = [text for option in options.items() for text in option]
    return EngineCommand(
        argv=(sys.executable, "-m", "backend.embedded", *arguments),
        environment=environment,
        secrets=config.secrets,
    )


def is_loopback(host: str) -> bool:
    """Whether an address, or a name, can only mean this machine."""
    with suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return host == "localhost"


def require_free(host: str, port: int, option: str) -> None:
    """Check that a server could listen on `port`.

    Args:
        host: address to listen on.
        port: TCP port.
        option: the command-line option that chooses the port, for the message.

    Raises:
        LaunchError: it could not.
    """
    open_listener(host, port, option).close()


def open_listener(host: str, port: int, option: str) -> socket.socket:
    """Listen on `port`; a name that has addresses of both kinds means the one of version 4.

    Args:
        host: address to listen on.
        port: TCP port.
        option: the command-line option that chooses the port, for the message.

    Raises:
        LaunchError: it cannot be done.
    """
    try:
        found = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            # two sockets may be bound to a port of which one alone may listen
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
    except UnicodeError:
        raise LaunchError(f"--host is {host!r}, which can be no host's name.") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            variable = option.lstrip("-").upper().replace("-", "_")
            reason = (
                "is already in use. Stop what listens there, or choose another with "
                f"{option} (make run: {variable}=N)"
            )
        elif error.errno == errno.EACCES:
            reason = f"needs rights this user lacks. Choose one above 1023 with {option}"
        else:
            reason = f"cannot be listened on ({error.strerror}). Change --host or {option}"
        raise LaunchError(f"Port {port} on {host} {reason}.") from None
    return listener
