"""Builds, compressions and token counts of messages in a request; nothing is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from app.common.errors import Problem, ServiceUnavailable, ValidationError
from app.compaction.summaries.extractive import SummaryScope, ledger_of
from app.compaction.summaries.model_summary import SummaryTask
from app.compaction.summaries.prompt import SummaryRequest
from app.compaction.summaries.transcript import without_trailing_calls
from app.compaction.summariser import Summariser
from app.context import stateless
from app.context.stateless_schemas import (
    Compression,
    CompressionCheck,
    ContextResult,
    MessageSummary,
    StatelessBuild,
    StatelessMessages,
    TokenCount,
    TokensRequest,
)
from app.conversations.compaction_receipt import ContextState
from app.conversations.settings_resolver import SettingsResolver, applied_calibration
from app.formats import PROVIDERS, parse_tool, tools_of
from app.formats.media import clean
from app.formats.message import FormatName, Message
from app.models.budget import scaled
from app.models.calibration import Calibration, estimate_of, safety_margin
from app.models.limits import INEXACT_MARGIN, Models
from app.models.tokens import (
    bytes_4,
    chars_2_5,
    chars_4,
    count_payload_messages,
    estimate_tool_defs_tokens,
)
from app.policy.policy import CounterName
from app.repositories import Database

SUMMARY_TOKENS = (64, 2048)
"""The minimum and maximum tokens of a summary; a tenth of the limit in between."""
_MAX_LISTED = 100
"""How many malformed messages an error lists."""
_SYSTEM_ROLES = ("system", "developer")
_ESTIMATES = {
    CounterName.BYTES_4: bytes_4,
    CounterName.CHARS_4: chars_4,
    CounterName.CHARS_2_5: chars_2_5,
}


@dataclass(eq=False, repr=False)
class StatelessService:
    """Builds, compresses and counts without a conversation."""

    _summariser: Summariser
    _resolver: SettingsResolver
    _models: Models
    _database: Database
    _now: Callable[[], datetime]

    async def needs_compression(self, request: StatelessMessages) -> CompressionCheck:
        """Return whether a summary is needed; raises ValidationError for a bad request."""
        messages = request.messages
        _require_objects(messages)
        needed = await asyncio.to_thread(
            stateless.needs_compression, messages, request.max_context_tokens, request.ends
        )
        tokens = await asyncio.to_thread(stateless.estimate_tokens, messages)
        return CompressionCheck(needed, tokens)

    async def build(self, tenant_id: str, request: StatelessBuild) -> ContextResult:
        """Return the messages to send, with a summary of the middle where that is needed.

        Raises ValidationError, or ServiceUnavailable when the model fails: then there is no new
        state.
        """
        messages: Sequence[Mapping[str, Any]] = request.messages
        _require_objects(messages)
        ends, limit, state, new_state = request.ends, request.max_context_tokens, None, None
        if (cached := request.cached_state) is not None:
            start, end = cached.summary_range
            state = ContextState(**dict(cached) | {"summary_range": (start, end)})
        plan = await asyncio.to_thread(stateless.plan_build, messages, state, limit, ends)
        if isinstance(plan, range):
            minimum, maximum = SUMMARY_TOKENS
            max_tokens = max(minimum, min(maximum, limit // 10))
            middle = await asyncio.to_thread(_parsed, messages, plan)
            made = await self._summarise(tenant_id, middle, request.model, max_tokens)
            range_, at = (plan.start, plan.stop), self._now().isoformat()
            new_state = ContextState(stateless.STRATEGY, made.summary, range_, at)
            plan = made.summary
        if plan is not None:
            messages = stateless.assemble(messages, plan, ends)
        tokens = stateless.estimate_tokens(messages)
        return ContextResult(messages, plan is not None, tokens, new_state)

    async def compress(self, tenant_id: str, request: Compression) -> MessageSummary:
        """Return a summary of all the messages; raises as `build` does.

        A call at the end is not summarised.
        """
        stateless.require_messages(request.messages)
        _require_objects(request.messages)
        neutral = await asyncio.to_thread(_parsed, request.messages)
        stateless.require_messages(without_trailing_calls(neutral))
        return await self._summarise(
            tenant_id, neutral, request.model, SUMMARY_TOKENS[1], opens=True
        )

    async def count(self, tenant_id: str, request: TokensRequest) -> TokenCount:
        """Return the tokens of messages, text and tools, counted as a build counts them."""
        calibration = None
        if request.model is not None:
            with suppress(ServiceUnavailable):  # without a database there is no calibration
                async with self._database.session() as session:
                    calibration = await session.usage.find_calibration(
                        tenant_id, request.model, request.counter
                    )
        return await asyncio.to_thread(self._count, request, calibration)

    def _count(self, request: TokensRequest, calibration: Calibration | None) -> TokenCount:
        counter, format, model = request.counter, request.format, request.model
        count = self._resolver.counter(counter)
        _require_objects(request.messages)
        info = self._models.find(model) if model else None
        applied = applied_calibration(calibration, counter, model, info)
        factor = applied.factor
        if counter is CounterName.TOKENIZER:
            raw_messages = count_payload_messages(format, request.messages, count)
        else:
            raw_messages = _ESTIMATES[counter](_parsed(request.messages, format=format))
        taken, _ = tools_of(
            [parse_tool(tool, f"/tools/{index}") for index, tool in enumerate(request.tools)],
            format,
        )
        messages = scaled(raw_messages, factor)
        text = scaled(count(request.text), factor) if request.text is not None else 0
        tools = scaled(estimate_tool_defs_tokens(taken, count), factor)
        exact = info is not None and info.exact and counter is CounterName.TOKENIZER
        margin = safety_margin(0.0 if exact else INEXACT_MARGIN, factor, applied)
        total = messages + text + tools
        method = estimate_of(total, counter, factor, margin, calibration).method
        return TokenCount(total, messages, text, tools, counter, model, margin, method, factor)

    async def _summarise(
        self,
        tenant_id: str,
        neutral: Sequence[Message],
        model: str | None,
        max_tokens: int,
        *,
        opens: bool = False,
    ) -> MessageSummary:
        chosen = self._summariser.choose_model(model, None, None)
        if not without_trailing_calls(neutral):
            # A middle that is a call alone gives a model nothing to summarise.
            chosen = None
        run = self._summariser.start_run(tenant_id)
        ledger = await asyncio.to_thread(ledger_of, neutral) if chosen is not None else None
        try:
            scope = SummaryScope(self._summariser.access.tokenizer.count)
            task = SummaryTask(SummaryRequest(), chosen, max_tokens, run, scope, opens=opens)
            summary = await self._summariser.summarise(task, neutral, ledger=ledger)
        finally:
            await run.record(self._database)
        return MessageSummary(summary.text, run.model)


def _require_objects(messages: Sequence[Any]) -> None:
    wrong = (index for index, message in enumerate(messages) if not isinstance(message, Mapping))
    listed = list(islice(wrong, _MAX_LISTED))
    if listed:
        detail = "A message is a JSON object"
        problems = tuple(Problem(f"/messages/{index}", detail) for index in listed)
        raise ValidationError(detail, problems=problems)


def _parsed(
    messages: Sequence[Mapping[str, Any]],
    indexes: Sequence[int] | None = None,
    format: FormatName = FormatName.OPENAI_CHAT,
) -> list[Message]:
    """Parse messages of a caller's own history, which may have system messages."""
    neutral: list[Message] = []
    for index in range(len(messages)) if indexes is None else indexes:
        raw = messages[index]
        if raw.get("role") in _SYSTEM_ROLES:
            raw = {**raw, "role": "user"}
        parsed = PROVIDERS[format].parse(raw, f"/messages/{index}")
        neutral.extend(clean(message) for message in parsed)
    return neutral
