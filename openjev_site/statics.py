"""Static files: found by Django's finders, so nothing has to be collected first.

A file asked for by the fingerprint of its present content may be kept for ever; any other request
is revalidated. Texts are compressed once. API requests pay one string comparison for this.
"""

import gzip
import hashlib
import mimetypes
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

from django.contrib.staticfiles import finders
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.exceptions import SuspiciousOperation
from django.http import Http404, HttpRequest, HttpResponse
from django.templatetags.static import static
from django.utils.cache import get_conditional_response

from openjev_site.handler import Handler
from openjev_site.replies import method_not_allowed

_FOR_EVER = "public, max-age=31536000, immutable"
_REVALIDATE = "no-cache"
_COMPRESSED_TYPES = {
    "application/javascript",
    "application/json",
    "image/svg+xml",
    "text/css",
    "text/html",
    "text/javascript",
    "text/plain",
}


def versioned(name: str) -> str:
    """Make the address under which a static file may be cached for ever.

    Args:
        name: the file's name as the finders know it.

    Raises:
        Http404: there is no such file.
    """
    return f"{static(name)}?v={_fingerprint(*_identity(_locate(name)))}"


class StaticFiles(ASGIStaticFilesHandler, Handler):  # type: ignore[misc] # stubs of a mixin
    """ASGI wrapper that answers everything under `STATIC_URL`."""

    def serve(self, request: HttpRequest) -> HttpResponse:
        """Answer one request, in a thread.

        Raises:
            Http404: there is no such file.
        """
        if request.method not in {"GET", "HEAD"}:
            return method_not_allowed()
        path = _locate(request.path.removeprefix(self.base_url.path))
        identity = _identity(path)
        fingerprint = _fingerprint(*identity)
        content_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        response = HttpResponse(content_type=content_type)
        response["Cache-Control"] = (
            _FOR_EVER if request.GET.get("v") == fingerprint else _REVALIDATE
        )
        response["ETag"] = f'W/"{fingerprint}"'
        response["X-Content-Type-Options"] = "nosniff"
        if content_type in _COMPRESSED_TYPES:
            response["Vary"] = "Accept-Encoding"
        answer = get_conditional_response(request, etag=response["ETag"], response=response)
        if isinstance(answer, HttpResponse) and answer is not response:
            return answer  # not modified
        if content_type in _COMPRESSED_TYPES and _accepts_gzip(request):
            response["Content-Encoding"] = "gzip"
            response.content = _gzipped(*identity)
        else:
            response.content = path.read_bytes()
        response["Content-Length"] = str(len(response.content))
        return response


def _locate(name: str) -> Path:
    try:
        found = finders.find(name)
    except SuspiciousOperation:  # the name leads out of every directory of static files
        found = None
    if not isinstance(found, str) or not Path(found).is_file():
        raise Http404(f"There is no static file {quote(name)}.")
    return Path(found)


def _identity(path: Path) -> tuple[Path, int, int]:
    """Path, time of change in nanoseconds, size in bytes: what cached results hang on."""
    stat = path.stat()
    return path, stat.st_mtime_ns, stat.st_size


@lru_cache(maxsize=256)
def _fingerprint(path: Path, _changed: int, _size: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


@lru_cache(maxsize=32)
def _gzipped(path: Path, _changed: int, _size: int) -> bytes:
    return gzip.compress(path.read_bytes(), compresslevel=6, mtime=0)


def _accepts_gzip(request: HttpRequest) -> bool:
    accepted = request.headers.get("Accept-Encoding", "").replace(" ", "").lower().split(",")
    return "gzip" in accepted or any(
        item.startswith("gzip;q=") and item.removeprefix("gzip;q=").strip("0.") for item in accepted
    )
