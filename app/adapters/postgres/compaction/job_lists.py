"""Lists of jobs in PostgreSQL, newest first.

Each list reads its index once for each status, so that it reads no job of another one. Job ids are
UUIDv7, and so in the order of creation.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any
from uuid import UUID

from app.adapters.postgres.common.connections import Session, Statement
from app.adapters.postgres.common.paging import bounded, lengths, limits, page_of
from app.adapters.postgres.common.rows import NOT_EXPIRED
from app.domain.common.pages import Bound, Page
from app.domain.conversations.job import Job, JobFilter, JobStatus

_COLUMN_OF = {field.name: field.name for field in fields(Job)} | {"request": "ask"}
"""The column of each field of a job."""
_COLUMNS = tuple(_COLUMN_OF.values())
_SELECTED = ["c.own_id" if column == "own_id" else f"j.{column}" for column in _COLUMNS]


def _newest(scope: str, status: JobStatus) -> str:
    """Return a query for the newest jobs of a status, of which `scope` selects whose."""
    return f"""(
                SELECT conversation_id, status, job_id FROM jobs
                WHERE {scope} AND status = '{status}'
                    AND '{status}' = ANY (CAST(:statuses AS text[]))
                    AND job_id < coalesce(CAST(:before AS uuid),
                        CAST('ffffffff-ffff-ffff-ffff-ffffffffffff' AS uuid))
                ORDER BY job_id DESC
                LIMIT CAST(:limit AS bigint)
            )"""


def _list(scope: str) -> Statement:
    """Return the list of the jobs that `scope` and a status select, which an index begins with."""
    rows = f"""
        SELECT {", ".join(_SELECTED)}
        FROM (
            SELECT conversation_id, status, job_id
            FROM ({" UNION ALL ".join(_newest(scope, status) for status in JobStatus)}) AS found
            ORDER BY job_id DESC
            LIMIT CAST(:limit AS bigint)
        ) AS newest
        JOIN jobs j ON j.conversation_id = newest.conversation_id
            AND j.status = newest.status AND j.job_id = newest.job_id
        JOIN conversations c ON c.conversation_id = newest.conversation_id AND {NOT_EXPIRED}
    """
    return Statement(bounded(rows, _COLUMNS, lengths("ask", "result", "error"), "job_id DESC"))


LIST_OF_TENANT = _list("tenant_id = CAST(:tenant_id AS text)")
LIST_OF_AGENT = _list("tenant_id = CAST(:tenant_id AS text) AND agent_id = CAST(:agent_id AS text)")
# Citus reads the EXISTS first, and refuses one without a column.
LIST_OF_CONVERSATION = _list(
    """conversation_id = CAST(:conversation_id AS uuid) AND EXISTS (
                    SELECT 1 FROM conversations c
                    WHERE c.conversation_id = CAST(:conversation_id AS uuid)
                        AND c.tenant_id = CAST(:tenant_id AS text)
                )"""
)


def job_from(row: Any) -> Job:
    """Return the job of a row."""
    job = {name: row[column] for name, column in _COLUMN_OF.items()}
    ids = {"job_id": str(row["job_id"]), "conversation_id": str(row["conversation_id"])}
    return Job(**(job | ids))


async def list_jobs(
    session: Session,
    tenant_id: str,
    wanted: JobFilter,
    limit: int,
    before: str | None,
    bound: Bound,
) -> Page[Job]:
    """Return a page of jobs that were created before another one."""
    values = {
        "tenant_id": tenant_id,
        "statuses": wanted.statuses,
        "before": UUID(before) if before is not None else None,
        **limits(limit, bound),
    }
    if wanted.conversation_id is not None:
        own = {"conversation_id": UUID(wanted.conversation_id)}
        rows = await session.all(LIST_OF_CONVERSATION, **values, **own)
    elif wanted.agent_id is not None:
        rows = await session.all(LIST_OF_AGENT, **values, agent_id=wanted.agent_id)
    else:
        rows = await session.all(LIST_OF_TENANT, **values)
    return page_of(rows, job_from)
