"""The Bearer key of the public API.

Everything under `/v1/` needs the key when `OPENJEV_API_KEY` is set; when it is not, any
`Authorization` header is ignored (the official clients always send one). The key never reaches a
log line or an error.
"""

from django.conf import settings
from django.utils.crypto import constant_time_compare
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

SCHEME = "Bearer"


class BearerAuthentication(BaseAuthentication):
    """Checks `Authorization: Bearer <key>` in constant time. It runs on the event loop."""

    def authenticate(self, request: Request) -> None:
        """Let the request pass or refuse it; there are no users to tell apart.

        Raises:
            AuthenticationFailed: a key is needed and a wrong one, or none, was sent.
        """
        key = settings.OPENJEV.api_key
        if key is None:
            return
        scheme, _, sent = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
        if scheme.lower() != SCHEME.lower():
            raise AuthenticationFailed(
                "This server needs an API key. Send it as `Authorization: Bearer <key>`."
            )
        if not constant_time_compare(sent.strip(), key):
            raise AuthenticationFailed("The API key in the Authorization header is not valid.")

    def authenticate_header(self, request: Request) -> str:
        """Name the scheme for `WWW-Authenticate`, which also makes the refusal a 401."""
        return SCHEME
