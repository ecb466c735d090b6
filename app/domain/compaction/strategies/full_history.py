"""`full_history`: everything, always."""

from __future__ import annotations

from app.domain.common.policy import Policy, StrategyName
from app.domain.compaction.plans import NoCompaction, Plan
from app.domain.compaction.strategies.base import Strategy
from app.domain.compaction.strategies.cuts import CutSearch


class FullHistory(Strategy):
    """Never compacts, not even when forced. [strategy.full-history]"""

    name = StrategyName.FULL_HISTORY
    description = "Everything, always."

    def trigger(self, policy: Policy) -> float | None:
        """Return None: no compaction is ever due."""
        return None

    def preserved(self, policy: Policy) -> tuple[int | None, int | None]:
        """Return None for both ends: all messages stay."""
        return None, None

    def _plan(self, search: CutSearch, *, deep: bool, failures: int) -> Plan:
        return NoCompaction("full_history never compacts")
