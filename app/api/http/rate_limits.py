"""The headers that tell a tenant what is left of its quotas.

1. `RateLimit-Limit`, `-Remaining` and `-Reset` are the quota of requests, as in the IETF draft
   (draft-ietf-httpapi-ratelimit-headers) up to revision 06. This is the form that
   most clients and proxies read.
2. `RateLimit-Policy` and `RateLimit` are all quotas, as structured fields of the draft since
   revision 08. A quota whose use this process has not read is in the first only.
3. A reset is in seconds from now.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from app.domain.tenancy.quotas import QuotaKind, QuotaState

RATE_LIMIT_HEADERS = {
    "RateLimit-Limit": "Requests a minute, where the tenant has a limit.",
    "RateLimit-Remaining": "Requests left in this minute.",
    "RateLimit-Reset": "Seconds until the minute ends.",
    "RateLimit-Policy": "All quotas of the tenant: `q` in `w` seconds.",
    "RateLimit": "What is left of them: `r`, reset in `t` seconds.",
}
"""The headers with their descriptions."""

_UNITS = {QuotaKind.BYTES: ';qu="content-bytes"'}
_NAMES = {kind: kind.encode() for kind in QuotaKind}


def rate_limit_headers(states: Sequence[QuotaState]) -> list[tuple[bytes, bytes]]:
    """Return the headers of a response to a tenant with these quotas."""
    if not states:
        return []
    policies, known, fields = [], [], []
    for state in states:
        policies.append(_policy(state.kind, state.limit))
        if state.remaining is not None:
            name = _NAMES[state.kind]
            known.append(b'"%b";r=%d;t=%d' % (name, state.remaining, state.reset_seconds))
        if state.kind is QuotaKind.REQUESTS:
            fields.append((b"ratelimit-limit", b"%d" % state.limit))
            if state.remaining is not None:
                fields.append((b"ratelimit-remaining", b"%d" % state.remaining))
            fields.append((b"ratelimit-reset", b"%d" % state.reset_seconds))
    fields.append((b"ratelimit-policy", b", ".join(policies)))
    if known:
        fields.append((b"ratelimit", b", ".join(known)))
    return fields


@lru_cache(maxsize=1024)
def _policy(kind: QuotaKind, limit: int) -> bytes:
    return f'"{kind}";q={limit};w={kind.window_seconds}{_UNITS.get(kind, "")}'.encode()
