"""Calls without a conversation: builds, compressions and token counts.

Builds keep nothing; the caller sends messages and a cached state:

1. Tokens are UTF-8 bytes of the content / 4, floored per message [tokens.counters].
2. Compress iff `tokens > floor(max x threshold)` and `count > top + bottom`.
3. A cached summary is valid iff its range starts at `preserve_top` and ends at
   `count - preserve_bottom`; a summary of another strategy is not looked at.
4. Messages stay as they are; only the middle is replaced, by one system message.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Annotated, Any

from pydantic import Field

from app.common.answer_schemas import answer
from app.common.errors import Problem, ServiceUnavailable, ValidationError
from app.compaction.summaries.model_summary import SummaryTask
from app.compaction.summaries.prompt import SummaryRequest
from app.compaction.summaries.summariser import Summariser
from app.compaction.summaries.transcript import without_trailing_calls
from app.compaction.summaries.writing import SummaryScope, digest_of
from app.conversations.receipt import ContextState
from app.conversations.settings_resolver import SettingsResolver, applied_calibration
from app.formats import PROVIDERS, parse_tool, tools_of
from app.formats.media import clean
from app.formats.message import FormatName, Message
from app.http.fields import MAX_TOKENS, Format, MessageObject, ModelName, RequestSchema, examples
from app.models.budget import scaled
from app.models.calibration import Calibration, estimate_of, safety_margin
from app.models.model_info import INEXACT_MARGIN, Models
from app.models.tokens import count_payload_messages, estimate_messages, estimate_tool_defs_tokens
from app.policy.policy import CounterName
from app.prompt.schemas import Tools
from app.repositories import Database

STRATEGY = "sandwich"
WireMessage = Mapping[str, Any]
EXAMPLE_MESSAGES: list[Any] = [
    {"role": "user", "content": "Plan a trip to Bergen."},
    {"role": "assistant", "content": "When would you like to go?"},
]
_STATE: dict[str, Any] = {
    "strategy": "sandwich",
    "summary": "The user plans a trip to Bergen.",
    "summary_range": [5, 20],
    "compressed_at": "2026-01-05T09:31:12.000123+00:00",
}

_Limit = Annotated[
    int,
    Field(
        ge=-MAX_TOKENS,
        le=MAX_TOKENS,
        description="The model's context limit in tokens.",
        # The domain refuses what is not positive, in its own words.
        json_schema_extra={"minimum": 1},
    ),
]
_Count = Annotated[int, Field(ge=0, le=1_000_000)]


class CachedState(RequestSchema):
    """A ContextState that an earlier build returned."""

    model_config = examples(_STATE)

    strategy: str = Field(max_length=64)
    """The strategy that made it."""
    summary: str = Field(max_length=2_000_000)
    """The summary."""
    summary_range: list[_Count] = Field(min_length=2, max_length=2)
    """Indices it stands for, the end excluded."""
    compressed_at: str = Field(max_length=64)
    """When it was made, ISO 8601."""


class StatelessMessages(RequestSchema):
    """Messages with the limit and the ranges of the sandwich strategy."""

    model_config = examples({"messages": EXAMPLE_MESSAGES, "context_window": 128000})

    messages: list[MessageObject] = Field(max_length=100_000, json_schema_extra={"minItems": 1})
    """The whole history."""
    context_window: _Limit
    preserve_top: _Count = 5
    """Messages to keep at the start."""
    preserve_bottom: _Count = 5
    """Messages to keep at the end."""
    compression_threshold: float = Field(default=0.7, gt=0, le=1)
    """Share of the limit from which to compress."""

    def plan(self) -> range | None:
        """Return the messages to summarise, None where all of them are sent (rule 2).

        Raises ValidationError for a limit that is not positive, and for wrong messages.
        """
        if self.context_window <= 0:
            raise ValidationError.at("/context_window", "Context limit must be positive")
        require_messages(self.messages)
        middle = range(self.preserve_top, len(self.messages) - self.preserve_bottom)
        threshold = math.floor(self.context_window * self.compression_threshold)
        is_over = middle.stop > middle.start and estimate_tokens(self.messages) > threshold
        return middle if is_over else None


class StatelessBuild(StatelessMessages):
    """Messages to build a context from."""

    model_config = examples(
        {"messages": EXAMPLE_MESSAGES, "context_window": 128000, "cached_state": _STATE}
    )

    cached_state: CachedState | None = None
    """The newest `new_state` of an earlier build."""
    model: ModelName | None = None
    """Model that summarises; must be an allowed one."""


class Compression(RequestSchema):
    """Messages to summarise, all of them."""

    model_config = examples({"messages": EXAMPLE_MESSAGES})

    messages: list[MessageObject] = Field(max_length=100_000, json_schema_extra={"minItems": 1})
    """What to summarise."""
    model: ModelName | None = None
    """Model that summarises; must be an allowed one."""


class TokensRequest(RequestSchema):
    """Messages, text and tools to count."""

    model_config = examples({"model": "gpt-4o", "messages": EXAMPLE_MESSAGES})

    messages: list[MessageObject] = Field(default_factory=list, max_length=100_000)
    """Messages in `format`."""
    text: str | None = None
    """A text."""
    tools: Tools = Field(default_factory=list)
    """Tool definitions."""
    format: Format = FormatName.OPENAI_CHAT
    counter: Annotated[CounterName, Field(strict=False)] = CounterName.TOKENIZER
    """How to count. bytes_4, chars_4 and chars_2_5 apply their rule to content text without
    overhead; calls, media, reasoning, ids and names come on top."""
    model: ModelName | None = None
    """Model that the margin is for."""


# --- answers ---


@answer()
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


@answer()
@dataclass(frozen=True, slots=True)
class MessageSummary:
    """A summary, and the model that made it, `extractive` without one."""

    summary: str
    """The summary."""
    model: str
    """Model that wrote it; `extractive` is built in."""


@answer()
@dataclass(frozen=True, slots=True)
class CompressionCheck:
    """Whether the middle must be summarised, and the estimate of the messages."""

    needs_compression: bool
    """Over the threshold, with a middle to compress."""
    token_count: int
    """The estimate of the messages."""


@answer()
@dataclass(frozen=True, slots=True)
class TokenCount:
    """Tokens by kind."""

    token_count: int
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


SUMMARY_TOKENS = (64, 2048)
"""The minimum and maximum tokens of a summary; a tenth of the limit in between."""
_MAX_LISTED = 100
"""How many malformed messages an error lists."""


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
        middle = await asyncio.to_thread(request.plan)
        tokens = await asyncio.to_thread(estimate_tokens, request.messages)
        return CompressionCheck(middle is not None, tokens)

    async def build(self, tenant_id: str, request: StatelessBuild) -> ContextResult:
        """Return the messages to send, with a summary of the middle where that is needed.

        Raises ValidationError, or ServiceUnavailable when the model fails: then there is no new
        state.
        """
        messages: Sequence[WireMessage] = request.messages
        middle, cached, new_state = (
            await asyncio.to_thread(request.plan),
            request.cached_state,
            None,
        )
        if middle is not None:
            span = middle.start, middle.stop
            if cached and cached.strategy == STRATEGY and tuple(cached.summary_range) == span:
                summary = cached.summary
            else:
                max_tokens = sorted((*SUMMARY_TOKENS, request.context_window // 10))[1]
                neutral = await asyncio.to_thread(_parsed, messages, middle)
                made = await self._summarise(tenant_id, neutral, request.model, max_tokens)
                summary = made.summary
                new_state = ContextState(STRATEGY, summary, span, self._now().isoformat())
            note = {"role": "system", "content": f"[Earlier conversation summary: {summary}]"}
            messages = [*messages[: middle.start], note, *messages[middle.stop :]]
        return ContextResult(messages, middle is not None, estimate_tokens(messages), new_state)

    async def compress(self, tenant_id: str, request: Compression) -> MessageSummary:
        """Return a summary of all the messages; raises as `build` does.

        A call at the end is not summarised.
        """
        require_messages(request.messages)
        neutral = await asyncio.to_thread(_parsed, request.messages)
        require_messages(without_trailing_calls(neutral), Message)
        return await self._summarise(tenant_id, neutral, request.model, SUMMARY_TOKENS[1])

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
        if request.messages:
            require_messages(request.messages)
        info = self._models.find(model) if model else None
        applied = applied_calibration(calibration, counter, model, info)
        factor = applied.factor
        if counter is CounterName.TOKENIZER:
            raw_messages = count_payload_messages(format, request.messages, count)
        else:
            raw_messages = estimate_messages(_parsed(request.messages, format=format), counter)
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
        method = estimate_of(counter, factor, margin, calibration).method
        return TokenCount(total, messages, text, tools, counter, model, margin, method, factor)

    async def _summarise(
        self, tenant_id: str, neutral: Sequence[Message], model: str | None, max_tokens: int
    ) -> MessageSummary:
        chosen = self._summariser.choose_model(model, None, None)
        if not without_trailing_calls(neutral):
            # A middle that is a call alone gives a model nothing to summarise.
            chosen = None
        run = self._summariser.start_run(tenant_id)
        digest = await asyncio.to_thread(digest_of, neutral, keeps_users=True) if chosen else None
        try:
            scope = SummaryScope(self._summariser.access.tokenizer.count)
            task = SummaryTask(SummaryRequest(), chosen, max_tokens, run, scope, digest=digest)
            summary = await self._summariser.summarise(task, neutral)
        finally:
            await run.record(self._database)
        return MessageSummary(summary.text, run.model)


def estimate_tokens(messages: Sequence[WireMessage]) -> int:
    """Return an estimate: the bytes of each message's text / 4, floored."""
    return sum(_content_bytes(message.get("content")) // 4 for message in messages)


def _content_bytes(content: object) -> int:
    if isinstance(content, str):
        return len(content.encode("utf-8", "surrogatepass"))
    if isinstance(content, list):
        texts = (part.get("text") for part in content if isinstance(part, Mapping))
        return sum(_content_bytes(text) for text in texts if isinstance(text, str))
    return 0


def require_messages(messages: Sequence[Any], kind: type = Mapping) -> None:
    """Raise ValidationError for no messages, and for what is no JSON object."""
    if not messages:
        raise ValidationError.at("/messages", "Conversation has no messages")
    wrong = (index for index, message in enumerate(messages) if not isinstance(message, kind))
    if listed := list(islice(wrong, _MAX_LISTED)):
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
        if raw.get("role") in ("system", "developer"):
            raw = {**raw, "role": "user"}
        parsed = PROVIDERS[format].parse(raw, f"/messages/{index}")
        neutral.extend(clean(message) for message in parsed)
    return neutral
