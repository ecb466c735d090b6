"""Which requests a read-only key may send.

1. A request of a reading method changes nothing that a caller stored.
2. A `POST` reads if it is in `READING_POSTS`: its body is a question too long for a URL. All other
   requests, unknown ones included, are refused.
3. Calls that may call a model, promote tools or record a build are no readings.
"""

from __future__ import annotations

from app.common.errors import Forbidden
from app.tenancy.api_keys import Caller

READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
READING_POSTS = frozenset({"/v1/tokens/count", "/v1/context/needs-compression"})


def require_scope(caller: Caller, method: str, path: str) -> None:
    """Raise Forbidden for a request that the caller's key may not send."""
    if not caller.read_only or method in READING_METHODS:
        return
    if method != "POST" or path not in READING_POSTS:
        raise Forbidden(
            "The API key is read-only, and this request can change what is stored: use a key"
            " created without --read-only",
            {"reason": "read_only_key"},
        )
