"""Compactions inside a build that call no model: in three statements, without a lease.

1. The plan is made on what the build has read. The statement `inline_basis` reads what it lacks.
2. The result is stored in one statement, only if the view is still the one that was planned on. So
   a compaction is applied at most once, also beside a holder of the lease.
3. While another process holds the lease, the build does not compact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.domain.common.errors import Conflict, ServiceUnavailable, ValidationError
from app.domain.compaction.planning import CompactionInput
from app.domain.compaction.plans import CompactionPlan
from app.domain.compaction.results import CompactionPending, CompactResult
from app.domain.compaction.views import base_view
from app.domain.conversations.compaction_receipt import Trigger
from app.domain.conversations.conversation import Conversation
from app.domain.conversations.inline_compaction import InlineBasis, InlineChange, InlineRows
from app.domain.conversations.turns import Entry
from app.domain.conversations.view import View, spans_through
from app.domain.prompt.resolved_settings import RequestSettings, ResolvedSettings
from app.services.compaction.runner import CompactionRunner
from app.services.compaction.runs import CompactRequest, ExecutedPlan, InlineRun


@dataclass(frozen=True, slots=True)
class BuildSource:
    """What a build has read: the conversation, and the entries of a view that it shows.

    `basis` is set where the build has cleared results just now.
    """

    tenant_id: str
    conversation: Conversation
    settings: RequestSettings
    view: View
    entries: Sequence[Entry]
    basis: InlineBasis | None = None


@dataclass(frozen=True, slots=True)
class InlineCompaction:
    """A compaction or clearing that was applied.

    `rows` were read for it. The next compaction of this build starts from `basis`.
    """

    result: CompactResult
    change: InlineChange
    rows: InlineRows | None = None
    basis: InlineBasis | None = None


class Unfit:
    """The build does not show what a compaction has to plan on: that has to be read."""


class InlineCompactions:
    """Compacts and clears for builds."""

    def __init__(self, runner: CompactionRunner) -> None:
        self._runner = runner

    async def can_compact(self, build: BuildSource) -> bool:
        """Whether the policy calls no model, and the build shows nothing that a plan lacks."""
        if not _is_plain(build.view):
            return False
        resolved = await self._resolved(build)
        try:
            return self._runner.needs_no_model(resolved)
        except ValidationError:
            return False

    async def compact(
        self, build: BuildSource
    ) -> InlineCompaction | CompactResult | CompactionPending | Unfit | None:
        """Compact; None when the build has to read again. Raises ServiceUnavailable.

        A CompactResult says that nothing could be compacted.
        """
        found = await self._source(build)
        if not isinstance(found, tuple):
            return found
        source, basis = found
        head_seq = source.state.head_seq
        if spans_through(source.view.spans, head_seq) != spans_through(build.view.spans, head_seq):
            return Unfit()
        inline = InlineRun(basis, build.settings.format)
        try:
            result = await self._runner.compact(
                source, Trigger.PROACTIVE, CompactRequest(), inline=inline
            )
        except Conflict:
            return None
        except ServiceUnavailable:
            await self._runner.postpone(source)
            raise
        if inline.change is None:
            return result
        return InlineCompaction(result, inline.change, inline.rows)

    async def clear_tool_results(
        self, build: BuildSource, plan: CompactionPlan
    ) -> InlineCompaction | CompactionPending | None:
        """Clear tool results as planned; None when the build has to read again."""
        found = await self._source(build)
        if not isinstance(found, tuple):
            return found
        source, basis = found
        inline = InlineRun(basis, build.settings.format)
        run = replace(self._runner.start(source, Trigger.TOOL_OUTPUT), inline=inline)
        executed = ExecutedPlan(plan, run.view_without_summary(plan))
        try:
            result = await self._runner.apply(run, self._runner.clearing_receipt(run, executed))
        except Conflict:
            return None
        change, before = inline.change, basis.active
        assert change is not None
        made = before.made if before is not None and before.made else basis.newest_made
        event_seq = change.event_seq + len(change.events)
        after = InlineBasis(event_seq, basis.is_leased, change.receipt, made)
        return InlineCompaction(result, change, basis=after)

    async def _source(
        self, build: BuildSource
    ) -> tuple[CompactionInput, InlineBasis] | CompactionPending | None:
        """Return the input of a compaction, None where the build is outdated."""
        conversation, state, basis = build.conversation, build.conversation.state, build.basis
        if basis is None:
            async with self._runner.database.session() as session:
                basis = await session.contexts.inline_basis(
                    conversation.conversation_id, state.compaction_id
                )
        if basis is None:
            return None
        if basis.is_leased:
            return CompactionPending()
        resolved = await self._resolved(build)
        active = basis.active
        view = base_view(state, active.view if active is not None else None, resolved.policy)
        source = CompactionInput(
            build.tenant_id, conversation, resolved, view, tuple(build.entries), active
        )
        return await self._runner.inputs.with_shortened(source), basis

    async def _resolved(self, build: BuildSource) -> ResolvedSettings:
        return await self._runner.inputs.resolver.of(build.conversation, build.settings)


def _is_plain(view: View) -> bool:
    """Whether a compaction reads the same entries as the build."""
    return view.provider_item is None and not view.shortened
