"""Summaries of snapshots: a few sentences on the content of their windows.

1. A failed summary does not fail the snapshot, whose summary is `FAILED_SUMMARY` then.
2. The summary of the active compaction replaces the messages that it covers.
3. The last `LAST_MESSAGES` of the windows are read, and at most `MAX_TEXT_CHARS` of each text, so
   that a summary takes a few calls of any window.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.common.errors import ServiceUnavailable, ValidationError
from app.common.pages import BATCH_BYTES, batches
from app.compaction.summaries.model_summary import SummaryTask
from app.compaction.summaries.prompt import SummaryRequest
from app.compaction.summaries.snapshot_summary import extract_snapshot_summary
from app.compaction.summaries.writing import SummaryScope
from app.compaction.summariser import Summariser
from app.conversations.conversation import Conversation
from app.conversations.messages.row import LogRow
from app.conversations.view import Span, count_in, minus, overlap, spans_of, union
from app.formats.message import File, Message, Part, Role, Text, ToolCall
from app.repositories import Database
from app.snapshots.restored_messages import part_of

FAILED_SUMMARY = "(summary generation failed)"
"""The summary of a snapshot whose summary could not be generated."""
SUMMARY_PROMPT = """\
Say in 2 to 4 sentences what happened above: what was accomplished, which decisions were made, \
and what is unfinished. Where a line in brackets says that another conversation begins, speak of \
all of them. Plain sentences without headings or lists, in the language of the conversation."""
"""The instruction to the model; the summariser adds the tags of every summary."""
SUMMARY_TOKENS = 400
"""The output limit, enough for four sentences in any language."""
MIN_SUMMARY_CHARS = 2_000
"""A summary of this length is accepted for windows of any length."""
LAST_MESSAGES = 400
MAX_TEXT_CHARS = 800
"""Characters of each text of a message that the model reads."""
_END_MESSAGES = 100
"""The messages of the beginning and the end from which sentences are extracted."""

_log = logging.getLogger("app.snapshots")


@dataclass(eq=False, repr=False)
class SnapshotSummaries:
    """Summarises active windows, by a model or by extracting sentences."""

    _database: Database
    _summariser: Summariser

    async def of(
        self,
        tenant_id: str,
        windows: Sequence[Conversation],
        policy_model: str | None,
        model: str | None,
    ) -> str:
        """Return a summary of all the windows, or `FAILED_SUMMARY` (rule 1).

        The model is chosen like the model of a compaction.
        """
        try:
            chosen = self._summariser.choose_model(None, policy_model, model)
            if chosen is not None:
                return await self._generated(tenant_id, windows, chosen)
            parts = [part_of(window) for window in windows]
            begin, end = parts[0].spans[0].start, parts[-1].spans[-1]
            first = overlap(parts[0].spans, (Span(begin, begin + _END_MESSAGES),))
            last = overlap((end,), (Span(end.end - _END_MESSAGES, end.end),))
            messages = await self._read(windows[0], first), await self._read(windows[-1], last)
            count = sum(part.message_count for part in parts)
            return extract_snapshot_summary(count, len(windows), *messages)
        except (ServiceUnavailable, ValidationError) as error:
            reason = error.facts.get("reason", error.code)
            _log.warning("snapshot_summary_failed", extra={"data": {"reason": reason}})
            return FAILED_SUMMARY

    async def _generated(self, tenant_id: str, windows: Sequence[Conversation], model: str) -> str:
        run = self._summariser.start_run(tenant_id)
        task = SummaryTask(
            SummaryRequest(prompt=SUMMARY_PROMPT),
            model,
            SUMMARY_TOKENS,
            run,
            SummaryScope(self._summariser.access.tokenizer.count),
            min_chars=MIN_SUMMARY_CHARS,
        )
        messages: list[Message] = []
        left = LAST_MESSAGES
        try:
            for number, window in reversed([*enumerate(windows, start=1)]):
                summary, visible = await self._visible(window)
                spans = last_of(visible, left)
                notes = [f"Conversation {number} of {len(windows)} begins here"]
                notes = notes if len(windows) > 1 else []
                notes += [f"Earlier in this conversation: {summary}"] if summary else []
                left -= count_in(spans)
                if count_in(spans) < count_in(visible):
                    notes.append("Earlier messages are left out")
                said = [Message(Role.USER, (Text(f"[{note}]"),)) for note in notes]
                messages = [*said, *await self._read(window, spans), *messages]
            return (await self._summariser.summarise(task, messages)).text
        finally:
            await run.record(self._database, agent_id=windows[0].agent_id)

    async def _visible(self, window: Conversation) -> tuple[str | None, Sequence[Span]]:
        """Return the active compaction's summary, and the spans of the window beside it."""
        state, spans = window.state, part_of(window).spans
        async with self._database.session() as session:
            receipt = await session.contexts.find_compaction(
                window.conversation_id, state.compaction_id
            )
        if receipt is None or receipt.summary is None or state.hidden_span is None:
            return None, spans
        kept_spans = overlap(spans_of(state.kept_seqs), spans)
        return receipt.summary, union((*minus(spans, (state.hidden_span,)), *kept_spans))

    async def _read(self, window: Conversation, spans: Sequence[Span]) -> list[Message]:
        """Return the truncated messages of spans, read in batches."""
        key, messages = window.conversation_id, list[Message]()
        for span in spans:
            async with self._database.session() as session:
                sizes = await session.log.sizes(key, span.start, span.end)
            for start, end in batches(sizes, BATCH_BYTES):
                async with self._database.session() as session:
                    rows = await session.contexts.rows(key, [Span(start, end)], as_chat=False)
                messages += await asyncio.to_thread(_truncated, rows)
        return messages


def last_of(spans: Sequence[Span], count: int) -> list[Span]:
    """Return the last so many messages of spans."""
    last: list[Span] = []
    for span in reversed(spans):
        if (start := max(span.start, span.end - count)) < span.end:
            last.insert(0, Span(start, span.end))
            count -= span.end - start
    return last


def _truncated(rows: Sequence[LogRow]) -> list[Message]:
    messages = (row.message() for row in rows)
    return [replace(each, parts=tuple(map(_short, each.parts))) for each in messages]


def _short(part: Part) -> Part:
    """Return a part whose text has no more than `MAX_TEXT_CHARS`, without its middle."""
    match part:
        case Text():
            return Text(_without_middle(part.text))
        case File(text=str(text)):
            return replace(part, text=_without_middle(text))
        case ToolCall():
            return replace(part, arguments=_without_middle(part.arguments))
    return part


def _without_middle(text: str) -> str:
    half = MAX_TEXT_CHARS // 2
    return text if len(text) <= MAX_TEXT_CHARS else f"{text[:half]} […] {text[-half:]}"
