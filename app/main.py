"""Creates the FastAPI app from the settings."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from datetime import datetime
from functools import partial

from fastapi import FastAPI

from app.common import logs
from app.common.json_structure import StructureLimits
from app.common.limiter import Slots
from app.compaction import jobs_routes as jobs
from app.compaction import routes as compactions
from app.compaction import strategies_routes as strategies
from app.compaction.receipts import ReceiptService
from app.composition import Parts, app_version, new_id, utc_now
from app.context import routes as context
from app.context import stateless_routes as stateless
from app.context.build import ContextService
from app.context.call_history import routes as call_history
from app.context.call_history.service import CallHistoryService
from app.context.models import routes as models
from app.context.payload_cache import PayloadCache
from app.context.state import BuildDependencies
from app.context.stateless_service import StatelessService
from app.context.steps import StepService
from app.context.tool_calls import ToolCallService
from app.context.usage import routes as reported_usage
from app.context.usage import totals_routes as usage_totals
from app.context.usage.service import UsageService
from app.context.usage.totals_service import UsageTotalService
from app.conversations import routes as conversations
from app.conversations.agents import routes as agents
from app.conversations.agents.service import AgentService
from app.conversations.events import routes as events
from app.conversations.events.service import EventService
from app.conversations.keys import ConversationKeys
from app.conversations.messages import routes as messages
from app.conversations.messages.pins import PinService
from app.conversations.messages.redactions import RedactionService
from app.conversations.messages.service import LogService
from app.conversations.messages.transcripts import TranscriptService
from app.conversations.search import routes as message_search
from app.conversations.search.tenant_service import TenantSearchService
from app.conversations.statuses import Statuses
from app.database.readiness import Readiness
from app.environment import SettingsError
from app.heap import return_freed_memory
from app.http import errors
from app.http.application import Application
from app.http.authentication import AuthenticationMiddleware
from app.http.dependencies import Services
from app.http.heavy_requests import large_slots
from app.http.request_logging import RequestLoggingMiddleware
from app.mcp_server.endpoint import McpEndpoint
from app.openapi.description import DESCRIPTION, TAGS, describe
from app.operation import caller, health, pages
from app.settings import Settings, read_settings
from app.snapshots import routes as snapshots
from app.snapshots.exports import ExportService
from app.snapshots.forks import ForkService
from app.snapshots.imports import ImportService
from app.snapshots.reading import SnapshotReader
from app.snapshots.restores import RestoreService
from app.snapshots.service import SnapshotService
from app.snapshots.summaries import SnapshotSummaries
from app.tool_output import reading_routes as blob_reading
from app.tool_output import routes as blobs
from app.tool_output import tools_routes as tools
from app.tool_output.ranking.bm25 import Bm25Ranking
from app.tool_output.tool_search import ToolSearchService
from app.worker import worker_of

# Routes are matched in this order.
ROUTERS = (
    messages.router,
    message_search.router,
    context.router,
    blobs.router,
    blob_reading.router,
    tools.router,
    reported_usage.router,
    compactions.router,
    conversations.router,
    snapshots.copies_router,
    events.router,
    jobs.router,
    agents.router,
    snapshots.router,
    stateless.router,
    models.router,
    call_history.router,
    usage_totals.router,
    strategies.router,
    caller.router,
    health.router,
    pages.router,
)

KEEP_ALIVE_SECONDS = 15.0
"""The interval of comments on an event stream without events."""
EVENT_POLL_SECONDS = 0.5
"""The interval at which event streams look for new events."""
MAX_BATCH = 1000
"""The messages of one append, at most."""
HEAVY_WAIT_SECONDS = 10.0
"""How long a heavy request waits for a slot, so that short bursts are not refused."""
MCP_MARGIN_SECONDS = 30.0
"""The time that an MCP tool call may take beyond the deadline of a compaction."""


def build() -> FastAPI:
    """Return the app for the settings of the environment; uvicorn calls this."""
    return_freed_memory()  # here as well: each of several processes begins with this function
    settings = read_settings()
    if settings.database_url is None:
        raise SettingsError("CONTEXT_DATABASE_URL is not set; `context-service serve` sets it.")
    logs.configure(settings.log_level)
    app = create_app(settings, with_worker=settings.worker)
    # Parsing a large body triggers garbage collections, each of which would also traverse all
    # objects of the app: 140 ms of the event loop for 190,000 empty lists. These are never freed.
    gc.freeze()
    # The payload cache grows with every build, and with the default of 700 new objects collections
    # take a twentieth of a step.
    gc.set_threshold(10_000, 10, 10)
    return app


def create_app(
    settings: Settings, *, with_worker: bool = False, now: Callable[[], datetime] = utc_now
) -> FastAPI:
    """Return the app; it connects to the database on startup, and also starts without one.

    `with_worker` also runs background jobs in this process. `now` is the clock of active windows.
    """
    parts = Parts(settings, now)
    worker = worker_of(settings, parts) if with_worker else None

    mcp = McpEndpoint(
        app_version(),
        settings.max_body_bytes,
        settings.summarizer_deadline_seconds + MCP_MARGIN_SECONDS,
    )

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with parts.opened(), worker.running() if worker else nullcontext(), mcp.running():
            yield

    app = Application(
        title="Context Service",
        version=app_version(),
        description=DESCRIPTION,
        openapi_tags=TAGS,
        lifespan=lifespan,
        docs_url=None,  # `pages` has its own, without a CDN
        redoc_url=None,
        # FastAPI's telemetry would send queries and exception texts; see `adapters/telemetry`.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
        redirect_slashes=False,
    )
    # Not include_router, which would match every request against each router in turn.
    app.router.routes.extend(route for router in ROUTERS for route in router.routes)
    app.router.routes.extend((*pages.docs_router.routes, *mcp.routes))
    errors.install(app)
    app.add_outer_middleware(
        partial(
            AuthenticationMiddleware,
            keys=parts.keys,
            limits=parts.limits,
            allowed_hosts=settings.allowed_hosts,
        )
    )
    app.add_outer_middleware(
        partial(RequestLoggingMiddleware, requests=parts.telemetry, access_log=settings.access_log)
    )
    if parts.telemetry.middleware is not None:
        app.add_outer_middleware(parts.telemetry.middleware)
    describe(app)
    app.state.max_body_bytes = settings.max_body_bytes
    app.state.page_bytes = settings.page_bytes
    app.state.json_limits = StructureLimits()
    app.state.heavy = Slots(
        "heavy_requests",
        "slots for heavy requests",
        settings.heavy_requests,
        max(1, settings.heavy_requests // 2),
        wait_seconds=HEAVY_WAIT_SECONDS,
    )
    app.state.large_slots = large_slots(settings.heavy_requests, settings.pool_max_size)
    app.state.keep_alive_seconds = KEEP_ALIVE_SECONDS
    app.state.metrics = parts.telemetry
    app.state.services = _services(settings, parts)
    return app


def _services(settings: Settings, parts: Parts) -> Services:
    database, resolver, compaction = parts.database, parts.resolver, parts.compaction
    policy = settings.policy
    search = ToolSearchService(database, resolver, Bm25Ranking())
    log = LogService(
        database,
        resolver,
        parts.outputs,
        parts.active,
        new_id,
        MAX_BATCH,
        parts.telemetry,
    )
    cache = PayloadCache(settings.window_cache_bytes)
    usage = UsageService(database, resolver, parts.active, new_id, cache)
    context = ContextService(
        BuildDependencies(
            database,
            resolver,
            parts.summariser,
            cache,
            parts.active,
            compaction,
            Statuses(database, parts.active.now),
            new_id,
            parts.telemetry,
        )
    )
    return Services(
        agents=AgentService(
            database,
            resolver,
            policy,
            new_id,
            parts.active.now,
            parts.outputs.delete_conversation_objects,
            parts.summariser.check_model,
        ),
        conversations=parts.conversations,
        conversation_keys=ConversationKeys(database),
        log=log,
        blobs=parts.blobs,
        uploads=parts.uploads,
        blob_collector=parts.blob_collector,
        tools=search,
        tool_calls=ToolCallService(parts.blobs, search, compaction, parts.search),
        usage=usage,
        usage_totals=UsageTotalService(database, utc_now),
        context=context,
        steps=StepService(log, usage, context),
        build_replay=parts.build_replay,
        call_history=CallHistoryService(database),
        compaction=compaction,
        receipts=ReceiptService(database, resolver, parts.active),
        pins=PinService(database, resolver, parts.active),
        redactions=RedactionService(database, resolver, parts.outputs),
        events=EventService(
            database,
            utc_now,
            EVENT_POLL_SECONDS,
            Slots(
                "streams",
                "event streams",
                settings.events_max_streams,
                max(1, settings.events_max_streams // 4),
            ),
        ),
        exports=ExportService(database, parts.outputs, utc_now),
        imports=ImportService(
            database,
            resolver,
            parts.blob_store,
            new_id,
            utc_now,
            snapshots.check_settings,
            settings.max_body_bytes,
            settings.max_blob_bytes,
        ),
        forks=ForkService(database, resolver, parts.active, parts.blob_store, new_id),
        registry=parts.models,
        search=parts.search,
        tenant_search=TenantSearchService(database, parts.search),
        snapshots=_snapshots(parts, log),
        stateless=StatelessService(parts.summariser, resolver, parts.registry, database, utc_now),
        transcripts=TranscriptService(database, resolver, parts.active, parts.outputs),
        is_ready=Readiness(parts.store).is_ready,
        degraded=("summarizer_without_key",) if parts.missing_keys else (),
        still_admits=parts.keys.still_admits,
    )


def _snapshots(parts: Parts, log: LogService) -> SnapshotService:
    database, resolver = parts.database, parts.resolver
    reader = SnapshotReader(database, parts.outputs)
    restores = RestoreService(
        reader, parts.active, log, parts.conversations, resolver.default_model, MAX_BATCH
    )
    summaries = SnapshotSummaries(database, parts.summariser)
    return SnapshotService(database, resolver, summaries, restores, reader, parts.active, new_id)
