"""The implementation of the services' `Database` port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app.adapters.postgres.common.connections import Session, Store
from app.adapters.postgres.common.rows import SettingsCache
from app.adapters.postgres.compaction.jobs import JobRepository
from app.adapters.postgres.conversations import append_statements
from app.adapters.postgres.conversations.active_windows import ActiveWindowRepository
from app.adapters.postgres.conversations.agents import AgentRepository
from app.adapters.postgres.conversations.conversations import ConversationRepository
from app.adapters.postgres.conversations.events import EventRepository
from app.adapters.postgres.conversations.listing import ConversationListRepository
from app.adapters.postgres.conversations.log import LogRepository
from app.adapters.postgres.conversations.redactions import RedactionRepository
from app.adapters.postgres.conversations.search import SearchRepository
from app.adapters.postgres.conversations.tenant_search import TenantSearchRepository
from app.adapters.postgres.conversations.transcripts import TranscriptRepository
from app.adapters.postgres.payload import build_reads
from app.adapters.postgres.payload.contexts import ADD_EPOCH, ContextRepository
from app.adapters.postgres.payload.reported_usage import UsageRepository
from app.adapters.postgres.payload.usage_totals import UsageTotalRepository
from app.adapters.postgres.snapshots.exports import ExportRepository
from app.adapters.postgres.snapshots.forks import ForkRepository
from app.adapters.postgres.snapshots.snapshots import SnapshotRepository
from app.adapters.postgres.tenancy import api_keys, limits
from app.adapters.postgres.tenancy.api_keys import ApiKeyRepository
from app.adapters.postgres.tenancy.limits import LimitRepository
from app.adapters.postgres.tenancy.retention import RetentionRepository
from app.adapters.postgres.tenancy.tenant_data import TenantDataRepository
from app.adapters.postgres.tenancy.tenants import TenantRepository
from app.adapters.postgres.tool_output.blobs import BlobRepository
from app.domain.conversations.conversation import Conversation
from app.domain.conversations.rolling_window import SERVICE_DEFAULTS, WindowDefaults

FREQUENT = (
    build_reads.READ,
    ADD_EPOCH,
    append_statements.APPENDS[True, False, False],
    append_statements.APPENDS[False, False, False],
    api_keys.FIND,
    api_keys.EXISTS,
    limits.FIND,
)
"""The statements of builds, appends and their callers, which do nothing without values."""


class PostgresRepositories:
    """All repositories, over one session."""

    __slots__ = ("_session", "_settings_cache", "_window_defaults")

    def __init__(
        self, session: Session, settings_cache: SettingsCache, window_defaults: WindowDefaults
    ) -> None:
        self._session = session
        self._settings_cache = settings_cache
        self._window_defaults = window_defaults

    @property
    def agents(self) -> AgentRepository:
        return AgentRepository(self._session, self._window_defaults)

    @property
    def conversations(self) -> ConversationRepository:
        return ConversationRepository(self._session, self._window_defaults)

    @property
    def conversation_list(self) -> ConversationListRepository:
        return ConversationListRepository(self._session, self._window_defaults)

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
    def tenant_search(self) -> TenantSearchRepository:
        return TenantSearchRepository(self._session)

    @property
    def transcripts(self) -> TranscriptRepository:
        return TranscriptRepository(self._session)

    @property
    def redactions(self) -> RedactionRepository:
        return RedactionRepository(self._session)

    @property
    def forks(self) -> ForkRepository:
        return ForkRepository(self._session)

    @property
    def exports(self) -> ExportRepository:
        return ExportRepository(self._session)

    @property
    def tenant_data(self) -> TenantDataRepository:
        return TenantDataRepository(self._session)

    @property
    def retention(self) -> RetentionRepository:
        return RetentionRepository(self._session)

    @property
    def limits(self) -> LimitRepository:
        return LimitRepository(self._session)

    @property
    def keys(self) -> ApiKeyRepository:
        return ApiKeyRepository(self._session)

    @property
    def tenants(self) -> TenantRepository:
        return TenantRepository(self._session)


class PostgresDatabase:
    """Sessions and transactions of a `Store`."""

    def __init__(self, store: Store, window_defaults: WindowDefaults = SERVICE_DEFAULTS) -> None:
        self._store = store
        self._settings_cache = SettingsCache(window_defaults)
        self._window_defaults = window_defaults

    def cached_conversation(self, tenant_id: str, conversation_id: str) -> Conversation | None:
        return self._settings_cache.get(tenant_id, conversation_id).conversation

    @asynccontextmanager
    async def session(self) -> AsyncIterator[PostgresRepositories]:
        async with self._store.session() as session:
            yield PostgresRepositories(session, self._settings_cache, self._window_defaults)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PostgresRepositories]:
        async with self._store.transaction() as session:
            yield PostgresRepositories(session, self._settings_cache, self._window_defaults)
