"""Ports for background compactions."""

from __future__ import annotations

from typing import Protocol

from app.domain.conversations.records import (
    Failure,
    Job,
)


class JobRepository(Protocol):
    """Sentences about work in the background: due marks, leases, jobs a caller can poll."""

    async def list_due(self, limit: int) -> list[tuple[str, str]]:
        """Return the tenant and conversation ids whose due mark has come, the oldest first."""
        ...

    async def mark_due(self, conversation_id: str) -> bool:
        """Set the due mark; False when it was set already."""
        ...

    async def clear_due(self, conversation_id: str) -> None:
        """Take a due mark whose time has come away: somebody looks at the conversation now."""
        ...

    async def postpone(self, conversation_id: str, seconds: float) -> None:
        """Count a failure, and set the due mark for later."""
        ...

    async def record_failure(self, conversation_id: str, failure: str) -> None:
        """Keep why a compaction failed, in the place of the failure before."""
        ...

    async def find_failure(self, conversation_id: str) -> Failure | None:
        """Return why the last compaction failed, None since one has succeeded."""
        ...

    async def take_lease(self, conversation_id: str, holder: str, seconds: float) -> bool:
        """Take, or as its holder renew, the right to compact; False while another has it."""
        ...

    async def release_lease(self, conversation_id: str, holder: str) -> None:
        """Give the right to compact back."""
        ...

    async def add(
        self, tenant_id: str, conversation_id: str, job_id: str, kind: str, ask: str
    ) -> None:
        """Store a job that a caller waits for; `ask` is JSON."""
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
    ) -> None:
        """Store how far a job has come; `result` and `error` are JSON."""
        ...


class JobQueue(Protocol):
    """Wakes the workers; what it holds outlives the process that put it there."""

    async def enqueue(
        self, tenant_id: str, conversation_id: str, job_id: str | None = None
    ) -> bool:
        """Ask for a conversation to be compacted; False when that is asked for already."""
        ...
