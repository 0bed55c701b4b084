"""The view class itself: no threads for JSON, and a client that leaves ends the work."""

import asyncio
import json
import logging
from typing import Any

import pytest
from asgiref.sync import SyncToAsync
from django.test import AsyncClient, AsyncRequestFactory

from evaluations.questions import Evaluation, EvaluationRequest
from evaluations.views import SystemOneView
from tests.evaluations.stand_in import StandInRuntime

BODY = json.dumps(
    {
        "model": "jev-latest",
        "state": "s",
        "questions": {"q": {"type": "noul", "instructions": "i"}},
    }
)


def request() -> Any:
    return AsyncRequestFactory().post("/v1/systemone", BODY, content_type="application/json")


@pytest.mark.parametrize("body", [BODY, "{"])
async def test_json_is_answered_without_leaving_the_loop(
    runtime: StandInRuntime, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    hops: list[Any] = []

    async def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        hops.append(self)
        return self.func(*args, **kwargs)

    monkeypatch.setattr(SyncToAsync, "__call__", counted)
    view: Any = SystemOneView.as_view()
    asked = AsyncRequestFactory().post("/v1/systemone", body, content_type="application/json")
    response = await view(asked)
    assert response.status_code == (200 if body == BODY else 422)
    assert not hops


async def test_client_that_leaves_cancels_the_work_and_is_logged(
    runtime: StandInRuntime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def endless(_request: EvaluationRequest) -> Evaluation:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    monkeypatch.setattr(runtime, "evaluate", endless)
    view: Any = SystemOneView.as_view()
    with caplog.at_level(logging.INFO):
        task = asyncio.ensure_future(view(request()))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert cancelled.is_set()
    (record,) = [item for item in caplog.records if item.name == "evaluations.request_log"]
    assert " 499 " in record.getMessage()


async def test_id_of_the_edge_is_the_one_in_the_log(
    runtime: StandInRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    asked = request()
    asked.scope["openjev.request_id"] = "req_fromtheedge"
    view: Any = SystemOneView.as_view()
    with caplog.at_level(logging.INFO):
        await view(asked)
    assert caplog.messages[-1].startswith("req_fromtheedge POST")


async def test_negative_answers_are_logged_once(
    api: AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        await api.post("/v1/systemone", "{", content_type="application/json")
    assert len(caplog.records) == 1
