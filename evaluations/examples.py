"""The example request, which the API's description and the browsable page show.

It is the file that the README posts, so that every place shows the same.
"""

import json
from functools import cache
from typing import Any

from django.conf import settings


@cache
def example_request() -> dict[str, Any]:
    """Read `examples/request.json`: one question of each type."""
    text = (settings.BASE_DIR / "examples" / "request.json").read_text(encoding="utf-8")
    example: dict[str, Any] = json.loads(text)
    return example
