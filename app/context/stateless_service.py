"""Builds, compressions and token counts of messages in a request; nothing is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from app.common.answers import answer
from app.common.errors import Problem, ServiceUnavailable, ValidationError
from app.compaction.summaries.extractive import ledger_of
from app.compaction.summaries.prompt import SummaryRequest
from app.compaction.summaries.transcript_text import without_trailing_calls
from app.compaction.summaries.usage_recording import record_usage
from app.compaction.summariser import Summariser
from app.context import stateless
from app.conversations.compaction_results import ContextState
from app.conversations.ports import Models
from app.conversations.settings_resolver import SettingsResolver, applied_calibration
from app.formats import PROVIDERS, parse_tool, tools_of
from app.formats.message import FormatName, Message, clean
from app.http.fields import MessageObject
from app.models.budget import scaled
from app.models.calibration import Calibration, estimate_of, safety_margin
from app.models.estimates import bytes_4, chars_2_5, chars_4
from app.models.limits import INEXACT_MARGIN
from app.models.tokens import count_payload_messages, estimate_tool_defs_tokens
from app.policy.policy import CounterName
from app.repositories import Database

SUMMARY_TOKENS = (64, 2048)
"""The minimum and maximum tokens of a summary; a tenth of the limit in between."""

_MAX_LISTED = 100
"""How many malformed messages an error lists."""
_SYSTEM_ROLES = ("system", "developer")


@dataclass(frozen=True, slots=True)
class StatelessRequest:
    """Messages with the limit and the ranges of the sandwich strategy."""

    messages: Sequence[Any]
    max_context_tokens: int
    ends: stateless.Ends
    state: ContextState | None = None
    model: str | None = None


EXAMPLE_MESSAGES: list[Any] = [
    {"role": "user", "content": "Plan a trip to Bergen."},
    {"role": "assistant", "content": "When would you like to go?"},
]


@answer(
    {
        "messages": EXAMPLE_MESSAGES,
        "summary_used": False,
        "tokens_used": 11,
        "new_state": None,
    }
)
@dataclass(frozen=True, slots=True)
class ContextResult:
    """The messages to send; `new_state` is set when a summary was made, for the caller to cache."""

    messages: Sequence[MessageObject]
    """Top, summary and bottom, or everything."""
    summary_used: bool
    """Whether a summary stands for the middle."""
    tokens_used: int
    """UTF-8 bytes of the content / 4, floored per message."""
    new_state: ContextState | None
    """To be cached when a summary was made."""


@answer({"summary": "The user plans a trip to Bergen.", "model": "extractive"})
@dataclass(frozen=True, slots=True)
class MessageSummary:
    """A summary, and the model that made it, `extractive` for the built-in summariser."""

    summary: str
    """The summary."""
    model: str
    """Model that wrote it; `extractive` is built in."""


@answer({"needs_compression": False, "tokens": 11})
@dataclass(frozen=True, slots=True)
class CompressionCheck:
    """Whether the middle must be summarised, and the estimate of the messages."""

    needs_compression: bool
    """Over the threshold, with a middle to compress."""
    tokens: int
    """The estimate of the messages."""


@dataclass(frozen=True, slots=True)
class CountRequest:
    """What to count: messages in `format`, a text, tool definitions, or any of them together."""

    messages: Sequence[Any] = ()
    text: str | None = None
    tools: Sequence[Any] = ()
    format: FormatName = FormatName.OPENAI_CHAT
    counter: CounterName = CounterName.TOKENIZER
    model: str | None = None


@answer(
    {
        "tokens": 22,
        "messages": 22,
        "text": 0,
        "tools": 0,
        "counter": "tokenizer",
        "model": "gpt-4o",
        "margin": 0.0,
        "method": "tokenizer",
        "factor": 1.0,
    }
)
@dataclass(frozen=True, slots=True)
class TokenCount:
    """Tokens by kind."""

    tokens: int
    """The sum."""
    messages: int
    """Tokens of the messages."""
    text: int
    """Tokens of the text."""
    tools: int
    """Tokens of the tool definitions."""
    counter: CounterName
    """How it was counted."""
    model: str | None
    """Model that the margin is for."""
    margin: float
    """Share to add for safety; 0 where the count is exact."""
    method: str
    """The counter, and its correction by reports."""
    factor: float
    """Factor that raw counts of this model are multiplied by."""


@dataclass(eq=False, repr=False)
class StatelessService:
    """Builds, compresses and counts without a conversation."""

    _summariser: Summariser
    _resolver: SettingsResolver
    _models: Models
    _database: Database
    _now: Callable[[], datetime]

    async def needs_compression(self, request: StatelessRequest) -> CompressionCheck:
        """Return whether a summary is needed; raises ValidationError for a bad request."""
        _require_objects(request.messages)
        return await asyncio.to_thread(
            lambda: CompressionCheck(
                stateless.needs_compression(
                    request.messages, request.max_context_tokens, request.ends
                ),
                stateless.estimate_tokens(request.messages),
            )
        )

    async def build(self, tenant_id: str, request: StatelessRequest) -> ContextResult:
        """Return the messages to send, with a summary of the middle where that is needed.

        Raises ValidationError, or ServiceUnavailable when the model fails: then there is no new
        state.
        """
        _require_objects(request.messages)
        messages: Sequence[Mapping[str, Any]] = request.messages
        plan = await asyncio.to_thread(
            stateless.plan_build,
            messages,
            request.state,
            request.max_context_tokens,
            request.ends,
        )
        match plan:
            case stateless.ShowAll():
                return _result(messages, summary_used=False)
            case stateless.ReuseSummary():
                messages = stateless.assemble(messages, plan.summary, request.ends)
                return _result(messages, summary_used=True)
            case stateless.CompressMiddle():
                minimum, maximum = SUMMARY_TOKENS
                max_tokens = max(minimum, min(maximum, request.max_context_tokens // 10))
                middle = list(range(plan.start, plan.end))
                compressed = await self._summarise(
                    tenant_id, await _parse_in_thread(messages, middle), request.model, max_tokens
                )
                state = stateless.new_state(plan, compressed.summary, self._now().isoformat())
                messages = stateless.assemble(messages, compressed.summary, request.ends)
                return _result(messages, summary_used=True, state=state)

    async def compress(
        self, tenant_id: str, messages: Sequence[Any], model: str | None
    ) -> MessageSummary:
        """Return a summary of all the messages; raises as `build` does.

        A call at the end is not summarised.
        """
        stateless.require_messages(messages)
        _require_objects(messages)
        neutral = await _parse_in_thread(messages, range(len(messages)))
        stateless.require_messages(without_trailing_calls(neutral))
        return await self._summarise(tenant_id, neutral, model, SUMMARY_TOKENS[1], opens=True)

    async def count(self, tenant_id: str, request: CountRequest) -> TokenCount:
        """Return the tokens of messages, text and tools, counted as a build counts them."""
        calibration = None
        if request.model is not None:
            with suppress(ServiceUnavailable):  # without a database there is no calibration
                async with self._database.session() as session:
                    calibration = await session.usage.find_calibration(
                        tenant_id, request.model, request.counter
                    )
        return await asyncio.to_thread(self._count, request, calibration)

    def _count(self, request: CountRequest, calibration: Calibration | None) -> TokenCount:
        count = self._resolver.counter(request.counter)
        _require_objects(request.messages)
        info = self._models.find(request.model) if request.model else None
        applied = applied_calibration(calibration, request.counter, request.model, info)
        factor = applied.factor
        messages = scaled(self._count_messages(request), factor)
        text = scaled(count(request.text), factor) if request.text is not None else 0
        definitions = [
            parse_tool(tool, f"/tools/{index}") for index, tool in enumerate(request.tools)
        ]
        taken, _ = tools_of(definitions, request.format)
        tools = scaled(estimate_tool_defs_tokens(taken, count), factor)
        exact = info is not None and info.exact and request.counter is CounterName.TOKENIZER
        margin = safety_margin(0.0 if exact else INEXACT_MARGIN, factor, applied)
        total = messages + text + tools
        return TokenCount(
            tokens=total,
            messages=messages,
            text=text,
            tools=tools,
            counter=request.counter,
            model=request.model,
            margin=margin,
            method=estimate_of(total, request.counter, factor, margin, calibration).method,
            factor=factor,
        )

    def _count_messages(self, request: CountRequest) -> int:
        if request.counter is CounterName.TOKENIZER:
            return count_payload_messages(
                request.format, request.messages, self._resolver.counter("tokenizer")
            )
        estimate = {
            CounterName.BYTES_4: bytes_4,
            CounterName.CHARS_4: chars_4,
            CounterName.CHARS_2_5: chars_2_5,
        }[request.counter]
        return estimate(
            _parse_messages(request.messages, range(len(request.messages)), request.format)
        )

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
            summary = await self._summariser.summarise(
                neutral,
                None,
                SummaryRequest(),
                chosen,
                max_tokens,
                run,
                opens=opens,
                ledger=ledger,
            )
        finally:
            await record_usage(self._database, run)
        return MessageSummary(summary.text, run.model)


def _require_objects(messages: Sequence[Any]) -> None:
    wrong = (index for index, message in enumerate(messages) if not isinstance(message, Mapping))
    listed = list(islice(wrong, _MAX_LISTED))
    if listed:
        detail = "A message is a JSON object"
        problems = tuple(Problem(f"/messages/{index}", detail) for index in listed)
        raise ValidationError(detail, problems=problems)


async def _parse_in_thread(messages: Sequence[Any], indexes: Sequence[int]) -> list[Message]:
    return await asyncio.to_thread(_parse_messages, messages, indexes, FormatName.OPENAI_CHAT)


def _parse_messages(
    messages: Sequence[Mapping[str, Any]], indexes: Sequence[int], format: FormatName
) -> list[Message]:
    """Parse messages of a caller's own history, which may have system messages."""
    neutral: list[Message] = []
    for index in indexes:
        raw = messages[index]
        if raw.get("role") in _SYSTEM_ROLES:
            raw = {**raw, "role": "user"}
        parsed = PROVIDERS[format].parse(raw, f"/messages/{index}")
        neutral.extend(clean(message) for message in parsed)
    return neutral


def _result(
    messages: Sequence[Mapping[str, Any]], *, summary_used: bool, state: ContextState | None = None
) -> ContextResult:
    return ContextResult(messages, summary_used, stateless.estimate_tokens(messages), state)
