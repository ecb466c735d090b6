"""Retention: how long rows are kept that no caller deletes.

Messages and everything derived from them are kept for ever unless the operator sets a limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum


class RetainedKind(StrEnum):
    """Kinds of rows that are deleted by age."""

    IDEMPOTENCY_KEYS = "idempotency_keys"
    CREATIONS = "creations"
    EVENTS = "events"
    JOBS = "jobs"


@dataclass(frozen=True, slots=True)
class Retention:
    """How long rows are kept; None is for ever.

    The age of a conversation counts from its last append or change. It is deleted with everything
    that belongs to it, unless it is in a snapshot. The age of a job counts from its end.
    """

    conversations: timedelta | None = None
    events: timedelta | None = None
    jobs: timedelta | None = timedelta(days=30)

    @property
    def max_ages(self) -> Mapping[RetainedKind, timedelta]:
        """The age at which rows of each kind are deleted."""
        chosen = {
            RetainedKind.EVENTS: self.events,
            RetainedKind.JOBS: self.jobs,
            # Idempotency keys hold for 24 hours.
            RetainedKind.IDEMPOTENCY_KEYS: timedelta(days=1),
            RetainedKind.CREATIONS: timedelta(days=1),
        }
        return {kind: age for kind, age in chosen.items() if age is not None}
