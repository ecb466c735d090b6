"""New conversations with a copied log: their heads and what they show at first.

Forks and imports end alike: the rows are there, and one transaction makes a conversation of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from app.conversations.compaction_receipt import Compaction
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.windows.active_window import ActiveWindow
from app.conversations.windows.service import view_state_of, with_window
from app.database.connections import Statement
from app.database.sql import assigned
from app.repositories import Repositories

_GIVEN = (
    *("counter", "head_seq", "open_calls", "open_seqs", "group_seq", "provider_calls"),
    *("is_answering", "resume_at", "window_seconds", "cleared_at", "cleared_seq"),
)
# The sums of the log are those of its last row. Promoted tools are promoted for one turn.
SET_HEAD = Statement(
    f"""
        UPDATE heads h
        SET {assigned(*_GIVEN)},
            turns = coalesce(last.turn, 0), tokens = coalesce(last.total_tokens, 0),
            promoted = CASE WHEN :promoted_turn <= last.turn THEN :promoted ELSE '{{}}' END,
            promoted_turn = CASE WHEN :promoted_turn <= last.turn THEN :promoted_turn ELSE 0 END,
            newest_at = greatest(last.newest_at, :cleared_at + interval '1 microsecond'),
            unindexed_at = now()
        FROM (SELECT 1) AS this
        LEFT JOIN LATERAL (
            SELECT m.turn, m.total_tokens, coalesce(m.at, m.created_at) AS newest_at
            FROM messages m WHERE m.conversation_id = :conversation_id
            ORDER BY m.seq DESC LIMIT 1
        ) last ON true
        WHERE h.conversation_id = :conversation_id
        """
)


@dataclass(frozen=True, slots=True)
class Shown:
    """What a copied log shows: its window with the facts about it, and the compaction's view.

    `kept` are the seqs that are visible although the `receipt` hides or clears them.
    """

    window: ActiveWindow
    oldest_at: datetime | None
    mentions: Collection[str]
    receipt: Compaction | None
    kept: tuple[int, ...]


async def show(
    session: Repositories, resolver: SettingsResolver, tenant_id: str, key: str, shown: Shown
) -> None:
    """Store the window and the view of a conversation whose head is set."""
    conversation = await resolver.find_conversation(session, tenant_id, key)
    state = await with_window(session, key, conversation.state, shown.window)
    state = replace(
        state,
        oldest_at=shown.oldest_at,
        mentions=tuple(shown.mentions),
        hidden_tokens=state.outside_tokens,
        hidden_messages=state.outside_messages,
    )
    await session.windows.move(key, state)
    with_kept = replace(conversation, state=replace(state, kept_seqs=shown.kept))
    visible = await view_state_of(session, resolver, with_kept, shown.receipt)
    if visible.compaction_id is not None:
        await session.contexts.show(
            key,
            visible,
            view_version=state.view_version,
            cause="compaction",
            resume_at_tokens=state.resume_at_tokens,
        )


async def set_head(session: Repositories, key: str, head: Mapping[str, Any]) -> None:
    """Set the head of a copied log, without its window and its view."""
    values = {name: head[name] for name in SET_HEAD.names if name in head}
    await session.session.run(SET_HEAD, **values, conversation_id=key)
