"""Sessions and transactions with all repositories."""

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


class Repositories:
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
        """Agents and their settings."""
        return AgentRepository(self._session, self._window_defaults)

    @property
    def conversations(self) -> ConversationRepository:
        """Conversations and their settings."""
        return ConversationRepository(self._session, self._window_defaults)

    @property
    def conversation_list(self) -> ConversationListRepository:
        """Pages of a tenant's conversations."""
        return ConversationListRepository(self._session, self._window_defaults)

    @property
    def log(self) -> LogRepository:
        """The messages of conversations."""
        return LogRepository(self._session, self._settings_cache)

    @property
    def contexts(self) -> ContextRepository:
        """Builds, epochs and compactions."""
        return ContextRepository(self._session, self._settings_cache)

    @property
    def windows(self) -> ActiveWindowRepository:
        """Active windows."""
        return ActiveWindowRepository(self._session)

    @property
    def events(self) -> EventRepository:
        """Events of conversations."""
        return EventRepository(self._session)

    @property
    def jobs(self) -> JobRepository:
        """Background jobs and due compactions."""
        return JobRepository(self._session)

    @property
    def usage(self) -> UsageRepository:
        """Token usage that providers reported."""
        return UsageRepository(self._session)

    @property
    def usage_totals(self) -> UsageTotalRepository:
        """Totals of usage and cost."""
        return UsageTotalRepository(self._session)

    @property
    def blobs(self) -> BlobRepository:
        """Full tool outputs."""
        return BlobRepository(self._session)

    @property
    def snapshots(self) -> SnapshotRepository:
        """Saved active windows."""
        return SnapshotRepository(self._session)

    @property
    def search(self) -> SearchRepository:
        """The search index of messages."""
        return SearchRepository(self._session)

    @property
    def tenant_search(self) -> TenantSearchRepository:
        """Search in several conversations."""
        return TenantSearchRepository(self._session)

    @property
    def transcripts(self) -> TranscriptRepository:
        """Messages of several conversations."""
        return TranscriptRepository(self._session)

    @property
    def redactions(self) -> RedactionRepository:
        """Deletion of the content of messages."""
        return RedactionRepository(self._session)

    @property
    def forks(self) -> ForkRepository:
        """Copies of conversations."""
        return ForkRepository(self._session)

    @property
    def exports(self) -> ExportRepository:
        """Records of exports and imports."""
        return ExportRepository(self._session)

    @property
    def tenant_data(self) -> TenantDataRepository:
        """Everything that a tenant has."""
        return TenantDataRepository(self._session)

    @property
    def retention(self) -> RetentionRepository:
        """Deletion by age."""
        return RetentionRepository(self._session)

    @property
    def limits(self) -> LimitRepository:
        """Limits of tenants, and the calls of their summarisers."""
        return LimitRepository(self._session)

    @property
    def keys(self) -> ApiKeyRepository:
        """API keys."""
        return ApiKeyRepository(self._session)

    @property
    def tenants(self) -> TenantRepository:
        """Tenants, their model entries and their creation keys."""
        return TenantRepository(self._session)


class Database:
    """Opens sessions of a `Store`; no session is held open during a model call."""

    def __init__(self, store: Store, window_defaults: WindowDefaults = SERVICE_DEFAULTS) -> None:
        self._store = store
        self._settings_cache = SettingsCache(window_defaults)
        self._window_defaults = window_defaults

    def cached_conversation(self, tenant_id: str, conversation_id: str) -> Conversation | None:
        """Return the conversation as this process last read it, which may be outdated."""
        return self._settings_cache.get(tenant_id, conversation_id).conversation

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Repositories]:
        """Each statement commits by itself."""
        async with self._store.session() as session:
            yield Repositories(session, self._settings_cache, self._window_defaults)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Repositories]:
        """All statements of the block commit together, or none."""
        async with self._store.transaction() as session:
            yield Repositories(session, self._settings_cache, self._window_defaults)
