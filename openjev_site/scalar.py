"""Where the page at `/` gets Scalar's JavaScript bundle from.

The bundle is 4.9 MB and never in this repository. A wheel on the package index carries it; it is
installed without its requirements (`requirements-pages.txt`), none of its Python is imported, and
its bytes count only if they have the published digest. Without them the page names a pinned CDN
address, with the same digest for the browser to check.
"""

import base64
import hashlib
import logging
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from django.contrib.staticfiles.finders import BaseFinder
from django.core.files.storage import FileSystemStorage, Storage

logger = logging.getLogger(__name__)

VERSION = "1.76.0"
SHA256 = "dcb027152bf20bf2f6dcd66e8f9fb073c1a9e274cf0b94b939a7d99ab8947060"
CARRIER = "flask-openapi-scalar"
CDN_ORIGIN = "https://cdn.jsdelivr.net"
CDN_URL = f"{CDN_ORIGIN}/npm/@scalar/api-reference@{VERSION}/dist/browser/standalone.js"
INTEGRITY = f"sha256-{base64.b64encode(bytes.fromhex(SHA256)).decode()}"
STATIC_NAME = f"scalar/{VERSION}/scalar.standalone.js"


@cache
def bundle() -> Path | None:
    """Find the installed bundle; `None` where it is missing or not the one expected."""
    try:
        files = metadata.files(CARRIER) or []
    except metadata.PackageNotFoundError:
        return None
    for file in files:
        path = Path(str(file.locate()))
        if path.name == Path(STATIC_NAME).name and path.is_file():
            if hashlib.sha256(path.read_bytes()).hexdigest() == SHA256:
                return path
            logger.warning("The package %s holds another bundle than %s.", CARRIER, VERSION)
    return None


class ScalarFinder(BaseFinder):
    """Shows the bundle to Django's static files under one versioned name."""

    def check(self, **_kwargs: Any) -> list[Any]:
        """Find nothing wrong: a missing bundle has its fallback."""
        return []

    def find(self, path: str, find_all: bool = False, **_kwargs: Any) -> Any:
        """Locate one static file.

        Args:
            path: the name asked for.
            find_all: whether to answer with a list.
        """
        found = bundle() if path == STATIC_NAME else None
        if found is None:
            return []  # what Django takes for "not found", one asked for or all
        return [str(found)] if find_all else str(found)

    def list(self, ignore_patterns: Iterable[str] | None) -> Iterator[tuple[str, Storage]]:
        """List what there is to collect, with the storage to read it from.

        Args:
            ignore_patterns: unused; there is one file.
        """
        found = bundle()
        if found:
            storage = FileSystemStorage(location=found.parent)
            storage.prefix = str(Path(STATIC_NAME).parent)  # type: ignore[attr-defined]
            yield found.name, storage
