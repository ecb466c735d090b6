"""Ports for the messages, the active window and the events of a conversation."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from app.domain.common.pages import UNBOUNDED, Bound, Page
from app.domain.compaction.planning import CompactionThreshold
from app.domain.conversations.conversation import Conversation, ConversationState
from app.domain.conversations.events import Cursor, EventPage
from app.domain.conversations.log.batch import BatchShape
from app.domain.conversations.log.draft import Draft
from app.domain.conversations.status import Activity
from app.domain.conversations.stored_message import StoredMessage
from app.domain.conversations.turns import Entry
from app.domain.conversations.view import Span
from app.domain.tool_output.blobs import Blob, StoredChunk


class LogRepository(Protocol):
    """Sentences about the log of one conversation."""

    async def append(
        self,
        tenant_id: str,
        conversation_id: str,
        format: str,
        drafts: Sequence[Draft],
        ids: Sequence[str],
        shape: BatchShape,
        *,
        counter: str,
        now: datetime,
        expected_seq: int | None,
        default_model: str | None,
        due: CompactionThreshold,
        blobs: Sequence[tuple[Blob, Sequence[StoredChunk]]] = (),
        as_held: bool = False,
    ) -> Conversation | None:
        """Store a batch if the head still allows it, and return the conversation after it.

        Makes a compaction due where the batch takes the head over the line. A message
        that gives no time is from `now` (B2). `blobs` are stored with it; with `as_held` only if
        the settings are still those this process holds.

        None means that nothing was stored; the caller finds out why under the head's lock.
        """
        ...

    async def lock(
        self, tenant_id: str, conversation_id: str, default_model: str | None
    ) -> Conversation | None:
        """Lock the head until the transaction ends, and return the conversation."""
        ...

    async def by_ids(
        self,
        conversation_id: str,
        ids: Sequence[str],
        after_seq: int = 0,
        bound: Bound = UNBOUNDED,
    ) -> Page[StoredMessage]:
        """Return the stored messages with these ids, in log order, those after a seq."""
        ...

    async def ids(self, conversation_id: str, seqs: Sequence[int]) -> Mapping[int, str]:
        """Return the ids of the messages with these seqs."""
        ...

    async def page(
        self,
        conversation_id: str,
        after_seq: int,
        before_seq: int,
        order: str,
        limit: int,
        bound: Bound = UNBOUNDED,
    ) -> Page[StoredMessage]:
        """Return up to `limit` messages between two seqs, both exclusive (decision 1)."""
        ...

    async def sizes(self, conversation_id: str, start: int, end: int) -> Mapping[int, int]:
        """Return the bytes of the messages in `[start, end)` by seq, without reading them."""
        ...

    async def entries(self, conversation_id: str, start: int, end: int) -> list[Entry]:
        """Return what planning needs of the messages in `[start, end)`."""
        ...

    async def tool_names(self, conversation_id: str, start: int, end: int) -> Mapping[int, str]:
        """Return the name of the tool that each result in `[start, end)` comes from, by seq."""
        ...

    async def open_calls(self, conversation_id: str) -> Mapping[str, str]:
        """Return the names of the tools that the newest message but results calls, by call id."""
        ...

    async def last_used(self, conversation_id: str) -> Mapping[str, int]:
        """Return the seq at which each tool was last called, as the newest messages tell (H1)."""
        ...

    async def promote(self, conversation_id: str, names: Sequence[str]) -> tuple[str, ...]:
        """Promote tools for the current turn, and return all that are promoted in it (H2).

        Those of an earlier turn are not any more. For a deleted conversation there are none.
        """
        ...

    async def total_at(self, conversation_id: str, seq: int) -> int:
        """Return the running sum of tokens up to and including this seq."""
        ...

    async def kept_answer(self, conversation_id: str, key: str) -> tuple[str, str] | None:
        """Return the request hash and the answer kept under an idempotency key."""
        ...

    async def keep_answer(
        self, conversation_id: str, key: str, request_hash: str, answer: str
    ) -> None:
        """Keep an answer for 24 hours (decision 8)."""
        ...


class ActiveWindowRepository(Protocol):
    """Sentences about the active window of one conversation (B2, B3)."""

    async def start_after(
        self, conversation_id: str, first: int, head_seq: int, marker: datetime
    ) -> int:
        """Return the seq, from `first` on, at which the call groups after a marker begin."""
        ...

    async def late_groups(
        self, conversation_id: str, since: int, head_seq: int, marker: datetime
    ) -> list[Span]:
        """Return the call groups from a seq on that hold a message from before the marker."""
        ...

    async def oldest_at(
        self, conversation_id: str, since: int, marker: datetime | None
    ) -> datetime | None:
        """Return the time of the oldest message from a seq on that is newer than the marker."""
        ...

    async def whole_groups(
        self, conversation_id: str, spans: Sequence[Span], head_seq: int
    ) -> list[Span]:
        """Return these spans, each up to the end of its last call group."""
        ...

    async def mentions_in(self, conversation_id: str, spans: Sequence[Span]) -> frozenset[str]:
        """Return the own tools that the views of results in these spans name (L1)."""
        ...

    async def has_epochs(self, conversation_id: str) -> bool:
        """Whether a payload was ever built, so that there is a prefix to keep."""
        ...

    async def tokens_in(self, conversation_id: str, spans: Sequence[Span]) -> int:
        """Return the tokens of the messages in these spans, from the log's running sums."""
        ...

    async def move(self, conversation_id: str, state: ConversationState) -> None:
        """Store the window of a head, and what is shown of it.

        Call it in a transaction that holds the head's lock.
        """
        ...

    async def activities(
        self, tenant_id: str, agent_id: str, since: datetime, looked_at: int, limit: int
    ) -> list[Activity]:
        """Return which of an agent's newest conversations had messages since, newest first."""
        ...

    async def clear(self, conversation_id: str, at: datetime, data: str) -> None:
        """Take all there is out of the window (B3), and tell of it; `data` is a JSON object."""
        ...

    async def clear_all(self, tenant_id: str, agent_id: str, at: datetime, data: str) -> int:
        """Do the same to all conversations of an agent; returns how many they are."""
        ...


class EventRepository(Protocol):
    """Sentences about what happened to a conversation (L3)."""

    async def add(self, conversation_id: str, type: str, data: str) -> None:
        """Store an event as the conversation's next; `data` is a JSON object.

        In a transaction the head stays locked from here to its end. For a deleted conversation
        nothing is stored.
        """
        ...

    async def find_head(self, tenant_id: str, conversation_id: str) -> Cursor | None:
        """Return the cursor of whoever has been told everything, None without a conversation."""
        ...

    async def heads(self, conversation_ids: Collection[str]) -> Mapping[str, Cursor]:
        """Return the same of many conversations, as far as they exist."""
        ...

    async def page(
        self, tenant_id: str, conversation_id: str, after: Cursor, limit: int
    ) -> EventPage | None:
        """Return what follows a cursor, all of one moment; None without a conversation."""
        ...
