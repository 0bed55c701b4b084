"""Request bodies as Django REST framework hands them over, all of them strict JSON."""

from collections.abc import Mapping
from typing import IO, Any

from django.http import HttpRequest, QueryDict
from rest_framework.exceptions import UnsupportedMediaType
from rest_framework.parsers import BaseParser
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request

from evaluations.strict_json import parse_json


def received_body(request: Request) -> bytes:
    """Give the body as it was received, whatever its `Content-Length` claims.

    Django REST framework by itself takes a body without that header (a chunked one) for an empty
    one, and Django fails on a header that is no number; so the header is set from the body.
    """
    plain: HttpRequest = request._request  # to ask it through `request` takes longer than all this
    meta = plain.META
    meta["CONTENT_LENGTH"] = ""
    body = plain.body
    meta["CONTENT_LENGTH"] = str(len(body))
    return body


def parsed_body(request: Request, body: bytes) -> Any:
    """Read a request's body with the parser that its content type names; without one as JSON.

    Args:
        request: whose content type to look at.
        body: what `received_body` gave.

    Raises:
        InvalidRequest: see `parse_json`.
        UnsupportedMediaType: no parser takes this content type.
    """
    content_type = request._request.META.get("CONTENT_TYPE", "")
    if not body or content_type in {"", StrictJSONParser.media_type}:
        return parse_json(body)
    return request.data


class StrictJSONParser(BaseParser):
    """`application/json`."""

    media_type = "application/json"
    renderer_class = JSONRenderer

    def parse(
        self,
        stream: IO[bytes],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        """Read the whole stream; see `parse_json`."""
        return parse_json(stream.read())


class PageFormParser(BaseParser):
    """The browsable page's form, where a browser sends it without JavaScript.

    The form has one text area, `_content`, that holds the JSON.
    """

    media_type = "application/x-www-form-urlencoded"

    def parse(
        self,
        stream: IO[bytes],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        """Read the JSON out of the form.

        Raises:
            UnsupportedMediaType: it is not that form, as with `curl --data` without a header.
        """
        content = QueryDict(stream.read(), encoding="utf-8").get("_content")
        if content is None:
            raise UnsupportedMediaType(self.media_type)
        return parse_json(str(content).encode("utf-8", "surrogatepass"))
