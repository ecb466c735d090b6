"""The implementation of the services' `Database` port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app.adapters.postgres.common.connections import Session, Store
from app.adapters.postgres.common.rows import SettingsCache
from app.adapters.postgres.compaction.jobs import JobRepository
from app.adapters.postgres.conversations.active_windows import ActiveWindowRepository
from app.adapters.postgres.conversations.agents import AgentRepository
from app.adapters.postgres.conversations.conversations import ConversationRepository
from app.adapters.postgres.conversations.events import EventRepository
from app.adapters.postgres.conversations.log import LogRepository
from app.adapters.postgres.conversations.search import SearchRepository
from app.adapters.postgres.conversations.transcripts import TranscriptRepository
from app.adapters.postgres.payload.contexts import ContextRepository
from app.adapters.postgres.payload.reported_usage import UsageRepository
from app.adapters.postgres.payload.usage_totals import UsageTotalRepository
from app.adapters.postgres.snapshots.forks import ForkRepository
from app.adapters.postgres.snapshots.snapshots import SnapshotRepository
from app.adapters.postgres.tenancy.api_keys import ApiKeyRepository
from app.adapters.postgres.tenancy.quotas import QuotaRepository
from app.adapters.postgres.tenancy.retention import RetentionRepository
from app.adapters.postgres.tenancy.storage_usage import StorageRepository
from app.adapters.postgres.tenancy.tenants import TenantRepository
from app.adapters.postgres.tool_output.blobs import BlobRepository
from app.domain.conversations.conversation import Conversation


class PostgresRepositories:
    """All repositories, over one session."""

    __slots__ = ("_session", "_settings_cache")

    def __init__(self, session: Session, settings_cache: SettingsCache) -> None:
        self._session = session
        self._settings_cache = settings_cache

    @property
    def agents(self) -> AgentRepository:
        return AgentRepository(self._session)

    @property
    def conversations(self) -> ConversationRepository:
        return ConversationRepository(self._session)

    @property
    def log(self) -> LogRepository:
        return LogRepository(self._session, self._settings_cache)

    @property
    def contexts(self) -> ContextRepository:
        return ContextRepository(self._session, self._settings_cache)

    @property
    def windows(self) -> ActiveWindowRepository:
        return ActiveWindowRepository(self._session)

    @property
    def events(self) -> EventRepository:
        return EventRepository(self._session)

    @property
    def jobs(self) -> JobRepository:
        return JobRepository(self._session)

    @property
    def usage(self) -> UsageRepository:
        return UsageRepository(self._session)

    @property
    def usage_totals(self) -> UsageTotalRepository:
        return UsageTotalRepository(self._session)

    @property
    def blobs(self) -> BlobRepository:
        return BlobRepository(self._session)

    @property
    def snapshots(self) -> SnapshotRepository:
        return SnapshotRepository(self._session)

    @property
    def search(self) -> SearchRepository:
        return SearchRepository(self._session)

    @property
    def transcripts(self) -> TranscriptRepository:
        return TranscriptRepository(self._session)

    @property
    def forks(self) -> ForkRepository:
        return ForkRepository(self._session)

    @property
    def retention(self) -> RetentionRepository:
        return RetentionRepository(self._session)

    @property
    def quotas(self) -> QuotaRepository:
        return QuotaRepository(self._session)

    @property
    def keys(self) -> ApiKeyRepository:
        return ApiKeyRepository(self._session)

    @property
    def storage(self) -> StorageRepository:
        return StorageRepository(self._session)

    @property
    def tenants(self) -> TenantRepository:
        return TenantRepository(self._session)


class PostgresDatabase:
    """Sessions and transactions of a `Store`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._settings_cache = SettingsCache()

    def cached_conversation(self, tenant_id: str, conversation_id: str) -> Conversation | None:
        return self._settings_cache.get(tenant_id, conversation_id).conversation

    @asynccontextmanager
    async def session(self) -> AsyncIterator[PostgresRepositories]:
        async with self._store.session() as session:
            yield PostgresRepositories(session, self._settings_cache)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PostgresRepositories]:
        async with self._store.transaction() as session:
            yield PostgresRepositories(session, self._settings_cache)
