"""Ports for background work."""

from __future__ import annotations

from typing import Protocol

from app.domain.conversations.compaction_receipt import Failure
from app.domain.conversations.job import Claim, Job


class JobRepository(Protocol):
    """Statements on background work: due compactions, jobs of callers, leases."""

    async def claim(self, holder: str, seconds: float) -> Claim | None:
        """Lease the conversation whose work waits longest; None if no work waits."""
        ...

    async def retry_later(self, conversation_id: str, holder: str, seconds: float) -> None:
        """Release a lease; workers can claim the conversation again after `seconds`."""
        ...

    async def notify(self) -> None:
        """Notify workers of new work; in a transaction, when that commits."""
        ...

    async def set_due(self, conversation_id: str) -> bool:
        """Make a compaction due; False when it is due already."""
        ...

    async def clear_due(self, conversation_id: str, head_seq: int) -> None:
        """Mark the compaction as not due, unless messages were appended after `head_seq`."""
        ...

    async def postpone(self, conversation_id: str, seconds: float) -> None:
        """Count a failure, and make the compaction due later."""
        ...

    async def record_failure(self, conversation_id: str, failure: str) -> None:
        """Store why a compaction failed, in place of the previous failure."""
        ...

    async def find_failure(self, conversation_id: str) -> Failure | None:
        """Return why the last compaction failed, None if one has succeeded since."""
        ...

    async def take_lease(self, conversation_id: str, holder: str, seconds: float) -> bool:
        """Take the lease, or renew it as its holder; False while another process holds it."""
        ...

    async def release_lease(self, conversation_id: str, holder: str) -> None:
        """Release the lease, unless another process took it over."""
        ...

    async def add(
        self, tenant_id: str, conversation_id: str, job_id: str, kind: str, request: str
    ) -> None:
        """Store a job and notify workers, unless its conversation was deleted.

        `request` is JSON.
        """
        ...

    async def find(self, tenant_id: str, job_id: str) -> Job | None:
        """Return a job, or None."""
        ...

    async def change(
        self,
        conversation_id: str,
        job_id: str,
        status: str,
        *,
        result: str | None = None,
        error: str | None = None,
    ) -> bool:
        """Store the state of a job; False when it has ended. `result` and `error` are JSON."""
        ...
