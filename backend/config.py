"""The product's settings: every `OPENJEV_*` variable, read once and validated.

`SETTINGS` is the one table: defaults, checks, `/v1/limits`, the README's table and the tests that
guard it all come from here. Nothing else in the project reads an `OPENJEV_*` variable.
"""

import difflib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from backend.profiles import DEFAULT_PROFILE, PROFILES, Profile
from backend.setting_values import (
    directory,
    header_text,
    http_url,
    integer,
    number,
    one_of,
    plain_name,
)

PREFIX = "OPENJEV_"
_PASSWORD = re.compile(r":[^/@]+@")
MAX_LABELS = 255
MIN_KEY_LENGTH = 8

Value = str | int | float | None


@dataclass(frozen=True, slots=True)
class Config:
    """The effective settings. Field names are the variable names in lower case.

    Sizes are in bytes, budgets in tokens, times in seconds.
    """

    profile: str
    model: str | None
    revision: str | None
    served_model_name: str
    weights_dir: Path
    frontend: Literal["rust", "python"]
    backend_url: str
    max_questions: int
    max_answers: int
    max_body_bytes: int
    max_input_tokens: int
    max_total_input_tokens: int
    max_concurrent_requests: int
    max_concurrent_branches: int
    request_timeout: float
    startup_timeout: float
    hang_timeout: float
    drain_timeout: float
    prefix_cache_bytes: int
    temperature: float
    confidence: Literal["entropy", "typesafe"]
    api_key: str | None = field(repr=False)
    backend_api_key: str | None = field(repr=False)

    @property
    def selected(self) -> Profile:
        """The profile these settings started from."""
        return PROFILES[self.profile]

    @property
    def secrets(self) -> tuple[str, ...]:
        """The keys that are set: texts that must not reach a log."""
        return tuple(key for key in (self.backend_api_key, self.api_key) if key)


@dataclass(frozen=True, slots=True)
class Setting:
    """One variable: how to read it, what is allowed, what it means.

    Attributes:
        name: without the `OPENJEV_` prefix.
        default: used where neither the environment nor the profile gives a value.
        parse: turns text into the value; raises `ValueError` for text it cannot take.
        allowed: completes the sentence "It must be …".
        meaning: one line for the documentation, units included.
        secret: the value never appears in a message, a report or a log.
    """

    name: str
    default: Value
    parse: Callable[[str], object]
    allowed: str
    meaning: str
    secret: bool = False


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a variable cannot be used.

    Attributes:
        variable: full name, `OPENJEV_…`.
        message: complete sentences with the bad value and what is allowed.
        fatal: `False` for a variable that is merely unknown, or a key that is short.
    """

    variable: str
    message: str
    fatal: bool = True


def _count(name: str, default: int, low: int, high: int, meaning: str) -> Setting:
    return Setting(
        name, default, integer(low, high), f"a whole number from {low} to {high}", meaning
    )


def _seconds(name: str, default: float, low: float, high: float, meaning: str) -> Setting:
    allowed = f"a number of seconds from {low:g} to {high:g}"
    return Setting(name, default, number(low, high), allowed, meaning)


_KEY = "printable ASCII without spaces"

SETTINGS: tuple[Setting, ...] = (
    Setting(
        "PROFILE",
        DEFAULT_PROFILE,
        one_of(*PROFILES),
        f"one of {', '.join(PROFILES)}",
        "The model and what goes with it.",
    ),
    Setting(
        "MODEL",
        None,
        plain_name,
        "a hub id or the path of a local file or directory",
        "Weights and tokenizer; the profile's by default.",
    ),
    Setting(
        "REVISION",
        None,
        plain_name,
        "a commit, tag or branch name",
        "Checkpoint revision of a hub id; the profile's by default, unset for a local path.",
    ),
    Setting(
        "SERVED_MODEL_NAME",
        None,
        plain_name,
        "a name that does not begin with a dash",
        "Public model id; the profile's by default.",
    ),
    Setting(
        "WEIGHTS_DIR",
        "~/.cache/openjev",
        directory,
        "an absolute path that is, or can become, a directory",
        "Where fetched weights are kept.",
    ),
    Setting(
        "FRONTEND",
        "rust",
        one_of("rust", "python"),
        "rust or python",
        "The HTTP front of an SGLang that is started here.",
    ),
    Setting(
        "BACKEND_URL",
        "http://127.0.0.1:30000",
        http_url,
        "an http or https address without user, query or fragment",
        "Where the engine answers.",
    ),
    _count("MAX_QUESTIONS", 64, 1, 1024, "Questions in one request."),
    _count("MAX_ANSWERS", 64, 2, MAX_LABELS, "Options of a choice, levels of a score."),
    _count("MAX_BODY_BYTES", 2_097_152, 1024, 2**30, "Request body after decompression, in bytes."),
    _count(
        "MAX_INPUT_TOKENS",
        32_768,
        64,
        2**20,
        "Tokens of one branch, its one output token included.",
    ),
    _count("MAX_TOTAL_INPUT_TOKENS", 262_144, 64, 2**26, "Tokens of warm-up and all branches."),
    _count(
        "MAX_CONCURRENT_REQUESTS", 16, 1, 4096, "Evaluations at once; one more is answered 529."
    ),
    _count("MAX_CONCURRENT_BRANCHES", 64, 1, 4096, "Engine calls at once; more wait."),
    _seconds("REQUEST_TIMEOUT", 120, 0.1, 86_400, "Seconds for one whole evaluation, then 504."),
    _seconds("STARTUP_TIMEOUT", 1200, 1, 86_400, "Seconds the engine may take to become ready."),
    _seconds(
        "HANG_TIMEOUT",
        60,
        1,
        86_400,
        "Seconds without an answer after which an engine that was started, or one of several "
        "processes of the API, counts as dead.",
    ),
    _seconds(
        "DRAIN_TIMEOUT", 30, 0, 86_400, "Seconds running evaluations may take to end at a stop."
    ),
    _count(
        "PREFIX_CACHE_BYTES",
        2**30,
        0,
        2**40,
        "Memory for cached prefixes of the embedded engine, in bytes.",
    ),
    Setting(
        "TEMPERATURE",
        1.0,
        number(0.01, 100),
        "a number from 0.01 to 100",
        "Divides the label log-probabilities before they are normalised.",
    ),
    Setting(
        "CONFIDENCE",
        "entropy",
        one_of("entropy", "typesafe"),
        "entropy or typesafe",
        "How `confidence` is computed.",
    ),
    Setting("API_KEY", None, header_text, _KEY, "Bearer key of everything under `/v1/`.", True),
    Setting("BACKEND_API_KEY", None, header_text, _KEY, "Bearer key of the engine.", True),
)

_BY_NAME = {setting.name: setting for setting in SETTINGS}


def load_config(environ: Mapping[str, str] = os.environ) -> tuple[Config, list[Problem]]:
    """Read every setting from `environ`.

    An empty value counts as unset. A bad value is reported and replaced by its default, so that
    one look shows every problem; a caller that wants to run must refuse fatal problems first.

    Args:
        environ: the process environment, or a stand-in.

    Returns:
        The effective settings and all problems, fatal ones first.
    """
    problems = [_unknown(name) for name in environ if _is_unknown(name)]
    given: dict[str, object] = {}
    for setting in SETTINGS:
        given_text = environ.get(PREFIX + setting.name, "")
        if not given_text:
            continue
        try:
            given[setting.name] = setting.parse(given_text)
        except ValueError:
            problems.append(_refused(setting, given_text))
    config = _assemble(given)
    problems += [*_contradictions(config), *_short_keys(config)]
    return config, sorted(problems, key=lambda problem: not problem.fatal)


def _assemble(given: Mapping[str, object]) -> Config:
    profile = PROFILES[str(given.get("PROFILE", DEFAULT_PROFILE))]
    values: dict[str, object] = {
        setting.name: setting.parse(setting.default)
        if isinstance(setting.default, str)
        else setting.default
        for setting in SETTINGS
    }
    values |= {
        "MODEL": profile.model,
        "REVISION": None if "MODEL" in given else profile.revision,
        "SERVED_MODEL_NAME": profile.served_model_name,
        **profile.defaults,
        **given,
    }
    return Config(**{item.name: values[item.name.upper()] for item in fields(Config)})  # type: ignore[arg-type]


def _contradictions(config: Config) -> list[Problem]:
    if config.max_total_input_tokens >= config.max_input_tokens:
        return []
    message = (
        f"OPENJEV_MAX_TOTAL_INPUT_TOKENS is {config.max_total_input_tokens}, which is less than "
        f"OPENJEV_MAX_INPUT_TOKENS ({config.max_input_tokens}). It must be at least as large."
    )
    return [Problem("OPENJEV_MAX_TOTAL_INPUT_TOKENS", message)]


def _short_keys(config: Config) -> list[Problem]:
    """Warnings: an engine that runs elsewhere may have such a key all the same."""
    keys = {"API_KEY": config.api_key, "BACKEND_API_KEY": config.backend_api_key}
    return [
        Problem(
            PREFIX + name,
            f"{PREFIX}{name} has fewer than {MIN_KEY_LENGTH} characters. It is soon guessed, and "
            "log lines of the engine that happen to hold the same characters show *** instead. "
            "Choose a longer key.",
            fatal=False,
        )
        for name, key in keys.items()
        if key and len(key) < MIN_KEY_LENGTH
    ]


def _refused(setting: Setting, given_text: str) -> Problem:
    variable = PREFIX + setting.name
    hidden = setting.secret or _PASSWORD.search(given_text)
    shown = "a value that is not allowed" if hidden else repr(given_text[:80])
    return Problem(variable, f"{variable} is {shown}. It must be {setting.allowed}.")


def _is_unknown(name: str) -> bool:
    return name.startswith(PREFIX) and name.removeprefix(PREFIX) not in _BY_NAME


def _unknown(name: str) -> Problem:
    close = difflib.get_close_matches(name.removeprefix(PREFIX), _BY_NAME, n=1)
    hint = f" Did you mean {PREFIX}{close[0]}?" if close else ""
    return Problem(name, f"{name} is not a setting of OpenJev and has no effect.{hint}", False)
