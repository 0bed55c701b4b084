"""SGLang's native `POST /generate`, as far as one-token calls need it.

Pure functions over bytes: what is sent, and what may be believed of what comes back. A number that
leaves this module is a finite log-probability that belongs to the token id it was asked for;
everything else is an `EngineProtocolError`. Nothing an engine said leaves it at all: its messages
may hold file paths and the prompt.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

from backend.errors import (
    EngineBusy,
    EngineError,
    EngineProtocolError,
    EngineRejected,
    EngineUnavailable,
    UnusableLogprobs,
)
from backend.fast_json import dumps, loads
from backend.token_ids import TokenIds

# float32 log-softmax may round the logarithm of 1 to slightly more than 0
_ROUNDING_NATS = 1e-4
_SAMPLING = b'"sampling_params":{"temperature":0,"max_new_tokens":1},"return_logprob":true'
_TRY_LATER = frozenset({408, 429, 502, 503, 504})
# a router's way to say that it did not reach the engine it chose
_UNREACHED = b"call_upstream_request_error"


class Call(NamedTuple):
    """What one call asks about the next token.

    Attributes:
        input_ids: the prompt.
        label_ids: tokens whose log-probability is wanted; answered in this order.
        rid: name of the call, by which it can be aborted. SGLang aborts by prefix and refuses a rid
            that is in use: of all calls under way at an engine, none may begin with another's.
    """

    input_ids: TokenIds
    label_ids: Sequence[int]
    rid: str


class LabelLogprobs(NamedTuple):
    """What one call says about the next token.

    Attributes:
        logprobs: natural log-probabilities (nats) over the whole vocabulary, one per label id, in
            the order asked.
        prompt_tokens: tokens of the input, cached ones included.
        completion_tokens: tokens the engine made; one.
        cached_tokens: input tokens it had already evaluated; `None` where it does not say.
    """

    logprobs: tuple[float, ...]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None


def generate_body(call: Call) -> bytes:
    """Build the body of a one-token call.

    `logprob_start_len` is never sent: its default, output only, is what we want, and a wrong one
    kills SGLang 0.5.19. The temperature is 0 because SGLang's log-probabilities are those *after*
    temperature (0 leaves them alone); ours is applied when labels are normalised.
    """
    # the input's ids are most of the body and come already encoded
    return b'{"rid":%b,%b,"token_ids_logprob":%b,"input_ids":[%b]}' % (
        dumps(call.rid),
        _SAMPLING,
        dumps([*call.label_ids]),
        call.input_ids.encoded,
    )


def parse_label_logprobs(body: bytes, call: Call) -> LabelLogprobs:
    """Read the answer to a one-token call, trusting nothing about it.

    Args:
        body: body of an answer with status 200.
        call: what was asked. Another number of tokens means that its input was truncated; another
            rid, that the answer is another call's.

    Raises:
        UnusableLogprobs: it lacks a finite log-probability for some label.
        EngineProtocolError: it was aborted, or is no answer to a one-token call.
        EngineError: of the kind `failure` gives, for an error carried inside a 200.
    """
    answer = parse_object(body)
    if "error" in answer or answer.get("object") == "error":
        raise failure(_code_inside(answer) or 500, body)
    meta = answer.get("meta_info")
    if not isinstance(meta, dict):
        raise EngineProtocolError("The engine's answer has no meta_info.")
    if meta.get("id", call.rid) != call.rid:
        raise EngineProtocolError("The engine's answer is that to another call.")
    reason = meta.get("finish_reason")
    if isinstance(reason, dict) and reason.get("type") == "abort":
        raise EngineProtocolError("The engine aborted the call.")
    prompt_tokens = call.input_ids.length
    return LabelLogprobs(
        logprobs=_logprobs(meta, call.label_ids),
        prompt_tokens=_count(meta, "prompt_tokens", prompt_tokens, prompt_tokens),
        completion_tokens=_count(meta, "completion_tokens", 1, 1),
        cached_tokens=None
        if meta.get("cached_tokens") is None
        else _count(meta, "cached_tokens", 0, prompt_tokens),
    )


def failure(status: int, body: bytes) -> EngineError:
    """Turn an answer that is not 200 into the error to raise.

    Args:
        status: HTTP status, or the code of an error inside a 200.
        body: the answer; read only to tell cases apart, never quoted.
    """
    if status == 401 or status == 403:
        return EngineRejected(
            "The engine refused the key. Set OPENJEV_BACKEND_API_KEY to the engine's API key.",
            status=status,
        )
    if status == 499:
        return EngineProtocolError("The engine aborted the call.")
    said = error_message(body).lower()
    if status in _TRY_LATER:
        if "queue is full" in said:
            return EngineBusy("The engine's queue is full.", retry_after=1)
        return EngineBusy(f"The engine takes no requests at the moment (status {status}).")
    if status == 500 and _UNREACHED in body:
        return EngineUnavailable("The engine behind the router cannot be reached.")
    if 400 <= status < 500:
        return EngineRejected(
            f"The engine refused the call: {_refusal(said, status)}.", status=status
        )
    if 300 <= status < 400:
        return EngineProtocolError(
            f"The engine's address leads to another (status {status}). Set that one."
        )
    return EngineProtocolError(f"The engine failed with status {status}.")


def _refusal(said: str, status: int) -> str:
    if "longer than" in said or "maximum allowed length" in said:
        return "its context is too short for the input"
    if "out-of-vocabulary" in said:
        return "a token id is outside its vocabulary, so the tokenizer is not that of its model"
    if status == 404:
        return "it has no such route, so it is not an engine that speaks SGLang's protocol"
    return f"status {status}"


def error_message(body: bytes) -> str:
    """Find the message in any of the engine's error bodies; for telling them apart, not to show.

    Known forms: `{"error": {"message": …}}`, `{"object": "error", "message": …}`,
    `{"error": "…"}`, `{"detail": …}` and bare text.
    """
    text = body.decode("utf-8", "replace")
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(parsed, dict):
        return text
    error = parsed.get("error", parsed)
    if isinstance(error, dict):
        error = error.get("message", error.get("detail", ""))
    return str(error)


def parse_object(body: bytes) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        EngineProtocolError: the body is anything else.
    """
    try:
        parsed = loads(body)
    except (ValueError, RecursionError):
        raise EngineProtocolError("The engine's answer is not JSON.") from None
    if not isinstance(parsed, dict):
        raise EngineProtocolError("The engine's answer is not a JSON object.")
    return parsed


def tokenize_body(text: str) -> bytes:
    """Build the body that asks `/tokenize` for the tokens of `text` and no others."""
    return json.dumps({"prompt": text, "add_special_tokens": False}).encode()


def parse_tokens(body: bytes) -> list[int]:
    """Read the answer of `/tokenize`.

    Raises:
        EngineProtocolError: it holds no token ids.
    """
    ids = parse_object(body).get("tokens")
    if not isinstance(ids, list) or not all(map(is_integer, ids)):
        raise EngineProtocolError("The engine's /tokenize gave no token ids.")
    return ids


def _logprobs(meta: Mapping[str, Any], label_ids: Sequence[int]) -> tuple[float, ...]:
    positions = meta.get("output_token_ids_logprobs")
    if not isinstance(positions, list) or len(positions) != 1 or not isinstance(positions[0], list):
        raise UnusableLogprobs("The engine's answer has no label log-probabilities.")
    found: dict[int, float] = {}
    for entry in positions[0]:
        if not isinstance(entry, list) or len(entry) < 2 or not is_integer(entry[1]):
            raise UnusableLogprobs("The engine's label log-probabilities are malformed.")
        value = entry[0]
        # nearly every one is: a call for each would be felt with many labels
        is_plain = type(value) is float and -math.inf < value <= 0
        found[entry[1]] = value if is_plain else _logprob(value)
    if len(positions[0]) != len(label_ids) or not found.keys() >= set(label_ids):
        raise UnusableLogprobs("The engine did not give a log-probability for every label.")
    return tuple(found[label_id] for label_id in label_ids)


def _logprob(value: object) -> float:
    try:
        number = float(value) if isinstance(value, float) or is_integer(value) else math.nan
    except OverflowError:
        number = math.nan
    if not math.isfinite(number) or number > _ROUNDING_NATS:
        raise UnusableLogprobs("The engine gave a log-probability that is not one.")
    return min(number, 0.0)


def _count(meta: Mapping[str, Any], name: str, low: int, high: int) -> int:
    value = meta.get(name)
    if not is_integer(value) or not low <= value <= high:
        raise EngineProtocolError(f"The engine's answer has a wrong or missing {name}.")
    return value


def _code_inside(answer: Mapping[str, Any]) -> int | None:
    error = answer["error"] if isinstance(answer.get("error"), dict) else answer
    code = error.get("code")
    return code if is_integer(code) and 400 <= code < 600 else None


def is_integer(value: object) -> TypeGuard[int]:
    """Whether a value from JSON is a whole number; `true` is none."""
    return isinstance(value, int) and not isinstance(value, bool)
