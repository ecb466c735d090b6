"""`provider`: the provider compacts what it is sent."""

from __future__ import annotations

from app.domain.common.policy import Policy, StrategyName
from app.domain.compaction.plans import Plan
from app.domain.compaction.strategies.base import Strategy
from app.domain.compaction.strategies.cuts import CutSearch
from app.domain.compaction.strategies.retain_summary import RetainSummary

_FALLBACK = RetainSummary()


class Provider(Strategy):
    """Leaves compactions to the provider, and plans like `retain_summary` where it has none.

    [strategy.provider]
    """

    name = StrategyName.PROVIDER
    description = "The provider's own compaction; `retain_summary` where the provider has none."

    def trigger(self, policy: Policy) -> float | None:
        """Return None: the provider decides."""
        return None

    def compacts(self, policy: Policy) -> bool:
        """Return True, for the formats whose provider has no compaction."""
        return True

    def preserved(self, policy: Policy) -> tuple[int | None, int | None]:
        """Return what `retain_summary` keeps."""
        return _FALLBACK.preserved(policy)

    def _plan(self, search: CutSearch, *, deep: bool, failures: int) -> Plan:
        return _FALLBACK._plan(search, deep=deep, failures=failures)
