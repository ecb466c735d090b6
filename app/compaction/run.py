"""One compaction: plans it, makes its summaries, and returns its receipt.

Nothing is stored here, and no session is open while a model is called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field

from app.common.errors import ServiceUnavailable
from app.compaction.planning import (
    LABEL_TOKENS,
    CompactionInput,
    plan_compaction,
    room_for_summaries,
    summary_limit,
    tree_chunks,
    tree_node_text_limit,
    unsummarised_spans,
)
from app.compaction.shown_history import tokens_of
from app.compaction.summaries.checklist import KEPT_SHARE, kept_tokens_of
from app.compaction.summaries.digest import Digest
from app.compaction.summaries.model_calls import SummariserRun
from app.compaction.summaries.model_summary import SummaryTask
from app.compaction.summaries.prompt import SummaryRequest, SummaryResult
from app.compaction.summaries.summariser import Summariser, read_user_messages, summarise_paged
from app.compaction.summaries.summary_text import Closing
from app.compaction.summaries.writing import SummaryScope, merged_unlisted, without_replaced
from app.conversations.due import exceeds_messages
from app.conversations.receipt import CompactionPlan, NoCompaction, Receipt, Trigger
from app.conversations.view import ENDLESS, Span, Summary, View, overlap, spans_through, union
from app.conversations.view_changes import (
    NO_PROVIDER_COMPACTION,
    summary_message_tokens,
    view_summary_tokens,
)
from app.http.fields import ModelName, RequestSchema, Tokens, examples
from app.http.fields import Strategy as StrategyField
from app.policy.policy import StrategyName
from app.repositories import Database

SMALL_ROOM_TOKENS = 256
"""Of a short conversation: a summary of the whole room could be longer than what it replaces."""
MIN_SPARE = 0.1
"""The share of an asked target that is worth another plan."""
LEVELS = 3
"""The levels of a tree: the summaries of the top one are not summarised again, unless they are too
much."""
COUNTED = (
    *("calls", "input_tokens", "output_tokens", "cache_creation_tokens", "cache_read_tokens"),
    "cost_usd",
)
"""What a receipt has of the calls of a run."""
SUMMARISER_UNAVAILABLE = "summariser_unavailable"
"""In `degraded`: a summary was not made, and the payload goes without it."""
DROPPED_WITHOUT_SUMMARY = "dropped_without_summary"
"""In `degraded`: messages were dropped without the summary that the policy asks for."""


class CompactionRequest(RequestSchema):
    """A compaction now, however full the context window is."""

    model_config = examples({"instructions": "Keep every file path.", "dry_run": True})

    strategy: StrategyField | None = None
    """Strategy for this compaction; the policy's by default."""
    model: ModelName | None = None
    """Model that summarises; must be an allowed one."""
    instructions: str | None = Field(default=None, max_length=32_000)
    """What this summary should keep."""
    target_tokens: Tokens | None = None
    """Tokens of the payload to aim for; by default `compaction.target` of the effective window
    or, within it already, as few as the strategy can."""
    dry_run: bool = False
    """Only return what would be done, and the size of the payload after it; no model is called."""


@dataclass(frozen=True, slots=True)
class Executed:
    """A plan that was carried out: the new view, and the summaries that were made.

    `digest` is what the one summary was written from without a model.
    """

    plan: CompactionPlan
    view: View
    made: Sequence[Summary] = ()
    digest: Digest | None = None


@dataclass(frozen=True, slots=True)
class CompactionRun:
    """One compaction: its input, its trigger, its request, and its model calls.

    The trigger is empty where a build only makes a summary for its payload.
    """

    database: Database
    summariser: Summariser
    source: CompactionInput
    trigger: str
    request: CompactionRequest
    calls: SummariserRun
    started_ms: float = 0.0

    @property
    def conversation_id(self) -> str:
        """The conversation that is compacted."""
        return self.source.conversation.conversation_id

    @property
    def strategy(self) -> StrategyName:
        """The strategy of this run."""
        return self.request.strategy or self.source.resolved.policy.strategy

    @property
    def model(self) -> str | None:
        """The model that summarises, None for the `extractive` summariser.

        Raises ValidationError for one that is not allowed.
        """
        resolved = self.source.resolved
        policy_model = resolved.policy.compaction.model
        return self.summariser.choose_model(self.request.model, policy_model, resolved.model)

    def plan(self, summary_tokens: int | None = None) -> NoCompaction | CompactionPlan:
        """Return what to compact; with `summary_tokens` its summaries take no more than these."""
        source, is_forced = self.source, self.trigger is Trigger.FORCED
        policy = source.resolved.policy.compaction
        minimal = not is_forced and exceeds_messages(policy, source.state)
        return plan_compaction(
            source,
            self.request.strategy,
            any_gain=is_forced or minimal,
            minimal=minimal,
            target_tokens=self.request.target_tokens,
            summary_tokens=summary_tokens,
        )

    def summary_limit(self, plan: CompactionPlan) -> int:
        """Return the tokens that summaries may take, labels included.

        That is the room; with an asked target what it leaves beside the shown messages, at least
        half of the reserve. Where the messages alone miss the target, that is no reason for a poor
        summary. [summary.room]
        """
        source, target_tokens = self.source, self.request.target_tokens
        room = room_for_summaries(source, target_tokens)
        if self.trigger is Trigger.PROVIDER:
            return room  # of messages that are hidden already
        if target_tokens is None:
            return summary_limit(plan, room, source)
        without = source.tokens_in(source.view_after(plan, ()))
        left = int((target_tokens - without) / source.resolved.factor)
        is_missed = left <= 0 and room > SMALL_ROOM_TOKENS
        return room if is_missed else max(room // 2, left)

    # --- carrying out ---------------------------------------------------------------------

    async def carry_out(self, plan: CompactionPlan) -> Executed:
        """Carry out a plan; where its summary takes less than its room, more messages stay.

        Then the summary is written once more without these. That is done for an asked target and
        without a model. [summary.room]
        """
        executed = await self._execute(plan)
        source, target, view = self.source, self.request.target_tokens, executed.view
        if target is None or plan.hidden is None or self.calls.calls or not executed.made:
            return executed
        size = source.tokens_in(view)
        if target - size < MIN_SPARE * target:
            return executed
        gentler = self.plan(view_summary_tokens(view, source.resolved.count) + LABEL_TOKENS)
        if isinstance(gentler, CompactionPlan) and gentler.summarises:
            again = await self._execute(gentler, self._digest_for(gentler, executed))
            if size < source.tokens_in(again.view) <= target:
                return again
        return executed

    def _digest_for(self, plan: CompactionPlan, executed: Executed) -> Digest | None:
        """Return the digest of a plan that was carried out for one that shows more messages."""
        source, digest = self.source, executed.digest
        before = {item.seq for item in source.shown_in(executed.view)}
        shown = {item.seq for item in source.shown_in(source.view_after(plan, ()))}
        if digest is None or not before <= shown:
            return None
        added = shown - before
        digest.forget(added, tokens_of(item for item in source.entries if item.seq in added))
        return digest

    async def _execute(self, plan: CompactionPlan, digest: Digest | None = None) -> Executed:
        source = self.source
        if plan.hidden is None or not plan.summarises:
            return Executed(plan, source.view_after(plan))
        if plan.chunks:
            return await self._grow_tree(plan, plan.hidden)
        summary, result = await self.summarise(plan, plan.hidden, self.summary_limit(plan), digest)
        after = source.view_after(plan, (summary,), result.retain or "")
        return Executed(plan, after, (summary,), result.digest)

    async def summarise_before_item(self, item_seq: int) -> Executed:
        """Summarise what a provider's item stands for; what is shown stays the same."""
        view = self.source.view
        hidden = Span(view.hidden.start if view.hidden is not None else 1, item_seq)
        plan = CompactionPlan((Trigger.PROVIDER,), 0, hidden, view.kept_seqs)
        summary, result = await self.summarise(plan, hidden, self.summary_limit(plan))
        after = replace(view, summaries=(summary,), retain=result.retain or view.retain)
        return Executed(plan, after, (summary,))

    async def summarise(
        self, plan: CompactionPlan, hidden: Span, limit: int, digest: Digest | None = None
    ) -> tuple[Summary, SummaryResult]:
        """Return the current summary extended to a range, and the result that it was made from.

        With its label it takes at most `limit` tokens. `digest` is what the messages state, where
        they were read before.
        """
        view, state = self.source.view, self.source.state
        spans = unsummarised_spans(hidden, view.summarised, plan.released_seqs, view.window)
        task = self._task(
            hidden,
            limit,
            retains=True,
            earlier_tokens=state.hidden_tokens - state.outside_tokens if view.summaries else 0,
            earlier_start=view.summarised.start if view.summarised is not None else 0,
            unlisted=await self._unlisted(),
        )
        task = replace(
            task,
            spans=spans,
            previous="\n\n".join(summary.text for summary in view.summaries) or None,
            retained=view.retain,
            verbatim_seqs=frozenset(plan.kept_seqs),
            digest=digest,
        )
        result = await summarise_paged(self.database, self.summariser, task)
        level = max((summary.level for summary in view.summaries), default=1)
        sources = (*(summary.span for summary in view.summaries), *spans)
        return self._summary(hidden, result, sources, level), result

    # --- trees ----------------------------------------------------------------------------

    async def _grow_tree(self, plan: CompactionPlan, hidden: Span) -> Executed:
        """Summarise the new chunks, each once, and merge summaries where a level is full."""
        source, view, room = self.source, self.source.view, self.summary_limit(plan)
        nodes, made, count = list(view.summaries), list[Summary](), source.resolved.count
        chunks = tree_chunks(plan, view, source.resolved.policy.tree_summary.chunk_size)
        free, limit = room - _tokens(nodes), tree_node_text_limit(room)
        if self.model is None:
            # What is chosen among the statements of all chunks loses fewer than chunk by chunk.
            free = max(free, min(room, len(chunks) * (limit + LABEL_TOKENS)))
            chunks = list(union(chunks))
        limit = max(limit + LABEL_TOKENS, free // max(1, len(chunks)))
        released = [Span(seq, seq + 1) for seq in plan.released_seqs]
        for chunk in chunks:
            parts = overlap([*released, chunk] if not made else [chunk], view.window)
            kept_tokens, verbatim = self._kept_room(nodes, room), frozenset(plan.kept_seqs)
            task = self._task(chunk, limit, shown_after=(), kept_tokens=kept_tokens)
            task = replace(task, spans=parts, verbatim_seqs=verbatim)
            result = await summarise_paged(self.database, self.summariser, task)
            made.append(self._summary(chunk, result, parts))
            nodes.append(made[-1])
        unlisted, lists = await self._unlisted(), [node.unlisted for node in made]
        new = await asyncio.to_thread(merged_unlisted, lists, count)
        if merged := await self._merge(nodes, room, unlisted, new):
            made += merged
        elif made:
            unlisted = await asyncio.to_thread(merged_unlisted, (unlisted, new), count)
            made[-1] = replace(made[-1], unlisted=unlisted)
        after = self._task(hidden, 0).scope.shown_after
        newer = await read_user_messages(self.database, self.conversation_id, after)

        def without_what_is_replaced() -> list[Summary]:
            texts = without_replaced([node.text for node in nodes], count, newer)
            pairs = zip(nodes, texts, strict=True)
            return [
                replace(node, text=text, tokens=summary_message_tokens(text, count))
                if text != node.text
                else node
                for node, text in pairs
            ]

        nodes = await asyncio.to_thread(without_what_is_replaced)
        return Executed(plan, source.view_after(plan, nodes, view.retain or ""), made)

    async def _merge(
        self, nodes: list[Summary], room: int, unlisted: str, newly_unlisted: str
    ) -> list[Summary]:
        """Merge full levels of a tree in place, and return the summaries that this made.

        Without a model all of them are merged once they take more than the room, and with an asked
        target where statements had no room: what is chosen among all statements loses the fewest.
        """
        fanout = self.source.resolved.policy.tree_summary.chunk_size
        is_asked, made = self.request.target_tokens is not None, list[Summary]()
        while True:
            lists_again = is_asked and bool(unlisted or newly_unlisted)
            merge = next_merge(nodes, fanout, room)
            if self.model is None and len(nodes) > 1 and (_tokens(nodes) > room or lists_again):
                merge = 0, len(nodes)
            if merge is None:
                return made
            first, end = merge
            parts = nodes[first:end]
            span = Span(parts[0].span.start, parts[-1].span.end)
            most = room if self.model is None else _tokens(parts) // 2
            task = self._task(
                span,
                max(tree_node_text_limit(room) + LABEL_TOKENS, most),
                unlisted=unlisted,
                newly_unlisted=newly_unlisted,
                kept_tokens=self._kept_room([*nodes[:first], *nodes[end:]], room),
            )
            texts = [part.text for part in parts]
            try:
                result = await self.summariser.merge(task, texts)
            except ServiceUnavailable:
                return made  # the tree is larger than it should be until the next merge succeeds
            unlisted, newly_unlisted = result.unlisted, ""
            sources, level = [part.span for part in parts], min(parts[0].level + 1, LEVELS)
            made.append(replace(self._summary(span, result, sources, level), headings=()))
            nodes[first:end] = [made[-1]]

    def _kept_room(self, nodes: Sequence[Summary], room: int) -> int:
        """Return the tokens that one more summary of a tree has for kept statements."""
        kept = kept_tokens_of([node.text for node in nodes], self.source.resolved.count)
        return max(0, int(room * KEPT_SHARE) - kept)

    # --- summaries ------------------------------------------------------------------------

    def _summary(
        self, span: Span, result: SummaryResult, sources: Iterable[Span], level: int = 1
    ) -> Summary:
        tokens = summary_message_tokens(result.text, self.source.resolved.count)
        return Summary(
            span, result.text, tokens, level, tuple(sources), result.headings, result.unlisted
        )

    def _task(self, span: Span, limit: int, *, retains: bool = False, **scope: Any) -> SummaryTask:
        """Return the task of a summary of a range by policy and call, its label in the limit.

        `scope` are fields of its scope; by default all later messages stay shown.
        """
        source, policy = self.source, self.source.resolved.policy.compaction
        after = tuple(spans_through((Span(span.end, ENDLESS),), source.state.head_seq))
        closing = Closing(span.start, span.end - 1, source.resolved.names_recall)
        return SummaryTask(
            SummaryRequest(
                policy.summary_prompt,
                policy.summary_directives,
                policy.retain_prompt if retains else None,
                policy.retain_directives if retains else (),
                self.request.instructions,
            ),
            self.model,
            limit - LABEL_TOKENS,
            self.calls,
            SummaryScope(source.resolved.count, closing, **{"shown_after": after, **scope}),
            self.conversation_id,
        )

    async def _unlisted(self) -> str:
        """Return the statements that had no room in the current summaries."""
        active = self.source.active
        if active is None or not active.view.summaries or self.model:
            return ""
        made: Sequence[Summary] = active.made
        if not made:
            async with self.database.session() as session:
                made = await session.contexts.newest_summaries(
                    self.conversation_id, active.compaction_id
                )
        return made[-1].unlisted if made else ""

    # --- the receipt ----------------------------------------------------------------------

    def receipt(self, executed: Executed, compaction_id: str, now_ms: float) -> Receipt:
        """Return the receipt of a plan that was carried out."""
        source, view, calls, plan = self.source, executed.view, self.calls, executed.plan
        state, resolved, shown = source.state, source.resolved, source.shown_in(executed.view)
        degraded = []
        if plan.drops_without_summary:
            degraded.append(DROPPED_WITHOUT_SUMMARY)
        if self.strategy is StrategyName.PROVIDER and self.trigger is Trigger.BUILD:
            degraded.append(NO_PROVIDER_COMPACTION)  # [strategy.provider]
        return Receipt(
            compaction_id=compaction_id,
            parent_id=state.compaction_id,
            trigger=self.trigger,
            strategy=self.strategy,
            policy_strategy=resolved.policy.strategy
            if view.provider_item is None
            else Trigger.PROVIDER,
            stages=plan.stages,
            hidden_span=plan.hidden or view.hidden or Span(1, view.last_cleared_result + 1),
            view=view,
            made=tuple(executed.made),
            summary_tokens=view_summary_tokens(view, resolved.count),
            hidden_tokens=state.tokens - tokens_of(shown),
            hidden_messages=state.head_seq - len(shown),
            before_tokens=source.tokens_in(source.view),
            after_tokens=source.tokens_in(view),
            before_messages=source.messages_in(source.view),
            after_messages=source.messages_in(view),
            model=calls.model if executed.made else None,
            prompt_hash=calls.prompt_hash if executed.made else None,
            target_tokens=self.request.target_tokens,
            duration_ms=round(now_ms - self.started_ms),
            degraded=tuple(degraded),
            **{name: getattr(calls, name) for name in COUNTED},
        )


def _tokens(nodes: Iterable[Summary]) -> int:
    return sum(node.tokens for node in nodes)


def next_merge(
    summaries: Sequence[Summary], fanout: int, max_tokens: int
) -> tuple[int, int] | None:
    """Return the slice `[i, j)` of a tree's summaries to merge into one of the next level, or None.

    1. A level below the top one that has `fanout` summaries merges its oldest `fanout`, the lowest
       level first.
    2. While the summaries take more than `max_tokens`, the lowest level that has two of them
       merges as a whole, so that they fit: at the top into one of the same level.
    3. With one summary a level nothing is merged, however many tokens it takes.

    Levels never rise towards newer summaries, before and after. See [decision 0008].
    """
    levels: dict[int, list[int]] = {}
    for index, node in enumerate(summaries):
        levels.setdefault(node.level, []).append(index)
    fanout = max(fanout, 2)
    for level, found in sorted(levels.items()):
        if level < LEVELS and len(found) >= fanout:
            return found[0], found[0] + fanout
    if _tokens(summaries) > max_tokens:
        runs = (found for _, found in sorted(levels.items()))
        return next(((run[0], run[-1] + 1) for run in runs if len(run) > 1), None)
    return None
