"""The ASGI application: Django inside a few wrappers, each with one subject.

It serves under any ASGI server. It refuses to come up on settings that cannot be used.
"""

import os
from typing import cast

from asgiref.typing import ASGI3Application
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.exceptions import ImproperlyConfigured

from backend.config import Config, Problem
from openjev_site.bodies import Bodies
from openjev_site.failures import Failures
from openjev_site.http_only import HttpOnly
from openjev_site.lifespan import Lifespan, Startable
from openjev_site.request_id import RequestId
from openjev_site.statics import StaticFiles


def refuse_fatal(problems: list[Problem]) -> None:
    """Refuse settings that cannot be used.

    Raises:
        ImproperlyConfigured: its message lists every fatal problem.
    """
    fatal = [problem.message for problem in problems if problem.fatal]
    if fatal:
        raise ImproperlyConfigured("OpenJev cannot start with these settings.\n" + "\n".join(fatal))


def _runtime() -> Startable:
    from evaluations.runtime import get_runtime

    return get_runtime()


def build_application(config: Config) -> ASGI3Application:
    """Put the wrappers around Django, the outermost last.

    Args:
        config: validated settings.
    """
    django = get_asgi_application()
    app = cast("ASGI3Application", StaticFiles(django))
    app = Bodies(app, max_bytes=config.max_body_bytes)
    app = Lifespan(app, _runtime)
    app = Failures(app)
    app = RequestId(app)
    return HttpOnly(app)


os.environ.setdefault("DJANGO_SETTINGS_MODULE", "openjev_site.settings")
refuse_fatal(settings.OPENJEV_PROBLEMS)
application = build_application(settings.OPENJEV)
