"""Summaries of snapshots: a few sentences on the content of their windows.

1. A failed summary does not fail the snapshot, whose summary is `FAILED_SUMMARY` then.
2. The summary of the active compaction replaces the messages that it covers.
3. The last messages of the windows are read, about `LAST_MESSAGES` in whole pages, and at most
   `MAX_TEXT_CHARS` of each text, so that a summary takes a few calls of any window.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace

from app.common.errors import ServiceUnavailable, ValidationError
from app.common.pages import BATCH_BYTES, batches
from app.compaction.summaries.model_summary import SummaryTask
from app.compaction.summaries.prompt import SummaryRequest
from app.compaction.summaries.room import SummaryScope
from app.compaction.summaries.snapshot_summary import extract_snapshot_summary
from app.compaction.summariser import Summariser
from app.conversations.conversation import Conversation
from app.conversations.messages.row import LogRow
from app.conversations.view import Span, minus, overlap, spans_of, union
from app.formats.message import File, Message, Part, Role, Text, ToolCall
from app.repositories import Database
from app.snapshots.repository import SnapshotPart

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
LAST_MESSAGES = 1000
PAGE_MESSAGES = 200
MAX_TEXT_CHARS = 800
"""Characters of each text of a message that the model reads."""

_log = logging.getLogger("app.snapshots")


@dataclass(frozen=True, slots=True)
class SnapshotWindow:
    """The active window of a conversation to save."""

    conversation: Conversation
    part: SnapshotPart


@dataclass(eq=False, repr=False)
class SnapshotSummaries:
    """Summarises windows, by a model or by extracting sentences."""

    _database: Database
    _summariser: Summariser

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
            if chosen is not None:
                return await self._generated(tenant_id, windows, chosen)
            parts = [window.part for window in windows]
            pages = _pages((part.conversation_id, span) for part in parts for span in part.spans)
            ends = await self._read(*pages[0]), await self._read(*pages[-1])
            count = sum(part.message_count for part in parts)
            return extract_snapshot_summary(count, len(windows), *ends)
        except (ServiceUnavailable, ValidationError) as error:
            reason = error.facts.get("reason", error.code)
            _log.warning("snapshot_summary_failed", extra={"data": {"reason": reason}})
            return FAILED_SUMMARY

    async def _generated(
        self, tenant_id: str, windows: Sequence[SnapshotWindow], model: str
    ) -> str:
        run = self._summariser.start_run(tenant_id)
        task = SummaryTask(
            SummaryRequest(prompt=SUMMARY_PROMPT),
            model,
            SUMMARY_TOKENS,
            run,
            SummaryScope(self._summariser.access.tokenizer.count),
            min_chars=MIN_SUMMARY_CHARS,
        )
        batch: list[Message] = []
        try:
            async for messages in self._messages(windows):
                if len(batch) >= PAGE_MESSAGES:
                    made = await self._summariser.summarise(task, batch, is_end=False)
                    task, batch = replace(task, previous=made.text), []
                batch += messages
            return (await self._summariser.summarise(task, batch)).text
        finally:
            await run.record(self._database, agent_id=windows[0].conversation.agent_id)

    async def _messages(self, windows: Sequence[SnapshotWindow]) -> AsyncIterator[list[Message]]:
        """Yield what the model reads of each window: notes, and pages (rules 2 and 3)."""
        left = LAST_MESSAGES
        read: list[tuple[list[Message], Sequence[tuple[str, Span]]]] = []
        for number, window in reversed([*enumerate(windows, start=1)]):
            summary, visible = await self._visible(window)
            notes = [f"Conversation {number} of {len(windows)} begins here"] * (len(windows) > 1)
            notes += [f"Earlier in this conversation: {summary}"] * (summary is not None)
            pages = _pages((window.part.conversation_id, span) for span in visible)
            first = len(pages)
            while first and left > 0:
                first -= 1
                left -= pages[first][1].end - pages[first][1].start
            notes += ["Earlier messages are left out"] * (first > 0)
            read.append(([Message(Role.USER, (Text(f"[{it}]"),)) for it in notes], pages[first:]))
        for said, last in reversed(read):
            yield said
            for page in last:
                yield await self._read(*page)

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


def _pages(spans: Iterable[tuple[str, Span]]) -> list[tuple[str, Span]]:
    return [
        (conversation_id, Span(start, min(start + PAGE_MESSAGES, span.end)))
        for conversation_id, span in spans
        for start in range(span.start, span.end, PAGE_MESSAGES)
    ]


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
