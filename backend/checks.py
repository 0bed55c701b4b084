"""`manage.py check`: every `OPENJEV_*` variable that cannot be used, by name."""

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register


@register("openjev")
def check_settings(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Report each problem of the environment; unknown variables and short keys are warnings."""
    return [
        Error(problem.message, id="openjev.E001")
        if problem.fatal
        else Warning(problem.message, id="openjev.W001")
        for problem in settings.OPENJEV_PROBLEMS
    ]
