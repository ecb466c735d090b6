"""The settings of the summariser, and the model calls of one compaction with their usage."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from app.common.errors import ServiceUnavailable
from app.compaction.summaries.secret_masking import DEFAULT_SECRET_PATTERNS
from app.models.model_info import ModelInfo
from app.models.usage import EXTRACTIVE, AddedUsage, Completion, ModelCall, Purpose, added_usage
from app.repositories import Database, Repositories

_log = logging.getLogger("app.usage")


@dataclass(frozen=True, slots=True)
class SummariserSettings:
    """Which models may be called, with which timeouts and retries.

    `timeout_seconds` is the deadline of one call, `deadline_seconds` the one of a whole run.
    `context_window` is assumed for a model whose context window is unknown. `attempts` is the
    number of attempts per model when its provider limits or fails; the pause between them starts
    at `backoff_seconds` and doubles.
    """

    model: str | None
    allowed_models: tuple[str, ...]
    fallback_models: tuple[str, ...]
    timeout_seconds: float
    context_window: int = 32_000
    attempts: int = 2
    backoff_seconds: float = 0.5
    secret_patterns: tuple[str, ...] = DEFAULT_SECRET_PATTERNS
    deadline_seconds: float = 300.0


@dataclass(slots=True)
class SummariserRun:
    """The model calls of one compaction: their limits, and their cost. See [decision 0010].

    `deadline` is on the summariser's clock. `calls` includes failed ones. `model` is the one that
    answered last, `extractive` without one. `cost_usd` is None where a price is
    unknown. `failed_models` are not called again. `infos` are the limits and prices of the models,
    the tenant's own ones included. `unrecorded` are the answered calls by model that no usage
    totals have yet. `input_tokens` exclude cached ones. The object is mutable, and belongs to one
    compaction.
    """

    tenant_id: str
    deadline: float
    calls: int = 0
    failures: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = 0.0
    model: str = EXTRACTIVE
    prompt_hash: str = EXTRACTIVE
    failed_models: set[str] = field(default_factory=set)
    infos: dict[str, ModelInfo | None] = field(default_factory=dict)
    unrecorded: dict[str, AddedUsage] = field(default_factory=dict)
    cache_creation_tokens: int = 0
    cache_read_tokens: int = 0

    def add_usage(self, call: ModelCall, completion: Completion) -> None:
        """Add the tokens and the price of an answered call."""
        self.model = call.model
        usage = completion.usage
        self.input_tokens += usage.input_tokens
        self.cache_creation_tokens += usage.cache_creation_tokens
        self.cache_read_tokens += usage.cache_read_tokens
        self.output_tokens += usage.output_tokens
        price = completion.cost(call.info)
        is_known = self.cost_usd is not None and price is not None
        self.cost_usd = (self.cost_usd or 0.0) + (price or 0.0) if is_known else None
        row = added_usage(call.model, Purpose.SUMMARIES, call.info, usage)
        before = self.unrecorded.get(call.model)
        self.unrecorded[call.model] = row.plus(before) if before is not None else row

    def set_extractive(self) -> None:
        """Record that the `extractive` summariser answered last."""
        self.model = self.prompt_hash = EXTRACTIVE

    async def record_in(
        self, session: Repositories, conversation_id: str | None, agent_id: str | None
    ) -> None:
        """Add the unrecorded calls to the usage totals; the last call in its transaction.

        After the commit, clear `unrecorded`.
        """
        rows = list(self.unrecorded.values())
        if not rows:
            return
        if conversation_id is not None:
            await session.usage.add_to_conversation(conversation_id, rows)
        await session.usage.add_to_tenant(self.tenant_id, agent_id, rows)

    async def record(
        self, database: Database, conversation_id: str | None = None, agent_id: str | None = None
    ) -> None:
        """Add the unrecorded calls of a run that has ended, as far as the database is available."""
        if not self.unrecorded:
            return
        try:
            async with database.transaction() as session:
                await self.record_in(session, conversation_id, agent_id)
        except ServiceUnavailable:
            _log.warning("usage_not_recorded")
        else:
            self.unrecorded.clear()
