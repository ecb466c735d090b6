"""Compaction as an act: plan, summarise outside any transaction, apply if still valid (E3, E7)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

from app.domain.compaction import (
    CompactResult,
    Pending,
    fresh_spans,
    plan_for,
    spans_beside,
    summary_cost,
    summary_room,
    summary_view,
)
from app.domain.errors import Conflict, NotFound, ServiceUnavailable
from app.domain.frames import Ask, Frame
from app.domain.records import Compaction, Conversation, Head
from app.domain.strategies import Keep, Span, Summarise, spans_through
from app.domain.summaries import ContextState, SummaryAsk
from app.domain.turns import Entry
from app.services.condensing import condense
from app.services.frames import Frames
from app.services.ports import Database
from app.services.summariser import Summariser, SummaryResult

REST_MS = 30_000
"""How long builds leave a conversation alone that could not be compacted."""


@dataclass(frozen=True, slots=True)
class _Rest:
    until: float
    failed: bool
    head_seq: int


@dataclass(frozen=True, slots=True)
class CompactAsk:
    """A forced compaction; `instructions` and `model` are for this call alone."""

    model: str | None = None
    instructions: str | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Situation:
    """What a compaction is planned on: the conversation, its frame, what it shows."""

    conversation: Conversation
    frame: Frame
    entries: tuple[Entry, ...]
    summary: str | None

    @property
    def before_tokens(self) -> int:
        """Tokens of the payload as it is now."""
        head = self.conversation.head
        shown = sum(entry.tokens for entry in self.entries)
        return self.frame.usage(shown, head.summary_tokens).total

    @property
    def before_messages(self) -> int:
        """Messages of the payload as it is now, the summary among them."""
        return len(self.entries) + (self.conversation.head.span is not None)

    def outside(self, span: Span) -> list[Entry]:
        """Return the entries that a summary of `span` leaves verbatim."""
        return [entry for entry in self.entries if not span.start <= entry.seq < span.end]


class CompactionService:
    """Runs compactions, one at a time for each conversation of this process."""

    def __init__(
        self,
        database: Database,
        frames: Frames,
        summariser: Summariser,
        new_id: Callable[[], str],
        now_ms: Callable[[], float],
    ) -> None:
        self._database = database
        self._frames = frames
        self._summariser = summariser
        self._new_id = new_id
        self._now_ms = now_ms
        self._resting: dict[str, _Rest] = {}
        # A lock lives as long as somebody holds it or waits for it.
        self._running: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def compact(self, tenant_id: str, conversation_id: str, ask: CompactAsk) -> CompactResult:
        """Compact now, whatever the pressure (E7).

        Raises NotFound, ValidationError for a model that may not summarise,
        ContextLimitUnknown, or ServiceUnavailable with the previous state unchanged (E9).
        """
        async with self._alone(conversation_id):
            situation = await self._situation(tenant_id, conversation_id)
            return await self._run(situation, "forced", ask)

    async def compact_for_build(
        self, tenant_id: str, conversation_id: str, request: Ask, head: Head
    ) -> CompactResult | Keep | Pending | None:
        """Compact inside a build; None when another one changed the view meanwhile.

        After a failure a conversation is left alone for a while, and when there was nothing to
        do until something is added: builds come often, and must not try again and again (E9).
        """
        if conversation_id in self._running:
            return Pending()
        rest = self._resting.get(conversation_id)
        if rest is not None and rest.until > self._now_ms():
            if rest.failed:
                raise ServiceUnavailable("The summariser failed a moment ago")
            if rest.head_seq == head.head_seq:
                return Keep("nothing could be compacted, and nothing was added since")
        async with self._alone(conversation_id):
            situation = await self._situation(tenant_id, conversation_id, request)
            if situation.conversation.head.view_version != head.view_version:
                return None
            try:
                result = await self._run(situation, "proactive", CompactAsk())
            except Conflict:
                return None
            except ServiceUnavailable:
                self._rest(conversation_id, head, failed=True)
                raise
            if not result.compacted:
                self._rest(conversation_id, head, failed=False)
                return Keep(result.reason or "")
            return result

    async def state(self, tenant_id: str, conversation_id: str) -> ContextState | None:
        """Return the active summary and its range of seqs, None when there is none (D6)."""
        async with self._database.session() as records:
            found = await records.conversations.find(
                tenant_id, conversation_id, self._frames.default_model
            )
            if found is None:
                raise NotFound.conversation(conversation_id)
            if found.head.compaction_id is None:
                return None
            receipt = await records.contexts.find_compaction(
                conversation_id, found.head.compaction_id
            )
        if receipt is None or receipt.created_at is None:
            return None
        if receipt.strategy != self._frames.policy_of(found).strategy:
            return None
        return ContextState(
            strategy=receipt.strategy,
            summary=receipt.summary,
            summary_range=(receipt.span.start, receipt.span.end),
            compressed_at=receipt.created_at.isoformat(),
        )

    def _rest(self, conversation_id: str, head: Head, *, failed: bool) -> None:
        now = self._now_ms()
        self._resting = {key: rest for key, rest in self._resting.items() if rest.until > now}
        self._resting[conversation_id] = _Rest(now + REST_MS, failed, head.head_seq)

    @asynccontextmanager
    async def _alone(self, conversation_id: str) -> AsyncIterator[None]:
        lock = self._running.get(conversation_id)
        if lock is None:
            lock = self._running[conversation_id] = asyncio.Lock()
        async with lock:
            yield

    async def _situation(
        self, tenant_id: str, conversation_id: str, request: Ask | None = None
    ) -> Situation:
        async with self._database.session() as records:
            found = await records.conversations.find(
                tenant_id,
                conversation_id,
                self._frames.default_model,
                request.model if request else None,
            )
            if found is None:
                raise NotFound.conversation(conversation_id)
            head, summary = found.head, None
            if head.compaction_id is not None:
                receipt = await records.contexts.find_compaction(
                    conversation_id, head.compaction_id
                )
                summary = receipt.summary if receipt is not None else None
            entries = [
                entry
                for span in spans_through(spans_beside(head.span), head.head_seq)
                for entry in await records.log.entries(conversation_id, span.start, span.end)
            ]
        frame = await self._frames.of(found, request)
        return Situation(found, frame, tuple(entries), summary)

    async def _run(self, situation: Situation, trigger: str, ask: CompactAsk) -> CompactResult:
        started = self._now_ms()
        if not situation.entries:
            return _nothing(situation, "the conversation has no messages", ())
        plan = plan_for(
            situation.entries,
            situation.conversation.head,
            situation.frame,
            situation.before_tokens,
            forced=trigger == "forced",
        )
        if isinstance(plan, Keep):
            return _nothing(situation, plan.reason, ())
        policy = situation.frame.policy
        if ask.dry_run:
            return self._preview(situation, plan)
        result = await self._summarise(situation, plan, ask)
        receipt = self._receipt(situation, plan, result, trigger, started)
        if receipt.after_tokens >= receipt.before_tokens:
            return _nothing(situation, "the summary would not be shorter", (policy.strategy,))
        await self._apply(situation.conversation, receipt)
        return _result(receipt)

    async def _summarise(
        self, situation: Situation, plan: Summarise, ask: CompactAsk
    ) -> SummaryResult:
        frame, head = situation.frame, situation.conversation.head
        policy = frame.policy.compaction
        model = self._summariser.choose_model(ask.model, policy.model, frame.model)
        return await condense(
            self._database,
            self._summariser,
            situation.conversation.conversation_id,
            fresh_spans(plan.span, head.span),
            situation.summary,
            SummaryAsk(
                prompt=policy.summary_prompt,
                directives=policy.summary_directives,
                instructions=ask.instructions,
            ),
            model,
            summary_room(frame.judging_limits()),
        )

    def _receipt(
        self,
        situation: Situation,
        plan: Summarise,
        result: SummaryResult,
        trigger: str,
        started: float,
    ) -> Compaction:
        frame, head = situation.frame, situation.conversation.head
        cost = summary_cost(summary_view(plan.span, result.text, frame.policy), frame.count)
        left = situation.outside(plan.span)
        return Compaction(
            compaction_id=self._new_id(),
            parent_id=head.compaction_id,
            trigger=trigger,
            strategy=frame.policy.strategy,
            span=plan.span,
            summary=result.text,
            summary_tokens=cost,
            before_tokens=situation.before_tokens,
            after_tokens=frame.usage(sum(entry.tokens for entry in left), cost).total,
            before_msg_count=situation.before_messages,
            after_msg_count=len(left) + 1,
            model=result.model,
            prompt_hash=result.prompt_hash,
            cost_usd=result.cost_usd,
            duration_ms=round(self._now_ms() - started),
        )

    def _preview(self, situation: Situation, plan: Summarise) -> CompactResult:
        """Return what a compaction would do, a summary taking all the room it may (E7)."""
        left = situation.outside(plan.span)
        shown = sum(entry.tokens for entry in left)
        room = min(summary_room(situation.frame.judging_limits()), plan.freed_tokens)
        nothing = _nothing(situation, "dry run", (situation.frame.policy.strategy,))
        return replace(
            nothing,
            after_tokens=situation.frame.usage(shown, room).total,
            after_msg_count=len(left) + 1,
            summary_range=(plan.span.start, plan.span.end),
            summary_tokens=room,
        )

    async def _apply(self, conversation: Conversation, receipt: Compaction) -> None:
        conversation_id = conversation.conversation_id
        async with self._database.transaction() as records:
            hidden = await records.log.total_at(conversation_id, receipt.span.end - 1)
            hidden -= await records.log.total_at(conversation_id, receipt.span.start - 1)
            await records.contexts.add_compaction(conversation_id, receipt)
            applied = await records.contexts.show_compaction(
                conversation_id,
                receipt,
                hidden_tokens=hidden,
                view_version=conversation.head.view_version,
            )
            if not applied:
                raise Conflict("The context changed while it was being compacted; try again")


def _nothing(situation: Situation, reason: str, strategies: tuple[str, ...]) -> CompactResult:
    tokens, messages = situation.before_tokens, situation.before_messages
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


def _result(receipt: Compaction) -> CompactResult:
    return CompactResult(
        compacted=True,
        reason=None,
        compaction_id=receipt.compaction_id,
        before_tokens=receipt.before_tokens,
        after_tokens=receipt.after_tokens,
        before_msg_count=receipt.before_msg_count,
        after_msg_count=receipt.after_msg_count,
        strategies_run=(receipt.strategy,),
        summary_range=(receipt.span.start, receipt.span.end),
        model=receipt.model,
        summary_tokens=receipt.summary_tokens,
        cost_usd=receipt.cost_usd,
        duration_ms=receipt.duration_ms,
    )
