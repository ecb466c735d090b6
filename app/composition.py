"""Composition root: creates the services and adapters of a process from its settings."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version

from uuid_utils import uuid7

from app.blobs.byte_store import BlobStore, ObjectStore
from app.common.concurrency import Slots
from app.common.errors import ServiceUnavailable
from app.compaction.receipts import ReceiptService
from app.compaction.rewind import RewindService
from app.compaction.service import CompactionService
from app.compaction.summaries.model_calls import SummariserSettings
from app.compaction.summaries.model_summary import ModelAccess
from app.compaction.summaries.secret_masking import DEFAULT_SECRET_PATTERNS
from app.compaction.summaries.summariser import Summariser
from app.context.agent_tool_calls import ToolCallService
from app.context.build import ContextService
from app.context.build_answer import BuildReplayService
from app.context.own_models import RegistryService
from app.context.state import BuildDependencies, PayloadCache
from app.context.stateless import StatelessService
from app.context.usage_service import UsageService
from app.conversations.events import EventService
from app.conversations.messages.redactions import RedactionService
from app.conversations.messages.service import LogService
from app.conversations.messages.stored_results import StoredResults
from app.conversations.messages.transcripts import TranscriptService
from app.conversations.moving_window import ActiveWindows
from app.conversations.other_conversations import OtherConversations
from app.conversations.search.service import SearchService
from app.conversations.service import AgentService, ConversationService
from app.conversations.settings_resolver import SettingsResolver
from app.database.connections import Store, Timeouts
from app.database.migrate import is_ready
from app.jobs.leases import Leases
from app.jobs.repository import waiting_in
from app.models import tokenizer
from app.models.litellm_gateway import CircuitBreaker, LiteLLMGateway
from app.models.registry import ModelRegistry
from app.models.tokenizer import LocalTokenizer
from app.operation.recorder import MeasuredGateway, Telemetry
from app.repositories import FREQUENT, Database
from app.settings import Settings
from app.snapshots.exports import ExportService, ImportService
from app.snapshots.forks import ForkService
from app.snapshots.restores import RestoreService
from app.snapshots.service import SnapshotService
from app.tenancy.api_keys import KeyService
from app.tenancy.limits import LimitService, SummariserQuota, TenantLimits
from app.tenancy.retention import RetentionService
from app.tool_output.collection import BlobCollection
from app.tool_output.reading import BlobReader
from app.tool_output.tool_search import ToolRanking, ToolSearchService
from app.tool_output.uploads import BlobUploads

EVENT_POLL_SECONDS = 0.5
"""The interval at which event streams look for new events."""
MAX_BATCH = 1000
"""The messages of one append, at most."""
BLOB_STORE_SECONDS = 10.0
"""The timeout of a request to an object store, and so of an append that waits for one."""

_log = logging.getLogger("app.composition")


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


class Services:
    """The services and adapters of one process; nothing is connected before `opened`."""

    def __init__(self, settings: Settings, now: Callable[[], datetime] = utc_now) -> None:
        """Make them for these settings; `now` is the clock of active windows."""
        self.telemetry = telemetry = Telemetry(app_version(), settings.metrics_token)
        self.store = store = Store(
            settings.database_url or "",
            max_size=settings.pool_max_size,
            timeouts=Timeouts(statement=settings.database_statement_seconds),
            pooler=settings.database_pooler,
            failed=telemetry.database_failed,
        )
        telemetry.watch(store.pool_state, partial(waiting_in, store))
        self.database = database = Database(store, settings.default_model)
        self.keys = KeyService(database, utc_now, time.monotonic, telemetry.key_refused)
        self.limits = LimitService(
            database,
            TenantLimits(settings.requests_per_minute, settings.summarizer_calls_per_hour),
            time.time,
        )
        self.tokenizer, self.models = LocalTokenizer(), ModelRegistry()
        self.gateway = LiteLLMGateway(settings.summarizer_api_base, settings.summarizer_api_key)
        self.resolver = resolver = SettingsResolver(
            self.models, self.tokenizer, settings.policy, settings.default_model
        )
        self.registry = RegistryService(database, self.models)
        measured = MeasuredGateway(self.gateway, telemetry)
        quota = SummariserQuota(measured, database, self.limits.of, utc_now)
        access = ModelAccess(
            CircuitBreaker(quota),  # a call that it stops is not counted
            self.models,
            self.tokenizer,
            _summariser_settings(settings),
            find_own_info=self.registry.find_own_info,
        )
        self.summariser = Summariser(access)
        self.leases = Leases(database, new_id)
        self.active = ActiveWindows(database, resolver, now)
        self.blob_store: BlobStore = BlobStore()
        if settings.blob_store_url is not None:
            self.blob_store = ObjectStore(
                settings.blob_store_url, timeout_seconds=BLOB_STORE_SECONDS
            )
        self.outputs = outputs = StoredResults(database, self.blob_store, new_id)
        self.blobs = BlobReader(database, resolver, outputs)
        self.uploads = BlobUploads(database, resolver, outputs, new_id, settings.max_blob_bytes)
        upload_ttl = timedelta(seconds=settings.blob_upload_ttl_seconds)
        self.collection = BlobCollection(
            database, resolver, self.blob_store, outputs, utc_now, upload_ttl
        )
        self.search = SearchService(database)
        self.conversations: ConversationService = ConversationService(
            database,
            resolver,
            new_id,
            now,
            outputs.delete_conversation_objects,
            self.summariser.check_model,
        )
        self.retention = RetentionService(
            database,
            timedelta(days=days) if (days := settings.retention_event_days) else None,
            self.conversations.remove_expired,
            utc_now,
        )
        self.build_replay = BuildReplayService(database, resolver)
        self.compaction = CompactionService(
            database, resolver, self.summariser, self.active, self.leases, new_id, now_ms, telemetry
        )
        self._add_features(settings)

    def _add_features(self, settings: Settings) -> None:
        """Make the services that routes alone use."""
        database, resolver, active = self.database, self.resolver, self.active
        outputs, search = self.outputs, self.search
        self.tools = ToolSearchService(database, resolver, ToolRanking())
        self.log = log = LogService(
            database, resolver, outputs, active, new_id, MAX_BATCH, self.telemetry
        )
        cache = PayloadCache(settings.payload_cache_bytes)
        self.usage = UsageService(database, resolver, active, new_id, cache, utc_now)
        self.context = ContextService(
            BuildDependencies(
                database,
                resolver,
                self.summariser,
                cache,
                active,
                self.compaction,
                OtherConversations(database, active.now),
                new_id,
                self.telemetry,
            )
        )
        self.agents = AgentService(
            database,
            resolver,
            new_id,
            active.now,
            outputs.delete_conversation_objects,
            self.summariser.check_model,
        )
        self.receipts = ReceiptService(database, resolver, active)
        self.rewinds = RewindService(database, resolver, active, new_id)
        self.redactions = RedactionService(database, resolver, outputs)
        self.transcripts = TranscriptService(database, resolver, active, outputs)
        self.tool_calls = ToolCallService(
            self.blobs, self.tools, self.compaction, search, self.transcripts
        )
        most = settings.events_max_streams
        slots = Slots("event_streams", most, max(1, most // 4))
        self.events = EventService(database, utc_now, EVENT_POLL_SECONDS, slots)
        self.stateless = StatelessService(self.summariser, resolver, self.models, database, utc_now)
        self.exports = ExportService(database, outputs, utc_now)
        most_bytes = (settings.max_body_bytes, settings.max_blob_bytes)
        self.imports = ImportService(database, resolver, outputs, new_id, utc_now, most_bytes)
        self.forks = ForkService(database, resolver, active, self.blob_store, new_id)
        self.restores = RestoreService(
            database, outputs, active, log, self.conversations, MAX_BATCH
        )
        self.snapshots = SnapshotService(database, resolver, self.summariser, active, new_id)
        self.is_ready = partial(is_ready, self.store)
        self.still_admits = self.keys.still_admits

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Connect during the block; a process also starts while its database is unavailable.

        It begins once no first request has to load the tokenizer and the model registry.
        """
        loading = asyncio.create_task(asyncio.to_thread(self._load))
        try:
            await self.store.open(FREQUENT)
        except ServiceUnavailable:
            _log.warning("database_unavailable")
        await loading
        self.tokenizer.count("once")  # on this thread first; see `tokenizer.load`
        await asyncio.to_thread(self.tokenizer.count, "once")
        async with AsyncExitStack() as closing:
            closing.push_async_callback(self.store.close)
            closing.push_async_callback(self.gateway.close)
            async with self.telemetry.running():
                yield

    def _load(self) -> None:
        """Load what the first request would wait for."""
        tokenizer.load()
        self.models.find("")


def new_id() -> str:
    """Return a new UUIDv7, which sorts by time."""
    return str(uuid7())


def now_ms() -> float:
    """Return the milliseconds of a monotonic clock."""
    return time.monotonic() * 1000


@cache
def app_version() -> str:
    """Return the version of the installed package, `0` if it is not installed."""
    try:
        return version("context-service")
    except PackageNotFoundError:
        return "0"


def _summariser_settings(settings: Settings) -> SummariserSettings:
    patterns = settings.secret_patterns
    return SummariserSettings(
        model=settings.summarizer_model,
        allowed_models=settings.summarizer_allowed_models,
        fallback_models=settings.summarizer_fallback_models,
        timeout_seconds=settings.summarizer_timeout_seconds,
        context_window=settings.summarizer_context_window,
        secret_patterns=DEFAULT_SECRET_PATTERNS if patterns is None else patterns,
        deadline_seconds=settings.summarizer_deadline_seconds,
    )
