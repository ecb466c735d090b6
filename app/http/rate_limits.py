"""The headers that tell a tenant what is left of its requests.

They are those of the IETF draft (draft-ietf-httpapi-ratelimit-headers) up to revision 06, the form
that most clients and proxies read. A reset is in seconds from now.
"""

from __future__ import annotations

from app.common.limiter import RateState

RATE_LIMIT_HEADERS = {
    "RateLimit-Limit": "Requests a minute, where the tenant has a limit.",
    "RateLimit-Remaining": "Requests left in this minute.",
    "RateLimit-Reset": "Seconds until the minute ends.",
}
"""The headers with their descriptions."""


def rate_limit_headers(state: RateState) -> list[tuple[bytes, bytes]]:
    """Return the headers of a response to a tenant with a limit."""
    return [
        (b"ratelimit-limit", b"%d" % state.limit),
        (b"ratelimit-remaining", b"%d" % state.remaining),
        (b"ratelimit-reset", b"%d" % state.reset_seconds),
    ]
