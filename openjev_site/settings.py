"""Django's settings, and the one place where the product's own settings are loaded.

No database, sessions or users: nothing on the request path may block or hop threads for them.
`OPENJEV` is the validated configuration; `OPENJEV_PROBLEMS` is what `manage.py check` reports.
"""

from pathlib import Path

from backend.config import load_config

BASE_DIR = Path(__file__).resolve().parent.parent

OPENJEV, OPENJEV_PROBLEMS = load_config()

SECRET_KEY = "unused: nothing is signed"  # noqa: S105 - there are no sessions, cookies or tokens
DEBUG = False
ALLOWED_HOSTS = ["*"]  # no link is built from the Host header
APPEND_SLASH = False  # a redirect would lose the body of a POST
USE_TZ = True
USE_I18N = False

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
