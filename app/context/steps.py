"""A step of an agent loop: an append, a usage report and a build in one request.

1. The messages are committed before the build, which may wait for a model. A failed build does not
   undo them: its error has the fact `appended`.
2. With an idempotency key a repeated step stores nothing again, and builds again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from app.common.errors import ContextError, Problem
from app.context.build import ContextService
from app.context.state import KnownPayload
from app.context.usage_service import UsageRequest, UsageService
from app.conversations.messages.batch import Append
from app.conversations.messages.schemas import AppendAnswer
from app.conversations.messages.service import LogService
from app.prompt.resolved_settings import RequestSettings

NOTHING_STORED: Mapping[str, Any] = {"appended": None, "reported": None}
"""What the answer to a build has in addition, without an append and a report."""


@dataclass(frozen=True, slots=True)
class Step:
    """What to store, and the settings of the build after it."""

    settings: RequestSettings
    known: KnownPayload | None = None
    append: Append | None = None
    report: UsageRequest | None = None
    idempotency_key: str | None = None


@dataclass(eq=False, repr=False)
class StepService:
    """Runs steps."""

    _log: LogService
    _usage: UsageService
    _context: ContextService

    async def run(self, tenant_id: str, conversation_id: str, step: Step) -> dict[str, Any]:
        """Append, report and build; return the build's answer with `appended` and `reported`.

        Raises as `LogService.append`, `UsageService.report` and `ContextService.build` do.
        """
        answer, sent_seq = dict(NOTHING_STORED), None
        facts: dict[str, Any] = {}
        if step.append is not None:
            with _located("/append"):
                stored = await self._log.append(tenant_id, conversation_id, step.append)
            answer["appended"] = stored
            facts["appended"] = appended = _positions(stored)
            sent_seq = appended["first_seq"] - 1
        if step.report is not None:
            with _located("/usage", facts):
                reported = await self._usage.report(
                    tenant_id, conversation_id, step.report, step.idempotency_key, sent_seq
                )
            answer["reported"] = reported
            facts["reported"] = reported.report_id
        with _located("", facts):
            built = await self._context.build(tenant_id, conversation_id, step.settings, step.known)
        return built | answer


def _positions(stored: AppendAnswer | Mapping[str, Any]) -> dict[str, int]:
    if isinstance(stored, AppendAnswer):
        seqs, head_seq = [message.seq for message in stored.messages], stored.head_seq
    else:
        seqs = [message["seq"] for message in stored["messages"]]
        head_seq = stored["head_seq"]
    return {"first_seq": seqs[0], "last_seq": seqs[-1], "head_seq": head_seq}


@contextmanager
def _located(pointer: str, facts: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Add a pointer and facts to an error of this part of the request."""
    try:
        yield
    except ContextError as error:
        error.problems = tuple(
            Problem(f"{pointer}{problem.pointer}", problem.detail) for problem in error.problems
        )
        error.facts = {**error.facts, **(facts or {})}
        raise
