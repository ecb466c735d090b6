"""Sessions and transactions with all repositories."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from app.adapters.postgres.common.connections import Session, Store
from app.adapters.postgres.common.repository import Repository
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


_Kind = TypeVar("_Kind", bound=Repository)


class _Of(Generic[_Kind]):
    """An attribute that is a repository of one kind; most sessions use few of them."""

    def __init__(self, kind: type[_Kind]) -> None:
        self._kind = kind

    def __get__(self, repositories: Repositories, owner: object) -> _Kind:
        return self._kind(repositories.session, repositories.settings_cache)


@dataclass(frozen=True, slots=True)
class Repositories:
    """All repositories, over one session."""

    session: Session
    settings_cache: SettingsCache

    agents = _Of(AgentRepository)
    conversations = _Of(ConversationRepository)
    conversation_list = _Of(ConversationListRepository)
    log = _Of(LogRepository)
    contexts = _Of(ContextRepository)
    windows = _Of(ActiveWindowRepository)
    events = _Of(EventRepository)
    jobs = _Of(JobRepository)
    usage = _Of(UsageRepository)
    usage_totals = _Of(UsageTotalRepository)
    blobs = _Of(BlobRepository)
    snapshots = _Of(SnapshotRepository)
    search = _Of(SearchRepository)
    tenant_search = _Of(TenantSearchRepository)
    transcripts = _Of(TranscriptRepository)
    redactions = _Of(RedactionRepository)
    forks = _Of(ForkRepository)
    exports = _Of(ExportRepository)
    tenant_data = _Of(TenantDataRepository)
    retention = _Of(RetentionRepository)
    limits = _Of(LimitRepository)
    keys = _Of(ApiKeyRepository)
    tenants = _Of(TenantRepository)


class Database:
    """Opens sessions of a `Store`; no session is held open during a model call."""

    def __init__(self, store: Store, window_defaults: WindowDefaults = SERVICE_DEFAULTS) -> None:
        self._store = store
        self._settings_cache = SettingsCache(window_defaults)

    def cached_conversation(self, tenant_id: str, conversation_id: str) -> Conversation | None:
        """Return the conversation as this process last read it, which may be outdated."""
        return self._settings_cache.get(tenant_id, conversation_id).conversation

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Repositories]:
        """Each statement commits by itself."""
        async with self._store.session() as session:
            yield Repositories(session, self._settings_cache)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Repositories]:
        """All statements of the block commit together, or none."""
        async with self._store.transaction() as session:
            yield Repositories(session, self._settings_cache)
