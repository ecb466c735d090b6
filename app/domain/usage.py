"""Usage as providers report it, and what it says about compacting (E2).

1. Input, cache writes, cache reads and output are disjoint: their sum is the whole call.
2. What a provider reported is truer than a count, but only of the payload it was reported for:
   tokens appended since are added, and usage of an older epoch says nothing any more.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.budget import Limits
from app.domain.policy import CompactionPolicy


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """The tokens of one call (S1 2.3); `input_tokens` leaves out what the cache took or gave."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_creation_tokens: int = 0
    cache_read_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """All tokens of the call (rule 1)."""
        cached = self.cache_creation_tokens + self.cache_read_tokens
        return self.input_tokens + cached + self.output_tokens


@dataclass(frozen=True, slots=True)
class ReportedUsage:
    """A call's usage, the epoch it belongs to, and the tokens appended after it."""

    usage: TokenUsage
    epoch: int
    appended_tokens: int = 0


def should_compact(
    policy: CompactionPolicy,
    limits: Limits,
    estimate: int,
    reported: ReportedUsage | None,
    epoch: int,
) -> bool:
    """Whether the larger of the reported and the estimated tokens makes a compaction due (E2)."""
    if not (policy.enabled and policy.auto) or limits.due_at is None:
        return False
    used = estimate
    if reported is not None and reported.epoch >= epoch:
        used = max(used, reported.usage.total_tokens + reported.appended_tokens)
    return limits.reached(used, limits.due_at)
