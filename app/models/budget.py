"""The window and prices of a model, the calibration of its counts, and the budget of a payload.

1. Input and output share the context window. `effective_window` is what `max_output_tokens` leaves
   of it; every ratio is relative to it. The output limit is a limit of its own.
2. Some models limit their input apart from their output. `context_window` is then at most that
   input limit plus the reserved output, so that `effective_window` always fits.
3. The components sum to `tokens_used`. They are those of the payload that is returned. It fits when
   used tokens plus the safety margin are within the effective window.
4. `used >= ratio x effective_window` reaches a level. Pressure is the highest level reached.
   `notice` is no level: it never changes what is built.

Calibration corrects counts by the usage that providers report:

5. The factor of a model is reported over counted tokens. Both are sums that decay with each report.
   Before the first report it is that of the model's family. The margin is the mean deviation of
   reports from what the factor before them predicted, once there are enough reports.
6. Reports are ignored for payloads that are too small, for ratios that no tokenizer explains, and
   for payloads with much reasoning or sealed text: only the provider knows what these stand for.
7. A factor above 1 applies at once, one below 1 only with enough reports: too large a count wastes
   tokens, but too small a count gets a request refused. A count by the model's own tokenizer is
   never lowered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple, Protocol

from typing_extensions import TypeAliasType

from app.common import json_text
from app.common.answers import answer
from app.common.errors import ContextLimitUnknown, ValidationError
from app.policy.policy import BudgetPolicy, CounterName

O200K = "o200k_base"
"""The tokenizer that the service counts with."""
INEXACT_MARGIN = 0.05
"""Share of a count that is added for safety where the model has another tokenizer."""
DERIVED_FACTOR = 4
"""Window per token of reserved output, for unknown models under `derive`."""
LIMIT_FIELDS = ("context_window", "max_input_tokens", "max_output_tokens", "cache_minimum_tokens")
PRICE_FIELDS = ("input_price", "output_price", "cache_read_price", "cache_write_price")
NUMERIC_FIELDS = (*LIMIT_FIELDS, *PRICE_FIELDS)
"""The fields of an entry that each have a source."""
Sources = TypeAliasType("Sources", Mapping[str, str])


@answer()
@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model's limits in tokens, prices in USD per token, and features; null where unknown."""

    model: str
    """Name of the model."""
    context_window: int | None = None
    """Input and output together."""
    max_input_tokens: int | None = None
    """A separate limit of the input."""
    max_output_tokens: int | None = None
    """The maximum length of an answer."""
    tokenizer: str = "unknown"
    """Its tokenizer, `unknown` where that is not published."""
    exact: bool = False
    """Whether the service counts with its tokenizer."""
    cache_minimum_tokens: int | None = None
    """The shortest prefix that is cached."""
    input_price: float | None = None
    """USD per input token."""
    output_price: float | None = None
    """USD per output token."""
    cache_read_price: float | None = None
    """USD per token read from the cache."""
    cache_write_price: float | None = None
    """USD per token written to the cache."""
    sources: Sources = field(default_factory=dict)
    """The source of each number, by field."""
    tool_search: bool = False
    """The provider supports tool search with deferred tools."""
    cache_breakpoint: bool = False
    """OpenAI's explicit cache breakpoints are supported."""
    mid_conversation_system: bool = False
    """System text is accepted after the first message."""
    start_factor: float = 1.0
    """The factor of its counts until usage is reported: that of its family."""
    assumed_from: str | None = None
    """The model of its family whose limits stand for its own, unknown ones."""

    @property
    def margin(self) -> float:
        """The share that is added to a count for safety."""
        return 0.0 if self.exact else INEXACT_MARGIN

    def cost(
        self, input_tokens: int, output_tokens: int, cache_creation: int = 0, cache_read: int = 0
    ) -> float | None:
        """Return the price in USD of one call, None without the prices of input and output.

        `input_tokens` excludes cached tokens. Where no price of cached tokens is known, they cost
        as much as other input.
        """
        if self.input_price is None or self.output_price is None:
            return None
        write_price, read_price = self.cache_write_price, self.cache_read_price
        return (
            input_tokens * self.input_price
            + cache_creation * (self.input_price if write_price is None else write_price)
            + cache_read * (self.input_price if read_price is None else read_price)
            + output_tokens * self.output_price
        )


class Models(Protocol):
    """The limits and prices of models."""

    def find(self, model: str) -> ModelInfo | None:
        """Return the entry of a model, None for an unknown one."""
        ...

    def list(self) -> Sequence[ModelInfo]:
        """Return all known models, sorted by name."""
        ...


def merged_entry(model: str, bundled: ModelInfo | None, own: str | None) -> ModelInfo:
    """Return a model's entry, with the fields of the tenant's own entry in place of the bundled."""
    info = bundled or ModelInfo(model)
    entry = json_text.loads(own) if own is not None else {}
    given = {name: value for name, value in entry.items() if value is not None}
    if given.get("exact"):
        given["start_factor"] = 1.0
    if given.get("context_window"):
        given["assumed_from"] = None
    own_sources = {name: "tenant" for name in NUMERIC_FIELDS if name in given}
    return replace(info, **given | {"model": model, "sources": {**info.sources, **own_sources}})


class ContextWindow(NamedTuple):
    """The tokens of one call: all of them, and of these the reserved output."""

    total: int
    max_output_tokens: int


def resolve_context_window(
    requested: int | None,
    policy: int | None,
    info: ModelInfo | None,
    tenant: ModelInfo | None,
    max_output_tokens: int,
    derive: bool,
) -> ContextWindow:
    """Return the context window of a call: the smaller of the named and the model's.

    The reserved output is at most the model's output limit. Raises ContextLimitUnknown when no
    window is known and `derive` is false, ValidationError for limits that leave no input.
    """
    if max_output_tokens <= 0:
        raise ValidationError.at("/max_output_tokens", "The output limit must be positive")
    named = policy if requested is None else requested
    if named is not None and named <= 0:
        pointer = "/policy" if requested is None else "/context_window"
        raise ValidationError.at(pointer, "Context limit must be positive")
    has_own = tenant is not None and bool(tenant.context_window or tenant.max_input_tokens)
    model = tenant if has_own else info
    if named is not None and model is not None and model.assumed_from:
        model = None  # the named window is more certain
    max_input = model.max_input_tokens if model is not None else None
    of_model = model.context_window if model is not None else None
    if not of_model and max_input:
        of_model = max_input + max_output_tokens
    if not (known := [limit for limit in (named, of_model) if limit]):
        if not derive:
            raise ContextLimitUnknown("The model's context window is unknown")
        known = [max_output_tokens * DERIVED_FACTOR]
    total = min(known)
    if max_output_tokens >= total:
        raise ValidationError(
            "max_output_tokens must be smaller than the context window",
            {"max_output_tokens": max_output_tokens, "context_window": total},
        )
    if model is not None and model.max_output_tokens:
        max_output_tokens = min(max_output_tokens, model.max_output_tokens)
    if max_input:
        total = min(total, max_input + max_output_tokens)
    return ContextWindow(total, max_output_tokens)


# --- calibration ---

DECAY = 0.8
"""The share of the sums that remains with each report: the last ten make most of a factor."""
MIN_COUNTED = 200
"""The minimum tokens of a payload: in smaller ones most tokens are the overhead of messages."""
MAX_RATIO = 4.0
"""The maximum ratio between a provider's count and ours of the same payload."""
MIN_RATIO, MIN_ESTIMATE_RATIO = 0.6, 0.4
"""The minimum, of counts by the tokenizer and of estimates by length; see decision 0002."""
MIN_MARGIN = 0.02
ENOUGH_REPORTS = 3
SEALED_SHARE = 0.1
"""The share of reasoning and sealed text from which on a report is ignored."""
_DIGITS = 3


@dataclass(frozen=True, slots=True)
class Calibration:
    """The factor of a model's counts, and the share that is added to the product for safety."""

    factor: float
    margin: float
    reports: int

    def applied(self, start: float, *, exact: bool) -> Calibration:
        """Return the calibration that builds use (rule 7): it does not change with every report.

        `start` is the factor before the first report; `exact` says that the model's own tokenizer
        counts.
        """
        reports = min(self.reports, ENOUGH_REPORTS)
        factor = self.factor if reports else start
        if exact or reports < ENOUGH_REPORTS:
            factor = max(1.0, factor)
        return Calibration(round(factor, _DIGITS), round(self.margin, _DIGITS), reports)


NO_REPORTS = Calibration(1.0, INEXACT_MARGIN, 0)
"""The calibration of a model before its first report."""


def teaches(reported: int, counted: int, sealed: int, counter: str) -> bool:
    """Whether a report says something about a count, of which `sealed` tokens are (rule 6)."""
    if counted < MIN_COUNTED or sealed >= SEALED_SHARE * counted:
        return False
    min_ratio = MIN_RATIO if counter == CounterName.TOKENIZER else MIN_ESTIMATE_RATIO
    return min_ratio * counted <= reported <= MAX_RATIO * counted


def safety_margin(own: float, factor: float, calibration: Calibration) -> float:
    """Return the share to add to a count that is multiplied by `factor`.

    `own` is the margin of the model's counter, 0 for an exact one; a corrected count is not exact.
    Where `factor` was fixed earlier, the margin covers the difference to the present one.
    """
    present, margin = calibration.factor, calibration.margin
    if not calibration.reports or (own == 0 and factor == present == 1):
        return own
    return round(max(margin, (1 + margin) * present / factor - 1), _DIGITS)


@answer()
@dataclass(frozen=True, slots=True)
class Estimate:
    """How the service counted, and how accurate that is."""

    method: str
    """The counter, and its correction by reports."""
    margin: float
    """Share to add to it for safety."""
    factor: float
    """Factor that raw counts of this model are multiplied by."""


def estimate_of(
    counter: str, factor: float, margin: float, calibration: Calibration | None
) -> Estimate:
    """Return an estimate with its method, such as `tokenizer x 1.31 (5 reports)`."""
    reports = calibration.reports if calibration is not None else 0
    method = f"{counter} x {factor:g}" if reports or factor != 1 else counter
    if reports:
        method += f" ({reports} report{'' if reports == 1 else 's'})"
    return Estimate(method, margin, factor)


# --- the budget of a payload ---

HARD_BLOCK = 0.98
"""The share at which a compaction is forced, if `compact_trigger` is not above."""


class Pressure(StrEnum):
    """How full the effective window is, in rising order."""

    OK = "ok"
    DUE = "due"
    COMPACT = "compact"
    BLOCKED = "blocked"


_RANK = {pressure: rank for rank, pressure in enumerate(Pressure)}


@answer()
@dataclass(frozen=True, slots=True)
class Usage:
    """The tokens of a payload by what they are used for, each already rounded."""

    system_prompt: int = 0
    """Used by sections, except skills."""
    skill_prompts: int = 0
    """Used by sections of kind skill."""
    tool_descriptions: int = 0
    """Used by tool definitions."""
    summary: int = 0
    """Used by the summary of older messages."""
    conversation: int = 0
    """Used by messages."""

    @property
    def fixed(self) -> int:
        """Tokens that no reduction of the history can remove."""
        return self.system_prompt + self.skill_prompts + self.tool_descriptions

    @property
    def total(self) -> int:
        """Tokens of the whole payload."""
        return self.fixed + self.summary + self.conversation


@answer()
@dataclass(frozen=True, slots=True)
class ContextBudget:
    """The context window and its use, in tokens; the percentage is from 0 to 100."""

    context_window: int
    """The smaller of the window asked for and the model\'s."""
    max_output_tokens: int
    """Kept free for the answer."""
    system_prompt: int
    """Used by sections, except skills."""
    skill_prompts: int
    """Used by sections of kind skill."""
    tool_descriptions: int
    """Used by tool definitions."""
    summary: int
    """Used by the summary of older messages."""
    conversation: int
    """Used by messages."""
    effective_window: int
    """context_window - max_output_tokens."""
    tokens_used: int
    """Sum of the components."""
    remaining_tokens: int
    """effective_window - tokens_used."""
    used_percentage: float
    """tokens_used of effective_window."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a payload for one model; `due_at` is None for strategies without a trigger.

    `margin` is the share of the count that is added for safety, 0 for an exact counter. The input
    may have `effective_window` tokens; `capacity` is the largest count that fits with the margin
    (rule 3). `thresholds` are the first counts that reach a level, or the notice, in their order.
    """

    total: int
    max_output_tokens: int
    notice_at: float
    due_at: float | None
    compact_trigger: float
    hard_block: float
    margin: float = 0.0
    effective_window: int = field(init=False, compare=False)
    capacity: int = field(init=False, compare=False)
    thresholds: tuple[tuple[int, str], ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        window = self.total - self.max_output_tokens
        ratios = {
            "notice": self.notice_at,
            Pressure.DUE.value: self.due_at,
            Pressure.COMPACT.value: self.compact_trigger,
            Pressure.BLOCKED.value: self.hard_block,
        }
        thresholds = sorted(
            (math.ceil(ratio * window), name) for name, ratio in ratios.items() if ratio is not None
        )
        object.__setattr__(self, "effective_window", window)
        object.__setattr__(self, "capacity", math.floor(window / (1 + self.margin)))
        object.__setattr__(self, "thresholds", tuple(thresholds))

    def reached(self, used: int, ratio: float) -> bool:
        """Return whether `used` tokens reach this share of the effective window (rule 4)."""
        return used >= ratio * self.effective_window


@dataclass(frozen=True, slots=True)
class PressureStatus:
    """The pressure of one payload, and the tokens left to its next threshold."""

    pressure: Pressure
    notice: bool
    next_threshold: str | None = None
    tokens_to_next: int | None = None


def limits_for(
    policy: BudgetPolicy, total: int, max_output_tokens: int, due_at: float | None, margin: float
) -> Limits:
    """Return the limits that a policy sets in a context window of `total` tokens."""
    trigger = policy.compact_trigger
    block = max(HARD_BLOCK, trigger)
    return Limits(total, max_output_tokens, policy.notice_at, due_at, trigger, block, margin)


def measure(usage: Usage, limits: Limits) -> ContextBudget:
    """Return the budget of a payload with this usage."""
    window, used = limits.effective_window, usage.total
    return ContextBudget(
        context_window=limits.total,
        max_output_tokens=limits.max_output_tokens,
        **asdict(usage),
        effective_window=window,
        tokens_used=used,
        remaining_tokens=window - used,
        used_percentage=round(100 * used / window, 2),
    )


def pressure_status(used: int, limits: Limits) -> PressureStatus:
    """Return the highest level that `used` tokens reach, and the next threshold."""
    pressure, notice = Pressure.OK, False
    for tokens, name in limits.thresholds:
        if used < tokens:
            return PressureStatus(pressure, notice, name, tokens - used)
        if name == "notice":
            notice = True
        else:
            pressure = max(pressure, Pressure(name), key=_RANK.__getitem__)
    return PressureStatus(pressure, notice)


def scaled(tokens: int, factor: float) -> int:
    """Return a count times the model's calibration factor, rounded up."""
    return tokens if factor == 1 else math.ceil(tokens * factor)
