"""The ASGI application: Django inside a few wrappers, each with one subject.

It serves under any ASGI server. It refuses to come up on settings that cannot be used.
"""

import os
from collections.abc import Callable, Iterable
from typing import cast

from asgiref.typing import ASGI3Application
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "openjev_site.settings")
_django = get_asgi_application()  # before whatever needs the settings or the apps to be there

from django.conf import settings  # noqa: E402
from django.core.exceptions import ImproperlyConfigured  # noqa: E402
from django.core.handlers.asgi import ASGIHandler  # noqa: E402

from backend.config import Config, Problem  # noqa: E402
from evaluations.runtime import get_runtime  # noqa: E402
from openjev_site.bodies import Bodies  # noqa: E402
from openjev_site.failures import Failures  # noqa: E402
from openjev_site.http_only import HttpOnly  # noqa: E402
from openjev_site.lifespan import Lifespan, Startable  # noqa: E402
from openjev_site.request_id import RequestId  # noqa: E402
from openjev_site.statics import StaticFiles  # noqa: E402


def refuse_fatal(problems: Iterable[Problem]) -> None:
    """Refuse settings that cannot be used.

    Raises:
        ImproperlyConfigured: its message lists every fatal problem.
    """
    fatal = [problem.message for problem in problems if problem.fatal]
    if fatal:
        raise ImproperlyConfigured("OpenJev cannot start with these settings.\n" + "\n".join(fatal))


def wrap(django: ASGIHandler, config: Config, runtime: Callable[[], Startable]) -> ASGI3Application:
    """Put the wrappers around Django, the outermost last.

    Args:
        django: Django's own application.
        config: validated settings.
        runtime: hands out what the lifespan starts and stops.
    """
    app = cast("ASGI3Application", StaticFiles(django))
    app = Bodies(app, max_bytes=config.max_body_bytes)
    app = Lifespan(app, runtime)
    app = Failures(app)
    app = RequestId(app)
    return HttpOnly(app)


refuse_fatal(settings.OPENJEV_PROBLEMS)
application = wrap(_django, settings.OPENJEV, get_runtime)
