"""Whether the rows of a database belong together: sequences, sums, references, indexes.

Each statement returns the rows that are wrong, as text. All are read in one transaction, so that
appends meanwhile change nothing. Nothing is written. What PostgreSQL itself can check (pages,
B-trees) is checked by its own `pg_amcheck`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import asyncpg

EXAMPLES = 10
"""The maximum number of wrong rows that are shown for one check."""

_LOGS = """
    SELECT conversation_id, count(*) AS messages, min(seq) AS first, max(seq) AS last,
        sum(tokens)::bigint AS tokens
    FROM messages GROUP BY conversation_id
"""
_CONTENTS = """
    SELECT conversation_id, content_id, sum(size)::bigint AS size, count(*) AS chunks,
        max(number) - min(number) + 1 AS numbers, min(number) AS first
    FROM blob_chunks GROUP BY conversation_id, content_id
"""
CHECKS: Mapping[str, str] = {
    "the seqs of a log are 1 to head_seq": f"""
        SELECT h.conversation_id || ': head_seq ' || h.head_seq || ', ' || coalesce(m.messages, 0)
            || ' messages from ' || coalesce(m.first, 0) || ' to ' || coalesce(m.last, 0)
        FROM heads h LEFT JOIN ({_LOGS}) m USING (conversation_id)
        WHERE (h.head_seq, h.head_seq, least(h.head_seq, 1)) IS DISTINCT FROM
            (coalesce(m.messages, 0), coalesce(m.last, 0), coalesce(m.first, 0))
    """,
    "the tokens of a log are the sum of its messages": f"""
        SELECT h.conversation_id || ': ' || h.tokens || ' tokens, its messages '
            || coalesce(m.tokens, 0)
        FROM heads h LEFT JOIN ({_LOGS}) m USING (conversation_id)
        WHERE h.tokens <> coalesce(m.tokens, 0)
    """,
    "running totals of tokens": """
        SELECT conversation_id || ' ' || seq || ': ' || total_tokens || ', the sum is ' || found
        FROM (
            SELECT conversation_id, seq, total_tokens,
                sum(tokens) OVER (PARTITION BY conversation_id ORDER BY seq) AS found
            FROM messages
        ) m WHERE total_tokens <> found
    """,
    "each conversation has a state": """
        SELECT conversation_id::text || coalesce(' of tenant ' || c.tenant_id, ': no conversation')
        FROM conversations c FULL JOIN heads h USING (conversation_id)
        WHERE c.conversation_id IS NULL OR h.conversation_id IS NULL
    """,
    "the active compaction has a receipt": """
        SELECT h.conversation_id || ': ' || h.compaction_id FROM heads h
        WHERE h.compaction_id IS NOT NULL AND NOT EXISTS (
            SELECT FROM compactions k
            WHERE k.conversation_id = h.conversation_id AND k.compaction_id = h.compaction_id
                AND k.undone_at IS NULL
        )
    """,
    "the receipt before a receipt": """
        SELECT k.conversation_id || ': ' || k.parent_id FROM compactions k
        WHERE k.parent_id IS NOT NULL AND NOT EXISTS (
            SELECT FROM compactions p
            WHERE p.conversation_id = k.conversation_id AND p.compaction_id = k.parent_id
        )
    """,
    "uses of blobs": """
        SELECT u.conversation_id || ' ' || u.seq || ': ' || u.blob_id FROM blob_uses u
        WHERE NOT EXISTS (
            SELECT FROM blobs b
            WHERE b.conversation_id = u.conversation_id AND b.blob_id = u.blob_id
        )
    """,
    "the bytes of blobs": f"""
        SELECT b.conversation_id || ': ' || b.blob_id || ', ' || b.byte_size
            || ' bytes, its chunks ' || coalesce(c.size, 0)
        FROM blobs b LEFT JOIN ({_CONTENTS}) c USING (conversation_id, content_id)
        WHERE b.collected_at IS NULL AND (
            b.byte_size <> coalesce(c.size, 0) OR c.chunks <> c.numbers OR c.first <> 0
        )
    """,
    "chunks without a blob": """
        SELECT DISTINCT c.conversation_id || ': ' || c.content_id FROM blob_chunks c
        WHERE NOT EXISTS (
            SELECT FROM blobs b
            WHERE b.conversation_id = c.conversation_id AND b.content_id = c.content_id
                AND b.collected_at IS NULL
        ) AND NOT EXISTS (
            SELECT FROM blob_uploads u
            WHERE u.conversation_id = c.conversation_id AND u.content_id = c.content_id
        )
    """,
    "the parts of snapshots": """
        SELECT p.conversation_id || ': ' || p.session_id FROM snapshot_parts p
        WHERE NOT EXISTS (
            SELECT FROM snapshots s
            WHERE s.tenant_id = p.tenant_id AND s.session_id = p.session_id
        )
    """,
    "indexes are valid": """
        SELECT indexrelid::regclass::text FROM pg_index JOIN pg_class c ON c.oid = indrelid
        WHERE c.relnamespace = current_schema()::regnamespace
            AND NOT (indisvalid AND indisready AND indislive)
    """,
}
"""What is checked, and the statement that returns what is wrong."""
_OF_MESSAGES = ("message_words", "pins", "blob_uses", "redactions")
_OF_CONVERSATIONS = """
    SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p')
        AND a.attname = 'conversation_id' AND NOT a.attisdropped
        AND c.relname NOT IN ('conversations', 'heads', 'snapshot_parts')
       
    ORDER BY 1
"""
_OBJECTS = """
    SELECT object_key, max(c.object_start + c.object_size)::bigint AS size
    FROM blobs b JOIN blob_chunks c USING (conversation_id, content_id)
    WHERE b.object_key IS NOT NULL AND b.collected_at IS NULL
    GROUP BY object_key
"""


class ObjectSizes(Protocol):
    """An object store; raises ServiceUnavailable."""

    async def size(self, object_key: str) -> int | None:
        """Return the bytes of an object, None if there is none."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of one check: the number of wrong rows, and the first of them as text."""

    name: str
    wrong: int
    examples: Sequence[str]


async def check(
    connection: asyncpg.Connection, objects: ObjectSizes | None = None
) -> AsyncIterator[Checked]:
    """Check the database in the transaction of a connection.

    With `objects` also the objects that its rows name. Raises ServiceUnavailable.
    """
    statements = dict(CHECKS)
    for (table,) in await connection.fetch(_OF_CONVERSATIONS):
        statements[f"{table} are of a conversation"] = _lost(table, "conversations")
    for table in _OF_MESSAGES:
        statements[f"{table} are of a message"] = _lost(table, "messages", "seq")
    for name, statement in statements.items():
        wrong = 0
        examples: list[str] = []
        async for (text,) in connection.cursor(statement):
            wrong += 1
            if len(examples) < EXAMPLES:
                examples.append(text)
        yield Checked(name, wrong, examples)
    if objects is not None:
        named = await connection.fetch(_OBJECTS)
        missing = [key for key, size in named if await objects.size(key) != size]
        yield Checked("objects have the bytes of their chunks", len(missing), missing[:EXAMPLES])


def _lost(table: str, parent: str, *more: str) -> str:
    keys = ("conversation_id", *more)
    shown = " || ' ' || ".join(f"t.{key}::text" for key in keys)
    equal = " AND ".join(f"p.{key} = t.{key}" for key in keys)
    return f"""
        SELECT DISTINCT {shown} FROM {table} t
        WHERE NOT EXISTS (SELECT FROM {parent} p WHERE {equal})
    """
