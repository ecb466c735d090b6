"""The port that opens sessions and transactions."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from app.domain.conversations.conversation import Conversation
from app.services.ports.compaction import JobRepository
from app.services.ports.conversations import (
    AgentRepository,
    ConversationListRepository,
    ConversationRepository,
    SearchRepository,
    TenantSearchRepository,
    TranscriptRepository,
)
from app.services.ports.log import ActiveWindowRepository, EventRepository, LogRepository
from app.services.ports.payload import ContextRepository, UsageRepository, UsageTotalRepository
from app.services.ports.redactions import RedactionRepository
from app.services.ports.snapshots import ExportRepository, ForkRepository, SnapshotRepository
from app.services.ports.tenancy import (
    ApiKeyRepository,
    LimitRepository,
    RetentionRepository,
    TenantDataRepository,
    TenantRepository,
)
from app.services.ports.tool_output import BlobRepository


class Repositories(Protocol):
    """All repositories, over one session."""

    @property
    def agents(self) -> AgentRepository:
        """Agents and their settings."""
        ...

    @property
    def conversations(self) -> ConversationRepository:
        """Conversations and their settings."""
        ...

    @property
    def conversation_list(self) -> ConversationListRepository:
        """Pages of a tenant's conversations."""
        ...

    @property
    def log(self) -> LogRepository:
        """The messages of conversations."""
        ...

    @property
    def contexts(self) -> ContextRepository:
        """Builds, epochs and compactions."""
        ...

    @property
    def windows(self) -> ActiveWindowRepository:
        """Active windows."""
        ...

    @property
    def jobs(self) -> JobRepository:
        """Background jobs and due compactions."""
        ...

    @property
    def events(self) -> EventRepository:
        """Events of conversations."""
        ...

    @property
    def usage(self) -> UsageRepository:
        """Token usage that providers reported."""
        ...

    @property
    def usage_totals(self) -> UsageTotalRepository:
        """Totals of usage and cost."""
        ...

    @property
    def blobs(self) -> BlobRepository:
        """Full tool outputs."""
        ...

    @property
    def snapshots(self) -> SnapshotRepository:
        """Saved active windows."""
        ...

    @property
    def search(self) -> SearchRepository:
        """The search index of messages."""
        ...

    @property
    def tenant_search(self) -> TenantSearchRepository:
        """Search in several conversations."""
        ...

    @property
    def transcripts(self) -> TranscriptRepository:
        """Messages of several conversations."""
        ...

    @property
    def redactions(self) -> RedactionRepository:
        """Deletion of the content of messages."""
        ...

    @property
    def forks(self) -> ForkRepository:
        """Copies of conversations."""
        ...

    @property
    def exports(self) -> ExportRepository:
        """Records of exports and imports."""
        ...

    @property
    def tenants(self) -> TenantRepository:
        """Tenants, their model entries and their creation keys."""
        ...

    @property
    def tenant_data(self) -> TenantDataRepository:
        """Everything that a tenant has."""
        ...

    @property
    def retention(self) -> RetentionRepository:
        """Deletion by age."""
        ...

    @property
    def limits(self) -> LimitRepository:
        """Limits of tenants, and the calls of their summarisers."""
        ...

    @property
    def keys(self) -> ApiKeyRepository:
        """API keys."""
        ...


class Database(Protocol):
    """Opens sessions; no session is held open during a model call."""

    def cached_conversation(self, tenant_id: str, conversation_id: str) -> Conversation | None:
        """Return the conversation as this process last read it, which may be outdated."""
        ...

    def session(self) -> AbstractAsyncContextManager[Repositories]:
        """Each statement commits by itself."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Repositories]:
        """All statements of the block commit together, or none."""
        ...
