"""The composition root: settings in, an app out."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

from fastapi import FastAPI
from uuid_utils import uuid7

from app import logs
from app.adapters.gateway import LiteLLMGateway
from app.adapters.models import ModelRegistry
from app.adapters.postgres.database import PostgresDatabase
from app.adapters.postgres.readiness import Readiness
from app.adapters.postgres.store import Store
from app.adapters.tokenizer import TiktokenTokenizer
from app.api import (
    agents,
    contexts,
    conversations,
    errors,
    health,
    messages,
    models,
    stateless,
    strategies,
    tokens,
)
from app.api.deps import Services
from app.api.description import ABOUT, TAGS, describe
from app.domain.errors import ServiceUnavailable
from app.services.agents import AgentService
from app.services.compaction import CompactionService
from app.services.context import ContextService
from app.services.conversations import ConversationService
from app.services.frames import Frames
from app.services.log import LogService
from app.services.registry import RegistryService
from app.services.stateless import StatelessService
from app.services.summariser import Summariser, SummariserSettings
from app.services.windows import Windows
from app.settings import Settings, SettingsError

# The two hot paths first: routes are tried in this order.
ROUTERS = (
    messages.hot_router,
    contexts.hot_router,
    messages.router,
    contexts.router,
    conversations.router,
    agents.router,
    stateless.router,
    tokens.router,
    models.router,
    strategies.router,
    health.router,
)

_log = logging.getLogger("app.main")


def build() -> FastAPI:
    """Return the app for the settings of the environment; what uvicorn calls."""
    settings = Settings.from_env(os.environ)
    if settings.database_url is None:
        raise SettingsError("CONTEXT_DATABASE_URL is not set; `context-service serve` sets it.")
    logs.configure(settings.log_level)
    return create_app(settings)


def create_app(settings: Settings) -> FastAPI:
    """Return the app; it connects when it starts, and starts without a database as well."""
    store = Store(
        settings.database_url or "",
        min_size=settings.pool_min_size,
        max_size=settings.pool_max_size,
    )
    tokenizer, registry = TiktokenTokenizer(), ModelRegistry()
    gateway = LiteLLMGateway(settings.summarizer_api_base, settings.summarizer_api_key)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        warm = threading.Thread(
            target=_warm_up, args=(tokenizer, registry), name="warm-up", daemon=True
        )
        warm.start()
        try:
            await store.open()
        except ServiceUnavailable:
            _log.warning("database_unavailable")
        yield
        await gateway.close()
        await store.close()

    app = FastAPI(
        title="Context Service",
        version=_version(),
        description=ABOUT,
        openapi_tags=TAGS,
        lifespan=lifespan,
        redoc_url=None,
        redirect_slashes=False,
    )
    # Not include_router, which would look every request up through each of the routers.
    app.router.routes.extend(route for router in ROUTERS for route in router.routes)
    errors.install(app)
    describe(app)
    app.state.max_body_bytes = settings.max_body_bytes
    app.state.services = _services(settings, store, tokenizer, registry, gateway)
    return app


def _services(
    settings: Settings,
    store: Store,
    tokenizer: TiktokenTokenizer,
    registry: ModelRegistry,
    gateway: LiteLLMGateway,
) -> Services:
    database = PostgresDatabase(store)
    policy = settings.policy_overrides
    frames = Frames(registry, tokenizer, policy, settings.default_model)
    summariser = Summariser(gateway, registry, tokenizer, _summariser_settings(settings))
    compaction = CompactionService(database, frames, summariser, new_id, _now_ms)
    return Services(
        agents=AgentService(database, frames, policy, new_id),
        conversations=ConversationService(database, frames, policy, new_id),
        log=LogService(database, frames, new_id, settings.max_batch),
        context=ContextService(
            database,
            frames,
            summariser,
            Windows(settings.window_cache_bytes),
            compaction.compact_for_build,
            new_id,
        ),
        compaction=compaction,
        registry=RegistryService(database, registry),
        stateless=StatelessService(summariser, frames, registry, lambda: datetime.now(UTC)),
        is_ready=Readiness(store).is_ready,
    )


def _summariser_settings(settings: Settings) -> SummariserSettings:
    return SummariserSettings(
        model=settings.summarizer_model,
        allowed_models=settings.summarizer_allowed_models,
        fallback_models=settings.summarizer_fallback_models,
        timeout_seconds=settings.summarizer_timeout_seconds,
        context_window=settings.summarizer_context_window,
    )


def new_id() -> str:
    """Return a new UUIDv7, which sorts by time."""
    return str(uuid7())


def _now_ms() -> float:
    return time.monotonic() * 1000


def _warm_up(tokenizer: TiktokenTokenizer, registry: ModelRegistry) -> None:
    """Load beside the event loop what the first requests need."""
    tokenizer.load()
    registry.find("")


def _version() -> str:
    try:
        return version("context-service")
    except PackageNotFoundError:
        return "0"
