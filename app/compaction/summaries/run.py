"""The settings of the summariser, and the model calls of one compaction with their usage."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from app.common.errors import ServiceUnavailable
from app.compaction.summaries.secret_masking import DEFAULT_SECRET_PATTERNS
from app.conversations.view import Span, View, minus
from app.formats.message import FormatName
from app.models.limits import ModelInfo
from app.models.model_calls import EXTRACTIVE, Completion, ModelCall
from app.models.usage import Purpose, UsageEntry, usage_entry
from app.policy.policy import SummaryInput
from app.repositories import Database, Repositories

NOT_USED = "prefix_not_used"
"""`degraded`: the summary was made of a transcript, for the reason after the colon."""

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
    answered last, `extractive` for the built-in summariser. `cost_usd` is None where a price is
    unknown. `failed_models` are not called again. `infos` are the registry entries of the models,
    the tenant's own ones included. `unrecorded` are the answered calls by model that no usage
    totals have yet. An answer of up to `min_chars` is accepted even if its source is shorter: those
    of a dry run are placeholders. Of the input, `cached_tokens` were read from the provider's
    cache. `summary_input` is that of the last answer, None for the built-in summariser;
    `prefix_problem` says why the newest payload was not used for it. The object is mutable, and
    belongs to one compaction.
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
    unrecorded: dict[str, UsageEntry] = field(default_factory=dict)
    min_chars: int = 0
    cached_tokens: int = 0
    summary_input: SummaryInput | None = None
    prefix_problem: str | None = None

    def add_usage(self, call: ModelCall, completion: Completion) -> None:
        """Add the tokens and the price of an answered call."""
        self.model = call.model
        self.summary_input = SummaryInput.TRANSCRIPT if call.native is None else SummaryInput.PREFIX
        usage = completion.usage
        self.input_tokens += usage.sent_tokens
        self.cached_tokens += usage.cache_read_tokens
        self.output_tokens += usage.output_tokens
        price = completion.cost(call.info)
        is_known = self.cost_usd is not None and price is not None
        self.cost_usd = (self.cost_usd or 0.0) + (price or 0.0) if is_known else None
        entry = usage_entry(call.model, Purpose.SUMMARIES, call.info, usage)
        before = self.unrecorded.get(call.model)
        self.unrecorded[call.model] = entry.plus(before) if before is not None else entry

    def set_extractive(self) -> None:
        """Record that the built-in summariser answered last."""
        self.summary_input = None
        self.model = self.prompt_hash = EXTRACTIVE

    async def record_in(
        self, session: Repositories, conversation_id: str | None, agent_id: str | None
    ) -> None:
        """Add the unrecorded calls to the usage totals; the last call in its transaction.

        After the commit, clear `unrecorded`.
        """
        entries = list(self.unrecorded.values())
        if not entries:
            return
        if conversation_id is not None:
            await session.usage.add_to_conversation(conversation_id, entries)
        await session.usage.add_to_tenant(self.tenant_id, agent_id, entries)

    async def record(
        self,
        database: Database,
        conversation_id: str | None = None,
        agent_id: str | None = None,
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


# --- payloads that a provider reads from its prompt cache -----------------------------------


class PrefixProblem(StrEnum):
    """Why a payload cannot be the input of a summary.

    A call that failed has the reason of its failure instead.
    """

    STRATEGY = "strategy"
    """The strategy makes several summaries at once."""
    NO_BUILD = "no_build"
    """Nothing was built since the view changed."""
    NOT_SHOWN = "not_shown"
    """The newest payload does not show all that is summarised."""
    OTHER_MODEL = "other_model"
    """The caller asks for another model than that of the newest build."""
    MODEL_NOT_ALLOWED = "model_not_allowed"
    """The model of the newest build may not summarise."""
    FORMAT = "format"
    """A payload in this format cannot be sent to this model unchanged."""
    TOO_LONG = "too_long"
    """Payload, instruction and answer exceed the context window of the model."""


@dataclass(frozen=True, slots=True)
class SentPayload:
    """The payload of the newest build with the messages that came since; `tokens` are its size.

    Nothing in it changes, neither tools nor cache breakpoints: an instruction comes last.
    """

    format: FormatName
    model: str
    body: Mapping[str, Any]
    build_id: str
    tokens: int


def shows_part(payload_view: View, view: View, spans: Sequence[Span]) -> bool:
    """Return whether a payload shows the messages in these spans as another view does.

    Only then a payload may be the input of a summary. [summary.prefix]
    """
    if payload_view.sent_item is not None or view.sent_item is not None:
        return False
    if any(span.holds(message.seq) for message in payload_view.shortened for span in spans):
        return False
    cleared = (payload_view.results_cleared_through, payload_view.uncleared_results)
    return (
        bool(spans)
        and not minus(spans, payload_view.spans)
        and payload_view.summary_texts() == view.summary_texts()
        and cleared in ((0, ()), (view.results_cleared_through, view.uncleared_results))
    )
