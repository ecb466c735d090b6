"""Compaction as an act: plan, summarise outside any transaction, apply if still valid (E3, E7).

1. One compaction of a conversation runs at a time, whichever process runs it: it holds a lease.
2. A forced one waits for another to end; a build and a job in the background do not (decision 15).
3. A failure leaves the view as it was. It is counted, and automatic ones rest for a while, longer
   after each failure in a row, so that no loop calls a broken model again and again (E9).
4. Clearing tool results (F3) is no compaction, but changes the view as well: it waits for one
   under way, whose work it would undo, and changes neither `due_at` nor the failures.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from app.domain.common import json_text
from app.domain.common.errors import (
    Conflict,
    ContextError,
    NotFound,
    ServiceUnavailable,
    ValidationError,
)
from app.domain.common.policy import Policy, StrategyName
from app.domain.compaction.planning import (
    CompactionInput,
    CompactionOptions,
    CompactionPending,
    CompactResult,
    as_shown,
    base_view,
    chunks_for,
    compaction_threshold,
    expected_tokens,
    fresh_spans,
    kept_of,
    node_room,
    own_tools_cost,
    plan_for,
    reserve_for,
    result_of,
    resume_at,
    shorten,
    shown_cost,
    summary_cost,
    summary_room,
    unhidden,
    view_after,
)
from app.domain.compaction.strategies import CompactionPlan, NoCompaction, next_fold
from app.domain.compaction.summaries import SummaryRequest
from app.domain.compaction.text_shortening import oversized
from app.domain.compaction.tool_result_clearing import excluded_seqs, with_excluded
from app.domain.compaction.truncation import TRIMMED
from app.domain.conversations.compaction_receipt import Compaction, Trigger, VisibleState
from app.domain.conversations.conversation import Conversation, ConversationState
from app.domain.conversations.events import EventType
from app.domain.conversations.turns import Entry, never_cleared
from app.domain.conversations.view import Span, Summary, View, overlap, spans_through
from app.domain.prompt.resolved_settings import RequestSettings
from app.services.common.observers import UNOBSERVED
from app.services.compaction.leases import Leases
from app.services.compaction.paged_summarisation import summarise_paged
from app.services.compaction.summariser import Summariser, SummariserCalls, SummaryResult
from app.services.conversations.active_windows import ActiveWindows
from app.services.ports import Database, Observer, Repositories
from app.services.prompt.budget_status import is_due_as_reported
from app.services.prompt.settings_resolver import SettingsResolver
from app.services.tool_output.text_shortening import reader_tokens, shorts_for, text_room

MIN_REST_SECONDS = 30.0
MAX_REST_SECONDS = 3600.0
MAX_WAIT_SECONDS = 300.0
"""How long a forced compaction waits for another one to end."""
_MAX_FRUITLESS = 10_000
SUMMARISER_UNAVAILABLE = "summariser_unavailable"
"""What was reduced lacks a summary that the policy wants; no model gave one (E9)."""
_DRY_RUN = "dry run"
_NOT_SHORTER = "the summary would not be shorter"

_log = logging.getLogger("app.compaction")


@dataclass(frozen=True, slots=True)
class CompactRequest:
    """A compaction somebody asks for; all of it is for this call alone (E7)."""

    model: str | None = None
    instructions: str | None = None
    strategy: StrategyName | None = None
    target_tokens: int | None = None
    dry_run: bool = False

    def as_json(self) -> str:
        """Return the text that a job keeps of it."""
        return json_text.dumps(asdict(self))


def request_from(text: str) -> CompactRequest:
    """Read back what a job was asked."""
    raw = json_text.loads(text)
    strategy = StrategyName(raw["strategy"]) if raw["strategy"] else None
    return CompactRequest(**{**raw, "strategy": strategy})


@dataclass(slots=True)
class _Made:
    """What became of a plan: the view it led to, and the summaries made on the way.

    `lacks_summary` says that a summary which was planned could not be had.
    """

    plan: CompactionPlan
    view: View
    made: list[Summary] = field(default_factory=list)
    lacks_summary: bool = False


class CompactionService:
    """Runs compactions, one at a time for each conversation."""

    def __init__(
        self,
        database: Database,
        resolver: SettingsResolver,
        summariser: Summariser,
        leases: Leases,
        active: ActiveWindows,
        new_id: Callable[[], str],
        now_ms: Callable[[], float],
        observer: Observer = UNOBSERVED,
    ) -> None:
        self._database = database
        self._frames = resolver
        self._summariser = summariser
        self._leases = leases
        self._active = active
        self._new_id = new_id
        self._now_ms = now_ms
        self._observer = observer
        self._fruitless: dict[str, Hashable] = {}

    # --- the three paths ------------------------------------------------------------------

    async def compact(
        self, tenant_id: str, conversation_id: str, ask: CompactRequest
    ) -> CompactResult:
        """Compact now, whatever the pressure (E7).

        Raises NotFound, ValidationError for a model that may not summarise, whether there is
        anything to do or not, ContextLimitUnknown, or ServiceUnavailable with the previous state
        unchanged (E9).
        """
        situation = await self._checked(tenant_id, conversation_id, ask)
        if ask.dry_run:
            return await self._preview(situation, ask)
        async with self._leases.wait(conversation_id, MAX_WAIT_SECONDS):
            situation = await self._situation(tenant_id, conversation_id)
            return await self._run(situation, Trigger.FORCED, ask)

    def check(self, ask: CompactRequest) -> None:
        """Raise ValidationError for a model that may not summarise, before a job is made of it."""
        self._summariser.choose_model(ask.model, None, None)

    async def summariser_problem(self, tenant_id: str, conversation_id: str) -> str | None:
        """Return why the policy's model may not summarise, None where it may (E5)."""
        found = await self._found(tenant_id, conversation_id, None)
        try:
            wanted = self._frames.policy_of(found).compaction.model
            self._summariser.choose_model(None, wanted, None)
        except ValidationError as error:
            return error.detail
        return None

    async def compact_for_build(
        self,
        tenant_id: str,
        conversation_id: str,
        request: RequestSettings,
        state: ConversationState,
        ground: Hashable,
    ) -> CompactResult | NoCompaction | CompactionPending | None:
        """Compact inside a build; None when another one changed the view meanwhile.

        After a failure a conversation is left alone for a while, and when there was nothing to
        do until its `ground` changes, which stands for all that a plan goes by: builds come
        often, and must not try again and again (E9).
        """
        if state.is_resting:
            raise ServiceUnavailable("The summariser failed a moment ago")
        if self._fruitless.get(conversation_id) == ground:
            return NoCompaction("nothing could be compacted, and nothing has changed since")
        try:
            async with self._leases.held(conversation_id) as is_mine:
                if not is_mine:
                    return CompactionPending()
                result = await self._run_for_build(tenant_id, conversation_id, request, state)
        except Conflict:
            return None
        if isinstance(result, NoCompaction):
            self._remember_fruitless(conversation_id, ground)
        return result

    async def work(self, tenant_id: str, conversation_id: str, job_id: str | None) -> None:
        """Do what a worker claimed, whose lease it holds: a job, or the compaction that is due.

        Raises only what should be tried again, such as a database that does not answer.
        """
        if job_id is not None:
            await self._work_on_job(tenant_id, conversation_id, job_id)
            return
        try:
            await self._work_on_due(tenant_id, conversation_id)
        except Conflict:  # the view was changed meanwhile: is the compaction still due?
            async with self._database.session() as records:
                await records.jobs.set_due(conversation_id)

    async def cut(self, situation: CompactionInput, view: View) -> CompactResult:
        """Apply an emergency cut: show this view, which needs no model's help (E6)."""
        started = self._now_ms()
        steps = (Trigger.EMERGENCY.value,)
        plan = CompactionPlan(steps=steps, freed_tokens=0, hidden=view.hidden, summarises=False)
        receipt = self._receipt(
            situation, _Made(plan, view), Trigger.EMERGENCY, None, self._effort(situation), started
        )
        with self._watched(situation, Trigger.EMERGENCY) as tell:
            await self._apply(situation, receipt)
            tell(result_of(receipt))
        return result_of(receipt)

    async def clear(
        self,
        tenant_id: str,
        conversation_id: str,
        request: RequestSettings,
        version: int,
        plan: CompactionPlan,
        spans: tuple[Span, ...] | None = None,
    ) -> bool:
        """Clear tool results as planned on a version of the view, with no model's help (F3).

        `spans` are what a window that slides shows of it. False while a compaction runs, and else
        true: the view was changed, by this or by another.
        """
        started = self._now_ms()
        try:
            async with self._leases.held(conversation_id) as is_mine:
                if not is_mine:
                    return False
                situation = await self._situation(tenant_id, conversation_id, request, spans)
                if situation.state.view_version == version:
                    await self._apply_clearing(situation, plan, started)
        except Conflict:
            pass
        return True

    # --- in the background ----------------------------------------------------------------

    async def _work_on_job(self, tenant_id: str, conversation_id: str, job_id: str) -> None:
        async with self._database.session() as records:
            job = await records.jobs.find(tenant_id, job_id)
        if job is None or job.status in {"done", "failed"}:
            return
        request = request_from(job.ask)
        try:
            situation = await self._checked(tenant_id, conversation_id, request)
            if request.dry_run:
                result = await self._preview(situation, request)
            else:
                result = await self._run(situation, Trigger.FORCED, request)
        except ContextError as error:
            told = {"code": error.code, "detail": error.detail, **error.facts}
            async with self._database.session() as records:
                await records.jobs.change(
                    conversation_id, job_id, "failed", error=json_text.dumps(told)
                )
            return
        async with self._database.session() as records:
            await records.jobs.change(
                conversation_id, job_id, "done", result=json_text.dumps(asdict(result))
            )

    async def _work_on_due(self, tenant_id: str, conversation_id: str) -> None:
        try:
            situation = await self._situation(tenant_id, conversation_id)
        except NotFound:
            return
        if situation.state.is_resting:
            return
        if not await self._is_due(situation):
            await self._clear_due(situation)
            return
        try:
            result = await self._run(situation, Trigger.BACKGROUND, CompactRequest())
        except NotFound:
            return  # deleted meanwhile
        except (ServiceUnavailable, ValidationError):
            await self._postpone(situation)
        else:
            if not result.compacted:
                await self._let_grow(situation)

    async def _is_due(self, situation: CompactionInput) -> bool:
        """Whether our own count, or what the provider reported, asks for a compaction (E2)."""
        if compaction_threshold(situation.resolved).reached(situation.state):
            return True
        async with self._database.session() as records:
            return await is_due_as_reported(records, situation.resolved, situation.conversation)

    async def _run_for_build(
        self,
        tenant_id: str,
        conversation_id: str,
        request: RequestSettings,
        state: ConversationState,
    ) -> CompactResult | NoCompaction | None:
        situation = await self._situation(tenant_id, conversation_id, request)
        if situation.state.view_version != state.view_version:
            return None
        try:
            result = await self._run(situation, Trigger.PROACTIVE, CompactRequest())
        except ServiceUnavailable:
            await self._postpone(situation)
            raise
        if not result.compacted:
            return NoCompaction(result.reason or "")
        return result

    async def _let_grow(self, situation: CompactionInput) -> None:
        """Leave alone, until it has grown, what cannot be compacted any further."""
        conversation_id, state = situation.conversation.conversation_id, situation.state
        limits = situation.resolved.judging_limits()
        async with self._database.session() as records:
            await records.contexts.let_grow(conversation_id, resume_at(state, limits))
            await records.jobs.clear_due(conversation_id, state.head_seq)

    async def _clear_due(self, situation: CompactionInput) -> None:
        conversation_id = situation.conversation.conversation_id
        async with self._database.session() as records:
            await records.jobs.clear_due(conversation_id, situation.state.head_seq)

    async def _postpone(self, situation: CompactionInput) -> None:
        rest = min(MIN_REST_SECONDS * 2 ** min(situation.state.failures, 16), MAX_REST_SECONDS)
        async with self._database.session() as records:
            await records.jobs.postpone(situation.conversation.conversation_id, rest)

    def _remember_fruitless(self, conversation_id: str, ground: Hashable) -> None:
        if len(self._fruitless) >= _MAX_FRUITLESS:
            self._fruitless.clear()
        self._fruitless[conversation_id] = ground

    # --- planning -------------------------------------------------------------------------

    async def _checked(
        self, tenant_id: str, conversation_id: str, ask: CompactRequest
    ) -> CompactionInput:
        """Read what to plan on, and raise ValidationError for a model that may not summarise."""
        self.check(ask)
        situation = await self._situation(tenant_id, conversation_id)
        self._model(situation, ask)
        return situation

    async def _situation(
        self,
        tenant_id: str,
        conversation_id: str,
        request: RequestSettings | None = None,
        spans: tuple[Span, ...] | None = None,
    ) -> CompactionInput:
        """Read what to plan on: the messages shown, or of them those in `spans`."""
        model = request.model if request else None
        found = await self._found(tenant_id, conversation_id, model)
        if found.is_outdated(self._active.now()):
            await self._active.settled(tenant_id, found)
            found = await self._found(tenant_id, conversation_id, model)
        async with self._database.session() as records:
            resolved = await self._frames.of(found, request)
            active = await _active(records, found)
            if active is not None and active.policy_strategy != resolved.policy.strategy:
                # Another strategy made what is shown: this one starts from the log (D6).
                await records.contexts.hide_compaction(conversation_id, found.state.view_version)
                found = replace(found, state=unhidden(found.state))
                active = None
            view = base_view(found.state, active.view if active else None, resolved.policy)
            shown = spans_through(spans or view.spans, found.state.head_seq)
            entries = await _entries(records, conversation_id, shown, view, resolved.policy)
        situation = CompactionInput(tenant_id, found, resolved, view, tuple(entries), active)
        return await self._shortened(situation)

    async def _shortened(self, situation: CompactionInput) -> CompactionInput:
        """Return the situation with what every build shortens: a plan goes by what they show."""
        resolved, view = situation.resolved, situation.view
        limits = resolved.policy_limits or resolved.limits
        if limits is None or not resolved.policy.messages.offload_oversized:
            return situation
        if situation.tokens_in(view) <= limits.capacity:
            return situation
        reserve = max(
            reserve_for(StrategyName.SANDWICH, limits), summary_cost(view, resolved.count)
        )
        left = text_room(resolved, limits, reserve + reader_tokens(resolved))
        costs = oversized(situation.shown, left)
        if not costs:
            return situation
        conversation_id = situation.conversation.conversation_id
        shorts = await shorts_for(self._database, conversation_id, costs, resolved, as_chat=True)
        return replace(situation, view=shorten(view, shorts))

    async def _found(self, tenant_id: str, conversation_id: str, model: str | None) -> Conversation:
        async with self._database.session() as records:
            found = await records.conversations.find(
                tenant_id, conversation_id, self._frames.default_model, model
            )
        if found is None:
            raise NotFound.conversation(conversation_id)
        return found

    def _plan(
        self, situation: CompactionInput, trigger: Trigger, ask: CompactRequest
    ) -> NoCompaction | CompactionPlan:
        if not situation.entries:
            return NoCompaction(f"the conversation has no messages{_where(situation.state)}")
        is_crowded = compaction_threshold(situation.resolved).is_crowded(situation.state)
        deep = trigger is Trigger.BACKGROUND and is_crowded
        forced = trigger is Trigger.FORCED
        strategy = ask.strategy or situation.resolved.policy.strategy
        return plan_for(
            situation.shown,
            situation.state,
            situation.resolved,
            situation.tokens_in(situation.view),
            CompactionOptions(
                forced or deep,
                deep,
                # What is due is more than was counted, if by the count the target is met.
                not situation.is_settled(strategy),
                ask.strategy,
                ask.target_tokens,
            ),
            situation.view,
        )

    async def _run(
        self, situation: CompactionInput, trigger: Trigger, ask: CompactRequest
    ) -> CompactResult:
        with self._watched(situation, trigger, ask.strategy) as tell:
            result = await self._attempt(situation, trigger, ask)
            tell(result)
        return result

    def _watched(
        self, situation: CompactionInput, trigger: Trigger, strategy: StrategyName | None = None
    ) -> AbstractContextManager[Callable[[CompactResult], None]]:
        conversation_id = situation.conversation.conversation_id
        strategy = strategy or situation.resolved.policy.strategy
        return self._observer.compacting(conversation_id, trigger, strategy)

    async def _attempt(
        self, situation: CompactionInput, trigger: Trigger, ask: CompactRequest
    ) -> CompactResult:
        started = self._now_ms()
        plan = self._plan(situation, trigger, ask)
        if isinstance(plan, NoCompaction):
            return _nothing(situation, plan.reason, ())
        effort = self._effort(situation)
        await self._tell(situation, EventType.STARTED, {"trigger": trigger, "steps": plan.steps})
        try:
            made = await self._make(situation, plan, trigger, ask, effort)
        except (ServiceUnavailable, ValidationError) as error:
            await self._record_failure(situation, trigger, error, effort)
            raise
        receipt = self._receipt(situation, made, trigger, ask.strategy, effort, started)
        if receipt.after_tokens >= receipt.before_tokens:
            told = {"trigger": trigger, "reason": "no_gain", "calls": effort.calls}
            await self._tell(situation, EventType.FAILED, told)
            return _nothing(situation, _NOT_SHORTER, plan.steps)
        try:
            await self._apply(situation, receipt)
        except Conflict:
            told = {"trigger": trigger, "reason": "context_changed", "calls": effort.calls}
            await self._tell(situation, EventType.FAILED, told)
            raise
        return result_of(receipt)

    async def _record_failure(
        self,
        situation: CompactionInput,
        trigger: Trigger,
        error: ContextError,
        effort: SummariserCalls,
    ) -> None:
        """Tell of a failure in the events and the log; one that no caller waits for is kept."""
        reason = error.facts.get("reason", error.code)
        told = {"trigger": trigger, "reason": reason, "calls": effort.calls}
        explained = {**told, "code": error.code, "detail": error.detail}
        conversation_id = situation.conversation.conversation_id
        async with self._database.session() as records:
            await records.events.add(conversation_id, EventType.FAILED, json_text.dumps(explained))
            if trigger is not Trigger.FORCED:
                await records.jobs.record_failure(conversation_id, json_text.dumps(explained))
        _log.warning("compaction_failed", extra={"data": told})

    async def _preview(self, situation: CompactionInput, ask: CompactRequest) -> CompactResult:
        """Return what a compaction would do, without a call of a model (E7).

        What needs no model is carried out as far as the receipt, and told exactly. The size of a
        summary that a model would write is estimated.
        """
        started, model = self._now_ms(), self._model(situation, ask)
        plan = self._plan(situation, Trigger.FORCED, ask)
        if isinstance(plan, NoCompaction):
            return _nothing(situation, plan.reason, ())
        if plan.hidden is not None and plan.summarises and model is not None:
            return self._estimated(situation, plan, ask)
        effort = self._effort(situation)
        made = await self._make(situation, plan, Trigger.FORCED, ask, effort)
        receipt = self._receipt(situation, made, Trigger.FORCED, ask.strategy, effort, started)
        if receipt.after_tokens >= receipt.before_tokens:
            return _nothing(situation, _NOT_SHORTER, plan.steps)
        result = result_of(receipt)
        return replace(result, compacted=False, reason=_DRY_RUN, compaction_id=None)

    def _estimated(
        self, situation: CompactionInput, plan: CompactionPlan, ask: CompactRequest
    ) -> CompactResult:
        """Return what a plan leads to, its summaries taking what they probably will."""
        resolved = situation.resolved
        summaries, retain, whole = self._expected(situation, plan, ask)
        view = view_after(situation.view, plan, summaries, retain, whole)
        tokens = sum(entry.tokens for entry in as_shown(situation.entries, view))
        note = view.note
        room = sum(summary.tokens for summary in view.summaries)
        room += resolved.count(note) if note is not None else 0
        span = plan.hidden or view.hidden
        tools = own_tools_cost(resolved, situation.state, view.trimmed_through)
        return replace(
            _nothing(situation, _DRY_RUN, plan.steps),
            after_tokens=resolved.usage(tokens, room, tools).total,
            after_msg_count=situation.messages_in(view),
            summary_range=(span.start, span.end) if span and view.summaries else None,
            summary_tokens=room,
            estimated=True,
        )

    def _expected(
        self, situation: CompactionInput, plan: CompactionPlan, ask: CompactRequest
    ) -> tuple[list[Summary], str | None, list[int]]:
        """Return what makes the view a plan leads to, the texts of its summaries unwritten."""
        view, policy, whole = situation.view, situation.resolved.policy, _whole(situation)
        limits = situation.resolved.judging_limits()
        strategy = ask.strategy or policy.strategy
        assert plan.hidden is not None
        if not plan.chunks:
            retain = "" if self._summary_ask(situation, ask, retains=True).wants_retain else None
            most = min(summary_room(limits), plan.freed_tokens + situation.state.summary_tokens)
            tokens = expected_tokens(situation.active, strategy, most)
            return [Summary(plan.hidden, "", tokens)], retain, whole
        chunks = chunks_for(plan, view, policy.tree_summary.chunk_size)
        most = min(node_room(limits), plan.freed_tokens // max(len(chunks), 1))
        tokens = expected_tokens(situation.active, strategy, most)
        nodes = [*view.summaries, *(Summary(chunk, "", tokens) for chunk in chunks)]
        while fold := _next_fold(situation, nodes):
            first, last = fold
            nodes[first:last] = [_folded(nodes[first:last], "", tokens)]
        return nodes, view.retain, whole

    # --- making ---------------------------------------------------------------------------

    async def _make(
        self,
        situation: CompactionInput,
        plan: CompactionPlan,
        trigger: Trigger,
        ask: CompactRequest,
        effort: SummariserCalls,
    ) -> _Made:
        """Carry a plan out; where no summary can be had, a build takes the next step (E9)."""
        try:
            if plan.hidden is None or not plan.summarises:
                return _Made(plan, _without_summary(situation, plan))
            if plan.chunks:
                return await self._grow_tree(situation, plan, ask, effort)
            return await self._roll(situation, plan, ask, effort)
        except (ServiceUnavailable, ValidationError):
            if plan.otherwise is None or trigger is not Trigger.PROACTIVE:
                raise
            made = await self._make(situation, plan.otherwise, trigger, ask, effort)
            made.lacks_summary = True
            return made

    async def _roll(
        self,
        situation: CompactionInput,
        plan: CompactionPlan,
        ask: CompactRequest,
        effort: SummariserCalls,
    ) -> _Made:
        """Carry the summary so far on over what is hidden now: one summary for all of it."""
        view, hidden = situation.view, plan.hidden
        assert hidden is not None
        fresh = fresh_spans(hidden, view.summarised, plan.released, view.window)
        before = "\n\n".join(summary.text for summary in view.summaries) or None
        result = await self._condense(
            situation,
            fresh,
            before,
            ask,
            summary_room(situation.resolved.judging_limits()),
            effort,
            kept=frozenset(plan.kept),
            retains=True,
        )
        sources = tuple(summary.span for summary in view.summaries)
        level = max((summary.level for summary in view.summaries), default=1)
        summary = Summary(
            hidden, result.text, self._count(situation, result.text), level, (*sources, *fresh)
        )
        after = view_after(view, plan, (summary,), result.retain, _whole(situation))
        return _Made(plan, after, [summary])

    async def _grow_tree(
        self,
        situation: CompactionInput,
        plan: CompactionPlan,
        ask: CompactRequest,
        effort: SummariserCalls,
    ) -> _Made:
        """Summarise the new chunks, each once, and fold where a level is full (D3).

        What was summarised before a model failed is kept: the plan ends there.
        """
        view, limits = situation.view, situation.resolved.judging_limits()
        policy = situation.resolved.policy.tree_summary
        nodes = list(view.summaries)
        made: list[Summary] = []
        hidden, failed = plan.hidden, False
        room = node_room(limits)
        released = [Span(seq, seq + 1) for seq in plan.released]
        for chunk in chunks_for(plan, view, policy.chunk_size):
            parts = overlap([*released, chunk] if not made else [chunk], view.window)
            try:
                result = await self._condense(
                    situation, parts, None, ask, room, effort, kept=frozenset(plan.kept)
                )
            except ServiceUnavailable:
                if not made or hidden is None:
                    raise
                end = max(chunk.start, view.hidden.end if view.hidden is not None else 0)
                plan, failed = replace(plan, hidden=Span(hidden.start, end)), True
                break
            tokens = self._count(situation, result.text)
            made.append(Summary(chunk, result.text, tokens, 1, parts))
            nodes.append(made[-1])
        made += await self._fold(situation, nodes, ask, effort)
        after = view_after(view, plan, nodes, view.retain, _whole(situation))
        return _Made(plan, after, made, lacks_summary=failed)

    async def _fold(
        self,
        situation: CompactionInput,
        nodes: list[Summary],
        ask: CompactRequest,
        effort: SummariserCalls,
    ) -> list[Summary]:
        """Fold full levels of a tree in place, and return the summaries that made."""
        limits = situation.resolved.judging_limits()
        made: list[Summary] = []
        while fold := _next_fold(situation, nodes):
            first, last = fold
            parts = nodes[first:last]
            try:
                text = await self._summariser.fold(
                    [part.text for part in parts],
                    self._summary_ask(situation, ask),
                    self._model(situation, ask),
                    node_room(limits),
                    effort,
                )
            except ServiceUnavailable:
                break  # the tree is larger than it should be, and is folded next time
            made.append(_folded(parts, text, self._count(situation, text)))
            nodes[first:last] = [made[-1]]
        return made

    async def _condense(
        self,
        situation: CompactionInput,
        spans: Sequence[Span],
        before: str | None,
        ask: CompactRequest,
        max_tokens: int,
        effort: SummariserCalls,
        *,
        kept: frozenset[int],
        retains: bool = False,
    ) -> SummaryResult:
        return await summarise_paged(
            self._database,
            self._summariser,
            situation.conversation.conversation_id,
            spans,
            before,
            self._summary_ask(situation, ask, retains=retains),
            self._model(situation, ask),
            max_tokens,
            effort,
            kept_seqs=kept,
            retained=situation.view.retain if retains else None,
        )

    def _effort(self, situation: CompactionInput) -> SummariserCalls:
        return self._summariser.effort(situation.tenant_id)

    def _model(self, situation: CompactionInput, ask: CompactRequest) -> str | None:
        resolved = situation.resolved
        return self._summariser.choose_model(
            ask.model, resolved.policy.compaction.model, resolved.model
        )

    def _summary_ask(
        self, situation: CompactionInput, ask: CompactRequest, *, retains: bool = False
    ) -> SummaryRequest:
        policy = situation.resolved.policy.compaction
        return SummaryRequest(
            prompt=policy.summary_prompt,
            directives=policy.summary_directives,
            retain_prompt=policy.retain_prompt if retains else None,
            retain_directives=policy.retain_directives if retains else (),
            instructions=ask.instructions,
        )

    @staticmethod
    def _count(situation: CompactionInput, text: str) -> int:
        return shown_cost(text, situation.resolved.count)

    # --- applying -------------------------------------------------------------------------

    def _receipt(
        self,
        situation: CompactionInput,
        made: _Made,
        trigger: Trigger,
        strategy: StrategyName | None,
        effort: SummariserCalls,
        started: float,
    ) -> Compaction:
        state, view, policy = situation.state, made.view, situation.resolved.policy
        left = as_shown(situation.entries, view)
        return Compaction(
            compaction_id=self._new_id(),
            parent_id=state.compaction_id,
            trigger=trigger,
            strategy=strategy or policy.strategy,
            policy_strategy=policy.strategy,
            strategies_run=made.plan.steps,
            span=made.plan.hidden or view.hidden or Span(1, view.trimmed_through + 1),
            view=view,
            made=tuple(made.made),
            summary_tokens=summary_cost(view, situation.resolved.count),
            hidden_tokens=state.tokens - sum(entry.tokens for entry in left),
            hidden_messages=state.head_seq - len(left),
            before_tokens=situation.tokens_in(situation.view),
            after_tokens=situation.tokens_in(view),
            before_msg_count=situation.messages_in(situation.view),
            after_msg_count=situation.messages_in(view),
            model=effort.model if made.made else None,
            prompt_hash=effort.prompt_hash if made.made else None,
            calls=effort.calls,
            input_tokens=effort.input_tokens,
            output_tokens=effort.output_tokens,
            cost_usd=effort.cost_usd,
            duration_ms=round(self._now_ms() - started),
            degraded=(SUMMARISER_UNAVAILABLE,) if made.lacks_summary or made.plan.drops else (),
        )

    async def _apply_clearing(
        self, situation: CompactionInput, plan: CompactionPlan, started: float
    ) -> None:
        made = _Made(plan, _without_summary(situation, plan))
        effort = self._effort(situation)
        receipt = self._receipt(situation, made, Trigger.TOOL_OUTPUT, None, effort, started)
        state, left = situation.state, as_shown(situation.entries, made.view)
        freed = sum(entry.tokens for entry in situation.shown) - sum(e.tokens for e in left)
        receipt = replace(
            receipt,
            hidden_tokens=state.hidden_tokens + freed,
            hidden_messages=state.hidden_messages,
        )
        with self._watched(situation, Trigger.TOOL_OUTPUT) as tell:
            await self._apply(situation, receipt, TRIMMED, state.resume_at)
            tell(result_of(receipt))

    async def _apply(
        self,
        situation: CompactionInput,
        receipt: Compaction,
        cause: str = "compaction",
        resume: int | None = None,
    ) -> None:
        conversation_id = situation.conversation.conversation_id
        shown = VisibleState(
            receipt.view,
            receipt.compaction_id,
            receipt.summary_tokens,
            receipt.hidden_tokens,
            receipt.hidden_messages,
            kept_of(receipt.view),
        )
        told = {**asdict(result_of(receipt)), "trigger": receipt.trigger}
        if resume is None:
            resume = _resume_after(situation, receipt)
        async with self._database.transaction() as records:
            locked = await records.log.lock(situation.tenant_id, conversation_id, None)
            if locked is None:
                raise NotFound.conversation(conversation_id)
            await records.contexts.add_compaction(conversation_id, receipt)
            applied = await records.contexts.show(
                conversation_id,
                shown,
                view_version=situation.state.view_version,
                cause=cause,
                resume_at=resume,
            )
            if not applied:
                raise Conflict("The context changed while it was being compacted; try again")
            await records.events.add(conversation_id, EventType.COMPACTED, json_text.dumps(told))

    async def _tell(
        self, situation: CompactionInput, event: EventType, data: dict[str, Any]
    ) -> None:
        async with self._database.session() as records:
            await records.events.add(
                situation.conversation.conversation_id, event, json_text.dumps(data)
            )


def _where(state: ConversationState) -> str:
    return " in its active window" if state.head_seq else ""


async def _active(records: Repositories, conversation: Conversation) -> Compaction | None:
    """Return the receipt of what a conversation shows, None where it shows its log."""
    compaction_id = conversation.state.compaction_id
    if compaction_id is None:
        return None
    return await records.contexts.find_compaction(conversation.conversation_id, compaction_id)


async def _entries(
    records: Repositories, conversation_id: str, spans: Sequence[Span], view: View, policy: Policy
) -> list[Entry]:
    """Return the entries in these spans of a view, the results of excluded tools marked (F3)."""
    entries: list[Entry] = []
    names: dict[int, str] = {}
    tools = policy.tool_output.exclude_tools
    for span in spans:
        entries += await records.log.entries(conversation_id, span.start, span.end)
        if tools:
            names.update(await records.log.tool_names(conversation_id, span.start, span.end))
    return with_excluded(entries, excluded_seqs(entries, view, names, tools))


def _whole(situation: CompactionInput) -> list[int]:
    """Return the seqs that are not cleared; results that came after a pin are among them."""
    return sorted(never_cleared(situation.entries))


def _without_summary(situation: CompactionInput, plan: CompactionPlan) -> View:
    """Return the view that a plan makes with the summaries there are."""
    view = situation.view
    return view_after(view, plan, view.summaries, view.retain, _whole(situation))


def _resume_after(situation: CompactionInput, receipt: Compaction) -> int:
    """Return how far the log has to grow before it is compacted by itself again.

    What has to stay can be more than `max_messages` allows: no compaction helps then.
    """
    state, resolved = situation.state, situation.resolved
    left = replace(state, hidden_messages=receipt.hidden_messages)
    is_crowded = compaction_threshold(resolved).is_crowded(left)
    return resume_at(state, resolved.judging_limits()) if is_crowded else 0


def _next_fold(situation: CompactionInput, nodes: Sequence[Summary]) -> tuple[int, int] | None:
    tree, limits = situation.resolved.policy.tree_summary, situation.resolved.judging_limits()
    most = reserve_for(StrategyName.TREE_SUMMARY, limits)
    return next_fold(nodes, tree.levels, tree.chunk_size, most)


def _folded(parts: Sequence[Summary], text: str, tokens: int) -> Summary:
    """Return the node that stands for several of one level."""
    span = Span(parts[0].span.start, parts[-1].span.end)
    return Summary(span, text, tokens, parts[0].level + 1, tuple(part.span for part in parts))


def _nothing(situation: CompactionInput, reason: str, strategies: tuple[str, ...]) -> CompactResult:
    tokens = situation.tokens_in(situation.view)
    messages = situation.messages_in(situation.view)
    return CompactResult(
        compacted=False,
        reason=reason,
        compaction_id=None,
        before_tokens=tokens,
        after_tokens=tokens,
        before_msg_count=messages,
        after_msg_count=messages,
        strategies_run=strategies,
        summary_range=None,
        model=None,
        summary_tokens=0,
        cost_usd=None,
        duration_ms=0,
    )
