"""OpenJev on Modal: SGLang's own image, one B200 in each container, nothing running when idle.

    modal run modal_deploy.py       a server for as long as its smoke test takes
    modal deploy modal_deploy.py    a lasting endpoint

This file is read twice: here, to say what is built and run, and in each container by SGLang's
Python, which finds nothing else of this project on its path. So only the standard library and
`modal` may be imported at the top, and both readings must declare the same objects.
"""

import http.client
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import modal

# What a deployment may want to change.
KEEP_WARM = 0  # containers kept running without requests; 1 spares everyone the cold start
SECRET_NAME = ""  # a Modal Secret that holds KEYS; without one, those set in this shell are taken
CPU_CORES = 8.0
MEMORY_MIB = 64 * 1024
# OPENJEV_MAX_CONCURRENT_REQUESTS is 16 and the 17th is refused: more containers are to be there
# before that.
TARGET_CONCURRENCY = 12

SGLANG_IMAGE = "lmsysorg/sglang:v0.5.19"
DEFAULT_PROFILE = "qwen36"
FORWARDED = ("OPENJEV_PROFILE", "OPENJEV_FRONTEND", "OPENJEV_SERVED_MODEL_NAME")
KEYS = ("OPENJEV_API_KEY", "OPENJEV_BACKEND_API_KEY", "HF_TOKEN")

PORT = 8000
STARTUP_SECONDS = 20 * 60
IDLE_SECONDS = 300
# Running evaluations may finish (OPENJEV_DRAIN_TIMEOUT), then SGLang ends.
DRAIN_SECONDS = 30
STOP_SECONDS = DRAIN_SECONDS + 30
EXIT_GRACE_SECONDS = STOP_SECONDS + 15
_POLL_SECONDS = 1.0
_PROBE_SECONDS = 10.0

HERE = Path(__file__).resolve().parent
HOME = "/opt/openjev"
SOURCE = f"{HOME}/source"
PYTHON = f"{HOME}/environment/bin/python"
CACHE = "/cache"
# SGLang's environment stays as it comes. OpenJev gets its own, with the pip of the other.
_PIP = f"python3 -m pip --python {PYTHON} install --no-cache-dir"
INSTALL = (
    f"python3 -m venv --without-pip {HOME}/environment",
    f"{_PIP} -r {HOME}/requirements.txt",
    f"{_PIP} --no-deps -r {HOME}/requirements-pages.txt",
)


def container_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a container: caches on the volume, and the settings forwarded from here.

    Args:
        environ: where the settings to forward are looked up, and the keys looked at.

    Raises:
        SystemExit: one is not allowed, told here because it would cost a GPU to find out.
    """
    settings = {
        "HF_HOME": f"{CACHE}/huggingface",
        "HF_XET_HIGH_PERFORMANCE": "1",
        "SGLANG_CACHE_DIR": f"{CACHE}/sglang",
        "TRITON_CACHE_DIR": f"{CACHE}/triton",
        "OPENJEV_PROFILE": DEFAULT_PROFILE,
        # OpenJev's own words about a start that takes too long are better than Modal's
        "OPENJEV_STARTUP_TIMEOUT": str(STARTUP_SECONDS - 60),
        "OPENJEV_DRAIN_TIMEOUT": str(DRAIN_SECONDS),
    } | {name: environ[name] for name in FORWARDED if environ.get(name)}
    if (HERE / "backend").is_dir():  # not so in a container
        _refuse_unusable(settings | {name: environ[name] for name in KEYS if name in environ})
    return settings


def _refuse_unusable(settings: Mapping[str, str]) -> None:
    from backend.config import load_config

    config, problems = load_config(settings)
    if problems:
        raise SystemExit("\n".join(problem.message for problem in problems))
    if config.selected.engine != "sglang":
        raise SystemExit(
            f"OPENJEV_PROFILE is {config.profile}, which needs no GPU. Modal runs SGLang: choose "
            f"a profile for it, such as {DEFAULT_PROFILE}."
        )


def key_secret(environ: Mapping[str, str]) -> modal.Secret:
    """The Secret that carries the keys: a named one, else those of `environ` that are set."""
    if SECRET_NAME:
        return modal.Secret.from_name(SECRET_NAME)
    return modal.Secret.from_dict({name: environ.get(name) or None for name in KEYS})


image = (
    modal.Image.from_registry(SGLANG_IMAGE)
    .entrypoint([])
    .add_local_file(HERE / "requirements.txt", f"{HOME}/requirements.txt", copy=True)
    .add_local_file(HERE / "requirements-pages.txt", f"{HOME}/requirements-pages.txt", copy=True)
    .run_commands(*INSTALL)
    .add_local_file(HERE / "manage.py", f"{SOURCE}/manage.py")
)
for package in ("backend", "evaluations", "openjev_site"):
    image = image.add_local_dir(HERE / package, f"{SOURCE}/{package}", ignore=["**/__pycache__"])

app = modal.App("openjev")


def command() -> list[str]:
    """What a container runs: engine and API; SGLang by the Python that the image puts first."""
    address = ["--host", "0.0.0.0", "--port", str(PORT)]  # noqa: S104 - Modal's proxy is outside
    sglang = ["--sglang-python", shutil.which("python3") or "python3"]
    return [PYTHON, "manage.py", "runbackend", *address, *sglang]


class ApiProcess:
    """The API's process in a container, started at once.

    Args:
        command: program and arguments.
        port: where it will answer `/health` with 200 once it is ready.
        cwd: directory to run in.
        end: ends the container, given an exit code, when the process ends by itself.

    Attributes:
        process: leader of a process group of its own.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        port: int,
        cwd: str | Path,
        end: Callable[[int], object] = os._exit,
    ) -> None:
        # Modal's PYTHONPATH is for this process, not for OpenJev's environment or SGLang's
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        self.process = subprocess.Popen(  # noqa: S603 - our own command
            command, cwd=cwd, env=environment | {"PYTHONUNBUFFERED": "1"}, start_new_session=True
        )
        self._port = port
        self._end = end
        self._stopping = False

    def wait_until_ready(self, seconds: float) -> None:
        """Return once evaluations can be answered: from then on Modal sends requests.

        Args:
            seconds: how long that may take.

        Raises:
            RuntimeError: it ended before, or took longer and has been stopped.
        """
        deadline = time.monotonic() + seconds
        while not self._is_ready():
            if (code := self.process.poll()) is not None:
                raise RuntimeError(f"The API ended with exit code {code} before it was ready.")
            if time.monotonic() > deadline:
                self.stop(STOP_SECONDS)
                raise RuntimeError(f"The API was not ready within {seconds:g} s; it was stopped.")
            time.sleep(_POLL_SECONDS)
        threading.Thread(target=self._end_with_it, daemon=True).start()

    def stop(self, grace: float) -> None:
        """Let running evaluations finish, then end it; kill it after `grace` seconds."""
        self._stopping = True
        self.process.terminate()
        try:
            self.process.wait(grace)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_PROBE_SECONDS)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _end_with_it(self) -> None:
        code = self.process.wait()
        if not self._stopping:
            print(f"The API ended with exit code {code}; this container ends, too.", flush=True)
            self._end(1)


@app.server(
    image=image,
    env={**container_settings(os.environ)},  # a copy, because its values may be None there
    secrets=[key_secret(os.environ)],
    gpu="B200",
    cpu=CPU_CORES,
    memory=MEMORY_MIB,
    volumes={CACHE: modal.Volume.from_name("openjev-huggingface", create_if_missing=True)},
    port=PORT,
    unauthenticated=True,  # by Modal; OPENJEV_API_KEY is the product's own lock
    routing_region="us-west",
    compute_region="us",
    min_containers=KEEP_WARM,
    scaledown_window=IDLE_SECONDS,
    target_concurrency=TARGET_CONCURRENCY,
    startup_timeout=STARTUP_SECONDS,
    exit_grace_period=EXIT_GRACE_SECONDS,
)
class OpenJev:
    """One container: the engine and the API, started and stopped together."""

    @modal.enter()
    def start(self) -> None:
        """Start, and return when ready."""
        self.api = ApiProcess(command(), port=PORT, cwd=SOURCE)
        self.api.wait_until_ready(STARTUP_SECONDS)

    @modal.exit()
    def stop(self) -> None:
        """Drain and stop."""
        self.api.stop(STOP_SECONDS)


@app.local_entrypoint()
def main(output: str = "smoke-result.json", timeout: int = STARTUP_SECONDS + 300) -> None:
    """Put a temporary server through the smoke test.

    Args:
        output: file for the report.
        timeout: seconds for everything, the cold start included.
    """
    url = cast("modal.Server", OpenJev).get_url()  # what the decorator has made of the class
    smoke = [sys.executable, str(HERE / "manage.py"), "smoke", str(url)]
    options = ["--output", str(Path(output).resolve()), "--timeout", str(timeout)]
    code = subprocess.run([*smoke, *options], check=False).returncode  # noqa: S603 - ours
    if code:
        sys.exit(code)
