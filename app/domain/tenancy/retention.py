"""How long things are kept that nobody deletes (architecture, operation).

Messages and all that is derived from them are kept for ever unless an operator says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum


class RetainedKind(StrEnum):
    """What has an age."""

    IDEMPOTENCY_KEYS = "idempotency_keys"
    CREATIONS = "creations"
    EVENTS = "events"
    JOBS = "jobs"
    KEY_USES = "key_uses"
    ALLOWANCES = "allowances"
    SUMMARISER_CALLS = "summariser_calls"


@dataclass(frozen=True, slots=True)
class Retention:
    """How long things are kept; None is for ever.

    Conversations count from their last append or change, and go with all that belongs to them;
    those in a snapshot stay. Jobs count once they have ended.
    """

    conversations: timedelta | None = None
    events: timedelta | None = None
    jobs: timedelta | None = timedelta(days=30)
    key_uses: timedelta | None = timedelta(days=365)

    @property
    def aged(self) -> Mapping[RetainedKind, timedelta]:
        """Return the age from which rows of each kind go."""
        chosen = {
            RetainedKind.EVENTS: self.events,
            RetainedKind.JOBS: self.jobs,
            RetainedKind.KEY_USES: self.key_uses,
            # These are of no use any more (decision 8), or of a window that has ended.
            RetainedKind.IDEMPOTENCY_KEYS: timedelta(days=1),
            RetainedKind.CREATIONS: timedelta(days=1),
            RetainedKind.ALLOWANCES: timedelta(days=2),
            RetainedKind.SUMMARISER_CALLS: timedelta(days=2),
        }
        return {kind: age for kind, age in chosen.items() if age is not None}
