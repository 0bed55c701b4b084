"""Requests as bytes, good and broken, and what a refusal must look like on the wire."""

import json
from typing import Any

GET = "GET / HTTP/1.1\r\nHost: a\r\n"
POST = "POST / HTTP/1.1\r\nHost: a\r\n"
BROKEN = [
    "\r\n\r\n",
    "nonsense\r\n\r\n",
    GET + "no colon\r\n\r\n",
    GET + ": no name\r\n\r\n",
    GET + "X: \x00\r\n\r\n",
    GET + "X: y\r\n" * 600 + "\r\n",
    POST + "Content-Length: -1\r\n\r\n",
    POST + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    POST + "Content-Length: " + "9" * 5000 + "\r\n\r\n",
    POST + "Transfer-Encoding: gzip\r\n\r\n",
    POST + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    POST + "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    POST + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    POST + "Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n0\r\n\r\n",
    POST + "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    GET + "X: " + "y" * 70_000 + "\r\n\r\n",
]


def error_in(answer: str, status: int) -> Any:
    """The body of an answer that must be an error with one id and an end."""
    head, body = answer.split("\r\n\r\n")
    first, *lines = head.split("\r\n")
    headers = dict(line.lower().split(": ") for line in lines)
    assert first.startswith(f"HTTP/1.1 {status} ")
    assert headers["connection"] == "close"
    assert headers["content-type"] == "application/json"
    assert headers["content-length"] == str(len(body))
    assert headers["x-typesafe-request-id"] == headers["x-request-id"]
    assert headers["x-request-id"].startswith("req_")
    error = json.loads(body)
    assert error["error"]["message"] == error["detail"]["message"]
    return error["error"]
