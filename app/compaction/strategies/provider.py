"""`provider`: the provider compacts what it is sent."""

from __future__ import annotations

from app.compaction.strategies.base import Strategy
from app.compaction.strategies.cuts import CutSearch
from app.compaction.strategies.retain_summary import RetainSummary
from app.conversations.plans import Plan
from app.policy.policy import Policy, StrategyName

_FALLBACK = RetainSummary()


class Provider(Strategy):
    """Leaves compactions to the provider, and plans like `retain_summary` where it has none.

    [strategy.provider]
    """

    name = StrategyName.PROVIDER
    description = "The provider's own compaction; `retain_summary` where the provider has none."

    def preserved(self, policy: Policy) -> tuple[int | None, int | None]:
        """Return what `retain_summary` keeps."""
        return _FALLBACK.preserved(policy)

    def _plan(self, search: CutSearch, *, deep: bool, failures: int) -> Plan:
        return _FALLBACK._plan(search, deep=deep, failures=failures)
