"""The browsable page at `/v1/systemone`: Django REST framework's, with one form for the JSON body.

The form works with and without JavaScript, holds an example on the first visit and the posted text
afterwards. It needs no database, users or cookies.
"""

import json
from typing import Any

from django import forms
from django.http import QueryDict
from rest_framework.renderers import BrowsableAPIRenderer
from rest_framework.request import Request

from evaluations.examples import example_request
from evaluations.parsers import PageFormParser, StrictJSONParser


class BodyForm(forms.Form):
    """The JSON body; the page's script sends it as such, a plain browser as a form field."""

    _content_type = forms.CharField(
        label="",
        widget=forms.HiddenInput(attrs={"data-override": "content-type"}),
        initial=StrictJSONParser.media_type,
    )
    _content = forms.CharField(
        label="JSON",
        widget=forms.Textarea(
            attrs={
                "data-override": "content",
                "rows": 30,
                "spellcheck": "false",
                "style": "font-family: monospace",
            }
        ),
    )


class EvaluationPageRenderer(BrowsableAPIRenderer):
    """Renders an answer, or an error, as a page with a form for the next request."""

    template = "evaluations/page.html"

    def get_rendered_html_form(self, data: Any, view: Any, method: str, request: Request) -> None:
        """Offer no form per field: questions are nested, a text area says more."""

    def get_raw_data_form(
        self, data: Any, view: Any, method: str, request: Request
    ) -> BodyForm | None:
        """Offer the form for POST."""
        if method != "POST":
            return None
        text = _posted(request) or json.dumps(example_request(), indent=2, ensure_ascii=False)
        return BodyForm(initial={"_content": text})

    def get_breadcrumbs(self, request: Request) -> list[tuple[str, str]]:
        """Show none: the bar on top leads to the other pages."""
        return []


def _posted(request: Request) -> str:
    if request.method != "POST":
        return ""
    body: bytes = request.body
    if request.content_type.startswith(PageFormParser.media_type):
        return str(QueryDict(body, encoding="utf-8").get("_content", ""))
    return body.decode(errors="replace")
