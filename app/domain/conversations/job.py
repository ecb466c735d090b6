"""Background jobs that a caller can poll."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Job:
    """Work that a caller can poll; `status` is queued, running, done or failed.

    `request`, `result` and `error` are JSON texts.
    """

    job_id: str
    tenant_id: str
    conversation_id: str
    kind: str
    request: str
    status: str
    result: str | None
    error: str | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Claim:
    """Background work that a worker leased: a job, or for `job_id` None the due compaction.

    `attempts` counts this claim and those before it that ended in an error or with their process.
    `ends_at` is when the lease expires unless it is renewed, on the clock of the event loop.
    """

    tenant_id: str
    conversation_id: str
    job_id: str | None
    holder: str
    attempts: int
    ends_at: float = 0.0
