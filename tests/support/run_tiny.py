"""`runbackend`'s machinery on a fake engine and a tiny application, as a process to be killed.

`python -m tests.support.run_tiny --port N --backend-port N [--connect URL] [--engine-only]
[--server NAME] [--workers N] [--application PATH] [--engine CODE]`; other options go to the fake
engine. `--application` names another one than the tiny application; `--engine` runs other Python
code as the engine.
"""

import argparse
import os
import sys

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "openjev_site.settings")

import django
from django.conf import settings

from backend import serve as serving
from backend.config import Config
from backend.launch import CONTEXT_MARGIN, PROJECT_ROOT, LaunchError
from backend.serve import Options
from backend.supervisor import EngineProcess


def main() -> None:
    """Serve until something ends it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--backend-port", type=int, default=30000)
    parser.add_argument("--connect")
    parser.add_argument("--engine-only", action="store_true")
    parser.add_argument("--application", default="tests.support.tiny_asgi.application")
    parser.add_argument("--engine")
    parser.add_argument("--server", default="daphne")
    parser.add_argument("--workers", type=int, default=1)
    arguments, engine_options = parser.parse_known_args()
    django.setup()
    settings.ASGI_APPLICATION = arguments.application

    def engine(config: Config, port: int) -> EngineProcess:
        argv = [sys.executable, "-m", "tests.support.fake_engine", "--port", str(port)]
        argv += ["--served-model-name", config.served_model_name]
        argv += ["--context-length", str(config.max_input_tokens + CONTEXT_MARGIN), *engine_options]
        if arguments.engine:
            argv = [sys.executable, "-c", arguments.engine]
        return EngineProcess(argv, environment=os.environ, cwd=PROJECT_ROOT)

    serving._embedded_engine = engine
    options = Options(
        host=arguments.host,
        port=arguments.port,
        backend_port=arguments.backend_port,
        connect=arguments.connect,
        engine_only=arguments.engine_only,
        server=arguments.server,
        workers=arguments.workers,
    )
    try:
        sys.exit(serving.serve(options, say=lambda line: print(line, flush=True), check=list))
    except LaunchError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
