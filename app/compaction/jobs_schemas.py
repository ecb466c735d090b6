"""Schemas of jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from app.conversations.compaction_results import CompactResult
from app.http.errors import ProblemAnswer
from app.http.fields import ResponseSchema, examples
from app.work.job import JobStatus

JOB: dict[str, Any] = {
    "job_id": "0199a1b2-9a0b-7c1d-8e2f-304152637485",
    "conversation_id": "0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b",
    "kind": "compact",
    "status": "running",
    "result": None,
    "error": None,
    "created_at": "2026-01-05T09:31:12.000123+00:00",
    "updated_at": "2026-01-05T09:31:12.100456+00:00",
}


class Job(ResponseSchema):
    """Work in the background, and its result."""

    model_config = examples(JOB)

    job_id: str
    """Id of the job."""
    conversation_id: str
    """The conversation that it works on."""
    kind: str
    """What kind of work it is."""
    status: JobStatus
    """`done` and `failed` are final."""
    result: CompactResult | None
    """Its result; null until it is done."""
    error: ProblemAnswer | None
    """Why it failed; null unless it did."""
    created_at: datetime
    """When it was requested."""
    updated_at: datetime
    """When its status last changed."""
