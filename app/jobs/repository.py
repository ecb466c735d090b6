"""Background work in PostgreSQL: due compactions, jobs of callers, and the leases on both.

1. The queue is `due_at` of conversation states (table `states`) whose compaction is due, and the
   rows of `jobs` that have not ended. A worker claims the oldest of them that is not locked, jobs
   of callers first.
2. A claim is a lease on the conversation, a row of `compaction_leases` with an expiry. One process
   at a time compacts a conversation, for a worker, a build or a request. An expired lease is free.
3. Work stays in the queue until it is done, so work of a worker that died is claimed again.
   `attempts` counts the claims since the work was last done; `retry_at` delays the next one.
4. A job that has ended keeps its first result.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from app.common import json_text
from app.conversations.receipt import Failure
from app.database.connections import Repository, Statement, Store
from app.database.sql import equal, plain, read

MAX_COUNTED = 10_000
"""The maximum of waiting work that is counted, which bounds the cost of a long queue."""
_CANDIDATES = 10
"""Waiting work that is read at once, for a claim to try one after the other."""
_MAX_READS = 3
_FAILURE_COLUMNS = ("failed_at", "failures", "retry_at")

_OWN = equal("conversation_id")
_IN_SECONDS = "now() + make_interval(secs => CAST(:seconds AS double precision))"
_FREE = """NOT EXISTS (
                SELECT FROM compaction_leases busy
                WHERE busy.conversation_id = {of}.conversation_id
                    AND (busy.expires_at > now() OR busy.retry_at > now())
            )"""

# The work that waits longest, jobs first. Nothing is locked: a claim checks again.
WAITING = Statement(
    f"""
        WITH open_jobs AS (
            SELECT j.conversation_id, j.job_id, j.created_at AS since
            FROM jobs j WHERE j.status IN ('queued', 'running') AND {_FREE.format(of="j")}
            ORDER BY j.created_at LIMIT :limit
        ), due AS (
            SELECT h.conversation_id, h.due_at AS since
            FROM states h WHERE h.due_at <= now() AND {_FREE.format(of="h")}
            ORDER BY h.due_at LIMIT :limit
        ), waiting AS (
            SELECT conversation_id, job_id, since FROM open_jobs
            UNION ALL
            SELECT conversation_id, NULL, since FROM due
        )
        SELECT c.tenant_id, waiting.conversation_id, waiting.job_id
        FROM waiting
        JOIN conversations c ON c.conversation_id = waiting.conversation_id
        ORDER BY waiting.job_id IS NULL, waiting.since LIMIT :limit
        """
)


def _claim(found: str) -> Statement:
    """Return a claim of work, which is found by a state that this locks.

    The lock orders a claim with a deletion of the conversation. A row that is locked is skipped:
    another worker claims it, or an append changes it, and the next claim finds it.
    """
    return Statement(
        f"""
        INSERT INTO compaction_leases AS lease (conversation_id, holder, expires_at, attempts)
        SELECT h.conversation_id, :holder, {_IN_SECONDS}, 1
        FROM states h {found} SKIP LOCKED
        ON CONFLICT (conversation_id) DO UPDATE
        SET holder = excluded.holder, expires_at = excluded.expires_at,
            attempts = lease.attempts + 1, retry_at = NULL
        WHERE excluded.expires_at - greatest(lease.expires_at, lease.retry_at)
            >= make_interval(secs => CAST(:seconds AS double precision))
        RETURNING attempts
        """
    )


CLAIM_DUE = _claim(
    "WHERE h.conversation_id = :conversation_id AND h.due_at <= now() FOR NO KEY UPDATE OF h"
)
CLAIM_JOB = _claim(
    """
        JOIN jobs j ON j.conversation_id = h.conversation_id
        WHERE h.conversation_id = :conversation_id AND j.conversation_id = :conversation_id
            AND j.job_id = :job_id AND j.status IN ('queued', 'running')
        FOR KEY SHARE OF h"""
)
RETRY_LATER = Statement(
    f"""
        UPDATE compaction_leases SET expires_at = now(), retry_at = {_IN_SECONDS}
        WHERE {_OWN} AND holder = :holder
        """
)
SET_DUE = Statement(f"UPDATE states SET due_at = now() WHERE {_OWN} AND due_at IS NULL")
CLEAR_DUE = Statement(
    f"""
        UPDATE states SET due_at = NULL
        WHERE {_OWN} AND due_at <= now() AND head_seq = :head_seq
        """
)
POSTPONE = Statement(
    f"UPDATE states SET failures = failures + 1, due_at = {_IN_SECONDS} WHERE {_OWN}"
)
RECORD_FAILURE = Statement(
    f"UPDATE states SET last_failure = CAST(:failure AS text), failed_at = now() WHERE {_OWN}"
)
FIND_FAILURE = Statement(
    f"""
        SELECT last_failure, failed_at, failures,
            CASE WHEN failures > 0 THEN due_at END AS retry_at
        FROM states WHERE {_OWN} AND last_failure IS NOT NULL
        """
)

# The lock orders this statement and a deletion; appends do not wait for it. The lease of a
# conversation that does not exist is granted without a row: the next statement raises NotFound.
TAKE_LEASE = Statement(
    f"""
        WITH conversation AS (
            SELECT conversation_id FROM states WHERE {_OWN} FOR KEY SHARE
        ), lease_taken AS (
            INSERT INTO compaction_leases AS lease (conversation_id, holder, expires_at)
            SELECT conversation_id, :holder, {_IN_SECONDS} FROM conversation
            ON CONFLICT (conversation_id) DO UPDATE
            SET holder = excluded.holder, expires_at = excluded.expires_at
            WHERE lease.holder = excluded.holder OR excluded.expires_at - lease.expires_at
                >= make_interval(secs => CAST(:seconds AS double precision))
            RETURNING lease.holder
        )
        SELECT EXISTS (SELECT FROM lease_taken) OR NOT EXISTS (SELECT FROM conversation) AS is_held
        """
)
RELEASE_LEASE = Statement(f"DELETE FROM compaction_leases WHERE {_OWN} AND holder = :holder")

ADD_JOB = Statement(
    f"""
        WITH conversation AS (
            SELECT conversation_id FROM states WHERE {_OWN} FOR KEY SHARE
        )
        INSERT INTO jobs (conversation_id, job_id, tenant_id, kind, ask)
        SELECT conversation_id, :job_id, :tenant_id,
            :kind, :ask
        FROM conversation
        """
)
FIND_JOB = Statement(
    """
        SELECT j.job_id, j.conversation_id, j.kind, j.ask AS request, j.status, j.result, j.error,
            j.created_at, j.updated_at, c.own_id
        FROM jobs j
        JOIN conversations c ON c.conversation_id = j.conversation_id
        WHERE j.job_id = :job_id AND j.tenant_id = :tenant_id
            AND (c.expires_at IS NULL OR c.expires_at > now())
        """
)
CHANGE_JOB = Statement(
    f"""
        UPDATE jobs
        SET status = :status, result = :result,
            error = :error, updated_at = statement_timestamp()
        WHERE {_OWN} AND job_id = :job_id AND status IN ('queued', 'running')
        """
)


COUNT_WAITING = Statement(
    """
        WITH due AS (
            SELECT h.due_at AS since FROM states h
            WHERE h.due_at <= now() AND NOT EXISTS (
                SELECT FROM compaction_leases busy
                WHERE busy.conversation_id = h.conversation_id AND busy.expires_at > now()
            )
            ORDER BY h.due_at
            LIMIT CAST(:max_counted AS bigint)
        ), open_jobs AS (
            SELECT created_at AS since FROM jobs
            WHERE status IN ('queued', 'running')
            ORDER BY created_at
            LIMIT CAST(:max_counted AS bigint)
        )
        SELECT (SELECT count(*) FROM due) AS due, (SELECT count(*) FROM open_jobs) AS jobs,
            CAST(extract(epoch FROM now() - least(
                (SELECT min(since) FROM due), (SELECT min(since) FROM open_jobs)
            )) AS double precision) AS age
        """
)


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


@dataclass(frozen=True, slots=True)
class Waiting:
    """Conversations that wait for a compaction, jobs that have not ended, seconds of the oldest."""

    due: int
    jobs: int
    oldest_seconds: float


async def waiting_in(store: Store, seconds: float = 1.0) -> Waiting:
    """Return what waits of all tenants; raises ServiceUnavailable, also after these seconds."""
    async with store.session(seconds) as session:
        row = await session.first(COUNT_WAITING, max_counted=MAX_COUNTED)
    assert row is not None, "an aggregate returns one row"
    return Waiting(row["due"], row["jobs"], max(0.0, row["age"] or 0.0))


class JobRepository(Repository):
    """Statements on background work."""

    async def claim(self, holder: str, seconds: float) -> Claim | None:
        """Lease the conversation whose work waits longest; None if no work waits."""
        for _ in range(_MAX_READS):
            waiting = await self._session.all(WAITING, limit=_CANDIDATES)
            for work in waiting:
                tenant_id, conversation_id, job_id = map(plain, work)
                claim = {"conversation_id": conversation_id, "holder": holder, "seconds": seconds}
                if job_id is None:
                    attempts = await self._session.value(CLAIM_DUE, **claim)
                else:
                    attempts = await self._session.value(CLAIM_JOB, **claim, job_id=job_id)
                if attempts is None:
                    continue  # another worker was faster, or it is done
                if job_id is not None:
                    await self.change(conversation_id, job_id, JobStatus.RUNNING)
                return Claim(tenant_id, conversation_id, job_id, holder, attempts)
            if not waiting:
                break
        return None

    async def set_due(self, conversation_id: str) -> bool:
        """Make a compaction due; False when it is due already."""
        return await self._session.run(SET_DUE, conversation_id=conversation_id) == 1

    async def clear_due(self, conversation_id: str, head_seq: int) -> None:
        """Mark the compaction as not due, unless messages were appended after `head_seq`."""
        await self._session.run(CLEAR_DUE, conversation_id=conversation_id, head_seq=head_seq)

    async def postpone(self, conversation_id: str, seconds: float) -> None:
        """Count a failure, and make the compaction due later."""
        await self._session.run(POSTPONE, conversation_id=conversation_id, seconds=seconds)

    async def record_failure(self, conversation_id: str, failure: str) -> None:
        """Store why a compaction failed, in place of the previous failure."""
        await self._session.run(RECORD_FAILURE, conversation_id=conversation_id, failure=failure)

    async def find_failure(self, conversation_id: str) -> Failure | None:
        """Return why the last compaction failed, None if one has succeeded since."""
        row = await self._session.first(FIND_FAILURE, conversation_id=conversation_id)
        if row is None:
            return None
        failure = json_text.loads(row["last_failure"])
        return Failure(**failure, **{name: row[name] for name in _FAILURE_COLUMNS})

    async def add(
        self, tenant_id: str, conversation_id: str, job_id: str, kind: str, request: str
    ) -> None:
        """Store a job, unless its conversation was deleted."""
        job = {"job_id": job_id, "kind": kind, "ask": request, "tenant_id": tenant_id}
        await self._session.run(ADD_JOB, conversation_id=conversation_id, **job)

    async def find(self, tenant_id: str, job_id: str) -> Job | None:
        """Return a job, or None."""
        row = await self._session.first(FIND_JOB, tenant_id=tenant_id, job_id=job_id)
        return read(Job, row) if row is not None else None

    async def change(
        self,
        conversation_id: str,
        job_id: str,
        status: str,
        *,
        result: str | None = None,
        error: str | None = None,
    ) -> bool:
        """Store the state of a job; False when it has ended (rule 4)."""
        job = {"job_id": job_id, "status": status, "result": result, "error": error}
        return await self._session.run(CHANGE_JOB, conversation_id=conversation_id, **job) == 1
