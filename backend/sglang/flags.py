"""SGLang's command-line flags: read them, let later ones replace earlier ones, refuse the harmful.

Knows how SGLang 0.5.19 spells things: `--flag value`, `--flag=value`, second names of a flag, and
beginnings of a name that its parser completes. Pure. It must never let a flag through that makes
answers wrong or slow in silence, or that opens the engine to others.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

Flags: TypeAlias = dict[str, tuple[str, ...]]
"""From the name of a flag, without a second name's spelling, to its values."""

# second names of flags that we set or refuse
_SECOND_NAMES = {
    "--model": "--model-path",
    "--tp": "--tp-size",
    "--tensor-parallel-size": "--tp-size",
    "--mamba-scheduler-strategy": "--mamba-radix-cache-strategy",
    "--grpc-mode": "--smg-grpc-mode",
}
# names of their own for one value of another flag
_FIXED_VALUES = {
    "--enable-breakable-cuda-graph": ("--cuda-graph-backend-prefill", "breakable"),
    "--enforce-piecewise-cuda-graph": ("--cuda-graph-backend-prefill", "tc_piecewise"),
    "--disable-piecewise-cuda-graph": ("--cuda-graph-backend-prefill", "disabled"),
}
_PLAIN = (
    "--context-length",
    "--host",
    "--mamba-radix-cache-strategy",
    "--cuda-graph-backend-prefill",
    "--chunked-prefill-size",
    "--max-running-requests",
    "--max-queued-requests",
    "--kv-cache-dtype",
    "--enable-metrics",
    "--log-level-http",
    "--log-level",  # not set by us, but a whole name, not the beginning of one
)

_SETTING = "It comes from a setting: use {} instead"
_FORBIDDEN = {
    "--model-path": _SETTING.format("OPENJEV_MODEL"),
    "--revision": _SETTING.format("OPENJEV_REVISION"),
    "--tokenizer-path": "The engine's tokenizer must be ours: both come with OPENJEV_MODEL",
    "--served-model-name": _SETTING.format("OPENJEV_SERVED_MODEL_NAME"),
    "--port": "Use --backend-port, before the two dashes, instead",
    "--api-key": "Every user of this machine can read a command line: use OPENJEV_BACKEND_API_KEY",
    "--admin-api-key": "With it SGLang would refuse to abort what nobody waits for any more",
    "--config": "A file could change the other flags unseen: write its flags here",
    "--disable-radix-cache": "Every question would read the whole text anew",
    "--allow-auto-truncate": "Texts that are too long would be cut and judged in silence",
    "--skip-tokenizer-init": "The start could not compare the engine's tokenizer with ours",
    "--is-embedding": "Answers are read from the log-probabilities of tokens",
    "--enable-mis": "It switches the prefix cache off",
    "--smg-grpc-mode": "The engine must answer over HTTP",
    "--encoder-only": "The engine must hold the whole model",
    "--disaggregation-mode": "The engine must do all of a request's work itself",
    "--ssl-certfile": "The engine is reached without TLS, on loopback only",
    "--ssl-keyfile": "The engine is reached without TLS, on loopback only",
}
_FORBIDDEN_ON_RUST = {
    "--max-queued-requests": (
        "SGLang's Rust front never answers a call that finds the queue full: use --frontend python"
    ),
}
_SPECULATIVE = ("--speculative-", "--decoupled-spec-", "--enable-multi-layer-eagle")
_LOOPBACK = ("127.0.0.1", "localhost")


class FlagRefused(Exception):
    """Why a flag is not handed on: a complete sentence that names it."""


def read_flags(words: Sequence[str]) -> Flags:
    """Read a command line; of a flag that is given twice, the last counts.

    Raises:
        FlagRefused: a value stands before any flag.
    """
    flags: Flags = {}
    for name, values in _grouped(words):
        if name in _FIXED_VALUES:
            name, *values = _FIXED_VALUES[name]
        flags[name] = tuple(values)
    return flags


def arguments(flags: Mapping[str, Sequence[str]]) -> list[str]:
    """Write a command line."""
    return [word for name, values in flags.items() for word in (name, *values)]


def require_harmless(flags: Mapping[str, Sequence[str]], *, frontend: str = "python") -> None:
    """Check flags that a person gave.

    Args:
        flags: from `read_flags`.
        frontend: of the SGLang that they are for; `rust` bears fewer.

    Raises:
        FlagRefused: the product could not work as promised with one of them.
    """
    for name, values in flags.items():
        reason = _FORBIDDEN.get(name)
        if frontend == "rust":
            reason = _FORBIDDEN_ON_RUST.get(name, reason)
        if name.startswith(_SPECULATIVE):
            reason = "One token is read for each question, so there is nothing to speculate on"
        elif name == "--host" and not set(values) <= set(_LOOPBACK):
            reason = (
                "Only the API may be reached from elsewhere: give it a --host, before the dashes"
            )
        if reason:
            raise FlagRefused(f"The SGLang flag {name} cannot be used. {reason}.")


def _grouped(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    name, values = "", list[str]()
    for word in words:
        if not word.startswith("--"):
            if not name:
                raise FlagRefused(
                    f"{word!r} is no flag for SGLang. After two dashes, write flags and their "
                    "values, for example: -- --mem-fraction-static 0.8"
                )
            values.append(word)
            continue
        if name:
            yield name, values
        given, equals, value = word.partition("=")
        name, values = _full_name(given), [value] if equals else []
    if name:
        yield name, values


def _full_name(given: str) -> str:
    known = (*_SECOND_NAMES, *_FIXED_VALUES, *_PLAIN, *_FORBIDDEN)
    if given not in known:
        completed = {_SECOND_NAMES.get(name, name) for name in known if name.startswith(given)}
        given = completed.pop() if len(completed) == 1 else given
    return _SECOND_NAMES.get(given, given)
