"""Ports: what the services need from adapters, as protocols."""

from app.services.ports.compaction import JobRepository
from app.services.ports.conversations import (
    AgentRepository,
    ConfigurableRepository,
    ConversationListRepository,
    ConversationRepository,
    SearchRepository,
    TenantSearchRepository,
    TranscriptRepository,
)
from app.services.ports.database import Database, Repositories
from app.services.ports.log import ActiveWindowRepository, EventRepository, LogRepository
from app.services.ports.models import Gateway, Models, Ranking, Tokenizer
from app.services.ports.payload import ContextRepository, UsageRepository, UsageTotalRepository
from app.services.ports.redactions import RedactionRepository
from app.services.ports.snapshots import ForkRepository, SnapshotRepository
from app.services.ports.telemetry import Observer
from app.services.ports.tenancy import (
    ApiKeyRepository,
    RetentionRepository,
    TenantRepository,
)
from app.services.ports.tool_output import BlobRepository, BlobStore, BlobWriter

__all__ = [
    "ActiveWindowRepository",
    "AgentRepository",
    "ApiKeyRepository",
    "BlobRepository",
    "BlobStore",
    "BlobWriter",
    "ConfigurableRepository",
    "ContextRepository",
    "ConversationListRepository",
    "ConversationRepository",
    "Database",
    "EventRepository",
    "ForkRepository",
    "Gateway",
    "JobRepository",
    "LogRepository",
    "Models",
    "Observer",
    "Ranking",
    "RedactionRepository",
    "Repositories",
    "RetentionRepository",
    "SearchRepository",
    "SnapshotRepository",
    "TenantRepository",
    "TenantSearchRepository",
    "Tokenizer",
    "TranscriptRepository",
    "UsageRepository",
    "UsageTotalRepository",
]
