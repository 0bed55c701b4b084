"""The smoke test against servers that behave, are rough, are broken, or are not there yet."""

import errno
import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import StringIO

import httpx
import pytest
from django.core.management import CommandError, call_command

import evaluations.management.commands.smoke as smoke_command
from evaluations.smoke import run
from evaluations.smoke import session as smoke_session
from tests.support.contract_server import LIMIT, ContractServer


def smoke(server: Callable, timeout: float = 30, say: Callable = print):
    with httpx.Client(base_url="http://x", transport=httpx.MockTransport(server)) as client:
        return run(client, timeout=timeout, say=say)


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    monkeypatch.setattr(smoke_session, "_WAIT_STEP", 0.01)


def failed_names(report) -> list[str]:
    return [check.name for check in report.checks if not check.passed]


def test_a_good_server_passes_every_check():
    report = smoke(ContractServer())
    assert report.verdict == "ok"
    assert failed_names(report) == []
    assert {check.kind for check in report.checks} == {"mechanics", "meaning"}
    assert report.model == "a-model"
    assert report.startup_seconds == 1.5
    assert (report.prefix_tokens, report.cached_tokens) == (61, None)
    assert report.server_timing == {"prepare": 1.0, "prefill": 20.0, "branches": 3.0}
    assert report.latency_cold is not None
    assert report.latency_warm is not None


def test_a_model_that_answers_nonsense_is_rough_not_broken():
    report = smoke(ContractServer(choose=lambda state, q: 0.5 if q["type"] == "noul" else 0))
    assert report.verdict == "rough"
    assert all(check.kind == "meaning" for check in report.checks if not check.passed)


def drop_one(body):
    body["answers"].pop("urgency", None)
    return body


def unnormalise(body):
    for one in body["answers"].values():
        if "probabilities" in one:
            key = next(iter(one["probabilities"]))
            one["probabilities"][key] += 0.01
    return body


def miscount(body):
    body["usage"]["output_tokens"] -= 1
    return body


def leave_the_interval(body):
    for one in body["answers"].values():
        if "noul" in one:
            one["noul"] = 1.5
    return body


@pytest.mark.parametrize(
    ("spoil", "part_of_name"),
    [
        (drop_one, "in order"),
        (unnormalise, "sum to 1"),
        (miscount, "usage"),
        (leave_the_interval, "[0, 1]"),
    ],
)
def test_a_broken_server_is_reported_as_broken(spoil, part_of_name):
    report = smoke(ContractServer(spoil=spoil))
    assert report.verdict == "failed"
    assert any(part_of_name in name for name in failed_names(report))


def test_a_server_whose_limit_does_not_hold_is_broken():
    class Unlimited(ContractServer):
        def evaluate(self, body: dict) -> httpx.Response:
            questions = body["questions"]
            for question in questions.values():
                if len(question.get("criteria", [])) > LIMIT:
                    question["criteria"].popitem()
            return super().evaluate(body)

    assert any("refused" in name for name in failed_names(smoke(Unlimited())))


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b'{"answers": {"refund": 1}}'])
def test_an_answer_of_another_form_is_an_error_not_a_crash(body):
    report = smoke(lambda request: httpx.Response(200, content=body))
    assert report.verdict == "failed"
    assert report.error


def test_an_address_where_something_else_answers_is_told():
    report = smoke(lambda request: httpx.Response(200))
    assert report.error is not None
    assert "/health was answered 200, and not with JSON" in report.error


@pytest.mark.parametrize("status", [502, 503, 504, 529])
def test_a_server_that_is_starting_is_waited_for(status):
    report = smoke(ContractServer(not_ready=3, status=status))
    assert report.verdict == "ok"
    assert report.wait is not None
    assert report.wait >= 0.03


def test_whoever_waits_is_told_what_for_but_not_each_time():
    said: list[str] = []
    smoke(ContractServer(not_ready=20), say=said.append)
    assert said == ["Waiting (0 s): The last answer was 503: Starting."]


def test_a_long_wait_and_a_new_reason_are_told(monkeypatch):
    monkeypatch.setattr(smoke_session, "_SAY_AGAIN", 0.03)
    monkeypatch.setattr(smoke_session, "_SAY_CHANGED", 0.0)
    server, said, asked = ContractServer(not_ready=20), list[str](), []

    def refuse_first(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        if len(asked) < 3:
            raise httpx.ConnectError("refused")
        return server(request)

    smoke(refuse_first, say=said.append)
    assert "No connection can be made yet (refused)" in said[0]
    assert sum("503: Starting." in line for line in said) > 1


def test_refused_connections_are_waited_for_until_the_timeout():
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    report = smoke(refuse, timeout=0.2)
    assert report.verdict == "failed"
    assert report.error is not None
    assert "--timeout" in report.error
    assert "refused" in report.error


def test_a_server_that_never_becomes_ready_is_reported_with_its_own_words():
    report = smoke(ContractServer(not_ready=10**6), timeout=0.2)
    assert report.error is not None
    assert "Starting." in report.error


def test_a_request_that_hangs_beyond_the_timeout_is_told_as_that():
    def hang(request: httpx.Request) -> httpx.Response:
        time.sleep(request.extensions["timeout"]["read"])
        raise httpx.ReadTimeout("timed out")

    report = smoke(hang, timeout=0.1)
    assert report.error is not None
    assert "--timeout" in report.error
    assert "/v1/systemone was not answered" in report.error


def test_a_machine_that_does_not_answer_at_all_is_tried_again():
    timeouts = []

    def silent(request: httpx.Request) -> httpx.Response:
        timeouts.append(request.extensions["timeout"])
        raise httpx.ConnectTimeout("nobody there")

    report = smoke(silent, timeout=0.1)
    assert len(timeouts) > 1
    assert report.error is not None
    assert "nobody there" in report.error


@pytest.mark.parametrize("limit", [10, 255])
def test_other_limits_than_the_default_are_put_to_the_test(limit):
    report = smoke(ContractServer(limit=limit))
    assert report.verdict == "ok"
    names = [check.name for check in report.checks]
    assert f"a question with {limit} answers is answered" in names
    assert f"{limit + 1} answers are refused, naming the limit" in names


@pytest.mark.parametrize("limit", [LIMIT, 255])
def test_a_server_that_cannot_answer_many_options_is_broken(limit):
    class Few(ContractServer):
        def evaluate(self, body: dict) -> httpx.Response:
            if any(len(q.get("criteria", [])) > 9 for q in body["questions"].values()):
                return httpx.Response(502, json={"error": {"message": "Not so many."}})
            return super().evaluate(body)

    report = smoke(Few(limit=limit))
    assert report.verdict == "failed"
    assert f"a question with {limit} answers is answered" in failed_names(report)
    assert report.error is not None
    assert "502: Not so many." in report.error


def test_a_connection_that_breaks_midway_is_reported():
    server, seen = ContractServer(), []

    def break_later(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        if len(seen) > 4:
            raise httpx.ReadError("reset")
        return server(request)

    report = smoke(break_later)
    assert report.error is not None
    assert "connection broke" in report.error


def test_an_example_that_fails_the_second_time_is_reported():
    server, seen = ContractServer(), []

    def fail_second(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.path)
        if seen.count("/v1/systemone") == 2:
            return httpx.Response(500, text="<html>\n  <p>Broken</p>\n</html>")
        return server(request)

    report = smoke(fail_second)
    assert report.error == (
        "The example, asked again, was answered 500: <html> <p>Broken</p> </html>"
    )


def test_an_error_status_ends_it_at_once():
    def unauthorised(request: httpx.Request) -> httpx.Response:
        return httpx.Response(401, json={"error": {"message": "A key is needed."}})

    report = smoke(unauthorised)
    assert report.error is not None
    assert "401: A key is needed." in report.error


@pytest.fixture
def command(monkeypatch):
    """Run `manage.py smoke` against a stand-in server; returns its output."""

    def run_command(server: Callable, *arguments: str) -> str:
        client = partial(httpx.Client, transport=httpx.MockTransport(server))

        out = StringIO()
        with monkeypatch.context() as patch:
            patch.setattr(smoke_command.httpx, "Client", client)
            call_command("smoke", "http://x", *arguments, stdout=out, no_color=True)
        return out.getvalue()

    return run_command


def test_the_command_prints_a_report_and_writes_it_as_json(command, tmp_path):
    target = tmp_path / "report.json"
    text = command(ContractServer(), "--output", str(target))
    assert text.startswith("Asking http://x, which may take up to 1500 s")
    assert "(choice, noul, score)" in text
    assert "✓ mechanics probabilities sum to 1" in text
    assert "  second request: 0.0" in text
    assert (
        "  server timing: prepare 1 ms, prefill 20 ms, branches 3 ms\n  prefix tokens: 61\n" in text
    )
    assert "cached tokens" not in text
    assert "answers make sense" in text
    written = json.loads(target.read_text())
    assert written["verdict"] == "ok"
    assert written["cached_tokens"] is None
    assert written["checks"][0].keys() == {"name", "kind", "passed", "found"}


def test_the_command_exits_with_an_error_for_a_rough_model_unless_told_otherwise(command):
    rough = ContractServer(choose=lambda state, q: 0.5 if q["type"] == "noul" else 0)
    with pytest.raises(CommandError, match="rough"):
        command(rough)
    assert "which --allow-rough allows" in command(rough, "--allow-rough")


def test_the_command_exits_with_an_error_for_a_broken_server(command):
    with pytest.raises(CommandError, match=r"does not work .* usage counts one output token .*5"):
        command(ContractServer(spoil=miscount), "--allow-rough")


def test_the_command_says_why_it_could_not_go_on(command):
    with pytest.raises(CommandError, match=r"does not work .* answered 401: A key is needed\."):
        command(
            lambda request: httpx.Response(401, json={"error": {"message": "A key is needed."}})
        )


def test_a_report_of_nothing_tells_no_figures(capsys):
    arguments = ["http://127.0.0.1:9", "--timeout", "0.1"]
    with pytest.raises(CommandError, match="does not work"):
        call_command("smoke", *arguments, no_color=True)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "http://127.0.0.1:9"


@pytest.mark.parametrize("url", ["ftp://x", "http://[", "nothing", "http://two..dots", ""])
def test_a_url_that_cannot_be_used_fails_at_once(url):
    with pytest.raises(CommandError, match="is no address: it must be one that begins with http"):
        call_command("smoke", url, stdout=StringIO())


@pytest.mark.parametrize(
    ("variable", "value"), [("ALL_PROXY", "socks9://x"), ("SSL_CERT_FILE", "/nowhere")]
)
def test_an_environment_that_cannot_be_used_is_told(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    with pytest.raises(CommandError, match="HTTP cannot be used as the environment says"):
        call_command("smoke", "https://example.invalid", "--timeout", "1", stdout=StringIO())


def test_no_proxy_is_asked_for_a_server_of_this_machine(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    heads = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            heads.append(self.path)
            self.send_error(418)

        def log_message(self, *arguments):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(CommandError, match="answered 418"):
            call_command("smoke", url, "--timeout", "10", stdout=StringIO())
        server.shutdown()
    assert heads == ["/v1/systemone"]


@pytest.mark.parametrize("timeout", ["0", "-1", "nan", "inf", "soon"])
def test_a_timeout_that_is_no_time_fails_at_once(timeout):
    with pytest.raises(CommandError, match="number of seconds above 0"):
        call_command("smoke", "http://x", f"--timeout={timeout}", stdout=StringIO())


def test_a_report_that_cannot_be_written_fails_before_anything_is_asked(tmp_path):
    for target in (tmp_path, tmp_path / "missing" / "report.json"):
        with pytest.raises(CommandError, match="cannot be written"):
            call_command("smoke", "http://x", "--output", str(target), stdout=StringIO())


def test_a_disk_that_fails_in_the_end_is_told(command, monkeypatch, tmp_path):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(smoke_command.Path, "write_text", full)
    with pytest.raises(CommandError, match="No space left on device"):
        command(ContractServer(), "--output", str(tmp_path / "report.json"))


def test_the_command_sends_the_configured_key(command, settings):
    settings.OPENJEV = replace(settings.OPENJEV, api_key="secret-key")
    server = ContractServer()
    text = command(server)
    assert set(server.keys) == {"Bearer secret-key"}
    assert "secret-key" not in text
