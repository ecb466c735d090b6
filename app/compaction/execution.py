"""Carries out the plan of a compaction, or estimates its result."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.common.errors import ServiceUnavailable, ValidationError
from app.compaction.planning import tree_chunks, unsummarised_spans
from app.compaction.runs import CompactionRun, ExecutedPlan
from app.compaction.strategies.kinds import LEVELS
from app.compaction.summaries.checklist import KEPT_SHARE, kept_tokens_of, without_replaced_items
from app.compaction.summaries.extractive import SummaryScope, merged_unlisted, without_replaced
from app.compaction.summaries.model_summary import SummaryTask
from app.compaction.summaries.prompt import SummaryRequest
from app.compaction.summaries.statements.summary_text import Closing
from app.compaction.summariser import Summariser, read_user_messages, summarise_paged
from app.compaction.summary_budget import LABEL_TOKENS, tree_node_text_limit
from app.conversations.compaction_receipt import Trigger
from app.conversations.plans import CompactionPlan
from app.conversations.view import (
    ENDLESS,
    ProviderItem,
    Span,
    Summary,
    overlap,
    spans_through,
    union,
)
from app.conversations.views import summary_message_tokens, view_summary_tokens
from app.formats.message import Message
from app.models.tokens import CountText
from app.repositories import Database

MAX_REPLANNED = 2_000
"""Of more messages a summary is made once only: reading them takes most of the time."""
MIN_SPARE = 0.1
"""The share of an asked target that is worth another plan."""


@dataclass(frozen=True, slots=True)
class Execution:
    """Carries out plans of one run: makes their summaries, outside any transaction."""

    database: Database
    summariser: Summariser
    run: CompactionRun

    @property
    def _model(self) -> str | None:
        """The model that summarises, None for the built-in summariser."""
        return self.run.choose_model(self.summariser)

    async def carry_out(self, plan: CompactionPlan) -> ExecutedPlan:
        """Carry out a plan; where its summary takes less than its room, more messages stay.

        Then the summary is made once more of fewer messages. That is done for an asked target and
        without a model, of up to `MAX_REPLANNED` messages. [summary.room]
        """
        executed = await self._execute(plan)
        run, source, target = self.run, self.run.source, self.run.request.target_tokens
        if target is None or plan.hidden is None or run.calls.calls:
            return executed
        size = source.tokens_in(executed.view)
        new = plan.hidden.end - (source.view.hidden.end if source.view.hidden is not None else 1)
        if not executed.made or new > MAX_REPLANNED or target - size < MIN_SPARE * target:
            return executed
        used = view_summary_tokens(executed.view, source.resolved.count)
        gentler = run.plan(used + LABEL_TOKENS)
        if not isinstance(gentler, CompactionPlan) or not gentler.summarises:
            return executed
        again = await self._execute(gentler)
        return again if size < source.tokens_in(again.view) <= target else executed

    async def _execute(self, plan: CompactionPlan) -> ExecutedPlan:
        """Carry out a plan; a build uses the fallback plan if no summary can be made."""
        run = self.run
        try:
            if plan.hidden is None or not plan.summarises:
                return ExecutedPlan(plan, run.view_without_summary(plan))
            if plan.chunks:
                return await self._grow_tree(plan)
            summary, retain = await self._extended_summary(plan, plan.hidden)
            return ExecutedPlan(plan, run.view_after(plan, (summary,), retain), [summary])
        except (ServiceUnavailable, ValidationError):
            if plan.fallback is None or run.trigger is not Trigger.PROACTIVE:
                raise
            executed = await self._execute(plan.fallback)
            executed.lacks_summary = True
            return executed

    async def summarise_behind_item(self, item: ProviderItem) -> ExecutedPlan:
        """Summarise what a provider's item stands for; what is shown stays the same."""
        view = self.run.source.view
        hidden = Span(view.hidden.start if view.hidden is not None else 1, item.seq)
        plan = CompactionPlan(
            (Trigger.PROVIDER,), 0, hidden=hidden, unhidden_seqs=view.unhidden_seqs
        )
        summary, retain = await self._extended_summary(plan, hidden)
        after = replace(view, summaries=(summary,), retain=retain or view.retain)
        return ExecutedPlan(plan, after, [summary])

    async def _extended_summary(
        self, plan: CompactionPlan, hidden: Span
    ) -> tuple[Summary, str | None]:
        """Return the current summary extended to a range, and the retain section."""
        view, state = self.run.source.view, self.run.source.state
        spans = unsummarised_spans(hidden, view.summarised, plan.released_seqs, view.window)
        scope = replace(
            self._scope(hidden),
            earlier_tokens=state.hidden_tokens - state.outside_tokens if view.summaries else 0,
            earlier_start=view.summarised.start if view.summarised is not None else 0,
            unlisted=await self._unlisted(),
        )
        max_tokens = self.run.summary_limit(plan) - LABEL_TOKENS
        task = self._task(plan, spans, max_tokens, scope, extends=True)
        result = await summarise_paged(self.database, self.summariser, task)
        summary = Summary(
            hidden,
            result.text,
            summary_message_tokens(result.text, self.run.source.resolved.count),
            max((summary.level for summary in view.summaries), default=1),
            (*(summary.span for summary in view.summaries), *spans),
            result.sections,
            result.unlisted,
        )
        return summary, result.retain

    async def _grow_tree(self, plan: CompactionPlan) -> ExecutedPlan:
        """Summarise the new chunks, each once, and merge summaries where a level is full.

        If a model fails, the summaries made before are used and the hidden range ends there.
        """
        run, view, resolved = self.run, self.run.source.view, self.run.source.resolved
        nodes, made = list(view.summaries), list[Summary]()
        hidden, failed, room = plan.hidden, False, run.summary_limit(plan)
        chunks = tree_chunks(plan, view, resolved.policy.tree_summary.chunk_size)
        max_tokens = tree_node_text_limit(room)
        is_asked = run.request.target_tokens is not None
        wanted = room if is_asked else min(room, run.summary_floor(plan))
        free = wanted - sum(node.tokens for node in nodes)
        if self._model is None:
            # What is chosen among the statements of all chunks loses fewer than chunk by chunk.
            reserved = max(len(chunks) * (max_tokens + LABEL_TOKENS), free)
            most = room if is_asked else min(room, reserved)
            max_tokens, chunks = max(max_tokens, most - LABEL_TOKENS), list(union(chunks))
        elif chunks:
            max_tokens = max(max_tokens, free // len(chunks) - LABEL_TOKENS)
        released = [Span(seq, seq + 1) for seq in plan.released_seqs]
        for chunk in chunks:
            parts = overlap([*released, chunk] if not made else [chunk], view.window)
            scope = replace(
                self._scope(chunk), shown_after=(), kept_tokens=self._kept_room(nodes, room)
            )
            try:
                task = self._task(plan, parts, max_tokens, scope)
                result = await summarise_paged(self.database, self.summariser, task)
            except ServiceUnavailable:
                if not made or hidden is None:
                    raise
                end = max(chunk.start, view.hidden.end if view.hidden is not None else 0)
                plan, failed = replace(plan, hidden=Span(hidden.start, end)), True
                break
            tokens = summary_message_tokens(result.text, resolved.count)
            sections, unlisted = result.sections, result.unlisted
            made.append(Summary(chunk, result.text, tokens, 1, parts, sections, unlisted))
            nodes.append(made[-1])
        unlisted = await self._unlisted()
        new = await asyncio.to_thread(
            merged_unlisted, [node.unlisted for node in made], resolved.count
        )
        if merged := await self._merge(nodes, room, unlisted, new):
            made += merged
        elif made:
            unlisted = await asyncio.to_thread(merged_unlisted, (unlisted, new), resolved.count)
            made[-1] = replace(made[-1], unlisted=unlisted)
        if hidden is not None:
            shown = await read_user_messages(
                self.database, run.conversation_id, self._scope(hidden).shown_after
            )
            nodes = await asyncio.to_thread(_without_replaced, nodes, resolved.count, shown)
        return ExecutedPlan(plan, run.view_after(plan, nodes, view.retain), made, failed)

    async def _merge(
        self, nodes: list[Summary], room: int, unlisted: str, newly_unlisted: str
    ) -> list[Summary]:
        """Merge full levels of a tree in place, and return the summaries that this made."""
        run, model, made = self.run, self._model, list[Summary]()
        while merge := run.next_merge(
            nodes, room, merges_all=model is None, has_unlisted=bool(unlisted or newly_unlisted)
        ):
            first, end = merge
            parts = nodes[first:end]
            most = room if model is None else sum(part.tokens for part in parts) // 2
            max_tokens = max(tree_node_text_limit(room), most - LABEL_TOKENS)
            span = Span(parts[0].span.start, parts[-1].span.end)
            scope = replace(
                self._scope(span),
                unlisted=unlisted,
                newly_unlisted=newly_unlisted,
                kept_tokens=self._kept_room([*nodes[:first], *nodes[end:]], room),
            )
            request, texts = self._summary_request(), [part.text for part in parts]
            task = SummaryTask(request, model, max_tokens, run.calls, scope)
            try:
                result = await self.summariser.merge(task, texts)
            except ServiceUnavailable:
                break  # the tree is larger than it should be until the next merge succeeds
            tokens = summary_message_tokens(result.text, run.source.resolved.count)
            level, sources = min(parts[0].level + 1, LEVELS), tuple(part.span for part in parts)
            unlisted, newly_unlisted = result.unlisted, ""
            made.append(Summary(span, result.text, tokens, level, sources, unlisted=unlisted))
            nodes[first:end] = [made[-1]]
        return made

    def _kept_room(self, nodes: Sequence[Summary], room: int) -> int:
        """Return the tokens that one more summary of a tree has for kept statements."""
        count = self.run.source.resolved.count
        return max(0, int(room * KEPT_SHARE) - kept_tokens_of([node.text for node in nodes], count))

    def _summary_request(self, *, retains: bool = False) -> SummaryRequest:
        """Return the request of a summary by policy and call, with a retain section or not."""
        policy = self.run.source.resolved.policy.compaction
        return SummaryRequest(
            prompt=policy.summary_prompt,
            directives=policy.summary_directives,
            retain_prompt=policy.retain_prompt if retains else None,
            retain_directives=policy.retain_directives if retains else (),
            instructions=self.run.request.instructions,
        )

    def _task(
        self,
        plan: CompactionPlan,
        spans: Sequence[Span],
        max_tokens: int,
        scope: SummaryScope,
        *,
        extends: bool = False,
    ) -> SummaryTask:
        """Return the summary to make of some spans; it `extends` the current ones or is apart."""
        view = self.run.source.view
        previous = "\n\n".join(summary.text for summary in view.summaries) if extends else ""
        return SummaryTask(
            self._summary_request(retains=extends),
            self._model,
            max_tokens,
            self.run.calls,
            scope,
            self.run.conversation_id,
            spans,
            previous or None,
            view.retain if extends else None,
            frozenset(plan.unhidden_seqs),
        )

    async def _unlisted(self) -> str:
        """Return the statements that had no room in the current summaries."""
        active = self.run.source.active
        if active is None or not active.view.summaries or self._model:
            return ""
        made: Sequence[Summary] = active.made
        if not made:
            async with self.database.session() as session:
                made = await session.contexts.newest_summaries(
                    self.run.conversation_id, active.compaction_id
                )
        return made[-1].unlisted if made else ""

    def _scope(self, span: Span) -> SummaryScope:
        source = self.run.source
        return SummaryScope(
            source.resolved.count,
            Closing(span.start, span.end - 1, source.resolved.names_recall),
            first_seq=source.view.window[0].start if source.view.window else 1,
            shown_after=tuple(spans_through((Span(span.end, ENDLESS),), source.state.head_seq)),
            view=source.view,
        )


def _without_replaced(
    nodes: Sequence[Summary], count: CountText, shown: Sequence[Message]
) -> list[Summary]:
    """Return the summaries of a tree without the statements that something newer replaces."""
    texts = without_replaced([node.text for node in nodes], count, shown)
    texts = without_replaced_items(texts, shown)
    return [
        node
        if text == node.text
        else replace(node, text=text, tokens=summary_message_tokens(text, count))
        for node, text in zip(nodes, texts, strict=True)
    ]
