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


def rate_limit_headers(states: Sequence[QuotaState]) -> list[tuple[bytes, bytes]]:
    """Return the headers of a response to a tenant with these quotas."""
    if not states:
        return []
    policies, known, fields = [], [], {}
    for state in states:
        unit = _UNITS.get(state.kind, "")
        policies.append(f'"{state.kind}";q={state.limit};w={state.kind.window_seconds}{unit}')
        if state.remaining is not None:
            known.append(f'"{state.kind}";r={state.remaining};t={state.reset_seconds}')
        if state.kind is QuotaKind.REQUESTS:
            fields["ratelimit-limit"] = str(state.limit)
            if state.remaining is not None:
                fields["ratelimit-remaining"] = str(state.remaining)
            fields["ratelimit-reset"] = str(state.reset_seconds)
    fields["ratelimit-policy"] = ", ".join(policies)
    if known:
        fields["ratelimit"] = ", ".join(known)
    return [(name.encode(), text.encode()) for name, text in fields.items()]
