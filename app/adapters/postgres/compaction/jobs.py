"""Work in the background: due marks, leases, the jobs that callers poll (E6, decision 25).

1. What is to be done is written here; the queue only wakes workers. What the queue loses, a
   sweep over the due marks and over the jobs that have not ended puts there again.
2. A lease is a row with a time. Past it the row belongs to nobody, so a holder that dies needs no
   clearing up.
3. A job that has ended stays as it ended: work runs at least once, and its first end counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from uuid import UUID

from app.adapters.postgres.common.connections import Session, Statement, Store
from app.domain.common import json_text
from app.domain.conversations.records import Failure, Job

_FAILURE_TIMES = ("failed_at", "failures", "retry_at")

LIST_DUE = Statement(
    """
        SELECT c.tenant_id, c.conversation_id
        FROM heads h
        JOIN conversations c ON c.conversation_id = h.conversation_id
        WHERE h.due_at IS NOT NULL AND h.due_at <= now()
        ORDER BY h.due_at
        LIMIT CAST(:limit AS bigint)
        """
)
MARK_DUE = Statement(
    """
        UPDATE heads SET due_at = now()
        WHERE conversation_id = CAST(:conversation_id AS uuid) AND due_at IS NULL
        """
)
CLEAR_DUE = Statement(
    """
        UPDATE heads SET due_at = NULL
        WHERE conversation_id = CAST(:conversation_id AS uuid) AND due_at <= now()
        """
)
POSTPONE = Statement(
    """
        UPDATE heads
        SET failures = failures + 1,
            due_at = now() + make_interval(secs => CAST(:seconds AS double precision))
        WHERE conversation_id = CAST(:conversation_id AS uuid)
        """
)

RECORD_FAILURE = Statement(
    """
        UPDATE heads SET last_failure = CAST(:failure AS text), failed_at = now()
        WHERE conversation_id = CAST(:conversation_id AS uuid)
        """
)
FIND_FAILURE = Statement(
    """
        SELECT last_failure, failed_at, failures,
            CASE WHEN failures > 0 THEN due_at END AS retry_at
        FROM heads
        WHERE conversation_id = CAST(:conversation_id AS uuid) AND last_failure IS NOT NULL
        """
)

# The lock orders it with a deletion, and appends do not wait for it. Nobody else can be at work on
# a conversation that is not there: whoever asks finds that out by himself.
TAKE_LEASE = Statement(
    """
        WITH alive AS (
            SELECT conversation_id FROM heads
            WHERE conversation_id = CAST(:conversation_id AS uuid) FOR KEY SHARE
        ), taken AS (
            INSERT INTO compaction_leases AS lease (conversation_id, holder, expires_at)
            SELECT conversation_id, CAST(:holder AS uuid),
                now() + make_interval(secs => CAST(:seconds AS double precision))
            FROM alive
            ON CONFLICT (conversation_id) DO UPDATE
            SET holder = excluded.holder, expires_at = excluded.expires_at
            WHERE lease.holder = excluded.holder OR lease.expires_at <= now()
            RETURNING lease.holder
        )
        SELECT EXISTS (SELECT FROM taken) OR NOT EXISTS (SELECT FROM alive) AS is_held
        """
)
RELEASE_LEASE = Statement(
    """
        DELETE FROM compaction_leases
        WHERE conversation_id = CAST(:conversation_id AS uuid)
            AND holder = CAST(:holder AS uuid)
        """
)

ADD_JOB = Statement(
    """
        WITH alive AS (
            SELECT conversation_id FROM heads
            WHERE conversation_id = CAST(:conversation_id AS uuid) FOR KEY SHARE
        )
        INSERT INTO jobs (conversation_id, job_id, tenant_id, kind, ask)
        SELECT conversation_id, CAST(:job_id AS uuid), CAST(:tenant_id AS text),
            CAST(:kind AS text), CAST(:ask AS text)
        FROM alive
        """
)
FIND_JOB = Statement(
    """
        SELECT * FROM jobs
        WHERE job_id = CAST(:job_id AS uuid) AND tenant_id = CAST(:tenant_id AS text)
        """
)
CHANGE_JOB = Statement(
    """
        UPDATE jobs
        SET status = CAST(:status AS text), result = CAST(:result AS text),
            error = CAST(:error AS text), updated_at = clock_timestamp()
        WHERE conversation_id = CAST(:conversation_id AS uuid)
            AND job_id = CAST(:job_id AS uuid) AND status IN ('queued', 'running')
        """
)
LIST_OPEN_JOBS = Statement(
    """
        SELECT tenant_id, conversation_id, job_id FROM jobs
        WHERE status IN ('queued', 'running')
        ORDER BY created_at
        LIMIT CAST(:limit AS bigint)
        """
)
FORGET_ENDED = Statement("DELETE FROM pgqueuer_log WHERE created < now() - interval '7 days'")


@dataclass(frozen=True, slots=True)
class Entry:
    """What the queue holds: a conversation to look at, and the job if a caller waits for one.

    `attempts` counts how often it has come again.
    """

    tenant_id: str
    conversation_id: str
    job_id: str | None = None
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast workers notice: entries where nobody tells them, and other workers' deaths."""

    poll_seconds: float = 5.0
    heartbeat_timeout_seconds: float = 20.0


class JobRepository:
    """Sentences about work in the background."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def list_due(self, limit: int) -> list[tuple[str, str]]:
        """Return the tenant and conversation ids whose due mark has come, the oldest first."""
        rows = await self._session.all(LIST_DUE, limit=limit)
        return [(row["tenant_id"], str(row["conversation_id"])) for row in rows]

    async def mark_due(self, conversation_id: str) -> bool:
        """Set the due mark; False when it was set already."""
        return await self._session.run(MARK_DUE, conversation_id=UUID(conversation_id)) == 1

    async def clear_due(self, conversation_id: str) -> None:
        """Take a due mark whose time has come away: somebody looks at the conversation now."""
        await self._session.run(CLEAR_DUE, conversation_id=UUID(conversation_id))

    async def postpone(self, conversation_id: str, seconds: float) -> None:
        """Count a failure, and set the due mark for later."""
        await self._session.run(POSTPONE, conversation_id=UUID(conversation_id), seconds=seconds)

    async def record_failure(self, conversation_id: str, failure: str) -> None:
        """Keep why a compaction failed, in the place of the failure before."""
        await self._session.run(
            RECORD_FAILURE, conversation_id=UUID(conversation_id), failure=failure
        )

    async def find_failure(self, conversation_id: str) -> Failure | None:
        """Return why the last compaction failed, None since one has succeeded."""
        row = await self._session.first(FIND_FAILURE, conversation_id=UUID(conversation_id))
        if row is None:
            return None
        told = json_text.loads(row["last_failure"])
        return Failure(**told, **{name: row[name] for name in _FAILURE_TIMES})

    async def take_lease(self, conversation_id: str, holder: str, seconds: float) -> bool:
        """Take, or as its holder renew, the right to compact; False while another has it."""
        row = await self._session.first(
            TAKE_LEASE, conversation_id=UUID(conversation_id), holder=UUID(holder), seconds=seconds
        )
        return row is not None and row["is_held"]

    async def release_lease(self, conversation_id: str, holder: str) -> None:
        """Give the right to compact back."""
        await self._session.run(
            RELEASE_LEASE, conversation_id=UUID(conversation_id), holder=UUID(holder)
        )

    async def add(
        self, tenant_id: str, conversation_id: str, job_id: str, kind: str, ask: str
    ) -> None:
        """Store a job that a caller waits for, unless its conversation is gone."""
        await self._session.run(
            ADD_JOB,
            tenant_id=tenant_id,
            conversation_id=UUID(conversation_id),
            job_id=UUID(job_id),
            kind=kind,
            ask=ask,
        )

    async def find(self, tenant_id: str, job_id: str) -> Job | None:
        """Return a job, or None."""
        row = await self._session.first(FIND_JOB, tenant_id=tenant_id, job_id=UUID(job_id))
        return _job_from(row) if row is not None else None

    async def change(
        self,
        conversation_id: str,
        job_id: str,
        status: str,
        *,
        result: str | None = None,
        error: str | None = None,
    ) -> None:
        """Store how far a job has come, unless it has ended already (rule 3)."""
        await self._session.run(
            CHANGE_JOB,
            conversation_id=UUID(conversation_id),
            job_id=UUID(job_id),
            status=status,
            result=result,
            error=error,
        )

    async def list_open(self, limit: int) -> list[tuple[str, str, str]]:
        """Return tenant, conversation and job ids of jobs that have not ended, the oldest first."""
        rows = await self._session.all(LIST_OPEN_JOBS, limit=limit)
        return [(row["tenant_id"], str(row["conversation_id"]), str(row["job_id"])) for row in rows]


class PostgresQueue:
    """Fulfils the services' `JobQueue`; loads PgQueuer when it is first used."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._is_loaded = False

    async def enqueue(
        self, tenant_id: str, conversation_id: str, job_id: str | None = None
    ) -> bool:
        """Ask for a conversation to be compacted; False when that is asked for already."""
        return await self.enqueue_all([Entry(tenant_id, conversation_id, job_id)]) == 1

    async def enqueue_all(self, entries: Sequence[Entry]) -> int:
        """Ask for several, and return how many of them nobody had asked for."""
        if not self._is_loaded:
            await load_queue()
            self._is_loaded = True
        from app.adapters.postgres.compaction import queue

        return await queue.put(self._store, entries)

    async def forget_ended(self) -> None:
        """Delete what the queue noted of entries that ended a week ago."""
        async with self._store.session() as session:
            await session.run(FORGET_ENDED)


async def load_queue() -> None:
    """Import `app.adapters.postgres.compaction.queue` beside the event loop."""
    await asyncio.to_thread(import_module, "app.adapters.postgres.compaction.queue")


def _job_from(row: Any) -> Job:
    return Job(
        job_id=str(row["job_id"]),
        tenant_id=row["tenant_id"],
        conversation_id=str(row["conversation_id"]),
        kind=row["kind"],
        ask=row["ask"],
        status=row["status"],
        result=row["result"],
        error=row["error"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )
