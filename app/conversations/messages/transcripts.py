"""Transcripts: messages as callers sent them, each with its visibility in the current context.

1. A read moves the active window of the conversation, as a build does.
2. The cost depends on the page alone.
3. A pin protects a message from compaction and from tool result clearing. It does not keep a
   message in the active window: an older message, or one before a clear, is not shown. The pin of a
   restored message has effect again. [pins.not-in-window]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from app.common.answer_schemas import answer
from app.common.errors import NotFound, ValidationError
from app.common.pages import UNBOUNDED, Bound
from app.conversations.conversation import Conversation, ConversationState
from app.conversations.events import EventType
from app.conversations.messages.repository import UNPIN
from app.conversations.messages.row import StoredMessage
from app.conversations.messages.stored_results import Content, Original, StoredResults
from app.conversations.moving_window import ActiveWindows
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.turns import MAX_PLACEHOLDER_TOKENS, Entry, entry, newest_user_message
from app.conversations.view import View, start_of_last
from app.conversations.view_changes import base_view, protected_with
from app.database.connections import Statement
from app.formats.message import Role
from app.policy.policy import StrategyName
from app.repositories import Database, Repositories

_SHOWN = ("id", "seq", "turn", "role", "token_count", "format", "created_at", "output_ref")
MAX_PINNED_SHARE = 0.5
"""The share of the history budget that pins may take."""
# A pin protects its call group, with results that are appended later.
MARKS = Statement("""
    SELECT m.seq, r.created_at AS redacted_at, EXISTS (
        SELECT FROM pins p
        WHERE p.conversation_id = :conversation_id AND p.seq <= m.seq AND p.seq >= coalesce((
            SELECT s.seq FROM messages s
            WHERE s.conversation_id = :conversation_id AND s.seq <= m.seq AND NOT s.joins
            ORDER BY s.seq DESC LIMIT 1
        ), 1)
    ) AS pinned
    FROM messages m LEFT JOIN redactions r
        ON r.conversation_id = m.conversation_id AND r.seq = m.seq
    WHERE m.conversation_id = :conversation_id AND m.seq = ANY (:seqs)
""")
SHOW_PINNED = Statement("""
    UPDATE states
    SET view_version = view_version + 1, view_cause = 'pinned', protected_seqs = :protected_seqs,
        hidden_tokens = hidden_tokens - CAST(:tokens AS bigint),
        hidden_messages = hidden_messages - CAST(:messages AS bigint)
    WHERE conversation_id = :conversation_id
""")


class ShownAs(StrEnum):
    """How the current context shows a message."""

    VERBATIM = "verbatim"
    CLEARED = "cleared"
    SUMMARISED = "summarised"
    LEFT_OUT = "left_out"
    OUTSIDE = "outside"


@answer()
@dataclass(frozen=True, slots=True)
class Visibility:
    """How the current context, which is the input of the next build, shows a message."""

    state: ShownAs
    """`verbatim`: unchanged. `cleared`: a tool result with a placeholder in its place.
    `summarised`: a summary replaces it. `left_out`: hidden to fit the context window, without
    a summary. `outside`: outside the active window, because of its time, a clear,
    a rewind, or a sliding window."""
    compaction_id: str | None = None
    """The active compaction, which clears or hides the message; null for other states."""
    restored_at: datetime | None = None
    """When it was put back into the active window; null for other messages."""


def visibility_of(
    item: Entry, view: View, state: ConversationState, starts_at: int = 1, newest_user: int = 0
) -> Visibility:
    """Return how a view shows a message before a build reduces it.

    A sliding window begins at the seq `starts_at`; pinned messages and that of the `newest_user`
    are shown before it as well.
    """
    seq, stands, shown = item.seq, view.provider_item, ShownAs.VERBATIM
    if not any(span.holds(seq) for span in view.window):
        shown = ShownAs.OUTSIDE
    elif view.shows(seq):
        if seq < starts_at and not (item.pinned or seq == newest_user):
            shown = ShownAs.OUTSIDE
        elif item.role is Role.TOOL and item.tokens > MAX_PLACEHOLDER_TOKENS:
            shown = ShownAs.CLEARED if view.clears_result(seq) else shown
    else:
        covered = any(summary.span.holds(seq) for summary in view.summaries)
        covered = covered or (stands is not None and seq < stands.seq)
        shown = ShownAs.SUMMARISED if covered else ShownAs.LEFT_OUT
    is_reduced = shown not in (ShownAs.VERBATIM, ShownAs.OUTSIDE)
    at = next((part.at for part in state.window.restored if part.span.holds(seq)), None)
    return Visibility(shown, state.compaction_id if is_reduced else None, at)


@dataclass(eq=False, repr=False)
class TranscriptService:
    """Reads messages with their visibility, and pins them."""

    _database: Database
    _resolver: SettingsResolver
    _active: ActiveWindows
    _outputs: StoredResults

    async def shown(
        self,
        tenant_id: str,
        conversation: Conversation,
        messages: Sequence[StoredMessage],
        content: Content,
        bound: Bound = UNBOUNDED,
    ) -> tuple[list[dict[str, Any]], int]:
        """Return the messages of a page as they were sent, with marks, and their size as JSON.

        A page with large results ends early, after at least one message. Raises NotFound if the
        conversation was deleted meanwhile.
        """
        if not messages:
            return [], 0
        conversation_id = conversation.conversation_id
        originals = await self._outputs.originals(conversation_id, messages, content, bound)
        conversation = await self._active.updated(tenant_id, conversation)  # before other reads
        seqs = [original.message.seq for original in originals]
        async with self._database.session() as session:
            rows = await session.session.all(MARKS, conversation_id=conversation_id, seqs=seqs)
            marks = {row["seq"]: row for row in rows}
            if len(marks) < len(seqs):
                raise NotFound.conversation(conversation.public_id)
            entries = [
                entry(item.seq, Role(item.role), item.token_count, marks[item.seq]["pinned"])
                for item in (original.message for original in originals)
            ]
            visibilities = await self._visibilities(session, conversation, entries)
        shown = [
            _shown(conversation, original, marks[original.message.seq], visibility)
            for original, visibility in zip(originals, visibilities, strict=True)
        ]
        return shown, sum(original.size for original in originals)

    async def _visibilities(
        self, session: Repositories, conversation: Conversation, entries: Sequence[Entry]
    ) -> list[Visibility]:
        """Return how the view of a conversation shows messages."""
        state, policy = conversation.state, self._resolver.policy_of(conversation)
        key, starts_at, newest_user = conversation.conversation_id, 1, None
        receipt = await session.contexts.find_receipt(key, state.compaction_id)
        if receipt is not None and not receipt.is_shown_with(policy.strategy):
            receipt = None  # of another strategy: the next build starts from the log
        view = base_view(state, receipt.view if receipt is not None else None, policy)
        if policy.strategy is StrategyName.SLIDING_WINDOW:
            starts_at = start_of_last(view.spans, state.head_seq, policy.sliding_window.keep_last_n)
            group = await session.log.around(key, starts_at, whole_turn=False)
            starts_at = group[0].seq if group else starts_at
            turn = await session.log.around(key, state.head_seq, whole_turn=True)
            newest_user = newest_user_message(turn)
        newest_seq = newest_user.seq if newest_user is not None else 0
        return [visibility_of(item, view, state, starts_at, newest_seq) for item in entries]

    async def pin(
        self,
        tenant_id: str,
        conversation_id: str,
        message_id: str,
        *,
        whole_turn: bool,
        pinned: bool = True,
    ) -> list[int]:
        """Pin or unpin a message with its call group or turn, and return their seqs.

        Pinned messages that a compaction hid or cleared are shown again; an unpinned one stays
        until the next compaction, or build of `sliding_window`. Raises NotFound, or ValidationError
        when pins would take more than half of the history budget.
        """
        async with self._database.transaction() as session:
            conversation = await session.conversations.get(tenant_id, conversation_id, lock=True)
            messages = await session.log.by_ids(conversation_id, [message_id])
            if not messages:
                raise NotFound.message(message_id)
            conversation = await self._active.update_locked(session, conversation)
            around = await session.log.around(
                conversation_id, messages[0].seq, whole_turn=whole_turn
            )
            seqs = [each.seq for each in around]
            if pinned:
                await self._pin(session, conversation, around)
            elif not await session.session.run(UNPIN, conversation_id=conversation_id, seqs=seqs):
                return seqs
            kind = EventType.PINNED if pinned else EventType.UNPINNED
            await session.events.add(conversation_id, kind, seqs=seqs)
        return seqs

    async def pin_all(
        self, tenant_id: str, conversation_id: str, named: Sequence[str]
    ) -> list[int]:
        """Pin messages by their ids, or seqs such as `#12`, with their call groups; all or none.

        Raises ValidationError for a message that does not exist, and as `pin` does.
        """
        async with self._database.transaction() as session:
            conversation = await session.conversations.get(tenant_id, conversation_id, lock=True)
            conversation = await self._active.update_locked(session, conversation)
            around: dict[int, Entry] = {}
            for name in named:
                found = await session.log.by_ids(conversation_id, [name])
                number = name.removeprefix("#")
                is_seq = number.isascii() and number.isdigit() and len(number) < 16
                seq = found[0].seq if found else int(number) if is_seq else 0
                if not 0 < seq <= conversation.state.head_seq:
                    raise ValidationError(f"There is no message {name}")
                group = await session.log.around(conversation_id, seq, whole_turn=False)
                around |= {item.seq: item for item in group}
            seqs = sorted(around)
            await self._pin(session, conversation, [around[seq] for seq in seqs])
            await session.events.add(conversation_id, EventType.PINNED, seqs=seqs)
        return seqs

    async def _pin(
        self, session: Repositories, conversation: Conversation, around: Sequence[Entry]
    ) -> None:
        """Pin messages, and show those again that a compaction hid or cleared."""
        conversation_id, state = conversation.conversation_id, conversation.state
        await session.log.pin(conversation_id, [item.seq for item in around])
        await self._check_share(session, conversation)
        receipt = await session.contexts.find_receipt(conversation_id, state.compaction_id)
        if receipt is None:
            return
        view = base_view(state, receipt.view, self._resolver.policy_of(conversation))
        kept, tokens, count = protected_with(view, state.protected_seqs, around)
        if kept != state.protected_seqs:
            shown = {"protected_seqs": kept, "tokens": tokens, "messages": count}
            await session.session.run(SHOW_PINNED, conversation_id=conversation_id, **shown)

    async def _check_share(self, session: Repositories, conversation: Conversation) -> None:
        """Raise ValidationError when pins take more than their share of the history budget."""
        resolved = await self._resolver.of(conversation)
        limits = resolved.policy_limits
        if limits is None:
            return
        window = conversation.state.window
        pinned = await session.log.pinned(conversation.conversation_id)
        pinned_tokens = sum(entry.tokens for entry in pinned if window.holds(entry.seq))
        tokens = resolved.tokens(pinned_tokens, 0).conversation
        max_tokens = int((limits.capacity - resolved.tokens(0, 0).fixed) * MAX_PINNED_SHARE)
        if tokens > max_tokens:
            raise ValidationError(
                f"Pinned messages would take {tokens} tokens. The limit is {max_tokens}:"
                " half of the tokens that the context window leaves for history",
                {"pinned_tokens": tokens, "limit": max_tokens},
            )


def _shown(
    conversation: Conversation, original: Original, marks: Any, visibility: Visibility
) -> dict[str, Any]:
    """Return the original message with the service's fields; fields they hide are in `given`."""
    message, body = original.message, original.raw_message
    own = {
        **{name: getattr(message, name) for name in _SHOWN},
        **{"redacted_at": marks["redacted_at"], "pinned": marks["pinned"]},
        **{"conversation_id": conversation.public_id, "agent_id": conversation.agent_id},
        "content_truncated": original.is_truncated,
        "content_collected": original.is_collected,
        "visibility": visibility,
    }
    hidden = {name: body[name] for name in own if name in body and body[name] != own[name]}
    return {**body, **own, "given": hidden or None}
