"""What an engine says of itself: which server it is, and what that server can do.

Pure functions over answers. SGLang's `/server_info` holds its keys in clear, so only what is named
here is ever read from it. Whether an engine suits us is `backend.fit`'s business.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeGuard

from backend.errors import EngineProtocolError
from backend.protocol import is_integer, parse_object

Front: TypeAlias = Literal["python", "rust", "router", "embedded", "unknown"]
"""The server that answers: one of SGLang's two, sglang-router, or the embedded engine."""

_NAMES: Mapping[Front, str] = {
    "python": "SGLang {}, Python front",
    "rust": "SGLang {}, Rust front",
    "router": "sglang-router",
    "embedded": "the embedded engine",
    "unknown": "an engine that does not say what it is",
}
_EMBEDDED_VERSION = "openjev-embedded"
_LONGEST_VERSION = 64
# SGLang refuses inputs up to this many tokens shorter than the context it names
RESERVED_TOKENS = 6
# Flags whose presence the Python front shows, and that someone may have set at odds with us.
_SHOWN_FLAGS = ("disable_radix_cache", "allow_auto_truncate", "speculative_algorithm", "enable_mis")


@dataclass(frozen=True, slots=True)
class ServerDetails:
    """What an engine's `/get_server_info` or `/server_info` tells.

    Attributes:
        front: which server answered.
        version: of the engine; `None` where it does not say.
        max_input_tokens: as said; `None` where it is not.
        pool_tokens: what its memory holds of all inputs together; `None` where it does not say.
        flags: those of `_SHOWN_FLAGS` that are set, by their names on the command line.
        warms_up: whether it begins with a request of its own; `False` where it does not say.
    """

    front: Front = "unknown"
    version: str | None = None
    max_input_tokens: int | None = None
    pool_tokens: int | None = None
    flags: tuple[str, ...] = ()
    warms_up: bool = False


@dataclass(frozen=True, slots=True)
class EngineDescription:
    """What an engine serves, and what it can do.

    Attributes:
        model: the name it serves its model under.
        context_length: tokens of input and output together; `None` behind a router, which does
            not tell.
        max_input_tokens: an input must be *shorter* than this; SGLang 0.5.19 dies of one that is
            not, although its context would hold it. `None` where the context is unknown.
        front: which server it is.
        version: of the engine; `None` where it does not say.
        has_abort: whether `/abort_request` can be used; else a call ends with its connection.
        reports_cached: whether answers carry a count of cached tokens.
        flags: set flags that may be at odds with us; empty where it does not say.
    """

    model: str
    context_length: int | None
    max_input_tokens: int | None
    front: Front
    version: str | None
    has_abort: bool
    reports_cached: bool
    flags: tuple[str, ...] = ()

    def __str__(self) -> str:
        """One line for the log."""
        longest = self.max_input_tokens
        return ", ".join(
            (
                _NAMES[self.front].format(self.version or "of unknown version"),
                f"model {self.model!r}",
                f"inputs shorter than {longest} tokens" if longest else "context length unknown",
                f"calls aborted by {'name' if self.has_abort else 'hanging up'}",
                f"cached tokens {'' if self.reports_cached else 'not '}counted",
            )
        )


def parse_served_model(body: bytes) -> tuple[str, int | None]:
    """Read `/v1/models`: the served name, and the context length in tokens if it is told.

    Returns:
        Name and length. A router in front of engines with different models lists them all, and
        uses any of them for anything: the name is then all names, which is nobody's.

    Raises:
        EngineProtocolError: there is no name, or the length is not one.
    """
    entries = parse_object(body).get("data")
    # adapters, which SGLang lists behind their model, have a parent
    models = [
        entry
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict) and entry.get("parent") is None
    ]
    if not models:
        raise EngineProtocolError("The engine's /v1/models lists no model.")
    names = {model["id"] for model in models if isinstance(model.get("id"), str)}
    length = models[0].get("max_model_len")
    if not names or not (length is None or (is_integer(length) and length > 0)):
        raise EngineProtocolError("The engine's /v1/models lacks the model's name or length.")
    return ", ".join(sorted(names)), length


def parse_details(path: str, body: bytes) -> ServerDetails:
    """Read the harmless facts in a description of the server.

    Args:
        path: the route that answered; SGLang's Rust front has only `/server_info`.
        body: the answer.

    Raises:
        EngineProtocolError: it is not a JSON object.
    """
    said = parse_object(body)
    version = said.get("version")
    return ServerDetails(
        front=_front(path, said),
        version=version if _is_plain(version) else None,
        max_input_tokens=_positive(said.get("max_req_input_len")),
        pool_tokens=_positive(said.get("max_total_num_tokens")),
        flags=tuple(f"--{key.replace('_', '-')}" for key in _SHOWN_FLAGS if said.get(key)),
        warms_up=said.get("skip_server_warmup") is False,
    )


def longest_input(context_length: int | None, details: ServerDetails) -> int | None:
    """Give the number of tokens an input must stay below; `None` where it cannot be known."""
    if details.max_input_tokens is not None or context_length is None:
        return details.max_input_tokens
    return min(context_length, details.pool_tokens or context_length) - RESERVED_TOKENS


def _front(path: str, said: Mapping[str, Any]) -> Front:
    if said.get("router_manager"):
        return "router"
    if said.get("version") == _EMBEDDED_VERSION:
        return "embedded"
    return "rust" if path == "/server_info" else "python"


def _is_plain(value: object) -> TypeGuard[str]:
    """Whether it can stand in a line of the log, whoever may have written it."""
    return isinstance(value, str) and value.isprintable() and len(value) <= _LONGEST_VERSION


def _positive(value: object) -> int | None:
    return value if is_integer(value) and value > 0 else None
