"""A server of the contract in a function, with places to break it, for the smoke test."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import httpx

LIMIT = 64


def right_answer(state: str, question: dict) -> int | float:
    """What a good model says: an index, or the probability of yes."""
    match question["type"]:
        case "noul":
            return 0.1 if "password" in question["instructions"] else 0.9
        case "choice":
            wanted = ("billing", "penguin")
            return next((i for i, key in enumerate(question["criteria"]) if key in wanted), 0)
        case _:
            return len(question["criteria"]) - 1


def answer(state: str, question: dict, choose: Callable) -> dict:
    chosen = choose(state, question)
    if question["type"] == "noul":
        return {"type": "noul", "noul": chosen}
    names = (
        question["criteria"] if question["type"] == "choice" else range(len(question["criteria"]))
    )
    rest = 0.1 / (len(question["criteria"]) - 1)
    shares = {str(name): 0.9 if i == chosen else rest for i, name in enumerate(names)}
    if question["type"] == "choice":
        return {
            "type": "choice",
            "choice": list(shares)[chosen],
            "confidence": 0.5,
            "probabilities": shares,
        }
    return {
        "type": "score",
        "score": sum(int(i) * p for i, p in shares.items()),
        "confidence": 0.5,
        "legend": dict(zip(shares, question["criteria"], strict=True)),
        "probabilities": shares,
    }


class ContractServer:
    """A server of the contract in a function, with places to break it."""

    def __init__(
        self,
        *,
        choose=right_answer,
        spoil=lambda body: body,
        not_ready: int = 0,
        status: int = 503,
        limit: int = LIMIT,
    ) -> None:
        self.choose = choose
        self.spoil = spoil
        self.not_ready = not_ready
        self.status = status
        self.limit = limit
        self.keys: list[str | None] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.keys.append(request.headers.get("authorization"))
        if request.url.path == "/health":
            return httpx.Response(200, json={"status": "ok", "startup_seconds": 1.5})
        if request.url.path == "/v1/limits":
            return httpx.Response(200, json={"max_answers": self.limit})
        if self.not_ready:
            self.not_ready -= 1
            return httpx.Response(self.status, json={"error": {"message": "Starting."}})
        return self.evaluate(json.loads(request.content))

    def evaluate(self, body: dict) -> httpx.Response:
        questions = body["questions"]
        if any(len(q.get("criteria", [])) > self.limit for q in questions.values()):
            return httpx.Response(
                422, json={"error": {"message": f"At most {self.limit} options."}}
            )
        answers = {i: answer(body["state"], q, self.choose) for i, q in questions.items()}
        usage = {"input_tokens": 10, "output_tokens": len(questions) + 1}
        headers = {
            "x-openjev-model": "a-model",
            "x-openjev-prefix-tokens": "61",
            "server-timing": "prepare;dur=1.0, prefill;dur=20, branches;dur=3",
        }
        spoiled = self.spoil({"model": body["model"], "answers": answers, "usage": usage})
        return httpx.Response(200, json=spoiled, headers=headers)


@contextmanager
def over_http(answer: Callable[[httpx.Request], httpx.Response]) -> Iterator[str]:
    """Serve such a function on a loopback port; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            url = f"http://x{self.path}"
            response = answer(httpx.Request(self.command, url, content=body))
            self.send_response(response.status_code)
            for name, value in response.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(response.content)

        do_GET = do_POST  # noqa: N815 - the standard library's spelling

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
