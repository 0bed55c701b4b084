"""The body of `POST /generate`, checked, and the answer to it, in SGLang's shapes.

Follows SGLang 0.5.19's Python front where that front behaves (single and batched bodies, shared or
per-item fields, its sentences), and refuses with a sentence where that front would crash. What this
engine cannot do (long answers, text input, prompt log-probabilities) is refused, never ignored;
fields nobody knows are ignored, as there.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from backend.embedded.requests import Result

# Positions a real engine keeps for itself: it refuses prompts of context - 6 tokens and more.
RESERVED_TOKENS = 6


class BadRequest(Exception):
    """The body cannot be served; the message is a sentence for the caller."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What prompts of this engine may be.

    Attributes:
        vocabulary: number of token ids.
        context_length: tokens; prompts must be shorter by more than `RESERVED_TOKENS`.
    """

    vocabulary: int
    context_length: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """One item of a body.

    Attributes:
        rid: the caller's name for it, or a random one.
        ids: token ids.
        label_ids: ids whose log-probabilities are wanted.
        return_logprob: whether any log-probabilities are wanted.
        new_tokens: 0 or 1.
    """

    rid: str
    ids: tuple[int, ...]
    label_ids: tuple[int, ...]
    return_logprob: bool
    new_tokens: int


def parse(body: object, limits: Limits) -> tuple[list[Prompt], bool]:
    """Check a decoded body.

    Args:
        body: what the JSON said.
        limits: what prompts may be.

    Returns:
        The prompts, and whether the answer is an array.

    Raises:
        BadRequest: something in it cannot be served.
    """
    if not isinstance(body, dict):
        raise BadRequest("The body must be a JSON object.")
    _refuse_unsupported(body)
    input_ids = body.get("input_ids")
    if input_ids is None:
        raise BadRequest("Either text, input_ids or input_embeds should be provided.")
    if not isinstance(input_ids, list):
        raise BadRequest("input_ids must be a list of token ids, or a list of such lists.")
    if not input_ids:
        raise BadRequest("input_ids cannot be empty.")
    is_batch = isinstance(input_ids[0], list)
    count = len(input_ids) if is_batch else 1
    prompts = [
        Prompt(rid, _prompt_ids(ids, limits), labels, return_logprob, new_tokens)
        for rid, ids, labels, return_logprob, new_tokens in zip(
            _rids(body.get("rid"), count, is_batch=is_batch),
            input_ids if is_batch else [input_ids],
            _label_ids(body.get("token_ids_logprob"), count, limits, is_batch=is_batch),
            _switches(body.get("return_logprob", False), count, is_batch=is_batch),
            _new_tokens(body.get("sampling_params"), count, is_batch=is_batch),
            strict=True,
        )
    ]
    return prompts, is_batch


def _refuse_unsupported(body: dict[str, Any]) -> None:
    if body.get("text") is not None or body.get("input_embeds") is not None:
        raise BadRequest("The embedded engine takes input_ids only, no text and no input_embeds.")
    if body.get("stream"):
        raise BadRequest("The embedded engine does not stream. Leave stream out or set it false.")
    if body.get("logprob_start_len") not in (None, -1):  # a set could not look for a list
        raise BadRequest("The embedded engine gives no prompt log-probabilities. Leave it at -1.")
    if body.get("top_logprobs_num"):
        raise BadRequest("The embedded engine knows no top_logprobs_num. Use token_ids_logprob.")


def _is_id_list(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int for item in value)


def _check_vocabulary(name: str, ids: Iterable[int], limits: Limits) -> None:
    for token in ids:
        if not 0 <= token < limits.vocabulary:
            raise BadRequest(
                f"{name} contains out-of-vocabulary token id {token}; "
                f"valid range is [0, {limits.vocabulary})."
            )


def _prompt_ids(ids: object, limits: Limits) -> tuple[int, ...]:
    if not isinstance(ids, list) or not _is_id_list(ids):
        raise BadRequest("input_ids must hold whole numbers only, in one list or in every list.")
    if not ids:
        raise BadRequest("input_ids cannot be empty.")
    if len(ids) >= limits.context_length:
        raise BadRequest(
            f"The input ({len(ids)} tokens) is longer than the model's context length "
            f"({limits.context_length} tokens)."
        )
    longest = limits.context_length - RESERVED_TOKENS
    if len(ids) >= longest:
        raise BadRequest(
            f"Input length ({len(ids)} tokens) exceeds the maximum allowed length "
            f"({longest} tokens). Use a shorter input."
        )
    _check_vocabulary("input_ids", ids, limits)
    return tuple(ids)


def _rids(value: object, count: int, *, is_batch: bool) -> list[str]:
    if value is None:
        return [uuid4().hex for _ in range(count)]
    if isinstance(value, str):
        return [f"{value}_{n}" for n in range(count)] if is_batch else [value]
    if not is_batch or not isinstance(value, list) or not all(isinstance(r, str) for r in value):
        raise BadRequest("rid must be a string, or for a batch a list of strings.")
    if len(value) != count:
        raise BadRequest(f"rid has {len(value)} entries for {count} prompts.")
    if len(set(value)) != count:
        raise BadRequest("Duplicate request IDs detected within the request.")
    return value


def _label_ids(
    value: object, count: int, limits: Limits, *, is_batch: bool
) -> list[tuple[int, ...]]:
    if value is None:
        return [()] * count
    if _is_id_list(value):
        lists = [value] * count
    elif is_batch and isinstance(value, list) and all(_is_id_list(item) for item in value):
        lists = value
    else:
        raise BadRequest("token_ids_logprob must be a list of ids, for a batch also one per item.")
    if len(lists) != count:
        raise BadRequest(f"token_ids_logprob has {len(lists)} lists for {count} prompts.")
    for ids in {id(item): item for item in lists}.values():
        _check_vocabulary("token_ids_logprob", ids, limits)  # type: ignore[arg-type]
    return [tuple(item) for item in lists]  # type: ignore[arg-type]


def _switches(value: object, count: int, *, is_batch: bool) -> list[bool]:
    if value is None or isinstance(value, bool):
        return [bool(value)] * count
    if is_batch and isinstance(value, list) and all(isinstance(item, bool) for item in value):
        if len(value) != count:
            raise BadRequest(f"return_logprob has {len(value)} entries for {count} prompts.")
        return value
    raise BadRequest("return_logprob must be true or false, for a batch also one per item.")


def _new_tokens(value: object, count: int, *, is_batch: bool) -> list[int]:
    items: list[object] = value if is_batch and isinstance(value, list) else [value] * count
    if len(items) != count:
        raise BadRequest(f"sampling_params has {len(items)} entries for {count} prompts.")
    return [_sampling(item) for item in items]


def _sampling(params: object) -> int:
    """The number of tokens one item's `sampling_params` ask for.

    Temperatures 0 and 1 leave the log-probabilities as the model gives them; any other would scale
    them, which is the caller's business. The token returned is always the most likely one.
    """
    if params is None:
        params = {}
    if not isinstance(params, dict):
        raise BadRequest("sampling_params must be an object, for a batch also one per item.")
    for key in params:
        if key not in {"max_new_tokens", "temperature"}:
            raise BadRequest(
                f"sampling_params has {key[:40]!r}; the embedded engine knows max_new_tokens "
                "and temperature."
            )
    new_tokens = params.get("max_new_tokens")
    if type(new_tokens) is not int or new_tokens not in {0, 1}:
        raise BadRequest("sampling_params.max_new_tokens must be 0 or 1 for the embedded engine.")
    temperature = params.get("temperature", 1)
    if isinstance(temperature, bool) or temperature not in (0, 1):
        raise BadRequest("sampling_params.temperature must be 0 or 1 for the embedded engine.")
    return new_tokens


def answer(
    prompt: Prompt, result: Result, *, end_token_id: int | None, seconds: float
) -> dict[str, Any]:
    """What one prompt is answered with.

    Args:
        prompt: what was asked.
        result: what the model said.
        end_token_id: the token that makes a one-token answer finished rather than cut off.
        seconds: time since the request arrived.
    """
    tokens = [result.token] * prompt.new_tokens
    finish: dict[str, object] = {"type": "length", "length": prompt.new_tokens}
    if end_token_id in tokens:
        finish = {"type": "stop", "matched": end_token_id}
    meta: dict[str, Any] = {
        "id": prompt.rid,
        "finish_reason": finish,
        "prompt_tokens": len(prompt.ids),
        "completion_tokens": prompt.new_tokens,
        "cached_tokens": result.cached_tokens,
        "weight_version": "default",
        "e2e_latency": seconds,
    }
    if prompt.return_logprob:
        pairs = zip(result.logprobs, prompt.label_ids, strict=True)
        meta["input_token_logprobs"] = []
        meta["output_token_logprobs"] = [[result.token_logprob, token, None] for token in tokens]
        meta["output_token_logprobs_length"] = len(tokens)
        meta["input_token_ids_logprobs"] = []
        meta["output_token_ids_logprobs"] = [[[value, token, None] for value, token in pairs]]
    return {"output_ids": tokens, "meta_info": meta}


def aborted(prompt: Prompt) -> dict[str, Any]:
    """What an aborted prompt is answered with, under status 200 as in the real engine."""
    return {
        "output_ids": [],
        "meta_info": {
            "id": prompt.rid,
            "finish_reason": {"type": "abort", "message": "Abort in waiting queue"},
            "completion_tokens": 0,
            "input_token_logprobs": [],
            "output_token_logprobs": [],
            "input_token_ids_logprobs": [],
            "output_token_ids_logprobs": [],
        },
    }
