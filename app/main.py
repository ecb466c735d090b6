"""Creates the FastAPI app from the settings."""

from __future__ import annotations

import gc
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from datetime import datetime
from functools import partial

from fastapi import FastAPI

from app.common import logs
from app.common.concurrency import Slots
from app.common.environment import SettingsError
from app.common.json_text import StructureLimits
from app.compaction import routes as compactions
from app.composition import Services, app_version, utc_now
from app.context import own_models, stateless_routes, usage_routes
from app.context import routes as context
from app.conversations import event_routes
from app.conversations import routes as conversations
from app.conversations.messages import routes as messages
from app.conversations.search import routes as message_search
from app.http import errors
from app.http.bodies import large_slots
from app.http.middleware import AuthenticationMiddleware, RequestLoggingMiddleware
from app.http.routing import Application
from app.mcp_server.endpoint import McpEndpoint
from app.openapi import DESCRIPTION, TAGS, describe
from app.operation import routes as operation
from app.operation.heap import return_freed_memory
from app.settings import Settings, read_settings
from app.snapshots import routes as snapshots
from app.tool_output import routes as blobs
from app.worker import worker_of

# Routes are matched in this order.
ROUTERS = (
    messages.router,
    message_search.router,
    context.router,
    blobs.router,
    blobs.tools_router,
    usage_routes.router,
    stateless_routes.router,
    own_models.router,
    compactions.router,
    conversations.router,
    snapshots.copies_router,
    event_routes.router,
    conversations.agents_router,
    snapshots.router,
    operation.router,
)

KEEP_ALIVE_SECONDS = 15.0
"""The interval of comments on an event stream without events."""
HEAVY_WAIT_SECONDS = 10.0
"""How long a heavy request waits for a slot, so that short bursts are not refused."""
MCP_MARGIN_SECONDS = 30.0
"""The time that an MCP tool call may take beyond the deadline of a compaction."""


def build() -> FastAPI:
    """Return the app for the settings of the environment; uvicorn calls this."""
    return_freed_memory()  # here as well: each of several processes begins with this function
    sys.setswitchinterval(0.0005)  # of 5 ms: requests wait so long for a thread with long work
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
    services = Services(settings, now)
    worker = worker_of(settings, services) if with_worker else None

    mcp = McpEndpoint(
        app_version(),
        settings.max_body_bytes,
        settings.summarizer_deadline_seconds + MCP_MARGIN_SECONDS,
    )

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with services.opened(), worker.running() if worker else nullcontext(), mcp.running():
            yield

    app = Application(
        title="Context Service",
        version=app_version(),
        description=DESCRIPTION,
        openapi_tags=TAGS,
        lifespan=lifespan,
        docs_url=None,  # `operation` has its own, without a CDN
        redoc_url=None,
        # FastAPI's telemetry would send queries and exception texts.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
        redirect_slashes=False,
    )
    # Not include_router, which would match every request against each router in turn.
    app.router.routes.extend(route for router in ROUTERS for route in router.routes)
    app.router.routes.extend((*operation.docs_router.routes, *mcp.routes))
    errors.install(app)
    app.add_outer_middleware(
        partial(
            AuthenticationMiddleware,
            keys=services.keys,
            limits=services.limits,
            allowed_hosts=settings.allowed_hosts,
        )
    )
    telemetry = services.telemetry
    app.add_outer_middleware(
        partial(RequestLoggingMiddleware, requests=telemetry, access_log=settings.access_log)
    )
    describe(app)
    app.state.max_body_bytes = settings.max_body_bytes
    app.state.page_bytes = settings.page_bytes
    app.state.json_limits = StructureLimits()
    app.state.heavy = Slots(
        "heavy_requests",
        settings.heavy_requests,
        max(1, settings.heavy_requests // 2),
        wait_seconds=HEAVY_WAIT_SECONDS,
    )
    app.state.large_slots = large_slots(settings.heavy_requests, settings.pool_max_size)
    app.state.keep_alive_seconds = KEEP_ALIVE_SECONDS
    app.state.services = services
    return app
