"""What the API and the worker share: settings in, the parts that store, count and compact out."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Thread

from uuid_utils import uuid7

from app.adapters.breaker import CircuitBreaker
from app.adapters.chunks import RowStore
from app.adapters.gateway import LiteLLMGateway
from app.adapters.models import ModelRegistry
from app.adapters.objects import ObjectStore
from app.adapters.postgres.database import PostgresDatabase
from app.adapters.postgres.jobs import PostgresQueue
from app.adapters.postgres.store import Store
from app.adapters.tokenizer import TiktokenTokenizer
from app.domain.errors import ServiceUnavailable
from app.domain.summaries import DEFAULT_SECRET_PATTERNS
from app.services.active_windows import ActiveWindows
from app.services.blobs import BlobService
from app.services.compaction import CompactionService
from app.services.frames import Frames
from app.services.leases import Leases
from app.services.outputs import Outputs
from app.services.ports import BlobStore
from app.services.search import SearchService
from app.services.spend import SpendGuard
from app.services.summariser import Summariser, SummariserSettings
from app.settings import Settings

BLOB_STORE_SECONDS = 10.0
"""How long one request to an object store may take; an append waits no longer (F8)."""

_log = logging.getLogger("app.composition")


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one process; nothing is connected before `opened`."""

    store: Store
    database: PostgresDatabase
    queue: PostgresQueue
    tokenizer: TiktokenTokenizer
    registry: ModelRegistry
    gateway: LiteLLMGateway
    frames: Frames
    summariser: Summariser
    active: ActiveWindows
    compaction: CompactionService
    blob_store: BlobStore
    outputs: Outputs
    blobs: BlobService
    search: SearchService

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Connect for the block, which starts without a database as well."""
        Thread(target=self._warm_up, name="warm-up", daemon=True).start()
        try:
            await self.store.open()
        except ServiceUnavailable:
            _log.warning("database_unavailable")
        try:
            yield
        finally:
            await self.gateway.close()
            await self.store.close()

    def _warm_up(self) -> None:
        """Load beside the event loop what the first requests need."""
        self.tokenizer.load()
        self.registry.find("")


def utc_now() -> datetime:
    """Return the time of day."""
    return datetime.now(UTC)


def compose(settings: Settings, now: Callable[[], datetime] = utc_now) -> Parts:
    """Return the parts for these settings; active windows go by the time that `now` tells."""
    store = Store(
        settings.database_url or "",
        min_size=settings.pool_min_size,
        max_size=settings.pool_max_size,
    )
    database = PostgresDatabase(store)
    tokenizer, registry = TiktokenTokenizer(), ModelRegistry()
    gateway = LiteLLMGateway(settings.summarizer_api_base, settings.summarizer_api_key)
    frames = Frames(registry, tokenizer, settings.policy_overrides, settings.default_model)
    # The breaker comes first: a call that is not made is not counted.
    guarded = CircuitBreaker(
        SpendGuard(gateway, database, settings.summarizer_calls_per_hour),
        settings.summarizer_breaker_failures,
        settings.summarizer_breaker_seconds,
    )
    summariser = Summariser(guarded, registry, tokenizer, _summariser_settings(settings))
    leases = Leases(database, new_id)
    active = ActiveWindows(database, frames, now)
    blob_store: BlobStore = RowStore()
    if settings.blob_store_url is not None:
        blob_store = ObjectStore(settings.blob_store_url, timeout_seconds=BLOB_STORE_SECONDS)
    outputs = Outputs(database, blob_store, new_id)
    return Parts(
        store=store,
        database=database,
        queue=PostgresQueue(store),
        tokenizer=tokenizer,
        registry=registry,
        gateway=gateway,
        frames=frames,
        summariser=summariser,
        active=active,
        compaction=CompactionService(database, frames, summariser, leases, active, new_id, now_ms),
        blob_store=blob_store,
        outputs=outputs,
        blobs=BlobService(
            database,
            frames,
            blob_store,
            outputs,
            new_id,
            utc_now,
            most_bytes=settings.max_blob_bytes,
            upload_ttl_seconds=settings.blob_upload_ttl_seconds,
        ),
        search=SearchService(database, frames),
    )


def new_id() -> str:
    """Return a new UUIDv7, which sorts by time."""
    return str(uuid7())


def now_ms() -> float:
    """Return the time of a clock that only goes forward."""
    return time.monotonic() * 1000


def _summariser_settings(settings: Settings) -> SummariserSettings:
    patterns = settings.secret_patterns
    if patterns is None:
        patterns = DEFAULT_SECRET_PATTERNS
    return SummariserSettings(
        model=settings.summarizer_model,
        allowed_models=settings.summarizer_allowed_models,
        fallback_models=settings.summarizer_fallback_models,
        timeout_seconds=settings.summarizer_timeout_seconds,
        context_window=settings.summarizer_context_window,
        secret_patterns=patterns if settings.secret_masking else (),
        deadline_seconds=settings.summarizer_deadline_seconds,
    )
