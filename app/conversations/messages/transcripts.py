"""Transcripts: messages as callers sent them, each with its visibility in the current context.

1. A read moves the active windows of the conversations on a page, as a build does.
2. The cost depends on the page alone: states, active receipts and pins are read for all of its
   conversations at once. Older receipts are read only where the cause of a visibility is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby

from app.common.errors import NotFound
from app.common.pages import UNBOUNDED, Bound
from app.conversations.compaction_receipt import Compaction
from app.conversations.conversation import Conversation
from app.conversations.messages.stored_message import StoredMessage
from app.conversations.messages.stored_results import Content, Original, StoredResults
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.turns import Entry, entry, newest_user_message
from app.conversations.view import Span, View
from app.conversations.views import base_view
from app.conversations.visibility import (
    NO_SLIDING_WINDOW,
    SlidingWindow,
    Visibility,
    start_of_last,
    visibilities,
)
from app.conversations.windows.service import ActiveWindows
from app.formats.message import Role
from app.policy.policy import StrategyName
from app.repositories import Database, Repositories

RECEIPT_BATCHES = (16, 512)
"""How many earlier receipts are read at a time, to find the one that hid a message.

A message that an even older one hid has no cause: the cost must not grow with the log.
"""


@dataclass(frozen=True, slots=True)
class PageMessage:
    """A message on a page, and its conversation."""

    conversation: Conversation
    message: StoredMessage


@dataclass(frozen=True, slots=True)
class TranscriptMessage:
    """A message as the caller sent it, with its visibility."""

    page_message: PageMessage
    original: Original
    visibility: Visibility
    pinned: bool
    redacted_at: datetime | None = None


@dataclass(slots=True)
class _PagePart:
    """The messages of one conversation on a page, and the inputs of their visibility."""

    conversation: Conversation
    entries: list[Entry] = field(default_factory=list)
    receipts: list[Compaction] = field(default_factory=list)
    view: View = field(default_factory=View)
    sliding_window: SlidingWindow = NO_SLIDING_WINDOW

    @property
    def conversation_id(self) -> str:
        """The id of the conversation."""
        return self.conversation.conversation_id

    def visibilities(self) -> dict[int, Visibility]:
        """Return the visibility of its messages by the receipts that are read so far."""
        restored = self.conversation.state.window.restored
        return visibilities(self.entries, self.view, self.receipts, restored, self.sliding_window)


@dataclass(eq=False, repr=False)
class TranscriptService:
    """Reads the visibility of messages."""

    _database: Database
    _resolver: SettingsResolver
    _active: ActiveWindows
    _outputs: StoredResults

    async def one(self, tenant_id: str, conversation_id: str, message_id: str) -> PageMessage:
        """Return one message of a conversation; raises NotFound."""
        async with self._database.session() as session:
            conversation = await self._resolver.find_conversation(
                session, tenant_id, conversation_id
            )
            page = await session.log.by_ids(conversation_id, [message_id])
        if not page:
            raise NotFound.message(message_id)
        return PageMessage(conversation, page[0])

    async def with_visibility(
        self,
        tenant_id: str,
        page: Sequence[PageMessage],
        content: Content,
        bound: Bound = UNBOUNDED,
    ) -> list[TranscriptMessage]:
        """Return the messages of a page with originals and visibility.

        A page with large results ends early, after at least one message. Raises NotFound for a
        conversation that was deleted meanwhile.
        """
        if not page:
            return []
        pairs = await self._with_originals(page, content, bound)
        parts: dict[str, _PagePart] = {}
        for page_message, _ in pairs:  # windows are moved before anything else is read (rule 1)
            conversation_id = page_message.conversation.conversation_id
            if conversation_id not in parts:
                conversation = await self._active.updated(tenant_id, page_message.conversation)
                parts[conversation_id] = _PagePart(conversation)
        positions = [
            (page_message.conversation.conversation_id, page_message.message.seq)
            for page_message, _ in pairs
        ]
        async with self._database.session() as session:
            pinned = await session.transcripts.pinned(positions)
            redacted = await session.transcripts.redacted(positions)
            for position, (page_message, _) in zip(positions, pairs, strict=True):
                role, tokens = Role(page_message.message.role), page_message.message.token_count
                item = entry(page_message.message.seq, role, tokens, position in pinned)
                parts[position[0]].entries.append(item)
            await self._read_causes(session, list(parts.values()))
        visibility = {key: part.visibilities() for key, part in parts.items()}
        return [
            TranscriptMessage(
                page_message,
                original,
                visibility[position[0]][position[1]],
                position in pinned,
                redacted.get(position),
            )
            for position, (page_message, original) in zip(positions, pairs, strict=True)
        ]

    async def _with_originals(
        self, page: Sequence[PageMessage], content: Content, bound: Bound
    ) -> list[tuple[PageMessage, Original]]:
        """Return messages with their originals, up to the size of a page."""
        pairs: list[tuple[PageMessage, Original]] = []
        size = 0
        for conversation_id, group in groupby(page, lambda item: item.conversation.conversation_id):
            run = list(group)
            messages = [item.message for item in run]
            originals = await self._outputs.originals(conversation_id, messages, content, bound)
            pairs += zip(run, originals, strict=False)
            size += sum(map(_shown_bytes, originals))
            if len(originals) < len(run) or size > bound.max_bytes:
                break
        return pairs

    async def _read_causes(self, session: Repositories, parts: Sequence[_PagePart]) -> None:
        """Compute the views of conversations, and read the receipts behind them (rule 2)."""
        states = {part.conversation_id: part.conversation.state for part in parts}
        newest = {key: state.compaction_id for key, state in states.items() if state.compaction_id}
        await _read_receipts(session, parts, newest, 1)
        for part in parts:
            await self._set_view(session, part)
        for limit in RECEIPT_BATCHES:
            parents = {
                part.conversation_id: parent_id
                for part in parts
                if part.receipts and (parent_id := part.receipts[-1].parent_id) is not None
                if not all(item.is_explained for item in part.visibilities().values())
            }
            await _read_receipts(session, parts, parents, limit)

    async def _set_view(self, session: Repositories, part: _PagePart) -> None:
        """Compute the view of a conversation from its active receipt."""
        conversation, policy = part.conversation, self._resolver.policy_of(part.conversation)
        if part.receipts and not part.receipts[0].is_shown_with(policy.strategy):
            part.receipts.clear()  # of another strategy: the next build starts from the log
        active = part.receipts[0].view if part.receipts else None
        part.view = base_view(conversation.state, active, policy)
        if policy.strategy is StrategyName.SLIDING_WINDOW:
            count = policy.sliding_window.keep_last_n
            starts_in_view = await _sliding_window_start(
                session, conversation, part.view.spans, count
            )
            starts_in_window = await _sliding_window_start(
                session, conversation, part.view.window, count
            )
            turn = await session.contexts.around(
                conversation.conversation_id, conversation.state.head_seq, whole_turn=True
            )
            newest = newest_user_message(turn)
            newest_user = newest.seq if newest is not None else 0
            part.sliding_window = SlidingWindow(starts_in_view, starts_in_window, newest_user)


async def _read_receipts(
    session: Repositories,
    parts: Sequence[_PagePart],
    newest: Mapping[str, str],
    limit: int,
) -> None:
    """Read receipts, up to `limit` of each conversation: `newest`, and those that led to it."""
    if not newest:
        return
    chains = await session.transcripts.chains(newest, limit)
    for part in parts:
        part.receipts += chains.get(part.conversation_id, ())


async def _sliding_window_start(
    session: Repositories, conversation: Conversation, spans: Sequence[Span], count: int
) -> int:
    """Return the seq at which the last messages of these spans begin, with a whole call group."""
    seq = start_of_last(spans, conversation.state.head_seq, count)
    group = await session.contexts.around(conversation.conversation_id, seq, whole_turn=False)
    return group[0].seq if group else seq


def _shown_bytes(original: Original) -> int:
    """Return the size of a message on a page, with a result that is shown whole."""
    size = original.message.byte_size
    if original.message.stored_output is None or original.is_truncated:
        return size
    output = original.message.output
    return size + (output.byte_size if output is not None and output.is_cut else 0)
