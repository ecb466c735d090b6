"""The database as the services see it: sessions that speak sentences."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app.adapters.postgres.common.connections import Session, Store
from app.adapters.postgres.common.rows import Layers
from app.adapters.postgres.compaction.jobs import JobRecords
from app.adapters.postgres.conversations.active_windows import WindowRecords
from app.adapters.postgres.conversations.conversations import (
    AgentRecords,
    ConversationRecords,
    TenantRecords,
)
from app.adapters.postgres.conversations.events import EventRecords
from app.adapters.postgres.conversations.log import LogRecords
from app.adapters.postgres.conversations.search import SearchRecords
from app.adapters.postgres.conversations.transcripts import TranscriptRecords
from app.adapters.postgres.payload.contexts import ContextRecords
from app.adapters.postgres.payload.reported_usage import UsageRecords
from app.adapters.postgres.snapshots.forks import ForkRecords
from app.adapters.postgres.snapshots.snapshots import SnapshotRecords
from app.adapters.postgres.tenancy.api_keys import KeyRecords
from app.adapters.postgres.tenancy.retention import RetentionRecords
from app.adapters.postgres.tenancy.storage_usage import StorageRecords
from app.adapters.postgres.tool_output.blobs import BlobRecords
from app.domain.conversations.records import Conversation


class PostgresRecords:
    """All records, over one session."""

    __slots__ = ("_layers", "_session")

    def __init__(self, session: Session, layers: Layers) -> None:
        self._session = session
        self._layers = layers

    @property
    def agents(self) -> AgentRecords:
        """Agents and their settings."""
        return AgentRecords(self._session)

    @property
    def conversations(self) -> ConversationRecords:
        """Conversations and their settings."""
        return ConversationRecords(self._session)

    @property
    def log(self) -> LogRecords:
        """The messages."""
        return LogRecords(self._session, self._layers)

    @property
    def contexts(self) -> ContextRecords:
        """Builds, epochs and compactions."""
        return ContextRecords(self._session, self._layers)

    @property
    def windows(self) -> WindowRecords:
        """Active windows."""
        return WindowRecords(self._session)

    @property
    def events(self) -> EventRecords:
        """What happened."""
        return EventRecords(self._session)

    @property
    def jobs(self) -> JobRecords:
        """Work in the background."""
        return JobRecords(self._session)

    @property
    def usage(self) -> UsageRecords:
        """What providers reported."""
        return UsageRecords(self._session)

    @property
    def blobs(self) -> BlobRecords:
        """Full tool outputs."""
        return BlobRecords(self._session)

    @property
    def snapshots(self) -> SnapshotRecords:
        """Active windows as they were."""
        return SnapshotRecords(self._session)

    @property
    def search(self) -> SearchRecords:
        """The words of messages."""
        return SearchRecords(self._session)

    @property
    def transcripts(self) -> TranscriptRecords:
        """Messages of several conversations."""
        return TranscriptRecords(self._session)

    @property
    def forks(self) -> ForkRecords:
        """Copies of conversations."""
        return ForkRecords(self._session)

    @property
    def retention(self) -> RetentionRecords:
        """What is old."""
        return RetentionRecords(self._session)

    @property
    def keys(self) -> KeyRecords:
        """Tenants and their API keys."""
        return KeyRecords(self._session)

    @property
    def storage(self) -> StorageRecords:
        """How much tenants store."""
        return StorageRecords(self._session)

    @property
    def tenants(self) -> TenantRecords:
        """What belongs to a tenant alone."""
        return TenantRecords(self._session)


class PostgresDatabase:
    """Fulfils the services' `Database` over a `Store`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._layers = Layers()

    def held(self, tenant_id: str, conversation_id: str) -> Conversation | None:
        """Return the conversation as this process last read it, which may be outdated."""
        return self._layers.held(tenant_id, conversation_id).conversation

    @asynccontextmanager
    async def session(self) -> AsyncIterator[PostgresRecords]:
        """Each sentence commits by itself."""
        async with self._store.session() as session:
            yield PostgresRecords(session, self._layers)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PostgresRecords]:
        """All sentences of the block commit together, or none."""
        async with self._store.transaction() as session:
            yield PostgresRecords(session, self._layers)
