"""HTTP for the smoke test: one deadline over everything, and patience with a server that starts."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx

Json = dict[str, Any]

# Statuses a server answers with while its engine is still coming up.
_NOT_YET = frozenset({502, 503, 504, 529})
_WORTH_WAITING = (httpx.NetworkError, httpx.TimeoutException, httpx.RemoteProtocolError)
_TOO_LATE = "The smoke test did not finish within the time given by --timeout."
_WAIT_STEP = 1.0
# how long after the last line another one is due, with the same reason and with a new one
_SAY_AGAIN, _SAY_CHANGED = 30.0, 5.0
# far less than a machine that is not there would take; an answer may take as long as it likes
_CONNECT = 10.0


class SmokeError(Exception):
    """The smoke test cannot go on: nothing answered, or it answered something unusable."""


class Session:
    """Posts evaluations until the deadline; refused connections and 503 are worth waiting for.

    Args:
        client: bound to the server's base URL.
        deadline: of everything, on `time.monotonic`.
        say: tells whoever waits what is waited for; one line.
    """

    def __init__(self, client: httpx.Client, deadline: float, say: Callable[[str], None]) -> None:
        self._client = client
        self._deadline = deadline
        self._say = say

    def timed(self, state: object, questions: Mapping[str, Any]) -> tuple[httpx.Response, float]:
        """Post one evaluation; returns the response, whatever its status, and seconds taken."""
        body = {"model": "jev-latest", "state": state, "questions": questions}
        started = time.monotonic()
        response = self._request("POST", "/v1/systemone", json=body)
        return response, time.monotonic() - started

    def patient(self, state: object, questions: Mapping[str, Any]) -> tuple[httpx.Response, float]:
        """The same, but ask again while the server refuses connections or is not ready."""
        began = time.monotonic()
        said, said_at, last = "", -math.inf, ""
        while True:
            try:
                response, latency = self.timed(state, questions)
            except SmokeError as error:
                raise SmokeError(f"{error} {last}") from None
            except _WORTH_WAITING as error:
                last = _no_answer(error)
            else:
                if response.status_code not in _NOT_YET:
                    return response, latency
                last = f"The last answer was {explain(response)}"
            now = time.monotonic()
            if now >= said_at + (_SAY_AGAIN if last == said else _SAY_CHANGED):
                said, said_at = last, now
                self._say(f"Waiting ({now - began:.0f} s): {last}")
            time.sleep(_WAIT_STEP)

    def get(self, path: str) -> Json | None:
        """Fetch a JSON object; `None` where the server answers anything but 200."""
        response = self._request("GET", path)
        return json_body(response) if response.status_code == 200 else None

    def _request(self, method: str, path: str, **content: Any) -> httpx.Response:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise SmokeError(_TOO_LATE)
        timeout = httpx.Timeout(left, connect=min(left, _CONNECT))
        try:
            return self._client.request(method, path, timeout=timeout, **content)
        except httpx.TimeoutException as error:
            if time.monotonic() < self._deadline:
                raise
            raise SmokeError(f"{_TOO_LATE} {method} {path} was not answered.") from error


def _no_answer(error: httpx.TransportError) -> str:
    reason = str(error) or type(error).__name__
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return f"No connection can be made yet ({reason}); is this the server's address?"
    return f"There was no answer ({reason})."


def json_body(response: httpx.Response) -> Json:
    """Read the JSON object in an answer; anything else raises `SmokeError`."""
    try:
        body = response.json()
    except ValueError:
        raise SmokeError(
            f"{response.request.url.path} was answered {explain(response)}, and not with JSON; is "
            "this OpenJev's address?"
        ) from None
    if not isinstance(body, dict):
        raise SmokeError("The answer's body is not a JSON object.")
    return body


def explain(response: httpx.Response) -> str:
    """Say in a line what was answered: the status, and the error's sentence if there is one."""
    if response.status_code == 200:
        return "200"
    try:
        return f"{response.status_code}: {response.json()['error']['message']}"
    except (ValueError, KeyError, TypeError):
        return f"{response.status_code}: {' '.join(response.text.split())[:200]}"
