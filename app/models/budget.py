"""The budget of a payload: the use of its context window by component, and the pressure.

1. `effective_window = total - max_output_tokens`. Every ratio is relative to it.
2. The components sum to `used_tokens`. They are those of the payload that is returned.
3. `used >= ratio x effective_window` reaches a level. Pressure is the highest level reached.
4. `notice` is no level: it never changes what is built.
5. A payload fits when used tokens plus the safety margin are within the effective window.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from operator import itemgetter
from typing import NamedTuple

from app.common.answers import answer
from app.policy.policy import BudgetPolicy

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
    def total(self) -> int:
        """Tokens of the whole payload."""
        fixed = self.system_prompt + self.skill_prompts + self.tool_descriptions
        return fixed + self.summary + self.conversation

    @property
    def fixed(self) -> int:
        """Tokens that no reduction of the history can remove."""
        return self.system_prompt + self.skill_prompts + self.tool_descriptions


@answer()
@dataclass(frozen=True, slots=True)
class ContextBudget:
    """The context window and its use, in tokens; the percentage is from 0 to 100."""

    total: int
    """The context window."""
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
    """total - max_output_tokens."""
    used_tokens: int
    """Sum of the components."""
    remaining_tokens: int
    """effective_window - used_tokens."""
    used_percentage: float
    """used_tokens of effective_window."""


class Threshold(NamedTuple):
    """The first count of tokens that reaches a level, or the notice where `level` is None."""

    tokens: int
    name: str
    level: Pressure | None


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a payload for one model; `due_at` is None for strategies without a trigger.

    `margin` is the share of the count that is added for safety, 0 for an exact counter. The input
    may have `effective_window` tokens; `capacity` is the largest count that fits with the margin
    (rule 5). `thresholds` are in the order of their tokens.
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
    thresholds: tuple[Threshold, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        window = self.total - self.max_output_tokens
        ratios = (
            (None, self.notice_at),
            (Pressure.DUE, self.due_at),
            (Pressure.COMPACT, self.compact_trigger),
            (Pressure.BLOCKED, self.hard_block),
        )
        thresholds = (
            Threshold(math.ceil(ratio * window), level.value if level else "notice", level)
            for level, ratio in ratios
            if ratio is not None
        )
        object.__setattr__(self, "effective_window", window)
        object.__setattr__(self, "capacity", math.floor(window / (1 + self.margin)))
        object.__setattr__(self, "thresholds", tuple(sorted(thresholds, key=itemgetter(0, 1))))

    def reached(self, used: int, ratio: float) -> bool:
        """Return whether `used` tokens reach this share of the effective window (rule 3)."""
        return used >= ratio * self.effective_window


@dataclass(frozen=True, slots=True)
class PressureStatus:
    """The pressure of one payload, and the tokens left to its next threshold."""

    pressure: Pressure
    notice: bool
    next_threshold: str | None
    tokens_to_next: int | None


def limits_for(
    policy: BudgetPolicy, total: int, max_output_tokens: int, due_at: float | None, margin: float
) -> Limits:
    """Return the limits that a policy sets in a context window of `total` tokens."""
    return Limits(
        total=total,
        max_output_tokens=max_output_tokens,
        notice_at=policy.notice_at,
        due_at=due_at,
        compact_trigger=policy.compact_trigger,
        hard_block=max(HARD_BLOCK, policy.compact_trigger),
        margin=margin,
    )


def measure(usage: Usage, limits: Limits) -> ContextBudget:
    """Return the budget of a payload with this usage."""
    window = limits.effective_window
    return ContextBudget(
        total=limits.total,
        max_output_tokens=limits.max_output_tokens,
        **asdict(usage),
        effective_window=window,
        used_tokens=usage.total,
        remaining_tokens=window - usage.total,
        used_percentage=round(100 * usage.total / window, 2),
    )


def pressure_status(used: int, limits: Limits) -> PressureStatus:
    """Return the highest level that `used` tokens reach, and the next threshold."""
    pressure, notice = Pressure.OK, False
    for threshold in limits.thresholds:
        if used < threshold.tokens:
            tokens_to_next = threshold.tokens - used
            return PressureStatus(pressure, notice, threshold.name, tokens_to_next)
        if threshold.level is None:
            notice = True
        elif _RANK[threshold.level] > _RANK[pressure]:
            pressure = threshold.level
    return PressureStatus(pressure, notice, None, None)


def scaled(tokens: int, factor: float) -> int:
    """Return a count times the model's calibration factor, rounded up."""
    return tokens if factor == 1 else math.ceil(tokens * factor)
