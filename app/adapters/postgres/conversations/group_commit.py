"""Appends by states that the process knows, committed in groups.

1. Each statement updates the row in `heads` if its versions are the known ones, and inserts the
   messages. What it does not store, another statement may: see `append_statements`.
2. While statements run, further appends wait, and the next statement stores them all. So the cost
   of a statement and of its commit is shared under load, and nothing waits without load.
3. A group has one append for each conversation. It leaves out conversations that are locked, and
   locks the others in the order of their ids, so that two groups never wait for each other.
4. If a group fails for another reason than the database, each append of it is stored by itself.
5. On Citus there are no groups: their conversations are on several nodes, which would commit in two
   phases. An append is a transaction of statements of one table there, by the same rules.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asyncpg import PostgresError, UniqueViolationError

from app.adapters.postgres.common.connections import Session, Statement, Store
from app.adapters.postgres.common.rows import SETTINGS_VERSION
from app.adapters.postgres.common.settings_versions import settings_version
from app.adapters.postgres.conversations.single_rows import add_messages, ids_are_used
from app.domain.common import json_text
from app.domain.common.errors import ContextError
from app.domain.common.messages import Role
from app.domain.conversations.log.state_change import KnownAppend, LogTotals

_MAX_GROUPS = 2
"""Statements that run at once. With one more, groups are smaller and cost more."""
_MAX_GROUP_BYTES = 256 * 1024
_MAX_GROUP_APPENDS = 64

# A value is a parameter in a statement for one append, and the element of an array in one for
# several.
_APPEND_COLUMNS = {
    "conversation_id": "uuid",
    "tenant_id": "text",
    "messages": "bigint",
    "turns": "bigint",
    "tokens": "bigint",
    "now": "timestamptz",
    "state_version": "bigint",
    "settings_version": "bigint",
    "expected_seq": "bigint",
    "open_before": "text",
    "open_after": "text",
    "resume_at": "bigint",
    "due_tokens": "bigint",
    "due_messages": "bigint",
    "client_ids": "text",
    "format": "text",
}
_MESSAGE_COLUMNS = {
    "position": "bigint",
    "id": "text",
    "turn": "bigint",
    "role": "text",
    "message_tokens": "integer",
    "reasoning_tokens": "integer",
    "total_tokens": "bigint",
    "call_ids": "text",
    "call_names": "text",
    "has_media": "boolean",
    "continues": "boolean",
    "body": "bytea",
    "fragment": "bytea",
    "output": "text",
}


def _with_parameters(text: str, source: str, columns: Mapping[str, str]) -> str:
    """Return SQL with a parameter in place of each column of a source."""
    return re.sub(
        rf"\b{source}\.(\w+)",
        lambda match: f"CAST(:{match[1]} AS {columns[match[1]]})",
        text,
    )


def _arrays(source: str, columns: Mapping[str, str], number: str) -> str:
    """Return a source of arrays; `number` is the number of the element, or of its append."""
    parameters = ", ".join(f"CAST(:{name} AS {kind}[])" for name, kind in columns.items())
    return f"unnest({parameters}) {number}AS {source} ({', '.join(columns)}"


_CHANGE = """
        UPDATE heads h
        SET head_seq = h.head_seq + batch.messages,
            turns = h.turns + batch.turns,
            tokens = h.tokens + batch.tokens,
            newest_at = greatest(h.newest_at, batch.now),
            due_at = CASE
                WHEN h.due_at IS NULL AND h.tokens + batch.tokens >= batch.resume_at
                    AND (h.tokens + batch.tokens >= batch.due_tokens
                        OR h.head_seq + batch.messages > batch.due_messages) THEN batch.now
                ELSE h.due_at
            END,
            open_calls = CAST(batch.open_after AS text[])"""
_IS_KNOWN = """h.state_version = batch.state_version AND NOT h.open_outside
            AND (batch.expected_seq IS NULL OR h.head_seq = batch.expected_seq)
            AND (batch.open_before IS NULL OR h.open_calls = CAST(batch.open_before AS text[]))"""
_TOTALS = """h.head_seq, h.turns, h.tokens, h.newest_at, h.due_at IS NOT NULL AS is_due,
            coalesce(h.due_at = batch.now, false) AS became_due"""
_STORE = f"""
    moved AS (
        {_CHANGE}
        {{batches}}
        WHERE h.conversation_id = batch.conversation_id {{unlocked}}
            AND {_IS_KNOWN}
            AND (batch.settings_version IS NULL
                OR batch.settings_version = {SETTINGS_VERSION.format(tenant_id="batch.tenant_id")})
            AND (batch.client_ids IS NULL OR NOT EXISTS (
                SELECT FROM messages stored
                WHERE stored.conversation_id = batch.conversation_id
                    AND stored.message_id = ANY (CAST(batch.client_ids AS text[]))
            ))
        RETURNING {{number}} AS number, batch.conversation_id AS conversation_id,
            batch.tenant_id AS tenant_id, batch.format AS format,
            {_TOTALS},
            h.head_seq - batch.messages AS head_before, h.turns - batch.turns AS turns_before,
            h.tokens - batch.tokens AS tokens_before
    ), stored AS (
        INSERT INTO messages (
            conversation_id, seq, message_id, turn, role, format, tokens, reasoning_tokens,
            total_tokens, call_ids, call_names, has_media, continues, body, fragment, output, at
        )
        SELECT {{key}}, moved.head_before + message.position, message.id,
            moved.turns_before + message.turn, message.role, moved.format,
            message.message_tokens, message.reasoning_tokens,
            moved.tokens_before + message.total_tokens, message.call_ids, message.call_names,
            message.has_media, message.continues,
            convert_from(message.body, 'UTF8'), convert_from(message.fragment, 'UTF8'),
            message.output, moved.newest_at
        FROM moved {{messages}}
    )
    SELECT moved.number, moved.head_seq, moved.turns, moved.tokens, moved.is_due,
        moved.became_due, {SETTINGS_VERSION.format(tenant_id="moved.tenant_id")}
            AS settings_version
    FROM moved
"""
_FOR_ONE = _with_parameters(
    _STORE.format(
        batches="", unlocked="", number="1", key="batch.conversation_id", messages="{messages}"
    ),
    "batch",
    _APPEND_COLUMNS,
)
_NUMBERED = {"number": "bigint", **_MESSAGE_COLUMNS}
_MESSAGES = f", {_arrays('message', _NUMBERED, '')}) WHERE message.number = moved.number"
ONE = Statement(
    "WITH" + _with_parameters(_FOR_ONE.format(messages=""), "message", _MESSAGE_COLUMNS)
)
"""Stores one message; waits for the lock of its conversation."""
BATCH = Statement("WITH" + _FOR_ONE.format(messages=_MESSAGES))
"""Stores several messages of one append; waits for the lock of its conversation."""
_LOCKED = """
    unlocked AS (
        SELECT conversation_id FROM heads
        WHERE conversation_id = ANY (CAST(:conversation_id AS uuid[]))
        ORDER BY conversation_id
        FOR NO KEY UPDATE SKIP LOCKED
    ),"""
GROUP = Statement(
    f"WITH {_LOCKED}"
    + _STORE.format(
        batches=f"FROM {_arrays('batch', _APPEND_COLUMNS, 'WITH ORDINALITY ')}, number)",
        unlocked="AND h.conversation_id IN (SELECT conversation_id FROM unlocked)",
        number="batch.number",
        key="moved.conversation_id",
        messages=_MESSAGES,
    )
)
"""Stores several appends, each to another conversation, except to locked ones."""
STATEMENTS = (ONE, BATCH, GROUP)
MOVE = Statement(
    _with_parameters(
        f"""
        {_CHANGE}
        WHERE h.conversation_id = batch.conversation_id
            AND {_IS_KNOWN}
        RETURNING {_TOTALS}
        """,
        "batch",
        _APPEND_COLUMNS,
    )
)
"""Changes the state for one append, on Citus (rule 5)."""


@dataclass(frozen=True, slots=True)
class StoredAppend:
    """The totals of a log after an append, and the version of the tenant's settings then."""

    totals: LogTotals
    settings_version: int


@dataclass(eq=False, slots=True)
class _Append:
    """An append that waits, with the values of its statement."""

    batch: dict[str, Any]
    messages: list[dict[str, Any]]
    client_ids: list[str]
    size_bytes: int
    result: asyncio.Future[StoredAppend | None]


class GroupCommit:
    """Stores appends, those that wait at the same time in one statement (rule 2)."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: deque[_Append] = deque()
        self._running = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def append(self, tenant_id: str, known: KnownAppend) -> StoredAppend | None:
        """Store a batch; None, with nothing stored, if the state is another one or an id was used.

        Raises ServiceUnavailable.
        """
        append = _append_of(tenant_id, known)
        if append.size_bytes > _MAX_GROUP_BYTES or self._store.is_distributed:
            return await self._store_one(append)
        if self._running < _MAX_GROUPS and not self._waiting:
            self._running += 1
            try:
                return await self._store_one(append)
            finally:
                self._finish()
        self._waiting.append(append)
        return await append.result

    def _finish(self) -> None:
        """Let the appends that wait follow a statement that has ended."""
        self._running -= 1
        if self._waiting:
            self._running += 1
            task = asyncio.create_task(self._store_waiting())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _store_waiting(self) -> None:
        try:
            group = self._next_group()
            if len(group) == 1:
                await _settle(group[0], self._store_one(group[0]))
            else:
                await self._store_group(group)
        finally:
            self._finish()

    def _next_group(self) -> list[_Append]:
        """Take the appends of the next statement, one for each conversation (rule 3)."""
        group: dict[str, _Append] = {}
        later: list[_Append] = []
        size_bytes = 0
        limit = 1 if self._store.is_distributed else _MAX_GROUP_APPENDS
        while self._waiting and len(group) < limit and size_bytes < _MAX_GROUP_BYTES:
            append = self._waiting.popleft()
            if append.result.done():
                continue  # its caller was cancelled
            if group.setdefault(append.batch["conversation_id"], append) is not append:
                later.append(append)
            else:
                size_bytes += append.size_bytes
        self._waiting.extendleft(reversed(later))
        return list(group.values())

    async def _store_group(self, group: Sequence[_Append]) -> None:
        try:
            async with self._store.session() as session:
                rows = await session.all(GROUP, **_arrays_of(group))
        except ContextError as error:
            for append in group:
                if not append.result.done():
                    append.result.set_exception(error)
            return
        except PostgresError:  # of one append (rule 4)
            for append in group:
                await _settle(append, self._store_one(append))
            return
        found = {row["number"]: row for row in rows}
        for number, append in enumerate(group, start=1):
            if not append.result.done():
                row = found.get(number)
                append.result.set_result(_stored(row) if row is not None else None)

    async def _store_one(self, append: _Append) -> StoredAppend | None:
        try:
            async with self._store.session() as session:
                if session.is_distributed:
                    return await _store_on_citus(session, append)
                if len(append.messages) == 1:
                    row = await session.first(ONE, **append.batch, **append.messages[0])
                else:
                    values = _arrays_of([append])
                    row = await session.first(BATCH, **values | append.batch)
        except UniqueViolationError:
            # A message with its id was stored while this statement waited for the lock.
            return None
        return _stored(row) if row is not None else None


async def _store_on_citus(session: Session, append: _Append) -> StoredAppend | None:
    """Store it by statements of one table (rule 5)."""
    batch = append.batch
    conversation_id = batch["conversation_id"]
    async with session.together():
        version = await settings_version(session, batch["tenant_id"])
        if batch["settings_version"] not in (None, version):
            return None
        if await ids_are_used(session, conversation_id, append.client_ids):
            return None
        row = await session.first(MOVE, **batch)
        if row is None:
            return None
        await add_messages(
            session,
            (
                message
                | {
                    "conversation_id": conversation_id,
                    "seq": row["head_seq"] - batch["messages"] + message["position"],
                    "turn": row["turns"] - batch["turns"] + message["turn"],
                    "total_tokens": row["tokens"] - batch["tokens"] + message["total_tokens"],
                    "format": batch["format"],
                    "timestamp": None,
                    "at": row["newest_at"],
                    "late_at": None,
                }
                for message in append.messages
            ),
        )
    return _stored({**row, "settings_version": version})


async def _settle(append: _Append, stored: Any) -> None:
    """Give the result of a statement to the caller that waits for it."""
    try:
        result = await stored
    except Exception as error:  # raised to the caller
        if not append.result.done():
            append.result.set_exception(error)
        return
    if not append.result.done():
        append.result.set_result(result)


def _stored(row: Any) -> StoredAppend:
    totals = LogTotals(
        row["head_seq"], row["turns"], row["tokens"], row["is_due"], row["became_due"]
    )
    return StoredAppend(totals, row["settings_version"])


def _append_of(tenant_id: str, known: KnownAppend) -> _Append:
    change, drafts = known.change, known.drafts
    messages: list[dict[str, Any]] = []
    tokens = turns = size_bytes = 0
    for position, (draft, message_id) in enumerate(zip(drafts, known.ids, strict=True), start=1):
        tokens += draft.tokens
        turns += draft.role is Role.USER
        size_bytes += len(draft.body) + len(draft.fragment or b"")
        output = draft.stored_output
        messages.append(
            {
                "position": position,
                "id": message_id,
                "turn": turns,
                "role": str(draft.role),
                "message_tokens": draft.tokens,
                "reasoning_tokens": draft.reasoning_tokens,
                "total_tokens": tokens,
                "call_ids": json_text.dumps(draft.call_ids) if draft.call_ids else None,
                "call_names": json_text.dumps(draft.call_names) if draft.call_names else None,
                "has_media": draft.has_media,
                "continues": draft.continues,
                "body": draft.body,
                "fragment": draft.fragment,
                "output": output.as_json() if output is not None else None,
            }
        )
    client_ids = [draft.id for draft in drafts if draft.id is not None]
    batch = {
        "conversation_id": known.known.conversation_id,
        "tenant_id": tenant_id,
        "messages": len(messages),
        "turns": turns,
        "tokens": tokens,
        "now": known.now,
        "state_version": change.state_version,
        "settings_version": change.settings_version,
        "expected_seq": known.expected_seq,
        "open_before": None if change.open_before is None else _literal(change.open_before),
        "open_after": _literal(change.open_calls),
        "resume_at": change.resume_at_tokens,
        "due_tokens": change.due_tokens,
        "due_messages": change.due_messages,
        "client_ids": _literal(client_ids) if client_ids else None,
        "format": known.format,
    }
    return _Append(
        batch, messages, client_ids, size_bytes, asyncio.get_running_loop().create_future()
    )


def _arrays_of(group: Sequence[_Append]) -> dict[str, list[Any]]:
    """Return an array of each value, of the appends and of all their messages."""
    values: dict[str, list[Any]] = {
        name: [append.batch[name] for append in group] for name in _APPEND_COLUMNS
    }
    numbered = [
        (number, message)
        for number, append in enumerate(group, start=1)
        for message in append.messages
    ]
    values["number"] = [number for number, _ in numbered]
    for name in _MESSAGE_COLUMNS:
        values[name] = [message[name] for _, message in numbered]
    return values


def _literal(texts: Sequence[str]) -> str:
    """Return the literal of a text array: arrays of arrays must not differ in length."""
    quoted = (text.replace("\\", "\\\\").replace('"', '\\"') for text in texts)
    return "{" + ",".join(f'"{text}"' for text in quoted) + "}"
