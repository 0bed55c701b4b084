"""The ASGI application, for any ASGI server.

Its import fails, with every reason, on settings that cannot be used.
"""

import os

import django
from django.conf import settings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "openjev_site.settings")
django.setup()  # before whatever needs the settings or the apps to be there

from evaluations.runtime import get_runtime  # noqa: E402
from openjev_site.edge import build_application, refuse_fatal  # noqa: E402

refuse_fatal(settings.OPENJEV_PROBLEMS)
application = build_application(settings.OPENJEV, get_runtime)
