"""`runbackend`'s machinery on a fake engine and a tiny application, as a process to be killed.

`python -m tests.support.run_tiny --port N --backend-port N [--connect URL] [--engine-only]
[--engine CODE]`; options after `--` go to the fake engine. `--engine` runs other Python code as the
engine.
"""

import argparse
import os
import sys

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "openjev_site.settings")

import django
from django.conf import settings

from backend import serve as serving
from backend.launch import PROJECT_ROOT, LaunchError
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
    parser.add_argument("--engine")
    arguments, engine_options = parser.parse_known_args()
    argv = [sys.executable, "-m", "tests.support.fake_engine", *engine_options]
    argv += ["--port", str(arguments.backend_port)]
    if arguments.engine:
        argv = [sys.executable, "-c", arguments.engine]
    django.setup()
    settings.ASGI_APPLICATION = "tests.support.tiny_asgi.application"
    serving._embedded_engine = lambda config, port: EngineProcess(
        argv, environment=os.environ, cwd=PROJECT_ROOT
    )
    options = Options(
        host=arguments.host,
        port=arguments.port,
        backend_port=arguments.backend_port,
        connect=arguments.connect,
        engine_only=arguments.engine_only,
    )
    try:
        sys.exit(serving.serve(options, say=lambda line: print(line, flush=True), check=list))
    except LaunchError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
