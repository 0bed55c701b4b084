"""What one would write in an afternoon: FastAPI, pydantic and a client in front of the engine.

The same function as the product's, with less of everything else: one prefix rendered by the model's
chat template, a warm-up call, all questions at once, softmax over the label log-probabilities.
Admission, limits, label proofs, safe tokenising, error shapes, ids and logs are left out, so these
are lower bounds. `build("httpx" | "aiohttp", engine_url)` makes the application.
"""

import asyncio
import math
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

import aiohttp
import django
import httpx
from fastapi import FastAPI
from pydantic import BaseModel
from transformers.utils.chat_template_utils import render_jinja_template

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "openjev_site.settings")
django.setup()

from django.conf import settings  # noqa: E402

from backend.embedded.weights import locate  # noqa: E402
from backend.vocabulary import vocabulary_from_gguf  # noqa: E402

Post = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]

_SLOT = "@@QUESTION@@"


class Question(BaseModel):
    """Any of the three types."""

    type: Literal["noul", "choice", "score"]
    instructions: str | None = None
    criteria: dict[str, str | None] | list[str] | None = None


class Request(BaseModel):
    """The body."""

    model: str
    state: str
    questions: dict[str, Question]


def _options(question: Question) -> dict[str, str]:
    if question.type == "noul":
        return {"true": "Yes", "false": "No"}
    if isinstance(question.criteria, list):
        return {str(index): text for index, text in enumerate(question.criteria)}
    return {key: text or key for key, text in (question.criteria or {}).items()}


def _answer(question: Question, keys: list[str], logprobs: list[float]) -> dict[str, Any]:
    top = max(logprobs)
    weights = [math.exp(value - top) for value in logprobs]
    shares = [weight / sum(weights) for weight in weights]
    entropy = -sum(share * math.log(share) for share in shares if share)
    confidence = 1 - entropy / math.log(len(shares))
    if question.type == "noul":
        return {"type": "noul", "noul": shares[0], "confidence": confidence}
    probabilities = dict(zip(keys, shares, strict=True))
    if question.type == "choice":
        best = max(probabilities, key=probabilities.__getitem__)
        return {"type": "choice", "choice": best, "probabilities": probabilities}
    score = sum(int(key) * share for key, share in probabilities.items())
    return {"type": "score", "score": score, "probabilities": probabilities}


@asynccontextmanager
async def _httpx_post(engine_url: str) -> AsyncIterator[Post]:
    limits = httpx.Limits(max_connections=256, max_keepalive_connections=256)
    async with httpx.AsyncClient(base_url=engine_url, limits=limits, timeout=30) as client:

        async def post(body: dict[str, Any]) -> dict[str, Any]:
            response = await client.post("/generate", json=body)
            response.raise_for_status()
            answer: dict[str, Any] = response.json()
            return answer

        yield post


@asynccontextmanager
async def _aiohttp_post(engine_url: str) -> AsyncIterator[Post]:
    connector = aiohttp.TCPConnector(limit=256)
    async with aiohttp.ClientSession(engine_url, connector=connector) as session:

        async def post(body: dict[str, Any]) -> dict[str, Any]:
            async with session.post("/generate", json=body) as response:
                response.raise_for_status()
                answer: dict[str, Any] = await response.json(content_type=None)
                return answer

        yield post


def build(client: Literal["httpx", "aiohttp"], engine_url: str) -> FastAPI:
    """Make the application.

    Args:
        client: the library that calls the engine.
        engine_url: where that answers.
    """
    vocabulary = vocabulary_from_gguf(locate(settings.OPENJEV, progress=False))
    tokenizer, template = vocabulary.tokenizer, vocabulary.template
    labels = {
        letter: tokenizer.encode(" " + letter, add_special_tokens=False).ids[0]
        for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    }
    variables: dict[str, Any] = dict(template.variables)
    posts: list[Post] = []

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        make = _httpx_post if client == "httpx" else _aiohttp_post
        async with make(engine_url) as post:
            posts.append(post)
            yield

    app = FastAPI(lifespan=lifespan)

    async def ask(ids: list[int], label_ids: list[int], rid: str) -> list[float]:
        answer = await posts[0](
            {
                "rid": rid,
                "input_ids": ids,
                "sampling_params": {"temperature": 0, "max_new_tokens": 1},
                "return_logprob": True,
                "token_ids_logprob": label_ids,
            }
        )
        return [entry[0] for entry in answer["meta_info"]["output_token_ids_logprobs"][0]]

    @app.post("/v1/systemone")
    async def evaluate(request: Request) -> dict[str, Any]:
        # typed as one string, returns the rendered chats and their generation spans
        rendered: Any = render_jinja_template(
            conversations=[
                [
                    {"role": "user", "content": request.state},
                    {"role": "user", "content": f"Judge the text above.\n\n{_SLOT}"},
                ]
            ],
            chat_template=template.source,
            add_generation_prompt=True,
            **variables,
        )
        before, after = rendered[0][0].split(_SLOT)
        prefix = tokenizer.encode(before, add_special_tokens=False).ids
        key = uuid.uuid4().hex
        await ask(prefix, [labels["A"]], f"{key}.0000")
        branches = []
        for number, question in enumerate(request.questions.values(), start=1):
            letters = list(labels)[: len(_options(question))]
            lines = [f"Question: {question.instructions or ''}"]
            lines += [
                f"{letter}: {text}"
                for letter, text in zip(letters, _options(question).values(), strict=True)
            ]
            suffix = "\n".join(lines) + after + "Answer:"
            ids = prefix + tokenizer.encode(suffix, add_special_tokens=False).ids
            branches.append(ask(ids, [labels[x] for x in letters], f"{key}.{number:04d}"))
        logprobs = await asyncio.gather(*branches)
        return {
            "model": request.model,
            "answers": {
                name: _answer(question, list(_options(question)), found)
                for (name, question), found in zip(request.questions.items(), logprobs, strict=True)
            },
            "usage": {"input_tokens": 0, "output_tokens": len(logprobs) + 1},
        }

    return app


def httpx_app() -> FastAPI:
    """The application with httpx, for an ASGI server's factory option."""
    return build("httpx", settings.OPENJEV.backend_url)


def aiohttp_app() -> FastAPI:
    """The application with aiohttp, for an ASGI server's factory option."""
    return build("aiohttp", settings.OPENJEV.backend_url)
