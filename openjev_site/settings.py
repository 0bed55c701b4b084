"""Django's settings, and the one place where the product's own settings are loaded.

No database, sessions or users: nothing on the request path may block or hop threads for them.
`OPENJEV` is the validated configuration; `OPENJEV_PROBLEMS` is what `manage.py check` reports;
`OPENJEV_SHARE` is what this process may use of it where there are several.
"""

import logging
from pathlib import Path

from backend.config import load_config
from backend.serving.share import Share

BASE_DIR = Path(__file__).resolve().parent.parent

OPENJEV, OPENJEV_PROBLEMS = load_config()
OPENJEV_SHARE = Share()

SECRET_KEY = "unused: nothing is signed"  # noqa: S105 - there are no sessions, cookies or tokens
DEBUG = False
ALLOWED_HOSTS = ["*"]  # no link is built from the Host header
APPEND_SLASH = False  # a redirect would lose the body of a POST
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = False

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)-7s %(name)s | %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": "WARNING"},
    "loggers": {
        **{our: {"level": "INFO"} for our in ("backend", "evaluations", "openjev", "openjev_site")},
        # Below ERROR it tells of unknown addresses, which scanners ask for by the thousand, and of
        # methods not allowed; the answers say so, and requests under /v1/ have a line of their own.
        "django.request": {"level": "ERROR"},
    },
}

# No line names them, and to find them out takes as long as to write the line.
logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
logging._srcfile = None  # as the standard library's manual says

ROOT_URLCONF = "openjev_site.urls"
ASGI_APPLICATION = "openjev_site.asgi.application"

DATABASES: dict[str, dict[str, str]] = {}
MIDDLEWARE: list[str] = []
INSTALLED_APPS = [
    "openjev_site",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "backend",
    "evaluations",
]
# The ASGI edge bounds every body by OPENJEV_MAX_BODY_BYTES; a second, lower limit or a copy on disk
# would only be in the way.
DATA_UPLOAD_MAX_MEMORY_SIZE = None
FILE_UPLOAD_MAX_MEMORY_SIZE = OPENJEV.max_body_bytes + 1

STATIC_URL = "/static/"
STATICFILES_FINDERS = [
    "django.contrib.staticfiles.finders.AppDirectoriesFinder",
    "openjev_site.scalar.ScalarFinder",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {"context_processors": ["django.template.context_processors.request"]},
    }
]

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["evaluations.authentication.BearerAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.AllowAny"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["evaluations.parsers.StrictJSONParser"],
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "evaluations.negotiation.Negotiation",
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "evaluations.errors.exception_handler",
    "UNAUTHENTICATED_USER": None,  # there is no user model to make an anonymous one from
    "UNAUTHENTICATED_TOKEN": None,
    "URL_FORMAT_OVERRIDE": None,  # the Accept header alone decides
}
SPECTACULAR_SETTINGS = {
    "TITLE": "OpenJev",
    "DESCRIPTION": (
        "Typed questions about a text, answered with probabilities a program can act on. "
        "Clients written for Jev work by changing the base URL."
    ),
    "VERSION": "0.1.0",
    "LICENSE": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
    "OAS_VERSION": "3.1.1",
    "SERVERS": [{"url": "/", "description": "This server"}],
    "TAGS": [
        {"name": "System One", "description": "Questions and answers."},
        {"name": "Server", "description": "What this server is, admits and does now."},
    ],
    "SERVE_INCLUDE_SCHEMA": False,
    "SORT_OPERATIONS": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,
}
