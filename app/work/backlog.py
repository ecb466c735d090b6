"""How much background work waits in the database, for the metrics."""

from __future__ import annotations

from dataclasses import dataclass

from app.database.connections import Statement, Store

MAX_COUNTED = 10_000
"""The maximum that is counted, which bounds the cost of a long queue."""

COUNT_WAITING = Statement(
    """
        WITH due AS (
            SELECT h.due_at AS since FROM heads h
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


@dataclass(frozen=True, slots=True)
class Waiting:
    """Conversations that wait for a compaction, jobs that have not ended, seconds of the oldest."""

    due: int
    jobs: int
    oldest_seconds: float


class Backlog:
    """Counts the work of all tenants; a statement may take `seconds`."""

    def __init__(self, store: Store, seconds: float = 1.0) -> None:
        self._store = store
        self._seconds = seconds

    async def waiting(self) -> Waiting:
        """Return the counts; raises ServiceUnavailable without a database."""
        async with self._store.session(self._seconds) as session:
            row = await session.first(COUNT_WAITING, max_counted=MAX_COUNTED)
        assert row is not None, "an aggregate returns one row"
        return Waiting(row["due"], row["jobs"], max(0.0, row["age"] or 0.0))
