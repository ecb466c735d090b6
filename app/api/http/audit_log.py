"""One log line for each deletion of data that a caller requests. It has ids and numbers."""

from __future__ import annotations

import logging

from fastapi import Request

from app.api.http.dependencies import caller_of

_log = logging.getLogger("app.audit")


def log_deletion(request: Request, event: str, **data: object) -> None:
    """Log who has deleted what, once it is done."""
    caller = caller_of(request)
    who = {"tenant_id": caller.tenant_id, "key_id": caller.key_id}
    _log.info(event, extra={"data": who | data})
