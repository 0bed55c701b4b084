"""HTTP for the smoke test: one deadline over everything, and patience with a server that starts."""

import time
from collections.abc import Mapping
from typing import Any

import httpx

Json = dict[str, Any]

# Statuses a server answers with while its engine is still coming up.
_NOT_YET = frozenset({502, 503, 504, 529})
_WORTH_WAITING = (httpx.NetworkError, httpx.TimeoutException, httpx.RemoteProtocolError)
_WAIT_STEP = 1.0


class SmokeError(Exception):
    """The smoke test cannot go on: nothing answered, or it answered something unusable."""


class Session:
    """Posts evaluations until the deadline; refused connections and 503 are worth waiting for."""

    def __init__(self, client: httpx.Client, deadline: float) -> None:
        self._client = client
        self._deadline = deadline

    def timed(self, state: object, questions: Mapping[str, Any]) -> tuple[httpx.Response, float]:
        """Post one evaluation; returns the response, whatever its status, and seconds taken."""
        body = {"model": "jev-latest", "state": state, "questions": questions}
        started = time.monotonic()
        response = self._request("POST", "/v1/systemone", json=body)
        return response, time.monotonic() - started

    def patient(self, state: object, questions: Mapping[str, Any]) -> tuple[httpx.Response, float]:
        """The same, but ask again while the server refuses connections or is not ready."""
        last = ""
        while True:
            try:
                response, latency = self.timed(state, questions)
            except SmokeError as error:
                raise SmokeError(f"{error} {last}") from None
            except _WORTH_WAITING as error:
                last = f"{type(error).__name__}: {error}"
            else:
                if response.status_code not in _NOT_YET:
                    return response, latency
                last = f"The last answer was {explain(response)}"
            time.sleep(_WAIT_STEP)

    def get(self, path: str) -> Json | None:
        """Fetch a JSON object; `None` where the server answers anything but 200."""
        response = self._request("GET", path)
        return json_body(response) if response.status_code == 200 else None

    def _request(self, method: str, path: str, **content: Any) -> httpx.Response:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise SmokeError("The smoke test did not finish within the time given by --timeout.")
        return self._client.request(method, path, timeout=left, **content)


def json_body(response: httpx.Response) -> Json:
    """Read the JSON object in an answer; anything else raises `SmokeError`."""
    try:
        body = response.json()
    except ValueError:
        raise SmokeError(f"Not JSON was answered: {explain(response)}") from None
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
        return f"{response.status_code}: {response.text[:200]}"
