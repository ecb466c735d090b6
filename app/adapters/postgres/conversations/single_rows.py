"""Statements of an append on Citus: each is of one table and names the conversation.

Citus caches the plans of such statements, and sends them to the node of the conversation alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.adapters.postgres.common.connections import Session, Statement

_MESSAGE_VALUES = {
    "conversation_id": "CAST(:conversation_id AS uuid)",
    "seq": "CAST(:seq AS bigint)",
    "message_id": "CAST(:id AS text)",
    "turn": "CAST(:turn AS bigint)",
    "role": "CAST(:role AS text)",
    "format": "CAST(:format AS text)",
    "tokens": "CAST(:message_tokens AS integer)",
    "reasoning_tokens": "CAST(:reasoning_tokens AS integer)",
    "total_tokens": "CAST(:total_tokens AS bigint)",
    "call_ids": "CAST(:call_ids AS text)",
    "call_names": "CAST(:call_names AS text)",
    "has_media": "CAST(:has_media AS boolean)",
    "continues": "CAST(:continues AS boolean)",
    "body": "convert_from(CAST(:body AS bytea), 'UTF8')",
    "fragment": "convert_from(CAST(:fragment AS bytea), 'UTF8')",
    "output": "CAST(:output AS text)",
    "timestamp": "CAST(:timestamp AS text)",
    "at": "CAST(:at AS timestamptz)",
    "late_at": "CAST(:late_at AS timestamptz)",
}
ADD_MESSAGE = Statement(
    f"""
        INSERT INTO messages ({", ".join(_MESSAGE_VALUES)})
        VALUES ({", ".join(_MESSAGE_VALUES.values())})
        """
)
USED_ID = Statement(
    """
        SELECT seq FROM messages
        WHERE conversation_id = CAST(:conversation_id AS uuid)
            AND message_id = ANY (CAST(:ids AS text[]))
        LIMIT 1
        """
)


async def add_messages(session: Session, messages: Iterable[Mapping[str, Any]]) -> None:
    """Store messages; raises UniqueViolationError if another has one's id."""
    for message in messages:
        await session.run(ADD_MESSAGE, **message)


async def ids_are_used(session: Session, conversation_id: str, ids: Sequence[str]) -> bool:
    """Return whether a message of the conversation has one of these ids."""
    if not ids:
        return False
    return await session.first(USED_ID, conversation_id=conversation_id, ids=list(ids)) is not None
