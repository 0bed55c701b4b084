"""A fake engine as a process of its own, until it is told to stop.

It accepts, and ignores, the options of real engines. `POST /script` directs it from another
process, with a JSON object of one of these::

    {"fault": "nan", "suffix": ".0002", "among": 3}   play it for the calls whose rid ends so
    {"release": true}                                 calls that hang are answered
    {"hang": true}                                    no route answers any more, except this one
    {"exit": 3}                                       last words, then the process ends
    {}                                                nothing

Each answers `{"running": n}`.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys

from aiohttp import web

from tests.support.fake_engine import FakeEngine, Fault, serve_fake_engine


class Directed(FakeEngine):
    """A fake engine with a route for its script.

    Attributes:
        ending: done with the exit code when the process is to end.
    """

    ending: asyncio.Future[int]

    def application(self) -> web.Application:
        """Add the route; in a middleware of its own, which runs before the engine's."""
        app = super().application()
        app.middlewares.insert(0, self._direct)
        return app

    @web.middleware
    async def _direct(self, request: web.Request, handler) -> web.StreamResponse:
        if request.path != "/script":
            return await handler(request)
        step = json.loads(await request.read())
        if "fault" in step:
            suffix = step.get("suffix", "")
            self.play(
                Fault(step["fault"]),
                when=lambda call: call.rid.endswith(suffix),
                among=step.get("among", 0),
            )
        if step.get("release"):
            self.release()
        if step.get("hang"):
            self.hang()
        if "exit" in step:
            self.ending.set_result(step["exit"])
        return web.json_response({"running": self.running})


async def run(arguments: argparse.Namespace) -> None:
    """Serve until the script, or `--die-after`, says when to end."""
    engine = Directed(
        model=arguments.served_model_name,
        context_length=int(arguments.context_length),
        vocabulary_size=arguments.vocabulary_size,
    )
    engine.ending = asyncio.get_running_loop().create_future()
    engine.play(Fault(arguments.fault))
    if arguments.grandchild:  # inherits our output, as an engine's workers do
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])  # noqa: ASYNC220
    async with serve_fake_engine(engine, host=arguments.host, port=arguments.port):
        print(f"fake engine on {engine.url}", flush=True)
        await asyncio.wait([engine.ending], timeout=arguments.die_after)
        print("the fake engine's last words", flush=True)
        code = engine.ending.result() if engine.ending.done() else 3
        os._exit(code)  # a crash: nothing under way is answered


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--served-model-name", default="fake/model")
    parser.add_argument("--context-length", default="4096")
    parser.add_argument("--vocabulary-size", type=int, default=2048)
    parser.add_argument("--fault", default="none")
    parser.add_argument("--grandchild", action="store_true")
    parser.add_argument("--die-after", type=float)
    arguments, _ = parser.parse_known_args()
    asyncio.run(run(arguments))


if __name__ == "__main__":
    main()
