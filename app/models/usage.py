"""Calls of models, and their usage: as providers report it, and as totals by day and model.

1. OpenAI and Gemini count cached tokens in their input, Anthropic beside it. An object is read by
   its own shape, whatever the format of the call.
2. Where a provider ran several steps, the last one counts: it has the context that the next call
   starts from. The bill is that of all steps. Anthropic's own fields are their sum, except for the
   steps in which it compacted the context. Such a step says nothing about the context of the next
   call: an object that has no other one calibrates nothing.
3. A call is priced once, when it is reported, with the prices of that time. It belongs to that day
   of UTC. A call without a price adds its tokens, but no cost: `unpriced_calls` counts such calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol

from app.common.answer_schemas import answer
from app.common.errors import ValidationError
from app.formats.message import FormatName
from app.models.budget import PayloadTokens
from app.models.model_info import ModelInfo
from app.models.prefix_reports import CacheMiss, RemovedReasoning

MAX_REPORTED_TOKENS = 10**12
"""The largest number of tokens that is accepted."""
MAX_DAYS = 366
"""The longest range of days of an answer."""
USUAL_DAYS = 30
"""The range of days where none is requested."""
EXTRACTIVE = "extractive"
"""The model name in receipts of the `extractive` summariser."""
_USD_DIGITS = 12
"""Decimals of an amount in an answer: sums of floating-point numbers have meaningless ones."""


@answer()
@dataclass(frozen=True, slots=True)
class TokenUsage:
    """The tokens of one call, each counted once."""

    input_tokens: int = 0
    """Sent, and neither read from a cache nor written to it."""
    output_tokens: int = 0
    """Generated, reasoning included."""
    cache_creation_tokens: int = 0
    """Sent and written to the provider's cache."""
    cache_read_tokens: int = 0
    """Sent and read from the provider's cache."""
    total_tokens: int = field(default=0, init=False)
    """Their sum."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "total_tokens", self.sent_tokens + self.output_tokens)

    @property
    def sent_tokens(self) -> int:
        """The tokens of the payload, cached or not."""
        return self.input_tokens + self.cache_creation_tokens + self.cache_read_tokens

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Input, output, written to the cache and read from it."""
        written, read = self.cache_creation_tokens, self.cache_read_tokens
        return self.input_tokens, self.output_tokens, written, read


# --- model calls ---


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One request to a model for a summary: plain role and content messages, never tools.

    `info` has the limits and prices of the model for this tenant, its own included.
    """

    model: str
    messages: tuple[dict[str, str], ...]
    max_tokens: int
    timeout_seconds: float
    tenant_id: str
    info: ModelInfo | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """The answer of a model; `finish_reason` has OpenAI's values."""

    text: str
    finish_reason: str
    usage: TokenUsage
    has_tool_calls: bool = False

    def cost(self, info: ModelInfo | None) -> float | None:
        """Return the price in USD, None where a price is unknown."""
        return info.cost(*self.usage.counts) if info is not None else None


class Gateway(Protocol):
    """Calls language models."""

    async def complete(self, call: ModelCall) -> Completion:
        """Return the model's answer.

        Raises ServiceUnavailable for every failure, with the reason in `facts["reason"]`.
        """
        ...


# --- usage objects ---


@dataclass(frozen=True, slots=True)
class CallUsage:
    """The usage of a call's last step, and what the provider bills for all of them.

    With `has_steps` its input has more than the payload: the provider ran tools of its own, and
    counted their results as input.
    """

    usage: TokenUsage
    billed: TokenUsage
    has_steps: bool = False


_INPUT = "prompt_tokens prompt_token_count promptTokenCount total_input_tokens input_tokens"
_BESIDE = "tool_use_prompt_token_count toolUsePromptTokenCount total_tool_use_tokens"
_OUTPUT = (
    "completion_tokens candidates_token_count candidatesTokenCount total_output_tokens"
    " output_tokens"
)
_THOUGHTS = "thoughts_token_count thoughtsTokenCount total_thought_tokens"
_READ = (
    "cached_content_token_count cachedContentTokenCount total_cached_tokens"
    " cache_read_input_tokens prompt_cache_hit_tokens prompt_tokens_details/cached_tokens"
    " input_tokens_details/cached_tokens"
)
_WRITTEN = (
    "cache_creation_input_tokens prompt_tokens_details/cache_write_tokens"
    " prompt_tokens_details/cache_creation_tokens input_tokens_details/cache_write_tokens"
)
"""The fields of a usage object: the names that providers have for each number."""


def read_usage(raw: Mapping[str, Any], format: FormatName) -> CallUsage:
    """Read a usage object of any shape, for a call in this format.

    LiteLLM reports OpenAI Chat's shape, with fields of other providers. Unknown fields are
    ignored. Raises ValidationError for an object of no provider, and at an impossible number.
    """
    names = {name for name, value in raw.items() if value is not None}
    if names.isdisjoint(_INPUT.split()):
        raise ValidationError.at("/usage", "This is the usage object of no known provider")
    # OpenAI Responses includes cached tokens in `input_tokens`, Anthropic does not; the format
    # decides about an object that has the fields of both.
    is_responses = "input_tokens_details" in names and not (
        format is FormatName.ANTHROPIC and any(name.startswith("cache_") for name in names)
    )
    is_anthropic = names & set(_INPUT.split()) == {"input_tokens"} and not is_responses
    last = billed = _step(raw, "/usage", is_anthropic=is_anthropic)
    steps = raw.get("iterations") or ()
    if not isinstance(steps, list | tuple):
        raise ValidationError.at("/usage/iterations", "A list is required")
    requests = raw.get("server_tool_use")
    counts = requests.values() if isinstance(requests, Mapping) else ()
    has_steps = len(steps) > 1 or any(isinstance(count, int) and count > 0 for count in counts)
    has_steps = has_steps or _tokens(raw, _BESIDE, "/usage") > 0
    sent = raw.get("total_input_tokens")  # of all turns of an interaction
    has_steps = has_steps or raw.get("initial_input_tokens", sent) != sent
    for index, step in enumerate(steps):
        pointer = f"/usage/iterations/{index}"
        if not isinstance(step, Mapping):
            raise ValidationError.at(pointer, "An object is required")
        if step.get("type") in ("message", "fallback_message"):
            last = _step(step, pointer, is_anthropic=True)
        elif step.get("type") == "compaction":
            own = _step(step, pointer, is_anthropic=True).counts
            billed = TokenUsage(*map(sum, zip(billed.counts, own, strict=True)))
            has_steps = True
    return CallUsage(last, billed, has_steps)


def _step(raw: Mapping[str, Any], at: str, *, is_anthropic: bool) -> TokenUsage:
    if all(raw.get(name) is None for name in _INPUT.split()):
        raise ValidationError.at(f"{at}/input_tokens", "The tokens of the input are required")
    sent, read, written = (_tokens(raw, names, at) for names in (_INPUT, _READ, _WRITTEN))
    output = _tokens(raw, _OUTPUT, at) + _tokens(raw, _THOUGHTS, at)
    if is_anthropic:
        return TokenUsage(sent, output, written, read)
    if max(read, written) > sent:
        raise ValidationError.at(at, f"More cached tokens than the {sent} of the input")
    written = min(written, sent - read)  # tokens both read and written count as read
    beside = _tokens(raw, _BESIDE, at)
    return TokenUsage(sent - read - written + beside, output, written, read)


def _tokens(raw: Mapping[str, Any], paths: str, at: str) -> int:
    """Return the largest of these numbers, 0 without any; several are names of one number."""
    found = 0
    for path in paths.split():
        value: Any = raw
        pointer = at
        for name in path.split("/"):
            if isinstance(value, list):  # Gemini's tokens by kind of media have the same name
                value = None
                break
            if not isinstance(value, Mapping):
                raise ValidationError.at(pointer, "An object is required")
            value, pointer = value.get(name), f"{pointer}/{name}"
            if value is None:
                break
        if value is not None:
            if type(value) is not int or not 0 <= value <= MAX_REPORTED_TOKENS:
                detail = f"A whole number from 0 to {MAX_REPORTED_TOKENS}"
                raise ValidationError.at(pointer, detail)
            found = max(found, value)
    return found


@answer()
@dataclass(frozen=True, slots=True)
class ReportItem:
    """The reported usage of one call."""

    report_id: str
    """Id of the report."""
    format: FormatName
    """The format of the payload that was sent."""
    model: str
    """The model of the call."""
    epoch: int | None
    """The epoch of that payload, if known."""
    through_seq: int
    """The newest message in it."""
    token_usage: TokenUsage
    """The tokens of the call."""
    estimated_tokens: int | None = None
    """The service's own count of the payload before calibration, if known."""
    regions: PayloadTokens | None = None
    """The parts of that count; null without one."""
    removed_reasoning: tuple[RemovedReasoning, ...] = ()
    """Reasoning that the provider removed; the next build leaves it out."""
    cache_miss: CacheMiss | None = None
    """What the provider said of its cache; null for a hit, and where it said nothing."""
    created_at: datetime | None = None
    """When it was reported."""


# --- totals ---


class Purpose(StrEnum):
    """Who made the calls: the caller, who reported them, or the service, for summaries."""

    REPORTED = "reported"
    SUMMARIES = "summaries"


@dataclass(frozen=True, slots=True)
class AddedUsage:
    """What calls of one model add to the totals of today: the columns of their tables.

    What a call saved are the tokens of the log that it did not send, at the price of input.
    """

    model: str
    purpose: Purpose
    calls: int
    input_tokens: int
    output_tokens: int
    cache_creation_tokens: int
    cache_read_tokens: int
    cost_usd: float
    unpriced_calls: int
    saved_tokens: int = 0
    saved_usd: float = 0.0

    def plus(self, other: AddedUsage) -> AddedUsage:
        """Return the sums of both, which are of one model and purpose."""
        sums = (getattr(self, name) + getattr(other, name) for name in self.__slots__[2:])
        return AddedUsage(self.model, self.purpose, *sums)


def added_usage(
    model: str, purpose: Purpose, info: ModelInfo | None, usage: TokenUsage, log_tokens: int = 0
) -> AddedUsage:
    """Return what a call adds, where the log had so many tokens (rule 3)."""
    cost = info.cost(*usage.counts) if info is not None else None
    saved = max(0, log_tokens - usage.sent_tokens)
    saved_usd = info.cost(saved, 0) if info is not None else None
    costs = (cost or 0.0, int(cost is None), saved, saved_usd or 0.0)
    return AddedUsage(model, purpose, 1, *usage.counts, *costs)


@answer()
@dataclass(frozen=True, slots=True, kw_only=True)
class CallTotals(TokenUsage):
    """The sums of some model calls; each token is counted once."""

    calls: int
    """Number of calls."""
    cost_usd: float | None
    """Cost in USD of the calls with known prices; null when no call has any."""
    unpriced_calls: int
    """Calls of models without known prices."""


@answer()
@dataclass(frozen=True, slots=True, kw_only=True)
class UsageFigures:
    """Tokens and cost, and what was saved."""

    reported: CallTotals
    """Calls whose usage was reported."""
    summaries: CallTotals
    """The service's own calls, which write summaries."""
    cost_usd: float | None
    """Cost of both; null when no call has known prices."""
    saved_tokens: int
    """What the log had at each reported call and its payload did not send, by the conversation's
    counter."""
    saved_usd: float | None
    """Their price as input, in USD; null when no call has known prices."""


@answer()
@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow(UsageFigures):
    """The figures of a day and a model."""

    day: date
    """Day (UTC)."""
    model: str
    """Name of the model."""


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """The days whose totals to read, both inclusive; a page starts after the row of `after`."""

    first: date
    last: date
    limit: int = 50
    after: tuple[date, str] | None = None


def day_range(first: date | None, last: date | None, today: date) -> tuple[date, date]:
    """Return a range of days, by default up to today; raises ValidationError."""
    last = last or today
    try:
        first = first or last - timedelta(days=USUAL_DAYS - 1)
    except OverflowError:
        raise ValidationError.at("/query/to", "No range of days ends so early") from None
    if not 0 <= (last - first).days < MAX_DAYS:
        raise ValidationError.at("/query/from", f"1 to {MAX_DAYS} days, up to {last}")
    return first, last


def known_cost(calls: int, unpriced_calls: int, amount: float) -> float | None:
    """Return an amount in USD without meaningless decimals, None where no call has a price."""
    return None if 0 < calls == unpriced_calls else round(amount, _USD_DIGITS)
