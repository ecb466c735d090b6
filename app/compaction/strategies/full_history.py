"""`full_history`: everything, always."""

from __future__ import annotations

from app.compaction.strategies.base import Strategy
from app.compaction.strategies.cuts import CutSearch
from app.conversations.plans import NoCompaction, Plan
from app.policy.policy import Policy, StrategyName


class FullHistory(Strategy):
    """Never compacts, not even when forced. [strategy.full-history]"""

    name = StrategyName.FULL_HISTORY
    description = "Everything, always."
    compacts = False

    def preserved(self, policy: Policy) -> tuple[int | None, int | None]:
        """Return None for both ends: all messages stay."""
        return None, None

    def _plan(self, search: CutSearch, *, deep: bool, failures: int) -> Plan:
        return NoCompaction("full_history never compacts")
