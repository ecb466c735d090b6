"""Background jobs that a caller can poll."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class JobStatus(StrEnum):
    """The states of a job; the last two are final."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        """Whether the job has ended."""
        return self not in {JobStatus.QUEUED, JobStatus.RUNNING}


@dataclass(frozen=True, slots=True)
class Job:
    """Work that a caller can poll; `status` is a JobStatus.

    `request`, `result` and `error` are JSON texts. `own_id` is the id that its caller gave the
    conversation, None if that is `conversation_id`.
    """

    job_id: str
    conversation_id: str
    kind: str
    request: str
    status: str
    result: str | None
    error: str | None
    created_at: datetime
    updated_at: datetime
    own_id: str | None = None

    @property
    def public_id(self) -> str:
        """The id of the conversation that callers use."""
        return self.own_id or self.conversation_id


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
