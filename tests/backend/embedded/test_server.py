"""The HTTP front: the real engine's shapes for answers and for every refusal."""

import asyncio
import io
import json
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from aiohttp.test_utils import TestClient, TestServer

from backend.embedded.model import Model
from backend.embedded.scheduler import Scheduler
from backend.embedded.server import MAX_BODY_BYTES, EngineServer, ServerOptions
from tests.backend.embedded.test_scheduler import WatchedModel

ONE_TOKEN = {"max_new_tokens": 1, "temperature": 0}
PREFIX = list(range(100, 160))
WAIT = 20.0

Client = TestClient[Any, Any]


def options(**changed: Any) -> ServerOptions:
    values = {
        "model_path": "tiny.gguf",
        "served_model_name": "tiny/random",
        "context_length": 200,
        "cache_bytes": 2**24,
        "api_key": None,
    }
    return ServerOptions(**(values | changed))


@pytest.fixture
async def connect() -> AsyncIterator[Callable[..., Any]]:
    opened: list[tuple[Client, Scheduler]] = []

    async def begin(model: Any, *, queue_limit: int = 64, **changed: Any) -> Client:
        scheduler = Scheduler(lambda stop: model, cache_bytes=2**24, queue_limit=queue_limit)
        scheduler.start()
        await asyncio.wrap_future(scheduler.ready)
        application = EngineServer(scheduler, options(**changed)).application()
        client: Client = TestClient(TestServer(application))  # cancels handlers, as we do
        await client.start_server()
        opened.append((client, scheduler))
        return client

    yield begin
    for client, scheduler in opened:
        await client.close()
        await asyncio.to_thread(scheduler.close, WAIT)


@pytest.fixture
async def client(connect: Callable[..., Any], tiny_model: Model) -> Client:
    made: Client = await connect(tiny_model)
    return made


async def generate(client: Client, **body: Any) -> Any:
    fields = {"sampling_params": ONE_TOKEN, "return_logprob": True} | body
    async with client.post("/generate", json=fields) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def test_answer_has_the_real_shape(client: Client) -> None:
    answer = await generate(
        client, input_ids=PREFIX, token_ids_logprob=[7, 5, 7], rid="abc", unknown_field=1
    )
    meta = answer["meta_info"]
    (token,) = answer["output_ids"]
    assert "text" not in answer
    assert meta["id"] == "abc"
    assert meta["finish_reason"] == {"type": "length", "length": 1}
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (60, 1, 0)
    assert meta["input_token_logprobs"] == []
    ((logprob, best, text),) = meta["output_token_logprobs"]
    assert (best, text) == (token, None)
    assert logprob <= 0
    (labels,) = meta["output_token_ids_logprobs"]
    assert [item[1:] for item in labels] == [[7, None], [5, None], [7, None]]
    assert labels[0][0] == labels[2][0]
    assert meta["e2e_latency"] > 0


async def test_log_probabilities_are_over_the_whole_vocabulary(client: Client) -> None:
    answer = await generate(client, input_ids=PREFIX, token_ids_logprob=list(range(851)))
    (labels,) = answer["meta_info"]["output_token_ids_logprobs"]
    assert np.exp([item[0] for item in labels]).sum() == pytest.approx(1, abs=1e-6)


async def test_no_new_token_gives_the_same_label_values(client: Client) -> None:
    nothing = {"max_new_tokens": 0, "temperature": 1.0}
    one = await generate(client, input_ids=PREFIX, token_ids_logprob=[1, 2])
    none = await generate(
        client, input_ids=PREFIX, token_ids_logprob=[1, 2], sampling_params=nothing
    )
    assert none["output_ids"] == []
    assert none["meta_info"]["completion_tokens"] == 0
    assert none["meta_info"]["output_token_logprobs"] == []
    values = [
        [item[0] for item in answer["meta_info"]["output_token_ids_logprobs"][0]]
        for answer in (one, none)
    ]
    np.testing.assert_allclose(values[0], values[1], atol=1e-5)


async def test_end_token_is_a_stop(client: Client, tiny_model: Model) -> None:
    best = (await generate(client, input_ids=PREFIX))["output_ids"][0]
    before, tiny_model.end_token_id = tiny_model.end_token_id, best
    try:
        meta = (await generate(client, input_ids=PREFIX))["meta_info"]
    finally:
        tiny_model.end_token_id = before
    assert meta["finish_reason"] == {"type": "stop", "matched": best}


async def test_without_return_logprob_there_are_none(client: Client) -> None:
    answer = await generate(client, input_ids=PREFIX, token_ids_logprob=[1], return_logprob=False)
    assert not [key for key in answer["meta_info"] if "logprob" in key]


async def test_put_is_answered_too(client: Client) -> None:
    body = {"input_ids": [1, 2], "sampling_params": ONE_TOKEN}
    async with client.put("/generate", json=body) as response:
        assert response.status == 200


async def test_batch_is_an_array_in_order(client: Client) -> None:
    shared = await generate(client, input_ids=[[1, 2, 3], [4, 5]], token_ids_logprob=[9], rid="x")
    assert [item["meta_info"]["id"] for item in shared] == ["x_0", "x_1"]
    assert [item["meta_info"]["prompt_tokens"] for item in shared] == [3, 2]
    own = await generate(
        client,
        input_ids=[[1, 2, 3], [4, 5]],
        token_ids_logprob=[[9], [8, 9]],
        rid=["p", "q"],
        return_logprob=[True, True],
        sampling_params=[ONE_TOKEN, {"max_new_tokens": 0}],
    )
    assert [item["meta_info"]["id"] for item in own] == ["p", "q"]
    assert [len(item["meta_info"]["output_token_ids_logprobs"][0]) for item in own] == [1, 2]
    assert [len(item["output_ids"]) for item in own] == [1, 0]
    assert own[0]["meta_info"]["output_token_ids_logprobs"][0][0][0] == pytest.approx(
        shared[0]["meta_info"]["output_token_ids_logprobs"][0][0][0], abs=1e-5
    )


async def test_batch_of_one_is_an_array(client: Client) -> None:
    assert len(await generate(client, input_ids=[[1, 2]])) == 1


async def test_branches_reuse_the_prefix(client: Client) -> None:
    await generate(client, input_ids=PREFIX)
    answers = await asyncio.gather(*(generate(client, input_ids=[*PREFIX, 3, n]) for n in range(5)))
    assert [answer["meta_info"]["cached_tokens"] for answer in answers] == [60] * 5


BAD_BODIES: list[tuple[dict[str, Any], str]] = [
    ({}, "Either text, input_ids or input_embeds should be provided."),
    ({"text": "hello"}, "takes input_ids only"),
    ({"input_embeds": [[0.0]]}, "takes input_ids only"),
    ({"input_ids": []}, "input_ids cannot be empty."),
    ({"input_ids": [[]]}, "input_ids cannot be empty."),
    ({"input_ids": 5}, "must be a list"),
    ({"input_ids": ["a"]}, "whole numbers only"),
    ({"input_ids": [True]}, "whole numbers only"),
    ({"input_ids": [1.5]}, "whole numbers only"),
    ({"input_ids": [[1], 2]}, "whole numbers only"),
    ({"input_ids": [851]}, "out-of-vocabulary token id 851; valid range is [0, 851)."),
    ({"input_ids": [-1]}, "out-of-vocabulary token id -1"),
    ({"input_ids": [2**70]}, "out-of-vocabulary"),
    (
        {"input_ids": [1] * 200},
        "The input (200 tokens) is longer than the model's context length (200 tokens).",
    ),
    (
        {"input_ids": [1] * 194},
        "Input length (194 tokens) exceeds the maximum allowed length (194 tokens).",
    ),
    ({"input_ids": [1], "stream": True}, "does not stream"),
    ({"input_ids": [1], "logprob_start_len": 0}, "no prompt log-probabilities"),
    ({"input_ids": [[1]], "logprob_start_len": [0]}, "no prompt log-probabilities"),
    ({"input_ids": [1], "top_logprobs_num": 3}, "top_logprobs_num"),
    ({"input_ids": [1], "rid": 5}, "rid must be a string"),
    ({"input_ids": [1], "rid": ["a"]}, "rid must be a string"),
    ({"input_ids": [[1], [2]], "rid": ["a", "a"]}, "Duplicate request IDs"),
    ({"input_ids": [[1], [2]], "rid": ["a"]}, "rid has 1 entries for 2 prompts."),
    ({"input_ids": [[1], [2]], "rid": ["a", 1]}, "rid must be a string"),
    ({"input_ids": [1], "token_ids_logprob": [[1]]}, "token_ids_logprob must be a list"),
    ({"input_ids": [1], "token_ids_logprob": "x"}, "token_ids_logprob must be a list"),
    (
        {"input_ids": [1], "token_ids_logprob": [900]},
        "token_ids_logprob contains out-of-vocabulary token id 900; valid range is [0, 851).",
    ),
    ({"input_ids": [[1], [2]], "token_ids_logprob": [[1]]}, "1 lists for 2 prompts"),
    ({"input_ids": [1], "return_logprob": "yes"}, "return_logprob must be"),
    ({"input_ids": [1], "return_logprob": [True]}, "return_logprob must be"),
    ({"input_ids": [[1], [2]], "return_logprob": [True]}, "1 entries for 2 prompts"),
    ({"input_ids": [1], "sampling_params": {}}, "max_new_tokens must be 0 or 1"),
    ({"input_ids": [1], "sampling_params": None}, "max_new_tokens must be 0 or 1"),
    ({"input_ids": [1], "sampling_params": 3}, "must be an object"),
    ({"input_ids": [1], "sampling_params": [ONE_TOKEN]}, "must be an object"),
    ({"input_ids": [[1]], "sampling_params": [ONE_TOKEN] * 2}, "2 entries for 1 prompts"),
    ({"input_ids": [1], "sampling_params": {"max_new_tokens": 16}}, "must be 0 or 1"),
    ({"input_ids": [1], "sampling_params": {"max_new_tokens": True}}, "must be 0 or 1"),
    ({"input_ids": [1], "sampling_params": {**ONE_TOKEN, "temperature": 0.5}}, "temperature"),
    ({"input_ids": [1], "sampling_params": {**ONE_TOKEN, "temperature": True}}, "temperature"),
    ({"input_ids": [1], "sampling_params": {**ONE_TOKEN, "top_p": 1}}, "'top_p'"),
]


@pytest.mark.parametrize(("body", "sentence"), BAD_BODIES)
async def test_bad_body_is_a_400_sentence(
    client: Client, body: dict[str, Any], sentence: str
) -> None:
    fields = {"sampling_params": ONE_TOKEN} | body
    async with client.post("/generate", json=fields) as response:
        assert response.status == 400
        message = (await response.json())["error"]["message"]
    assert sentence in message
    assert message.endswith(".")
    assert await generate(client, input_ids=[1, 2])  # and it lives on


@pytest.mark.parametrize(
    ("content", "content_type", "sentence"),
    [
        (b"{", "application/json", "not valid JSON"),
        (b"[" * 100_000, "application/json", "not valid JSON"),
        (b"\xff", "application/json", "not valid JSON"),
        (b"[]", "application/json", "must be a JSON object"),
        (b"{}", "text/plain", "Content-Type"),
    ],
)
async def test_bad_json_is_a_400(
    client: Client, content: bytes, content_type: str, sentence: str
) -> None:
    headers = {"Content-Type": content_type}
    async with client.post("/generate", data=content, headers=headers) as response:
        assert response.status == 400
        assert sentence in (await response.json())["error"]["message"]


async def test_body_that_is_not_compressed_as_it_says_is_a_400(client: Client) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    async with client.post("/generate", data=b"{}", headers=headers) as response:
        assert response.status == 400
        assert "headers" in (await response.json())["error"]["message"]


async def test_oversized_body_is_a_413(client: Client) -> None:
    headers = {"Content-Type": "application/json"}
    content = io.BytesIO(b" " * (MAX_BODY_BYTES + 1))
    async with client.post("/generate", data=content, headers=headers) as response:
        assert response.status == 413
        assert "larger than" in (await response.json())["error"]["message"]


async def test_unknown_path_and_method(client: Client) -> None:
    async with client.get("/nothing") as response:
        assert (response.status, await response.json()) == (404, {"detail": "Not Found"})
    async with client.get("/generate") as response:
        assert (response.status, await response.json()) == (405, {"detail": "Method Not Allowed"})


async def test_descriptions(client: Client) -> None:
    for path in ("/model_info", "/get_model_info"):
        async with client.get(path) as response:
            model = await response.json()
    assert model["served_model_name"] == "tiny/random"
    assert (model["is_generation"], model["model_type"]) == (True, "qwen2")
    for path in ("/server_info", "/get_server_info"):
        async with client.get(path) as response:
            server = await response.json()
    assert (server["max_req_input_len"], server["context_length"]) == (194, 200)
    assert server["vocab_size"] == 851
    assert server["max_total_num_tokens"] >= 200
    async with client.get("/v1/models") as response:
        (listed,) = (await response.json())["data"]
    assert (listed["id"], listed["max_model_len"]) == ("tiny/random", 200)


async def test_context_length_is_at_most_the_models(
    connect: Callable[..., Any], tiny_model: Model
) -> None:
    client = await connect(tiny_model, context_length=10**9)
    async with client.get("/server_info") as response:
        assert (await response.json())["context_length"] == 32_768


async def test_health(client: Client) -> None:
    for path in ("/health", "/health_generate"):
        async with client.get(path) as response:
            assert (response.status, await response.read()) == (200, b"")


async def test_until_the_model_is_loaded_everything_is_a_503() -> None:
    release: Future[None] = Future()

    def load(stop: Callable[[], bool]) -> Model:
        release.result(WAIT)
        raise OSError

    scheduler = Scheduler(load, cache_bytes=0, queue_limit=1)
    scheduler.start()
    async with TestClient(TestServer(EngineServer(scheduler, options()).application())) as client:
        for path in ("/health", "/health_generate", "/server_info", "/v1/models"):
            async with client.get(path) as response:
                assert response.status == 503
        async with client.post("/generate", json={}) as response:
            assert response.status == 503
            assert "still being loaded" in (await response.json())["error"]["message"]
    release.set_result(None)
    await asyncio.wrap_future(scheduler.failure)


async def test_key_guards_everything_but_health(
    connect: Callable[..., Any], tiny_model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    client = await connect(tiny_model, api_key="sesame")
    async with client.get("/health") as response:
        assert response.status == 200
    for given in ({}, {"Authorization": "Bearer sesam"}, {"Authorization": "Basic sesame"}):
        async with client.get("/server_info", headers=given) as response:
            assert (response.status, await response.json()) == (401, {"error": "Unauthorized"})
    async with client.get("/server_info", headers={"Authorization": "Bearer sesame"}) as response:
        assert response.status == 200
        assert "sesame" not in await response.text()
    assert "sesame" not in caplog.text


class Gated:
    """A server on a model that waits at a gate."""

    def __init__(self, client: Client, model: WatchedModel) -> None:
        self.client, self.model = client, model
        model.end_token_id = None  # type: ignore[attr-defined]

    async def begin(self, **body: Any) -> asyncio.Task[Any]:
        """Post, and return when the engine is at the gate with it."""
        task = asyncio.create_task(generate(self.client, **body))
        assert await asyncio.to_thread(self.model.entered.acquire, timeout=WAIT)
        return task

    async def pending(self, running: int, waiting: int) -> None:
        """Return when so many requests run and wait."""
        while True:
            async with self.client.get("/server_info") as response:
                (state,) = (await response.json())["internal_states"]
            if state == {"num_running_reqs": running, "num_waiting_reqs": waiting}:
                return


@pytest.fixture
async def gated(connect: Callable[..., Any], tiny_model: Model) -> AsyncIterator[Gated]:
    model = WatchedModel(tiny_model)
    model.bytes_per_token = tiny_model.bytes_per_token  # type: ignore[attr-defined]
    model.weight_bytes = tiny_model.weight_bytes  # type: ignore[attr-defined]
    yield Gated(await connect(model, queue_limit=2), model)
    model.open()


async def test_aborted_request_is_a_200_that_says_so(gated: Gated) -> None:
    task = await gated.begin(input_ids=PREFIX, rid="AB.000", token_ids_logprob=[1])
    for body in ({}, {"rid": "zzz"}, {"rid": "AB"}):
        async with gated.client.post("/abort_request", json=body) as response:
            assert (response.status, await response.read()) == (200, b"")
    answer = await asyncio.wait_for(task, WAIT)
    assert answer["output_ids"] == []
    assert answer["meta_info"]["id"] == "AB.000"
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert answer["meta_info"]["output_token_ids_logprobs"] == []


async def test_abort_all_reaches_everything(gated: Gated) -> None:
    tasks = [await gated.begin(input_ids=PREFIX, rid="a")]
    tasks.append(asyncio.create_task(generate(gated.client, input_ids=[1, 2], rid="b")))
    await gated.pending(1, 1)
    async with gated.client.post("/abort_request", json={"abort_all": True}) as response:
        assert response.status == 200
    for answer in await asyncio.wait_for(asyncio.gather(*tasks), WAIT):
        assert answer["meta_info"]["finish_reason"]["type"] == "abort"


async def test_full_queue_is_a_503_in_the_real_shape(gated: Gated) -> None:
    tasks = [await gated.begin(input_ids=PREFIX)]
    tasks.append(asyncio.create_task(generate(gated.client, input_ids=[1, 2])))
    await gated.pending(1, 1)
    body = {"input_ids": [5], "sampling_params": ONE_TOKEN}
    async with gated.client.post("/generate", json=body) as response:
        assert response.status == 503
        assert await response.json() == {
            "object": "error",
            "message": "The request queue is full.",
            "type": "503",
            "param": None,
            "code": 503,
        }
    async with gated.client.get("/health_generate") as response:
        assert response.status == 503
    gated.model.open()
    await asyncio.gather(*tasks)


async def test_disconnected_caller_is_dropped_before_it_costs(gated: Gated) -> None:
    running = await gated.begin(input_ids=PREFIX)
    leaving = asyncio.create_task(generate(gated.client, input_ids=[1, 2, 3]))
    await gated.pending(1, 1)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await gated.pending(1, 0)
    gated.model.open()
    await running
    await generate(gated.client, input_ids=[7, 8])
    assert gated.model.passes == [[60], [2]]


async def test_failed_computation_is_a_500_without_details(gated: Gated) -> None:
    gated.model.fail_with = ArithmeticError("The model gave a result that is not a finite number.")
    gated.model.open()
    body = {"input_ids": [5], "sampling_params": ONE_TOKEN}
    async with gated.client.post("/generate", json=body) as response:
        assert response.status == 500
        assert "not a finite number" in json.dumps(await response.json())
    async with gated.client.get("/health_generate") as response:
        assert response.status == 503


async def test_flush_forgets_prefixes(client: Client) -> None:
    for method in (client.get, client.post):
        await generate(client, input_ids=PREFIX)
        async with method("/flush_cache") as response:
            assert response.status == 200
        assert (await generate(client, input_ids=PREFIX))["meta_info"]["cached_tokens"] == 0


async def test_nothing_of_a_prompt_is_logged(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await generate(client, input_ids=[123, 456, 789], rid="secret-name")
    async with client.post("/generate", json={"input_ids": [123_456]}) as response:
        assert response.status == 400
    for secret in ("456", "secret-name"):
        assert secret not in caplog.text
