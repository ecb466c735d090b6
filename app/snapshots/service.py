"""Snapshots: save with a summary, list, read and delete.

1. A snapshot stores the active windows of one moment; its summary, a few sentences on them,
   is generated afterwards, with no session open. Conversations that are deleted meanwhile are left
   out, and then the summary too.
2. A failed summary does not fail the snapshot, whose summary is `FAILED_SUMMARY` then. The summary
   of the active compaction replaces the messages that it covers. The last `LAST_MESSAGES` of
   them are read, and at most `MAX_TEXT_CHARS` of each text, so that a summary takes a few calls
   for any number.
3. A transaction that adds a part holds a key-share lock on the state of its conversation, so that a
   deletion, which locks that, leaves no part [log.delete-everything].
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from app.common import json_text
from app.common.errors import NotFound, ServiceUnavailable, ValidationError
from app.common.ids import keys_of
from app.common.pages import BATCH_BYTES, Bound, Page, batches
from app.compaction.summaries.model_summary import SummaryTask
from app.compaction.summaries.prompt import SummaryRequest
from app.compaction.summaries.summariser import Summariser
from app.compaction.summaries.writing import SummaryScope
from app.conversations.conversation import Conversation
from app.conversations.messages.redactions import REDACTED_SUMMARY
from app.conversations.messages.row import LogRow
from app.conversations.moving_window import ActiveWindows
from app.conversations.repository import DELETE_PARTS, REMOVED_SUMMARY
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.view import (
    Span,
    count_in,
    marker_of,
    minus,
    overlap,
    spans_of,
    start_of_last,
    union,
)
from app.database.connections import Session, Statement
from app.database.sql import bounded, fields_of, insert, lengths, limits, page_of, read
from app.database.tables import NOT_EXPIRED, TABLES
from app.formats.message import File, Message, Part, Role, Text, ToolCall
from app.repositories import Database
from app.snapshots.restored_messages import SnapshotPart, part_of
from app.snapshots.schemas import Snapshot, SnapshotModel
from app.snapshots.snapshot_summary import extract_snapshot_summary

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
"""A summary of this length is accepted for any number of messages."""
LAST_MESSAGES = 400
MAX_TEXT_CHARS = 800
"""Characters of each text of a message that the model reads."""
_END_MESSAGES = 100
"""The messages of the beginning and the end from which sentences are extracted."""

_log = logging.getLogger("app.snapshots")

LOCK_CONVERSATION = Statement(
    f"""
        SELECT h.redacted_version
        FROM states h
        JOIN conversations c ON c.conversation_id = h.conversation_id
        WHERE h.conversation_id = :conversation_id AND c.conversation_id = :conversation_id
            AND c.tenant_id = :tenant_id AND {NOT_EXPIRED}
        FOR KEY SHARE OF h
        """
)
_OWN = TABLES["snapshots"].without("created_at")
ADD = Statement(
    f"""
        WITH added AS (
            {insert("snapshots", *_OWN, created_at="CAST(:created_at AS timestamptz)")}
            ON CONFLICT (tenant_id, snapshot_id) DO NOTHING
            RETURNING tenant_id, snapshot_id
        ), parts AS (
            INSERT INTO snapshot_parts (
                conversation_id, snapshot_id, tenant_id, spans, message_count
            )
            SELECT part.id, added.snapshot_id, added.tenant_id, part.spans, part.count
            FROM added, json_to_recordset(CAST(:parts AS json))
                AS part (id uuid, spans bigint[], count bigint)
        )
        SELECT snapshot_id FROM added
        """
)
_READ = (*TABLES["snapshots"].without("tenant_id"),)


def _with_ids(where: str) -> str:
    """Return a query for these snapshots of a tenant, with the ids of their conversations."""
    return f"""
        WITH page AS MATERIALIZED (
            SELECT {", ".join(_READ)} FROM snapshots s WHERE s.tenant_id = :tenant_id AND {where}
        ), parts AS MATERIALIZED (
            SELECT p.snapshot_id, p.spans, c.created_at, c.conversation_id,
                coalesce(c.own_id, CAST(c.conversation_id AS text)) AS public_id
            FROM snapshot_parts p
            JOIN conversations c ON c.conversation_id = p.conversation_id
            WHERE p.tenant_id = :tenant_id
                AND p.snapshot_id = ANY (ARRAY(SELECT snapshot_id FROM page))
        )
        SELECT page.*, (
                SELECT CAST(json_agg(
                    json_build_array(conversation_id, public_id, spans)
                    ORDER BY parts.created_at, conversation_id
                ) AS text)
                FROM parts WHERE parts.snapshot_id = page.snapshot_id
            ) AS parts
        FROM page
    """


FIND = Statement(_with_ids("s.snapshot_id = :snapshot_id"))
LIST = Statement(
    bounded(
        _with_ids(
            """
            (CAST(:before AS timestamptz) IS NULL OR (s.created_at, s.snapshot_id)
                < (CAST(:before AS timestamptz), CAST(:before_id AS text)))
            AND (:agent_id IS NULL OR s.agent_id = :agent_id)
            AND (:conversation_id IS NULL OR s.snapshot_id = ANY (ARRAY(
                SELECT snapshot_id FROM snapshot_parts WHERE conversation_id = :conversation_id
            )))
            ORDER BY s.created_at DESC, s.snapshot_id DESC LIMIT :limit
            """
        ),
        (*_READ, "parts"),
        lengths("description", "summary", "models", "parts"),
        "created_at DESC, snapshot_id DESC",
    )
)
REMOVE = Statement(
    f"""
        WITH deleted AS (
            DELETE FROM snapshots WHERE tenant_id = :tenant_id AND snapshot_id = :snapshot_id
            RETURNING tenant_id, snapshot_id
        ), {DELETE_PARTS}
        """
)


@dataclass(eq=False, repr=False)
class SnapshotService:
    """Saves, lists, finds and deletes snapshots."""

    _database: Database
    _resolver: SettingsResolver
    _summariser: Summariser
    _active: ActiveWindows
    _new_id: Callable[[], str]

    async def save(
        self,
        tenant_id: str,
        description: str | None,
        *,
        conversation_id: str | None = None,
        agent_id: str | None = None,
    ) -> Snapshot:
        """Save the active window of a conversation, or those of an agent, without clearing them.

        Raises NotFound, or ValidationError when all of them are empty.
        """
        agent, default_model, active = None, self._resolver.default_model, list[Conversation]()
        async with self._database.session() as session:
            if conversation_id is not None:
                stored = [await session.conversations.get(tenant_id, conversation_id)]
            else:
                agent = await session.agents.get(tenant_id, agent_id or "")
                ids = await session.conversations.ids_of_agent(tenant_id, agent.agent_id)
                found = [await session.conversations.find(tenant_id, each) for each in ids]
                stored = [conversation for conversation in found if conversation is not None]
        for each in sorted(stored, key=lambda it: (it.created_at, it.conversation_id)):
            with suppress(NotFound):  # deleted meanwhile
                updated = await self._active.updated(tenant_id, each)
                active += [updated] if part_of(updated).spans else []
        if not active:
            raise ValidationError("There are no messages to save")
        first, owner = active[0], agent or active[0]
        now, policy = self._active.now(), self._resolver.policy_of(first)
        cleared_at = first.state.cleared_at
        if agent is not None:
            cleared_at, policy = agent.last_cleared_at, self._resolver.policy(agent.settings.policy)
        start = marker_of(cleared_at, owner.rolling_window_seconds, now)
        summary = await self._summary_of(
            tenant_id, active, policy.compaction.model, owner.model or default_model
        )
        async with self._database.transaction() as session:
            if agent is not None:  # the lock orders this transaction and a deletion of the agent
                await session.agents.get(tenant_id, agent.agent_id, lock=True)
            keys = [it.conversation_id for it in active]
            versions = await lock_conversations(session.session, tenant_id, keys)
            saved = [it for it in active if it.conversation_id in versions]
            if not saved:
                raise NotFound.conversation(first.public_id)
            if len(saved) < len(active):
                summary = REMOVED_SUMMARY
            elif any(versions[it.conversation_id] != it.state.redacted_version for it in saved):
                summary = REDACTED_SUMMARY
            models = [(it.public_id, it.model or default_model) for it in saved]
            parts = [part_of(conversation) for conversation in saved]
            snapshot = Snapshot(
                snapshot_id=self._new_id(),
                created_at=now,
                description=description,
                summary=summary,
                message_count=sum(part.message_count for part in parts),
                window_start=start or first.state.oldest_at or now,
                window_end=now,
                agent_id=owner.agent_id,
                conversation_ids=tuple(public_id for public_id, _ in models),
                models=tuple(SnapshotModel(each, model) for each, model in models if model),
            )
            await store_snapshot(session.session, tenant_id, snapshot, parts)
        return snapshot

    async def _summary_of(
        self,
        tenant_id: str,
        active: Sequence[Conversation],
        policy_model: str | None,
        model: str | None,
    ) -> str:
        """Return a summary of all the active windows, or `FAILED_SUMMARY` (rule 2).

        The model is chosen like the model of a compaction.
        """
        try:
            chosen = self._summariser.choose_model(None, policy_model, model)
            if chosen is not None:
                return await self._generated(tenant_id, active, chosen)
            parts = [part_of(conversation) for conversation in active]
            begin, end = parts[0].spans[0].start, parts[-1].spans[-1]
            first = overlap(parts[0].spans, (Span(begin, begin + _END_MESSAGES),))
            last = overlap((end,), (Span(end.end - _END_MESSAGES, end.end),))
            messages = await self._read(active[0], first), await self._read(active[-1], last)
            count = sum(part.message_count for part in parts)
            return extract_snapshot_summary(count, len(active), *messages)
        except (ServiceUnavailable, ValidationError) as error:
            reason = error.facts.get("reason", error.code)
            _log.warning("snapshot_summary_failed", extra={"data": {"reason": reason}})
            return FAILED_SUMMARY

    async def _generated(self, tenant_id: str, active: Sequence[Conversation], model: str) -> str:
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
            for number, conversation in reversed([*enumerate(active, start=1)]):
                summary, visible = await self._visible(conversation)
                head_seq = conversation.state.head_seq
                newest = Span(start_of_last(visible, head_seq, left), head_seq + 1)
                spans = overlap(visible, (newest,))
                notes = [f"Conversation {number} of {len(active)} begins here"]
                notes = notes if len(active) > 1 else []
                notes += [f"Earlier in this conversation: {summary}"] if summary else []
                left -= count_in(spans)
                if count_in(spans) < count_in(visible):
                    notes.append("Earlier messages are left out")
                said = [Message(Role.USER, (Text(f"[{note}]"),)) for note in notes]
                messages = [*said, *await self._read(conversation, spans), *messages]
            return (await self._summariser.summarise(task, messages)).text
        finally:
            await run.record(self._database, agent_id=active[0].agent_id)

    async def _visible(self, conversation: Conversation) -> tuple[str | None, Sequence[Span]]:
        """Return the active compaction's summary, and the spans of the active window beside it."""
        state, spans = conversation.state, part_of(conversation).spans
        async with self._database.session() as session:
            key, active_id = conversation.conversation_id, state.compaction_id
            receipt = await session.contexts.find_receipt(key, active_id)
        if receipt is None or receipt.summary is None or state.hidden_span is None:
            return None, spans
        kept_spans = overlap(spans_of(state.protected_seqs), spans)
        return receipt.summary, union((*minus(spans, (state.hidden_span,)), *kept_spans))

    async def _read(self, conversation: Conversation, spans: Sequence[Span]) -> list[Message]:
        """Return the truncated messages of spans, read in batches."""
        key, messages = conversation.conversation_id, list[Message]()
        for span in spans:
            async with self._database.session() as session:
                sizes = await session.log.sizes(key, span.start, span.end)
            for start, end in batches(sizes, BATCH_BYTES):
                async with self._database.session() as session:
                    rows = await session.contexts.rows(key, [Span(start, end)], as_chat=False)
                messages += await asyncio.to_thread(_truncated, rows)
        return messages

    async def page(
        self,
        tenant_id: str,
        limit: int,
        before: tuple[datetime, str] | None,
        bound: Bound,
        *,
        agent_id: str | None = None,
        public_id: str | None = None,
    ) -> Page[Snapshot]:
        """Return a page, newest first, after the time and id that ended the previous page.

        An agent selects its snapshots and those of its conversations, a conversation those with its
        messages.
        """
        at, id = before or (None, None)
        filters = {"tenant_id": tenant_id, "agent_id": agent_id, "conversation_id": None}
        async with self._database.session() as session:
            if public_id is not None:
                key = await session.conversations.find_key(tenant_id, public_id)
                filters["conversation_id"] = key or keys_of(tenant_id, public_id)[0]
            rows = await session.session.all(
                LIST, before=at, before_id=id, **filters, **limits(limit, bound)
            )
        return page_of(rows, _snapshot_from)

    async def find(self, tenant_id: str, snapshot_id: str) -> tuple[Snapshot, list[SnapshotPart]]:
        """Return a snapshot and the places of its messages; raises NotFound."""
        async with self._database.session() as session:
            row = await session.session.first(FIND, tenant_id=tenant_id, snapshot_id=snapshot_id)
        if row is None:
            raise no_snapshot(snapshot_id)
        return _snapshot_from(row), [
            SnapshotPart(key, public_id, tuple(map(Span, edges[::2], edges[1::2])))
            for key, public_id, edges in json_text.loads(row["parts"] or "[]")
        ]

    async def remove(self, tenant_id: str, snapshot_id: str) -> Mapping[str, int]:
        """Delete a snapshot and return the rows deleted by table; raises NotFound."""
        own = {"tenant_id": tenant_id, "snapshot_id": snapshot_id}
        async with self._database.transaction() as session:
            deleted = await session.session.first(REMOVE, **own)
            if deleted is None or not deleted["snapshots"]:
                raise no_snapshot(snapshot_id)
        return dict(deleted)


def no_snapshot(snapshot_id: str) -> NotFound:
    """Return the error for an unknown snapshot."""
    return NotFound(f"No snapshot {snapshot_id}", {"snapshot_id": snapshot_id})


async def lock_conversations(
    session: Session, tenant_id: str, conversation_ids: Sequence[str]
) -> dict[str, int]:
    """Lock conversations against deletion and redaction in this transaction.

    Returns those that exist, each with the view version of its last redaction.
    """
    versions = {}
    for each in sorted(conversation_ids):  # one order, so that locks cannot deadlock
        row = await session.first(LOCK_CONVERSATION, tenant_id=tenant_id, conversation_id=each)
        if row is not None:
            versions[each] = row["redacted_version"]
    return versions


async def store_snapshot(
    session: Session, tenant_id: str, snapshot: Snapshot, parts: Iterable[SnapshotPart]
) -> bool:
    """Store a snapshot; return False for a used id."""
    models = json_text.dumps({item.conversation_id: item.model for item in snapshot.models})
    rows = [
        {
            "id": part.conversation_id,
            "spans": [edge for span in part.spans for edge in (span.start, span.end)],
            "count": part.message_count,
        }
        for part in parts
    ]
    own = fields_of(snapshot) | {"models": models, "parts": json_text.dumps(rows)}
    return await session.value(ADD, tenant_id=tenant_id, **own) is not None


def _snapshot_from(row: Any) -> Snapshot:
    ids = tuple(public_id for _, public_id, _ in json_text.loads(row["parts"] or "[]"))
    # Models of deleted conversations are left out.
    models: dict[str, str] = json_text.loads(row["models"])
    named = tuple(SnapshotModel(each, models[each]) for each in ids if each in models)
    return read(Snapshot, row, models=named, conversation_ids=ids)


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
