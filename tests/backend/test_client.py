"""The client against a fake engine on a real socket."""

import asyncio
import json

import pytest

from backend.client import EngineClient
from backend.description import EngineDescription
from backend.engine import Engine
from backend.errors import (
    EngineBusy,
    EngineError,
    EngineProtocolError,
    EngineRejected,
    EngineTimeout,
    EngineUnavailable,
    UnusableLogprobs,
)
from backend.protocol import Call
from backend.token_ids import TokenIds
from tests.support.fake_engine import FakeEngine, Fault, serve_fake_engine


def soon(seconds=5.0):
    return asyncio.get_running_loop().time() + seconds


@pytest.fixture
async def client(fake_engine):
    client = EngineClient(fake_engine.url)
    yield client
    await client.aclose()


async def ask(client: Engine, ids=(1, 2, 3), labels=(7, 9), *, rid="e.000", deadline=None, key="e"):
    (answer,) = await client.label_logprobs(
        [Call(TokenIds.of(ids), labels, rid)],
        deadline=soon() if deadline is None else deadline,
        routing_key=key,
    )
    return answer


async def test_label_logprobs_are_the_engines(client, fake_engine):
    result = await ask(client)
    expected = fake_engine.logprobs([1, 2, 3])
    assert result.logprobs == (expected[7], expected[9])
    assert (result.prompt_tokens, result.completion_tokens, result.cached_tokens) == (3, 1, 0)


async def test_cached_tokens_are_reported(client):
    await ask(client, range(100))
    assert (await ask(client, [*range(90), 5, 6])).cached_tokens == 90


async def test_every_call_carries_the_routing_key_and_never_logprob_start_len(client, fake_engine):
    await ask(client, key="evaluation-1")
    (call,) = fake_engine.calls
    assert call.headers["x-smg-routing-key"] == "evaluation-1"
    assert "authorization" not in call.headers
    assert "logprob_start_len" not in call.body


async def test_the_key_is_sent_as_bearer():
    async with serve_fake_engine(FakeEngine(api_key="k3y")) as engine:
        client = EngineClient(engine.url, api_key="k3y")
        assert (await client.describe(deadline=soon())).has_abort
        await client.aclose()


async def test_a_wrong_key_is_told_as_that():
    async with serve_fake_engine(FakeEngine(api_key="k3y")) as engine:
        client = EngineClient(engine.url)
        with pytest.raises(EngineRejected, match="OPENJEV_BACKEND_API_KEY"):
            await client.describe(deadline=soon())
        await client.aclose()


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault.NAN, UnusableLogprobs),
        (Fault.INFINITE, UnusableLogprobs),
        (Fault.POSITIVE, UnusableLogprobs),
        (Fault.NULL, UnusableLogprobs),
        (Fault.SHORT, UnusableLogprobs),
        (Fault.MISSING, UnusableLogprobs),
        (Fault.WRONG_COUNT, EngineProtocolError),
        (Fault.ABORTED, EngineProtocolError),
        (Fault.NOT_JSON, EngineProtocolError),
        (Fault.LIST, EngineProtocolError),
        (Fault.CRASHED, EngineProtocolError),
        (Fault.CLIENT_GONE, EngineProtocolError),
        (Fault.HALF, EngineProtocolError),
        (Fault.ERROR_IN_200, EngineRejected),
        (Fault.REFUSED, EngineRejected),
        (Fault.TOO_LONG, EngineRejected),
        (Fault.UNAUTHORISED, EngineRejected),
        (Fault.QUEUE_FULL, EngineBusy),
        (Fault.RESET, EngineUnavailable),
    ],
)
async def test_every_fault_is_an_engine_error_asked_once(client, fake_engine, fault, kind):
    fake_engine.play(fault)
    with pytest.raises(kind) as caught:
        await ask(client)
    assert type(caught.value) is kind
    assert "secret" not in str(caught.value)
    assert len(fake_engine.calls) == 1


async def test_an_engine_that_is_not_there_is_unavailable():
    client = EngineClient("http://127.0.0.1:9")
    with pytest.raises(EngineUnavailable, match="cannot be reached"):
        await ask(client)
    assert not await client.is_healthy(deadline=soon())
    await client.aclose()


async def answer_raw(reply: bytes, *, expect):
    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = EngineClient(f"http://127.0.0.1:{port}")
    with pytest.raises(expect):
        await ask(client)
    await client.aclose()
    server.close()
    await server.wait_closed()


async def test_something_that_is_not_http_is_a_protocol_error():
    await answer_raw(b"SSH-2.0-OpenSSH_9.9\r\n\r\n", expect=EngineProtocolError)


async def test_an_endless_answer_is_given_up():
    endless = b"HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\n" + b" " * 5_000_000
    await answer_raw(endless, expect=EngineProtocolError)


async def test_reset_of_a_reused_connection_is_tried_once_more(client, fake_engine):
    await ask(client)
    fake_engine.play(Fault.RESET, times=1)
    assert (await ask(client)).prompt_tokens == 3
    ports = [call.peer_port for call in fake_engine.calls]
    assert ports[0] == ports[1] != ports[2]


async def test_second_reset_is_not_tried_again(client, fake_engine):
    await ask(client)
    fake_engine.play(Fault.RESET)
    with pytest.raises(EngineUnavailable):
        await ask(client)
    assert len(fake_engine.calls) == 3


async def test_half_an_answer_on_a_reused_connection_is_not_tried_again(client, fake_engine):
    await ask(client)
    fake_engine.play(Fault.HALF)
    with pytest.raises(EngineProtocolError):
        await ask(client)
    assert len(fake_engine.calls) == 2


async def test_a_crash_answer_then_a_reset_connection_leaves_the_next_call_unharmed(
    client, fake_engine
):
    fake_engine.play(Fault.CRASHED, times=1)
    with pytest.raises(EngineProtocolError):
        await ask(client)
    assert (await ask(client)).completion_tokens == 1


async def test_deadline_ends_a_hanging_call_and_aborts_it(client, fake_engine):
    fake_engine.play(Fault.HANG)
    with pytest.raises(EngineTimeout):
        await ask(client, rid="e.001", deadline=soon(0.1))
    await fake_engine.wait_for(lambda engine: engine.aborts == ["e.001"] and not engine.running)


async def test_a_passed_deadline_sends_nothing(client, fake_engine):
    with pytest.raises(EngineTimeout):
        await ask(client, deadline=soon(-1))
    assert fake_engine.calls == []


async def test_cancelling_closes_the_connection_and_aborts(fake_engine, client):
    fake_engine.play(Fault.HANG)
    task = asyncio.create_task(ask(client, rid="e.002"))
    await fake_engine.wait_for(lambda engine: engine.running == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await fake_engine.wait_for(lambda engine: "e.002" in engine.aborts and not engine.running)


async def test_without_an_abort_route_closing_the_connection_has_to_do():
    async with serve_fake_engine(FakeEngine(front="rust")) as engine:
        client = EngineClient(engine.url)
        description = await client.describe(deadline=soon())
        assert not description.has_abort
        assert not description.reports_cached
        asked = engine.requests.count("POST /abort_request")
        engine.play(Fault.HANG)
        with pytest.raises(EngineTimeout):
            await ask(client, rid="e.003", deadline=soon(0.1))
        await engine.wait_for(lambda engine: engine.disconnects == ["e.003"])
        await client.aclose()
        assert engine.requests.count("POST /abort_request") == asked


async def test_a_missing_abort_route_is_learnt_from_its_404():
    async with serve_fake_engine(FakeEngine(front="rust")) as engine:
        client = EngineClient(engine.url)
        engine.play(Fault.HANG)
        for _ in range(3):
            with pytest.raises(EngineTimeout):
                await ask(client, deadline=soon(0.1))
            while client._aborts:
                await asyncio.wait(client._aborts)
        assert engine.requests.count("POST /abort_request") == 1
        await client.aclose()


async def test_no_more_than_the_limit_are_in_flight_and_the_rest_wait(fake_engine):
    client = EngineClient(fake_engine.url, max_in_flight=3)
    fake_engine.delay = 0.01
    results = await asyncio.gather(*(ask(client, [i + 1]) for i in range(12)))
    assert len(results) == 12
    assert fake_engine.peak == 3
    await client.aclose()


async def test_waiting_for_a_slot_counts_against_the_deadline(fake_engine):
    client = EngineClient(fake_engine.url, max_in_flight=1)
    fake_engine.play(Fault.HANG, times=1)
    first = asyncio.create_task(ask(client, rid="e.000"))
    await fake_engine.wait_for(lambda engine: engine.running == 1)
    with pytest.raises(EngineTimeout, match="free"):
        await ask(client, rid="e.001", deadline=soon(0.05))
    assert len(fake_engine.calls) == 1
    fake_engine.release()
    await first
    assert "e.001" not in fake_engine.aborts
    await client.aclose()


async def test_a_cancelled_waiter_frees_its_slot(fake_engine):
    client = EngineClient(fake_engine.url, max_in_flight=1)
    fake_engine.play(Fault.HANG, times=1)
    tasks = [asyncio.create_task(ask(client, rid=f"e.{n:03}")) for n in range(3)]
    await fake_engine.wait_for(lambda engine: engine.running == 1)
    tasks[0].cancel()
    tasks[1].cancel()
    assert (await tasks[2]).prompt_tokens == 3
    await client.aclose()


async def test_closing_waits_for_aborts_under_way(fake_engine):
    client = EngineClient(fake_engine.url)
    fake_engine.play(Fault.HANG)
    with pytest.raises(EngineTimeout):
        await ask(client, rid="e.009", deadline=soon(0.1))
    await client.aclose()
    assert fake_engine.aborts == ["e.009"]
    await client.aclose()
    with pytest.raises(EngineUnavailable, match="closed"):
        await ask(client)


class Late:
    """A transport whose calls get no answer in time."""

    def begin_post(self, path, body, tell, *, deadline, headers):
        asyncio.get_running_loop().call_soon(tell, EngineTimeout("too late"))


async def test_an_abort_that_hangs_does_not_hold_up_closing(monkeypatch):
    monkeypatch.setattr("backend.client._ABORT_SECONDS", 0.05)

    class Silent(Late):
        closed = False

        async def post(self, path, body, *, deadline, headers=None):
            await asyncio.Event().wait()

        async def aclose(self):
            self.closed = True

    transport = Silent()
    client = EngineClient("http://unused", max_in_flight=1, transport=transport)
    for _ in range(5):
        with pytest.raises(EngineTimeout):
            await ask(client)
    assert len(client._aborts) == 2  # bounded
    await client.aclose()
    assert transport.closed
    assert not client._aborts


async def test_an_abort_that_cannot_arrive_is_forgotten():
    class Dead(Late):
        async def post(self, path, body, *, deadline, headers=None):
            raise EngineUnavailable("x")

        async def aclose(self): ...

    client = EngineClient("http://unused", transport=Dead())
    with pytest.raises(EngineTimeout):
        await ask(client)
    await client.aclose()


@pytest.mark.parametrize("ids", [[], [-1], [2048], [1, 2, 5000]])
async def test_ids_that_would_kill_the_engine_are_not_sent(client, fake_engine, ids):
    client.vocabulary_size = 2048
    with pytest.raises(EngineRejected):
        await ask(client, ids)
    with pytest.raises(EngineRejected):
        await ask(client, [1], ids)
    assert fake_engine.calls == []


async def test_inputs_in_the_window_that_kills_the_engine_are_not_sent(client, fake_engine):
    await client.describe(deadline=soon())
    longest = fake_engine.context_length - 6
    assert (await ask(client, [5] * (longest - 1))).prompt_tokens == longest - 1
    sent = len(fake_engine.calls)
    with pytest.raises(EngineRejected, match="fewer than 4090"):
        await ask(client, [5] * longest)
    assert len(fake_engine.calls) == sent


async def test_a_long_input_arrives_whole():
    async with serve_fake_engine(FakeEngine(context_length=50_000)) as engine:
        client = EngineClient(engine.url)
        ids = [n % 2048 for n in range(30_000)]
        await ask(client, ids)
        assert list(engine.calls[0].input_ids) == ids
        await client.aclose()


async def test_description_of_the_python_front(client, fake_engine):
    assert await client.describe(deadline=soon()) == EngineDescription(
        model="fake/model",
        context_length=4096,
        max_input_tokens=4090,
        front="python",
        version="0.5.19",
        has_abort=True,
        reports_cached=True,
    )


async def test_description_of_the_rust_front():
    async with serve_fake_engine(FakeEngine(front="rust")) as engine:
        client = EngineClient(engine.url)
        assert await client.describe(deadline=soon()) == EngineDescription(
            model="fake/model",
            context_length=4096,
            max_input_tokens=4090,
            front="rust",
            version="0.5.19",
            has_abort=False,
            reports_cached=False,
        )
        await client.aclose()


async def test_description_needs_a_real_label_call(client, fake_engine):
    fake_engine.play(Fault.MISSING)
    with pytest.raises(UnusableLogprobs):
        await client.describe(deadline=soon())


async def test_descriptions_never_share_a_rid(client, fake_engine):
    for _ in range(2):
        await client.describe(deadline=soon())
    first, second = fake_engine.calls
    assert first.rid != second.rid
    assert len(first.rid) == len(second.rid)  # none is the beginning of another


class Recorded:
    """Answers as recorded from real servers; a call to /generate is answered properly."""

    def __init__(self, answers):
        self.answers = answers
        self.asked = []

    async def get(self, path, *, deadline):
        self.asked.append(path)
        return self.answers.get(path, (404, b""))

    async def post(self, path, body, *, deadline, headers=None):
        return await self.get(path, deadline=deadline)

    def begin_post(self, path, body, tell, *, deadline, headers):
        entries = [[-1.0, i, None] for i in json.loads(body)["token_ids_logprob"]]
        meta = {"prompt_tokens": 1, "completion_tokens": 1}
        meta["output_token_ids_logprobs"] = [entries]
        answer = json.dumps({"meta_info": meta}).encode()
        asyncio.get_running_loop().call_soon(tell, (200, answer))

    async def aclose(self): ...


ROUTER = {
    "/v1/models": (
        200,
        b'{"object":"list","data":[{"id":"m","object":"model","owned_by":"local"}]}',
    ),
    "/get_server_info": (200, b'{"router_manager":true,"routers_count":1,"workers_count":2}'),
    "/health": (200, b"OK"),
    "/readiness": (503, b""),
}


async def test_a_router_is_described_as_far_as_it_tells():
    client = EngineClient("http://unused", transport=Recorded(ROUTER))
    description = await client.describe(deadline=soon())
    assert description.front == "router"
    assert (description.context_length, description.max_input_tokens) == (None, None)
    assert not description.has_abort


async def test_a_router_is_healthy_only_with_an_engine_behind_it():
    transport = Recorded(ROUTER)
    client = EngineClient("http://unused", transport=transport)
    assert not await client.is_healthy(deadline=soon())
    transport.answers = ROUTER | {"/readiness": (200, b'{"status":"ready"}')}
    assert await client.is_healthy(deadline=soon())


async def test_a_server_that_describes_nothing_but_its_model_is_known_by_that():
    answers = {
        "/v1/models": (200, b'{"data":[{"id":"m","max_model_len":106}]}'),
        "/get_server_info": (405, b""),
    }
    client = EngineClient("http://unused", transport=Recorded(answers))
    description = await client.describe(deadline=soon())
    assert (description.front, description.version) == ("unknown", None)
    assert description.max_input_tokens == 100


async def test_tokens_are_the_engines_own(client, fake_engine):
    fake_engine.tokenize = lambda text: [len(text), 7]
    assert await client.tokenize("abc", deadline=soon()) == [3, 7]


async def test_an_engine_without_tokenizer_gives_none(client, fake_engine):
    assert await client.tokenize("abc", deadline=soon()) is None  # 404, as from the Rust front
    fake_engine.broken["/tokenize"] = Fault.CRASHED  # 500, as with --skip-tokenizer-init
    assert await client.tokenize("abc", deadline=soon()) is None


async def test_an_engine_that_cannot_tokenize_yet_is_unavailable(client, fake_engine):
    fake_engine.broken["/tokenize"] = Fault.NOT_READY
    with pytest.raises(EngineUnavailable):
        await client.tokenize("abc", deadline=soon())


@pytest.mark.parametrize("status", [401, 403])
async def test_an_abort_that_needs_another_key_is_not_tried_again(status):
    """SGLang run with an admin key lets nobody else abort."""
    transport = Recorded({"/abort_request": (status, b'{"error":"Unauthorized"}')} | ROUTER)
    client = EngineClient("http://unused", transport=transport)
    client._abort("e.000", "e")
    await asyncio.wait(client._aborts)
    client._abort("e.001", "e")
    assert not client._aborts
    assert transport.asked == ["/abort_request"]


async def test_health_is_the_engines_answer_within_its_deadline(client, fake_engine):
    assert await client.is_healthy(deadline=soon())
    fake_engine.healthy = False
    assert not await client.is_healthy(deadline=soon())
    fake_engine.healthy, fake_engine.health_delay = True, 3.0
    assert not await client.is_healthy(deadline=soon(0.05))


async def test_nothing_is_asked_for_health_that_kills_the_engine(client, fake_engine):
    """SGLang's own /health runs a request that it cannot have in a batch with ours."""
    fake_engine.play(Fault.HANG)
    call = asyncio.create_task(ask(client))
    await fake_engine.wait_for(lambda engine: engine.running == 1)
    assert await client.is_healthy(deadline=soon())
    assert fake_engine.killed_by == []
    fake_engine.release()
    await call


async def test_no_call_is_made_while_an_engine_warms_up(client, fake_engine):
    """Its warm-up is a request of the kind that kills it beside ours."""
    fake_engine.info["skip_server_warmup"] = False
    fake_engine.broken["/health"] = Fault.NOT_READY
    with pytest.raises(EngineUnavailable, match="warming up"):
        await client.describe(deadline=soon())
    assert fake_engine.calls == []
    fake_engine.broken.clear()
    assert (await client.describe(deadline=soon())).front == "python"


async def test_aborts_and_health_do_not_queue_behind_calls(fake_engine):
    client = EngineClient(fake_engine.url, max_in_flight=1)
    fake_engine.play(Fault.HANG)
    task = asyncio.create_task(ask(client))
    await fake_engine.wait_for(lambda engine: engine.running == 1)
    assert await client.is_healthy(deadline=soon())
    fake_engine.release()
    await task
    await client.aclose()


async def test_nothing_is_left_behind_after_many_failures(fake_engine):
    client = EngineClient(fake_engine.url)
    fake_engine.play(Fault.HANG, when=lambda call: call.rid.endswith("1"))
    fake_engine.play(Fault.RESET, when=lambda call: call.rid.endswith("2"))
    calls = (ask(client, rid=f"e.{n:03}", deadline=soon(0.2)) for n in range(64))
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(r, EngineError) for r in results[1::10] + results[2::10])
    await client.aclose()
    await fake_engine.wait_for(lambda engine: engine.running == 0)
    here = asyncio.current_task()
    others = [t for t in asyncio.all_tasks() if t is not here and "backend" in repr(t)]
    assert others == []
