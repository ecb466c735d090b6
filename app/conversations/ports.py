"""What the services need from adapters of which tests or settings choose one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime
from typing import Protocol

from app.blobs.blobs import Chunk, StoredChunk
from app.conversations.compaction_results import CompactResult
from app.formats import ToolDefinition
from app.models.limits import ModelInfo


class Tokenizer(Protocol):
    """Counts tokens."""

    def count(self, text: str) -> int:
        """Return the number of tokens of the text; never raises, whatever the text."""
        ...


class Ranking(Protocol):
    """Finds tools by what they do."""

    async def rank(
        self, query: str, tools: Sequence[ToolDefinition], limit: int, *, key: str
    ) -> list[str]:
        """Return the names of up to `limit` tools that match, best first.

        `key` stands for the tools: equal keys come with equal tools. A tool's exact name puts
        that tool first.
        """
        ...


class Models(Protocol):
    """The limits and prices of models."""

    def find(self, model: str) -> ModelInfo | None:
        """Return the entry of a model, None for an unknown one."""
        ...

    def list(self) -> Sequence[ModelInfo]:
        """Return all known models, sorted by name."""
        ...


class Observer(Protocol):
    """Is told what happened, for metrics and traces: how much and how, never what was said."""

    def appended(self, messages: int, tokens: int) -> None:
        """Hear of an append that stored so many messages of so many tokens."""
        ...

    def built(self, format: str, pressure: str, *, is_delta: bool, is_degraded: bool) -> None:
        """Hear of a payload."""
        ...

    def compacting(
        self, conversation_id: str, trigger: str, strategy: str
    ) -> AbstractContextManager[Callable[[CompactResult], None]]:
        """Watch a compaction, whose result the block tells; what the block raises ended it."""
        ...


class BlobWriter(Protocol):
    """Writes the chunks of one content, in order."""

    async def write(self, chunks: Sequence[Chunk]) -> list[StoredChunk]:
        """Write chunks, and return them as their rows store them."""
        ...

    async def finish(self) -> str | None:
        """Complete the content; return the key of its object, None if rows hold the bytes."""
        ...


class BlobStore(Protocol):
    """Stores the bytes of chunks: in their rows, or in an object store.

    A failure of an object store raises ServiceUnavailable.
    """

    def writer(
        self, tenant_id: str, conversation_id: str, content_id: str
    ) -> AbstractAsyncContextManager[BlobWriter]:
        """Open a writer for a content; without `finish`, nothing is stored."""
        ...

    async def read(self, object_key: str | None, chunks: Sequence[StoredChunk]) -> list[bytes]:
        """Return the uncompressed bytes of consecutive chunks."""
        ...

    async def copy(
        self, tenant_id: str, conversation_id: str, content_id: str, object_key: str
    ) -> str:
        """Copy an object to a content of another conversation, and return its key."""
        ...

    async def remove(self, object_keys: Sequence[str]) -> None:
        """Delete objects; missing ones are no error."""
        ...

    async def delete_conversation(self, tenant_id: str, conversation_id: str) -> None:
        """Delete every object of a conversation."""
        ...

    async def drop_parts(self, older_than: datetime) -> int:
        """Delete parts of unfinished objects written before a time; return their number.

        A bucket cannot list such parts; it needs a lifecycle rule.
        """
        ...

    def orphans(self, older_than: datetime) -> AsyncIterator[tuple[str, str, str]]:
        """Yield the key, conversation id and content id of every object older than a time."""
        ...
