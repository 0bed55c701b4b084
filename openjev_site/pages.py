"""The pages a person opens: the API reference at `/`, Swagger UI at `/docs`, the favicon.

They are static but for the addresses of their files, and their Content-Security-Policy allows no
other host. What can be tried on them comes from `/openapi.json`.
"""

from collections.abc import Callable
from functools import wraps

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import URLPattern, path

from openjev_site import scalar
from openjev_site.replies import method_not_allowed
from openjev_site.statics import versioned

_OWN = "openjev_site"
_SWAGGER = "drf_spectacular_sidecar/swagger-ui-dist"

# Both programs write `style` attributes and load icons as data: addresses; neither needs eval.
_POLICY = (
    "default-src 'none'; script-src 'self'{scripts}; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; "
    "worker-src 'self' blob:; manifest-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)

View = Callable[[HttpRequest], HttpResponse]


def _read_only(view: View) -> View:
    """Answer every method but GET and HEAD in the contract's error shape."""

    @wraps(view)
    def guarded(request: HttpRequest) -> HttpResponse:
        if request.method not in {"GET", "HEAD"}:
            return method_not_allowed()
        return view(request)

    return guarded


@_read_only
def reference(request: HttpRequest) -> HttpResponse:
    """Show Scalar's API reference, from the installed bundle or else from the CDN."""
    installed = scalar.bundle() is not None
    context = {
        "page": "reference",
        "script": versioned(scalar.STATIC_NAME) if installed else scalar.CDN_URL,
        "integrity": "" if installed else scalar.INTEGRITY,
        "start": versioned(f"{_OWN}/reference.js"),
    }
    scripts = "" if installed else f" {scalar.CDN_ORIGIN}"
    return _page(request, "reference.html", context, scripts)


@_read_only
def docs(request: HttpRequest) -> HttpResponse:
    """Show Swagger UI."""
    context = {
        "page": "docs",
        "script": versioned(f"{_SWAGGER}/swagger-ui-bundle.js"),
        "style": versioned(f"{_SWAGGER}/swagger-ui.css"),
        "start": versioned(f"{_OWN}/docs.js"),
    }
    return _page(request, "docs.html", context)


@_read_only
def favicon(_request: HttpRequest) -> HttpResponse:
    """Lead browsers that ask for the old default name to the icon."""
    return HttpResponseRedirect(versioned(f"{_OWN}/favicon.svg"))


def _page(
    request: HttpRequest, template: str, context: dict[str, str], scripts: str = ""
) -> HttpResponse:
    shared = {
        "favicon": versioned(f"{_OWN}/favicon.svg"),
        "site_style": versioned(f"{_OWN}/pages.css"),
    }
    response = render(request, f"{_OWN}/{template}", shared | context)
    response["Content-Length"] = str(len(response.content))
    response["Content-Security-Policy"] = _POLICY.format(scripts=scripts)
    response["Referrer-Policy"] = "no-referrer"
    response["X-Content-Type-Options"] = "nosniff"
    response["Cache-Control"] = "no-cache"
    return response


urlpatterns: list[URLPattern] = [
    path("", reference, name="reference"),
    path("docs", docs, name="docs"),
    path("favicon.ico", favicon, name="favicon"),
]
