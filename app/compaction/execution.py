"""Carries out the plan of a compaction, or estimates its result."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from app.common.errors import ServiceUnavailable, ValidationError
from app.compaction.planning import CompactionInput, tree_chunks, unsummarised_spans
from app.compaction.runs import (
    CompactionRun,
    ExecutedPlan,
    merged_summary,
)
from app.compaction.schemas import CompactionRequest
from app.compaction.sent_payloads import SentPayloads
from app.compaction.summaries.answer import SummaryResult
from app.compaction.summaries.checklist import KEPT_SHARE, kept_tokens_of, without_replaced_items
from app.compaction.summaries.extractive import SummaryScope
from app.compaction.summaries.payload_prefix import PrefixProblem
from app.compaction.summaries.prompt import SummaryRequest
from app.compaction.summaries.statements.merging import merged_unlisted, without_replaced
from app.compaction.summaries.statements.summary_text import Closing
from app.compaction.summariser import (
    Summariser,
    SummaryTask,
    read_user_messages,
    summarise_paged,
    summarise_payload,
)
from app.compaction.summary_budget import (
    LABEL_TOKENS,
    tree_node_text_limit,
)
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


class PlanExecutor:
    """Carries out plans: makes their summaries, outside any transaction."""

    def __init__(self, database: Database, summariser: Summariser, payloads: SentPayloads) -> None:
        self._database = database
        self._summariser = summariser
        self._payloads = payloads

    def model(self, source: CompactionInput, request: CompactionRequest) -> str | None:
        """Return the model that summarises; raises ValidationError for one not allowed."""
        resolved = source.resolved
        return self._summariser.choose_model(
            request.model, resolved.policy.compaction.model, resolved.model
        )

    async def carry_out(self, run: CompactionRun, plan: CompactionPlan) -> ExecutedPlan:
        """Carry out a plan; where its summary takes less than its room, more messages stay.

        Then the summary is made once more of fewer messages. That is done for an asked target and
        without a model, of up to `MAX_REPLANNED` messages. [summary.room]
        """
        executed = await self.execute(run, plan)
        source, target = run.source, run.request.target_tokens
        if target is None or plan.hidden is None or run.calls.calls:
            return executed
        view = executed.view
        used = view_summary_tokens(view, source.resolved.count)
        spare = target - source.tokens_in(view)
        new = plan.hidden.end - (source.view.hidden.end if source.view.hidden is not None else 1)
        if not executed.made or new > MAX_REPLANNED or spare < MIN_SPARE * target:
            return executed
        gentler = run.plan(used + LABEL_TOKENS)
        if not isinstance(gentler, CompactionPlan) or not gentler.summarises:
            return executed
        again = await self.execute(run, gentler)
        left = source.tokens_in(again.view)
        return again if source.tokens_in(view) < left <= target else executed

    async def execute(self, run: CompactionRun, plan: CompactionPlan) -> ExecutedPlan:
        """Carry out a plan; a build uses the fallback plan if no summary can be made."""
        try:
            if plan.hidden is None or not plan.summarises:
                return ExecutedPlan(plan, run.view_without_summary(plan))
            if plan.chunks:
                return await self._grow_tree(run, plan)
            return await self._summarise(run, plan, plan.hidden)
        except (ServiceUnavailable, ValidationError):
            if plan.fallback is None or run.trigger is not Trigger.PROACTIVE:
                raise
            executed = await self.execute(run, plan.fallback)
            executed.lacks_summary = True
            return executed

    async def _summarise(
        self, run: CompactionRun, plan: CompactionPlan, hidden: Span
    ) -> ExecutedPlan:
        """Extend the current summary to the whole hidden range."""
        summary, retain = await self._extended_summary(run, plan, hidden)
        return ExecutedPlan(plan, run.view_after(plan, (summary,), retain), [summary])

    async def summarise_behind_item(self, run: CompactionRun, item: ProviderItem) -> ExecutedPlan:
        """Summarise what a provider's item stands for; what is shown stays the same."""
        view = run.source.view
        hidden = Span(view.hidden.start if view.hidden is not None else 1, item.seq)
        plan = CompactionPlan(
            (Trigger.PROVIDER,), 0, hidden=hidden, unhidden_seqs=view.unhidden_seqs
        )
        summary, retain = await self._extended_summary(run, plan, hidden)
        after = replace(view, summaries=(summary,), retain=retain or view.retain)
        return ExecutedPlan(plan, after, [summary])

    async def _extended_summary(
        self, run: CompactionRun, plan: CompactionPlan, hidden: Span
    ) -> tuple[Summary, str | None]:
        """Return the current summary extended to a range, and the retain section."""
        source = run.source
        view, state = source.view, source.state
        new_spans = unsummarised_spans(hidden, view.summarised, plan.released_seqs, view.window)
        scope = replace(
            self._scope(run, hidden),
            earlier_tokens=state.hidden_tokens - state.outside_tokens if view.summaries else 0,
            earlier_start=view.summarised.start if view.summarised is not None else 0,
            unlisted=await self._unlisted(run),
        )
        max_tokens = run.summary_limit(plan) - LABEL_TOKENS
        task = self._task(run, plan, new_spans, max_tokens, scope, extends=True)
        result = await self._payload_summary(run, task)
        if result is None:
            result = await summarise_paged(self._database, self._summariser, task)
        sources = tuple(summary.span for summary in view.summaries)
        level = max((summary.level for summary in view.summaries), default=1)
        tokens = summary_message_tokens(result.text, source.resolved.count)
        summary = Summary(
            hidden,
            result.text,
            tokens,
            level,
            (*sources, *new_spans),
            result.sections,
            result.unlisted,
        )
        return summary, result.retain

    async def _grow_tree(self, run: CompactionRun, plan: CompactionPlan) -> ExecutedPlan:
        """Summarise the new chunks, each once, and merge summaries where a level is full.

        If a model fails, the summaries made before are used and the hidden range ends there.
        """
        view, resolved = run.source.view, run.source.resolved
        if run.wants_prefix:
            run.calls.prefix_problem = PrefixProblem.STRATEGY
        nodes = list(view.summaries)
        made: list[Summary] = []
        hidden, failed = plan.hidden, False
        room = run.summary_limit(plan)
        chunks = tree_chunks(plan, view, resolved.policy.tree_summary.chunk_size)
        max_tokens = tree_node_text_limit(room)
        wanted = room
        if run.request.target_tokens is None:
            wanted = min(room, run.summary_floor(plan))
        free = wanted - sum(node.tokens for node in nodes)
        if self.model(run.source, run.request) is None:
            # What is chosen among the statements of all chunks loses fewer than chunk by chunk.
            reserved = max(len(chunks) * (max_tokens + LABEL_TOKENS), free)
            most = room if run.request.target_tokens is not None else min(room, reserved)
            max_tokens, chunks = max(max_tokens, most - LABEL_TOKENS), list(union(chunks))
        elif chunks:
            max_tokens = max(max_tokens, free // len(chunks) - LABEL_TOKENS)
        released = [Span(seq, seq + 1) for seq in plan.released_seqs]
        for chunk in chunks:
            parts = overlap([*released, chunk] if not made else [chunk], view.window)
            try:
                scope = replace(
                    self._scope(run, chunk),
                    shown_after=(),
                    kept_tokens=_kept_room(nodes, room, resolved.count),
                )
                task = self._task(run, plan, parts, max_tokens, scope)
                result = await summarise_paged(self._database, self._summariser, task)
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
        unlisted = await self._unlisted(run)
        new = await asyncio.to_thread(
            merged_unlisted, [node.unlisted for node in made], resolved.count
        )
        if merged := await self._merge(run, nodes, room, unlisted, new):
            made += merged
        elif made:
            unlisted = await asyncio.to_thread(merged_unlisted, (unlisted, new), resolved.count)
            made[-1] = replace(made[-1], unlisted=unlisted)
        if hidden is not None:
            shown = await read_user_messages(
                self._database, run.conversation_id, self._scope(run, hidden).shown_after
            )
            nodes = await asyncio.to_thread(_without_replaced, nodes, resolved.count, shown)
        return ExecutedPlan(plan, run.view_after(plan, nodes, view.retain), made, failed)

    async def _merge(
        self,
        run: CompactionRun,
        nodes: list[Summary],
        room: int,
        unlisted: str,
        newly_unlisted: str,
    ) -> list[Summary]:
        """Merge full levels of a tree in place, and return the summaries that this made."""
        resolved = run.source.resolved
        model = self.model(run.source, run.request)
        made: list[Summary] = []
        while merge := run.next_merge(
            nodes, room, merges_all=model is None, has_unlisted=bool(unlisted or newly_unlisted)
        ):
            first, end = merge
            parts, max_tokens = nodes[first:end], tree_node_text_limit(room)
            if model is None:
                max_tokens = max(max_tokens, room - LABEL_TOKENS)
            else:
                max_tokens = max(max_tokens, sum(part.tokens for part in parts) // 2 - LABEL_TOKENS)
            others = [*nodes[:first], *nodes[end:]]
            kept_tokens = _kept_room(others, room, resolved.count)
            span = Span(parts[0].span.start, parts[-1].span.end)
            try:
                result = await self._summariser.merge(
                    [part.text for part in parts],
                    summary_request(run),
                    model,
                    max_tokens,
                    run.calls,
                    replace(
                        self._scope(run, span),
                        unlisted=unlisted,
                        newly_unlisted=newly_unlisted,
                        kept_tokens=kept_tokens,
                    ),
                )
            except ServiceUnavailable:
                break  # the tree is larger than it should be until the next merge succeeds
            tokens = summary_message_tokens(result.text, resolved.count)
            made.append(merged_summary(parts, result.text, tokens, result.unlisted))
            unlisted, newly_unlisted = result.unlisted, ""
            nodes[first:end] = [made[-1]]
        return made

    def _task(
        self,
        run: CompactionRun,
        plan: CompactionPlan,
        spans: Sequence[Span],
        max_tokens: int,
        scope: SummaryScope,
        *,
        extends: bool = False,
    ) -> SummaryTask:
        """Return the summary to make of some spans; it `extends` the current ones or is apart."""
        view = run.source.view
        previous = "\n\n".join(summary.text for summary in view.summaries) if extends else ""
        return SummaryTask(
            run.conversation_id,
            spans,
            previous or None,
            summary_request(run, retains=extends),
            self.model(run.source, run.request),
            max_tokens,
            run.calls,
            scope,
            frozenset(plan.unhidden_seqs),
            view.retain if extends else None,
        )

    async def _payload_summary(self, run: CompactionRun, task: SummaryTask) -> SummaryResult | None:
        """Return a summary by the agent's own model that reads its payload, None without one.

        Then `run.calls` has the reason, and a transcript is summarised instead. [summary.prefix]
        """
        if not run.wants_prefix:
            return None
        found = await self._payloads.find(
            run.source, task.spans, run.request.model, self._summariser
        )
        if isinstance(found, PrefixProblem):
            run.calls.prefix_problem = found
            return None
        try:
            return await summarise_payload(self._database, self._summariser, task, found)
        except ServiceUnavailable as error:
            run.calls.prefix_problem = error.facts["reason"]
            return None

    async def _unlisted(self, run: CompactionRun) -> str:
        """Return the statements that had no room in the current summaries."""
        active = run.source.active
        if active is None or not active.view.summaries or self.model(run.source, run.request):
            return ""
        if active.made:
            return active.made[-1].unlisted
        async with self._database.session() as session:
            made = await session.contexts.newest_summaries(
                run.conversation_id, active.compaction_id
            )
        return made[-1].unlisted if made else ""

    def _scope(self, run: CompactionRun, span: Span) -> SummaryScope:
        resolved, window = run.source.resolved, run.source.view.window
        closing = Closing(span.start, span.end - 1, resolved.names_recall)
        first_seq = window[0].start if window else 1
        shown = spans_through((Span(span.end, ENDLESS),), run.source.state.head_seq)
        return SummaryScope(
            resolved.count,
            closing,
            first_seq=first_seq,
            shown_after=tuple(shown),
            view=run.source.view,
        )


def _kept_room(nodes: Sequence[Summary], room: int, count: CountText) -> int:
    """Return the tokens that one more summary of a tree has for kept statements."""
    return max(0, int(room * KEPT_SHARE) - kept_tokens_of([node.text for node in nodes], count))


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


def summary_request(run: CompactionRun, *, retains: bool = False) -> SummaryRequest:
    """Return the request of a summary by the policy and the call, with a retain section or not."""
    policy = run.source.resolved.policy.compaction
    return SummaryRequest(
        prompt=policy.summary_prompt,
        directives=policy.summary_directives,
        retain_prompt=policy.retain_prompt if retains else None,
        retain_directives=policy.retain_directives if retains else (),
        instructions=run.request.instructions,
    )
