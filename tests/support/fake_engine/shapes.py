"""The JSON of an engine that works, as received from SGLang 0.5.19; nothing here does I/O.

`front` is `python` or `rust`: two servers that answer the same questions differently.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tests.support.fake_engine.faults import Call

Front = Literal["python", "rust"]

RESERVED_TOKENS = 6
"""What SGLang's longest input is shorter than the context; see `lethal`."""


def success(
    call: Call, logprobs: NDArray[np.float64], *, front: Front, cached: int
) -> dict[str, Any]:
    """The answer to a one-token call."""
    best = int(np.argmax(logprobs))
    meta: dict[str, Any] = {
        "id": call.rid,
        "finish_reason": {"type": "length", "length": 1},
        "prompt_tokens": len(call.input_ids),
        "completion_tokens": 1,
        "output_token_logprobs": [[float(logprobs[best]), best, None]],
        "input_token_logprobs": [],
        "output_token_ids_logprobs": [[[float(logprobs[i]), i, None] for i in call.label_ids]],
        "e2e_latency": 0.17,
    }
    if front == "python":
        meta |= {
            "weight_version": "default",
            "input_token_ids_logprobs": [],
            "cached_tokens": cached,
            "cached_tokens_details": {"device": cached, "host": 0} if cached else None,
        }
    return {"text": "x", "output_ids": [best], "meta_info": meta}


def refusal(
    call: Call, *, front: Front, context_length: int, vocabulary_size: int
) -> dict[str, Any] | None:
    """The body of the 400 that a call gets, if it gets one."""
    if len(call.input_ids) >= context_length:
        return error_400(
            f"The input ({len(call.input_ids)} tokens) is longer than the model's context "
            f"length ({context_length} tokens).",
            front,
        )
    if len(call.input_ids) >= context_length - RESERVED_TOKENS:
        longest = context_length - RESERVED_TOKENS
        return error_400(
            f"Input length ({len(call.input_ids)} tokens) exceeds the maximum allowed length "
            f"({longest} tokens). Use a shorter input or enable --allow-auto-truncate.",
            front,
        )
    for name, ids in (("input_ids", call.input_ids), ("token_ids_logprob", call.label_ids)):
        outside = [token for token in ids if not 0 <= token < vocabulary_size]
        if outside:
            return error_400(
                f"{name} contains out-of-vocabulary token id {outside[0]}; "
                f"valid range is [0, {vocabulary_size}).",
                front,
            )
    return None


def lethal(call: Call, *, context_length: int, vocabulary_size: int) -> str:
    """Why the Python front of 0.5.19 would not survive a call; empty for all others."""
    if any(not 0 <= token < vocabulary_size for token in call.input_ids):
        return "an input id outside the vocabulary"
    if context_length - RESERVED_TOKENS <= len(call.input_ids) < context_length:
        return "an input in the window below the context length"
    if call.body.get("logprob_start_len", -1) > len(call.input_ids):
        return "logprob_start_len beyond the input"
    return ""


def error_400(message: str, front: Front) -> dict[str, Any]:
    """The body of a 400 about a call."""
    if front == "rust":
        return {"error": {"message": f"validation failed: {message}", "code": 400}}
    return {"error": {"message": message}}


def models(model: str, context_length: int) -> dict[str, Any]:
    """The answer of `/v1/models`."""
    entry = {
        "id": model,
        "object": "model",
        "created": 1_790_000_000,
        "owned_by": "sglang",
        "root": model,
        "parent": None,
        "max_model_len": context_length,
    }
    return {"object": "list", "data": [entry]}


def model_info(model: str) -> dict[str, Any]:
    """The answer of `/model_info`."""
    return {"model_path": model, "served_model_name": model, "is_generation": True}


def server_info(
    model: str, context_length: int, *, front: Front, api_key: str | None
) -> dict[str, Any]:
    """The answer of `/server_info`; the Python front's holds the key, as the real one's does."""
    facts: dict[str, Any] = {
        "model_path": model,
        "served_model_name": model,
        "tokenizer_path": model,
        "version": "0.5.19",
    }
    if front == "rust":
        return facts | {"max_context_length": context_length}
    return facts | {
        "max_req_input_len": context_length - RESERVED_TOKENS,
        "api_key": api_key,
        "disable_radix_cache": False,
        "status": "ready",
    }


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two inputs begin with in common."""
    length = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        length += 1
    return length
