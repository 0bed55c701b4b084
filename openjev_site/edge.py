"""Django inside a few ASGI wrappers, each with one subject: which goes inside which."""

from collections.abc import Callable, Iterable
from typing import cast

from asgiref.typing import ASGI3Application
from django.core.exceptions import ImproperlyConfigured

from backend.config import Config, Problem
from openjev_site.bodies import Bodies
from openjev_site.failures import Failures
from openjev_site.handler import Handler
from openjev_site.http_only import HttpOnly
from openjev_site.lifespan import Lifespan, Startable
from openjev_site.request_id import RequestId
from openjev_site.statics import StaticFiles


def refuse_fatal(problems: Iterable[Problem]) -> None:
    """Refuse settings that cannot be used.

    Raises:
        ImproperlyConfigured: its message lists every fatal problem.
    """
    fatal = [problem.message for problem in problems if problem.fatal]
    if fatal:
        raise ImproperlyConfigured("OpenJev cannot start with these settings.\n" + "\n".join(fatal))


def build_application(config: Config, runtime: Callable[[], Startable]) -> ASGI3Application:
    """Put the wrappers around Django, the outermost last.

    Args:
        config: validated settings.
        runtime: hands out what the lifespan starts and stops.
    """
    app = cast("ASGI3Application", StaticFiles(Handler()))
    # inside Bodies: a request whose body is still on its way does not hold up a shut-down
    app = Lifespan(app, runtime, drain_seconds=config.drain_timeout)
    app = Bodies(app, max_bytes=config.max_body_bytes)
    app = Failures(app)
    app = RequestId(app)
    return HttpOnly(app)
