"""Ports for conversations, agents, search and transcripts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar

from app.domain.common.ids import ConversationId
from app.domain.common.pages import UNBOUNDED, Bound, Page
from app.domain.conversations.agent import Agent
from app.domain.conversations.compaction_receipt import Compaction
from app.domain.conversations.conversation import Conversation
from app.domain.conversations.listing import (
    ConversationFilter,
    ListedTotals,
    Place,
    Places,
)
from app.domain.conversations.rolling_window import INHERIT, OwnWindow
from app.domain.conversations.search.query import Query
from app.domain.conversations.search.recall import Postings
from app.domain.conversations.search.several import IndexProgress, MessagePlace
from app.domain.conversations.search.texts import SearchedMessage
from app.domain.conversations.search.words import Term
from app.domain.conversations.settings import SettingsList, StoredSettings
from app.domain.conversations.stored_message import StoredMessage

_Resource_contra = TypeVar("_Resource_contra", bound=Agent | Conversation, contravariant=True)


class ConfigurableRepository(Protocol[_Resource_contra]):
    """Stores the settings of agents, or of conversations."""

    async def change(self, tenant_id: str, resource: _Resource_contra) -> None:
        """Store the settings of a resource that exists."""

    async def add_version(
        self, tenant_id: str, resource_id: str, kind: SettingsList, version: int, body: str
    ) -> None:
        """Store a version of a list; call it in the transaction that makes it the newest."""

    async def find_version(
        self, tenant_id: str, resource_id: str, kind: SettingsList, version: int
    ) -> str | None:
        """Return a version of a list as it was given, None for an unknown version."""


class ConversationRepository(ConfigurableRepository[Conversation], Protocol):
    """Stores conversations and their settings."""

    async def add(
        self,
        tenant_id: str,
        conversation_id: str,
        agent: Agent | None,
        counter: str,
        settings: StoredSettings,
        metadata: str,
        own_window: OwnWindow = INHERIT,
        own_id: str | None = None,
        expires_at: datetime | None = None,
    ) -> bool:
        """Create one with an empty log; False when the key is taken."""

    async def stored_keys(
        self, tenant_id: str, public_id: str, keys: Sequence[str]
    ) -> Mapping[str, bool]:
        """Return which of these keys any tenant has, each with whether this is its conversation."""

    async def own_ids(self, tenant_id: str, keys: Collection[str]) -> Mapping[str, str]:
        """Return the callers' own ids of those conversations that have one, by key."""

    async def lock_id(self, tenant_id: str, public_id: str) -> None:
        """Make other creations of a tenant with this id wait until the transaction ends."""

    async def find(
        self,
        tenant_id: str,
        conversation_id: str,
        default_model: str | None,
        model: str | None = None,
    ) -> Conversation | None:
        """Return one with inherited settings, or None."""

    async def ids_of_agent(self, tenant_id: str, agent_id: str) -> list[ConversationId]:
        """Return the ids of an agent's conversations."""

    async def remove(self, conversation_id: str) -> Mapping[str, int]:
        """Delete it with all data derived from it; returns deleted rows by table."""


class ConversationListRepository(Protocol):
    """Reads pages of a tenant's conversations."""

    async def places(
        self,
        tenant_id: str,
        wanted: ConversationFilter,
        before: Place | None,
        limit: int,
        scanned: int,
    ) -> Places:
        """Return up to `limit` places that match after the place `before`.

        Up to `scanned` conversations of the tenant or of the agent are compared.
        """

    async def labelled_places(
        self, tenant_id: str, wanted: ConversationFilter, before: Place | None, limit: int
    ) -> Places | None:
        """Return the same by the index of metadata; None if too many have the values (rule 2)."""

    async def by_ids(
        self,
        tenant_id: str,
        conversation_ids: Sequence[str],
        default_model: str | None,
        bound: Bound = UNBOUNDED,
    ) -> Page[Conversation]:
        """Return the existing ones of these, without sections, tools and policies."""

    async def by_ids_with_usage(
        self,
        tenant_id: str,
        conversation_ids: Sequence[str],
        default_model: str | None,
        bound: Bound = UNBOUNDED,
    ) -> Page[tuple[Conversation, ListedTotals]]:
        """Return the existing ones of these with all settings, and their totals."""


class AgentRepository(ConfigurableRepository[Agent], Protocol):
    """Stores agents."""

    async def add(self, tenant_id: str, agent: Agent) -> bool:
        """Create one; False when the id is taken."""

    async def find(self, tenant_id: str, agent_id: str, *, lock: bool = False) -> Agent | None:
        """Return one, or None; `lock` locks its row until the transaction ends."""

    async def page(
        self, tenant_id: str, limit: int, before: tuple[Any, str] | None, bound: Bound = UNBOUNDED
    ) -> Page[Agent]:
        """Return a page, newest first; `before` is the creation time and id to start after."""

    async def set_cleared(self, tenant_id: str, agent_id: str, at: datetime) -> None:
        """Set the time of its last clear."""

    async def remove(self, tenant_id: str, agent_id: str) -> Mapping[str, int]:
        """Delete the agent without its conversations; returns deleted rows by table."""


class SearchRepository(Protocol):
    """Indexes the words of one conversation's messages, and searches them."""

    async def unindexed(
        self, conversation_id: str, through_seq: int, limit: int, max_bytes: int
    ) -> list[SearchedMessage]:
        """Return the next messages to index, up to a seq and a limit.

        The list ends with the message at which the total size of bodies reaches `max_bytes`.
        """

    async def add(self, conversation_id: str, words: Mapping[int, Sequence[str]]) -> None:
        """Index messages that are not indexed yet by their lexemes.

        It does nothing for a deleted conversation. Call it in a transaction.
        """

    async def find(
        self,
        conversation_id: str,
        query: Query,
        *,
        after_seq: int,
        before_seq: int,
        order: str,
        limit: int,
        bound: Bound = UNBOUNDED,
    ) -> Page[StoredMessage]:
        """Return up to `limit` messages between two seqs, both exclusive, by their words alone."""

    async def postings(
        self,
        conversation_id: str,
        groups: Sequence[Sequence[Sequence[Term]]],
        *,
        after_seq: int,
        before_seq: int,
        limit: int,
    ) -> list[Postings]:
        """Return for each group of words the newest `limit` messages that have all of them.

        A message has a word if it has any of its terms. Both seqs are exclusive.
        """

    async def matching_words(
        self, conversation_id: str, seqs: Sequence[int], words: Sequence[Sequence[Term]]
    ) -> dict[int, list[int]]:
        """Return the numbers of the words, from 0 on, that each of these messages has."""

    async def by_seqs(
        self, conversation_id: str, seqs: Sequence[int], max_bytes: int, max_body_bytes: int
    ) -> list[SearchedMessage]:
        """Return messages by their seqs, in log order; those with a larger body are left out.

        The list ends with the message at which the total size of bodies reaches `max_bytes`.
        """

    async def time_of(self, conversation_id: str, seq: int) -> datetime | None:
        """Return the time of the newest message up to a seq."""

    async def seqs_between(
        self, conversation_id: str, head_seq: int, start: datetime, end: datetime
    ) -> tuple[int, int]:
        """Return the first seq of a time and the first seq after it; the end is exclusive."""


class TenantSearchRepository(Protocol):
    """Searches several conversations at once."""

    async def progress(
        self, tenant_id: str, conversation_ids: Sequence[str]
    ) -> list[IndexProgress]:
        """Return how far each of these that the tenant has is indexed, in the given order."""

    async def newest(
        self, query: Query, before: Sequence[MessagePlace], limit: int
    ) -> list[MessagePlace]:
        """Return up to `limit` messages by their words alone.

        The conversations of `before` are searched in their order, each from its newest message
        before the seq given.
        """

    async def by_places(
        self, places: Sequence[MessagePlace], bound: Bound = UNBOUNDED
    ) -> Page[tuple[ConversationId, StoredMessage]]:
        """Return the existing ones of these messages with their conversations, in their order."""


class TranscriptRepository(Protocol):
    """Reads messages of several conversations at once."""

    async def pinned(self, messages: Sequence[tuple[str, int]]) -> frozenset[tuple[str, int]]:
        """Return the pinned ones of these messages, by conversation and seq."""

    async def redacted(
        self, messages: Sequence[tuple[str, int]]
    ) -> Mapping[tuple[str, int], datetime]:
        """Return when the redacted ones of these messages were, by conversation and seq."""

    async def chains(
        self, newest: Mapping[str, str], limit: int
    ) -> Mapping[str, Sequence[Compaction]]:
        """Return up to `limit` receipts by conversation: one, then those it is based on.

        `newest` is the id of the first receipt, by conversation.
        """
