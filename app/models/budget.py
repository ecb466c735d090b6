"""The context window of a model and the budget of a payload.

1. Input and output share the context window. `effective_window` is what `max_output_tokens` leaves
   of it; every ratio is relative to it. The output limit is a limit of its own.
2. Some models limit their input apart from their output. `context_window` is then at most that
   input limit plus the reserved output, so that `effective_window` always fits.
3. The components sum to `tokens_used`. They are those of the payload that is returned. It fits when
   used tokens plus the safety margin are within the effective window.
4. `used >= ratio x effective_window` reaches a level. Pressure is the highest level reached.
   `notice` is no level: it never changes what is built.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import NamedTuple

from app.common.answer_schemas import answer
from app.common.errors import ContextLimitUnknown, ValidationError
from app.models.model_info import ModelInfo
from app.policy.policy import BudgetPolicy

DERIVED_FACTOR = 4
"""Context window per token of reserved output, for unknown models under `derive`."""


class ContextWindow(NamedTuple):
    """The tokens of one call: all of them, and of these the reserved output."""

    tokens: int
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
        model = None  # the named one is more certain
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


BLOCKED_AT = 0.98
"""The share at which a build compacts in any case, if `compact_trigger` is not above."""


class Pressure(StrEnum):
    """How full the effective window is, in rising order."""

    OK = "ok"
    DUE = "due"
    COMPACT = "compact"
    BLOCKED = "blocked"


_RANK = {pressure: rank for rank, pressure in enumerate(Pressure)}


@answer()
@dataclass(frozen=True, slots=True)
class PayloadTokens:
    """The tokens of a payload by component, each already rounded."""

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
    """The smaller of the one asked for and the model\'s."""
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

    context_window: int
    max_output_tokens: int
    notice_at: float
    due_at: float | None
    compact_trigger: float
    blocked_at: float
    margin: float = 0.0
    effective_window: int = field(init=False, compare=False)
    capacity: int = field(init=False, compare=False)
    thresholds: tuple[tuple[int, str], ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        size = self.context_window - self.max_output_tokens
        ratios = {
            "notice": self.notice_at,
            Pressure.DUE.value: self.due_at,
            Pressure.COMPACT.value: self.compact_trigger,
            Pressure.BLOCKED.value: self.blocked_at,
        }
        thresholds = sorted(
            (math.ceil(ratio * size), name) for name, ratio in ratios.items() if ratio is not None
        )
        object.__setattr__(self, "effective_window", size)
        object.__setattr__(self, "capacity", math.floor(size / (1 + self.margin)))
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
    policy: BudgetPolicy, context_window: ContextWindow, due_at: float | None, margin: float
) -> Limits:
    """Return the limits that a policy sets in a context window."""
    trigger = policy.compact_trigger
    block = max(BLOCKED_AT, trigger)
    return Limits(*context_window, policy.notice_at, due_at, trigger, block, margin)


def measure(tokens: PayloadTokens, limits: Limits) -> ContextBudget:
    """Return the budget of a payload with these tokens."""
    effective, used = limits.effective_window, tokens.total
    return ContextBudget(
        context_window=limits.context_window,
        max_output_tokens=limits.max_output_tokens,
        **asdict(tokens),
        effective_window=effective,
        tokens_used=used,
        remaining_tokens=effective - used,
        used_percentage=round(100 * used / effective, 2),
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
