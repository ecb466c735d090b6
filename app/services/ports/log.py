"""Ports for the messages, the active window and the events of a conversation."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from app.domain.common.pages import UNBOUNDED, Bound, Page
from app.domain.compaction.thresholds import CompactionThreshold
from app.domain.conversations.conversation import Conversation, ConversationState
from app.domain.conversations.events import Cursor, EventPage
from app.domain.conversations.log.batch import BatchShape
from app.domain.conversations.status import Activity
from app.domain.conversations.stored_message import StoredMessage
from app.domain.conversations.turns import Entry
from app.domain.conversations.view import Span
from app.domain.tool_output.blobs import Blob, StoredChunk


class LogRepository(Protocol):
    """Appends to the log of one conversation, and reads it."""

    async def append(
        self,
        tenant_id: str,
        conversation_id: str,
        format: str,
        ids: Sequence[str],
        shape: BatchShape,
        *,
        counter: str,
        now: datetime,
        expected_seq: int | None,
        default_model: str | None,
        due: CompactionThreshold,
        blobs: Sequence[tuple[Blob, Sequence[StoredChunk]]] = (),
        if_unchanged: bool = False,
    ) -> Conversation | None:
        """Store a batch if the state still allows it, and return the conversation after it.

        A compaction becomes due when the batch reaches the threshold `due`. The time of a message
        without a timestamp is `now`. `blobs` are stored with the batch. With `if_unchanged` it is
        stored only if the settings are still those that this process has cached.

        None means that nothing was stored. The caller finds the reason under the state's lock.
        """

    async def lock(
        self, tenant_id: str, conversation_id: str, default_model: str | None
    ) -> Conversation | None:
        """Lock the state until the transaction ends, and return the conversation."""

    async def by_ids(
        self, conversation_id: str, ids: Sequence[str], after_seq: int = 0, bound: Bound = UNBOUNDED
    ) -> Page[StoredMessage]:
        """Return the stored messages with these ids after a seq, in log order."""

    async def ids(self, conversation_id: str, seqs: Sequence[int]) -> Mapping[int, str]:
        """Return the ids of the messages with these seqs."""

    async def page(
        self,
        conversation_id: str,
        after_seq: int,
        before_seq: int,
        order: str,
        limit: int,
        bound: Bound = UNBOUNDED,
    ) -> Page[StoredMessage]:
        """Return up to `limit` messages between two seqs, both exclusive."""

    async def sizes(self, conversation_id: str, start: int, end: int) -> Mapping[int, int]:
        """Return the size of the messages in `[start, end)` by seq, without reading them."""

    async def entries(self, conversation_id: str, start: int, end: int) -> list[Entry]:
        """Return the messages in `[start, end)` as compaction planning reads them."""

    async def tool_names(self, conversation_id: str, start: int, end: int) -> Mapping[int, str]:
        """Return the tool of each result in `[start, end)` by seq."""

    async def open_calls(self, conversation_id: str) -> Mapping[str, str]:
        """Return the tools of the calls that have no result yet, by call id."""

    async def last_used(self, conversation_id: str) -> Mapping[str, int]:
        """Return the seq at which each tool was last called, within the newest messages."""

    async def promote(self, conversation_id: str, names: Sequence[str]) -> tuple[str, ...]:
        """Promote tools for the current turn, and return all promoted tools of this turn.

        The result is empty for a deleted conversation.
        """

    async def total_at(self, conversation_id: str, seq: int) -> int:
        """Return the running sum of tokens up to and including this seq."""

    async def find_stored_answer(self, conversation_id: str, key: str) -> tuple[str, str] | None:
        """Return the request hash and the answer stored for an idempotency key."""

    async def store_answer(
        self, conversation_id: str, key: str, request_hash: str, answer: str
    ) -> None:
        """Store an answer for 24 hours."""

    async def claim_key(self, conversation_id: str, key: str, request_hash: str) -> bool:
        """Claim an idempotency key for 24 hours; False when it is claimed already."""


class ActiveWindowRepository(Protocol):
    """Reads and moves the active window of one conversation."""

    async def start_after(
        self, conversation_id: str, first: int, head_seq: int, marker: datetime
    ) -> int:
        """Return the seq, from `first` on, of the first call group after a marker."""

    async def late_groups(
        self, conversation_id: str, since: int, head_seq: int, marker: datetime
    ) -> list[Span]:
        """Return the call groups from a seq on with a message from before the marker."""

    async def oldest_at(
        self, conversation_id: str, since: int, marker: datetime | None
    ) -> datetime | None:
        """Return the time of the oldest message from a seq on that is newer than the marker."""

    async def whole_groups(
        self, conversation_id: str, spans: Sequence[Span], head_seq: int
    ) -> list[Span]:
        """Return these spans, each extended to the end of its last call group."""

    async def mentions_in(self, conversation_id: str, spans: Sequence[Span]) -> frozenset[str]:
        """Return the agent tools that previews of results in these spans name."""

    async def has_epochs(self, conversation_id: str) -> bool:
        """Whether a payload was built before."""

    async def tokens_in(self, conversation_id: str, spans: Sequence[Span]) -> int:
        """Return the tokens of the messages in these spans."""

    async def tokens_in_several(self, spans: Mapping[str, Sequence[Span]]) -> Mapping[str, int]:
        """Return the tokens of the messages in the spans of each of these conversations."""

    async def move(self, conversation_id: str, state: ConversationState) -> None:
        """Store the window and the view of a state.

        Call it in a transaction that holds the state's lock.
        """

    async def activities(
        self, tenant_id: str, agent_id: str, since: datetime, max_conversations: int, limit: int
    ) -> list[Activity]:
        """Return the newest of an agent's conversations that have messages since, newest first."""

    async def clear(self, conversation_id: str, at: datetime, data: str) -> None:
        """Empty the window, and store an event with `data`, a JSON object."""

    async def take_clear(self, conversation_id: str, at: datetime) -> None:
        """Note a clear before now; the next read moves the window by it."""

    async def clear_all(self, tenant_id: str, agent_id: str, at: datetime, data: str) -> int:
        """Empty the windows of all conversations of an agent; returns their number."""


class EventRepository(Protocol):
    """Stores and reads the events of conversations."""

    async def add(self, conversation_id: str, type: str, data: str) -> None:
        """Store the conversation's next event; `data` is a JSON object.

        It locks the state until the transaction ends, and does nothing for a deleted conversation.
        """

    async def find_newest(self, tenant_id: str, conversation_id: str) -> Cursor | None:
        """Return the cursor after all events, None for an unknown conversation."""

    async def newest_of(self, conversation_ids: Collection[str]) -> Mapping[str, Cursor]:
        """Return the cursors after all events of those conversations that exist."""

    async def page(
        self, tenant_id: str, conversation_id: str, after: Cursor, limit: int
    ) -> EventPage | None:
        """Return the page after a cursor, as one snapshot; None for an unknown conversation."""
