"""Sessions and transactions with the SQL of all features."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from app.blobs.repository import BlobRepository
from app.context.repository import ADD_EPOCH, READ, ContextRepository
from app.context.usage_repository import UsageRepository
from app.conversations.events import EventRepository
from app.conversations.from_rows import CachedSettings, SettingsCache
from app.conversations.listing import ConversationListRepository
from app.conversations.messages.repository import APPEND, LogRepository
from app.conversations.repository import AgentRepository, ConversationRepository
from app.database.connections import Repository, Session, Store
from app.jobs.repository import TAKE_LEASE, JobRepository
from app.tenancy.repository import ANY_KEY, FIND_KEY, FIND_LIMITS

FREQUENT = (READ, ADD_EPOCH, APPEND, TAKE_LEASE, FIND_KEY, ANY_KEY, FIND_LIMITS)
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
    events = _Of(EventRepository)
    jobs = _Of(JobRepository)
    usage = _Of(UsageRepository)
    blobs = _Of(BlobRepository)


class Database:
    """Opens sessions of a `Store`; no session is held open during a model call.

    `default_model` is that of conversations without a model of their own or of their agent.
    """

    def __init__(self, store: Store, default_model: str | None = None) -> None:
        self._store = store
        self._settings_cache = SettingsCache(default_model)

    def cached_settings(self, tenant_id: str, conversation_id: str) -> CachedSettings | None:
        """Return the settings as this process last read them, which may be outdated."""
        return self._settings_cache.get(tenant_id, conversation_id)

    @asynccontextmanager
    async def session(self, seconds: float | None = None) -> AsyncIterator[Repositories]:
        """Each statement commits by itself; `seconds` is its timeout and the connection's."""
        async with self._store.session(seconds) as session:
            yield Repositories(session, self._settings_cache)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Repositories]:
        """All statements of the block commit together, or none."""
        async with self._store.transaction() as session:
            yield Repositories(session, self._settings_cache)
