"""`provider`: the provider compacts what it is sent."""

from __future__ import annotations

from app.compaction.strategies.cuts import CutSearch
from app.compaction.strategies.retain_summary import RetainSummary
from app.conversations.plans import Plan
from app.policy.policy import StrategyName


class Provider(RetainSummary):
    """Leaves compactions to the provider, and runs `retain_summary` where it has none.

    [strategy.provider]
    """

    name = StrategyName.PROVIDER
    description = "The provider's own compaction; `retain_summary` where the provider has none."

    def _plan(self, search: CutSearch, *, deep: bool, failures: int) -> Plan:
        return RetainSummary()._plan(search, deep=deep, failures=failures)
