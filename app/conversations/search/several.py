"""Search in several conversations: its bounds, and the places where its pages end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.common.pages import Place
from app.conversations.messages.row import StoredMessage
from app.conversations.search.excerpts import excerpt
from app.conversations.search.query import Query
from app.conversations.search.texts import SearchedMessage

MAX_SEARCHED: Final = 1_000
"""Conversations of a tenant that are searched for one page."""
MAX_NEWLY_INDEXED: Final = 2_000
"""Messages that one search indexes before it ends; the next one continues."""
MIN_INDEXING_COST: Final = 10
"""The number of messages that indexing a conversation costs at least, for its statements."""
MAX_COMPARED: Final = 2_000
"""Messages that a search reads before it ends, to compare them with phrases."""
MAX_HITS: Final = 100
"""Messages on a page of a search in several conversations."""

MessagePlace = tuple[str, int]
"""A conversation, and the seq of a message in it."""


@dataclass(frozen=True, slots=True)
class IndexProgress:
    """Up to which seq a conversation is indexed."""

    conversation_id: str
    head_seq: int
    indexed_seq: int


@dataclass(frozen=True, slots=True)
class SearchPlace:
    """Where a page of a tenant's search ends.

    It continues before the seq `before_seq` of the conversation at `place`, then in older
    conversations.
    """

    place: Place
    before_seq: int


@dataclass(frozen=True, slots=True)
class Hit:
    """A message that matches, with an excerpt around the words."""

    conversation_id: str
    message: StoredMessage
    excerpt: str


def hit_of(conversation_id: str, message: StoredMessage, query: Query) -> Hit | None:
    """Return a message that has all words of a query as a hit, None if it lacks a phrase."""
    texts = SearchedMessage(message).texts()
    if not query.matches_phrases(texts):
        return None
    shown = excerpt("\n".join(texts), query.words, [1.0] * len(query.words))
    return Hit(conversation_id, message, shown)
