"""Summaries of snapshots: a few sentences on the content of their windows.

1. A failed summary does not fail the snapshot, whose summary is `FAILED_SUMMARY` then.
2. The summary of the active compaction replaces the messages that it covers.
3. At most `FIRST_MESSAGES` and `LAST_MESSAGES` of the windows are read, a page at a time, and at
   most `MAX_TEXT_CHARS` of each text, so that a summary takes a few calls of any window.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass

from app.common.errors import ServiceUnavailable, ValidationError
from app.common.pages import BATCH_BYTES, batches
from app.compaction.summaries.prompt import SummaryRequest
from app.compaction.summaries.snapshot_summary import extract_snapshot_summary
from app.compaction.summaries.usage_recording import record_usage
from app.compaction.summariser import Summariser
from app.conversations.conversation import Conversation
from app.conversations.messages.row import LogRow
from app.conversations.view import Span, count_in, minus, overlap, spans_of, union
from app.formats.message import Message, Role, Text
from app.repositories import Database
from app.snapshots.snapshot import (
    FAILED_SUMMARY,
    MIN_SUMMARY_CHARS,
    SUMMARY_PROMPT,
    SUMMARY_TOKENS,
    SnapshotPart,
    truncated,
    without_middle,
)

FIRST_MESSAGES = 200
LAST_MESSAGES = 800
PAGE_MESSAGES = 200
MAX_TEXT_CHARS = 800
"""Characters of each text of a message that the model reads."""

_log = logging.getLogger("app.snapshots")


@dataclass(frozen=True, slots=True)
class SnapshotWindow:
    """The active window of a conversation to save."""

    conversation: Conversation
    part: SnapshotPart


class SnapshotSummaries:
    """Summarises windows, by a model or by extracting sentences."""

    def __init__(self, database: Database, summariser: Summariser) -> None:
        self._database = database
        self._summariser = summariser

    async def of(
        self,
        tenant_id: str,
        windows: Sequence[SnapshotWindow],
        policy_model: str | None,
        model: str | None,
    ) -> str:
        """Return a summary of all the windows, or `FAILED_SUMMARY` (rule 1).

        The model is chosen like the model of a compaction.
        """
        try:
            chosen = self._summariser.choose_model(None, policy_model, model)
            if chosen is None:
                return await self._extracted(windows)
            return await self._generated(tenant_id, windows, chosen)
        except (ServiceUnavailable, ValidationError) as error:
            reason = error.facts.get("reason", error.code)
            _log.warning("snapshot_summary_failed", extra={"data": {"reason": reason}})
            return FAILED_SUMMARY

    async def _extracted(self, windows: Sequence[SnapshotWindow]) -> str:
        first, last = windows[0].part, windows[-1].part
        begins = _pages((first.conversation_id, span) for span in first.spans[:1])
        ends = _pages((last.conversation_id, span) for span in last.spans[-1:])
        opening, closing = await self._read(*begins[0]), await self._read(*ends[-1])
        messages = sum(window.part.message_count for window in windows)
        return extract_snapshot_summary(messages, len(windows), opening, closing)

    async def _generated(
        self, tenant_id: str, windows: Sequence[SnapshotWindow], model: str
    ) -> str:
        run = self._summariser.start_run(tenant_id)

        async def summarised(batch: list[Message], summary: str | None, is_end: bool) -> str:
            result = await self._summariser.summarise(
                batch,
                summary,
                SummaryRequest(prompt=SUMMARY_PROMPT),
                model,
                SUMMARY_TOKENS,
                run,
                is_end=is_end,
                min_chars=MIN_SUMMARY_CHARS,
            )
            return result.text

        summary: str | None = None
        batch: list[Message] = []
        try:
            async for messages in self._messages(windows):
                if batch:
                    summary = await summarised(batch, summary, is_end=False)
                batch = messages
            return await summarised(batch, summary, is_end=True)
        finally:
            agent_id = windows[0].conversation.agent_id
            await record_usage(self._database, run, agent_id=agent_id)

    async def _messages(self, windows: Sequence[SnapshotWindow]) -> AsyncIterator[list[Message]]:
        """Yield the messages that the model reads, in lists of about a page (rules 2 and 3)."""
        notes: dict[str, list[Message]] = {}
        all_spans: list[tuple[str, Span]] = []
        for number, window in enumerate(windows, start=1):
            summary, spans = await self._visible(window)
            texts = [f"Conversation {number} of {len(windows)} begins here"] * (len(windows) > 1)
            texts += [f"Earlier in this conversation: {summary}"] * (summary is not None)
            notes[window.part.conversation_id] = list(map(_note, texts))
            all_spans += [(window.part.conversation_id, span) for span in spans]
        ends = without_middle(all_spans, FIRST_MESSAGES, LAST_MESSAGES)
        left_out = count_in(span for _, span in all_spans) - count_in(span for _, span in ends)
        page = [_note(f"{left_out:,} messages in the middle are left out")] if left_out else []
        for conversation_id, span in _pages(ends):
            page += notes.pop(conversation_id, [])
            page += await self._read(conversation_id, span)
            if len(page) >= PAGE_MESSAGES:
                yield page
                page = []
        # Conversations without visible messages: their notes matter if they have a summary.
        labels = len(windows) > 1
        page += [note for texts in notes.values() if len(texts) > labels for note in texts]
        if page:
            yield page

    async def _visible(self, window: SnapshotWindow) -> tuple[str | None, Sequence[Span]]:
        """Return the active compaction's summary, and the spans of the window beside it."""
        state, part = window.conversation.state, window.part
        if state.compaction_id is None or state.hidden_span is None:
            return None, part.spans
        async with self._database.session() as session:
            receipt = await session.contexts.find_compaction(
                part.conversation_id, state.compaction_id
            )
        if receipt is None or receipt.summary is None:
            return None, part.spans
        kept_spans = overlap(spans_of(state.kept_seqs), part.spans)
        return receipt.summary, union((*minus(part.spans, (state.hidden_span,)), *kept_spans))

    async def _read(self, conversation_id: str, span: Span) -> list[Message]:
        """Return the truncated messages of a span, read in batches."""
        async with self._database.session() as session:
            sizes = await session.log.sizes(conversation_id, span.start, span.end)
        messages: list[Message] = []
        for start, end in batches(sizes, BATCH_BYTES):
            async with self._database.session() as session:
                part = Span(start, end)
                rows = await session.contexts.rows(conversation_id, [part], as_chat=False)
            messages += await asyncio.to_thread(_truncated, rows)
        return messages


def _truncated(rows: Sequence[LogRow]) -> list[Message]:
    return [truncated(row.message(), MAX_TEXT_CHARS) for row in rows]


def _pages(spans: Iterable[tuple[str, Span]]) -> list[tuple[str, Span]]:
    return [
        (conversation_id, Span(start, min(start + PAGE_MESSAGES, span.end)))
        for conversation_id, span in spans
        for start in range(span.start, span.end, PAGE_MESSAGES)
    ]


def _note(text: str) -> Message:
    return Message(Role.USER, (Text(f"[{text}]"),))
