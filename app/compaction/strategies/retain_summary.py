"""`retain_summary`: the retained text, one summary, and the last turns; and `provider`."""

from __future__ import annotations

from app.compaction.strategies.base import SummaryStrategy
from app.compaction.strategies.cuts import CutSearch
from app.conversations.plans import Plan
from app.policy.policy import Policy, StrategyName


class RetainSummary(SummaryStrategy):
    """Summarises all but the last `retain_last_turns` turns. [strategy.retain-summary]"""

    name = StrategyName.RETAIN_SUMMARY
    description = "A summary of everything but the last turns, and of as many more as fit."

    def preserved(self, policy: Policy) -> tuple[int | None, int | None]:
        """Return the minimum that `retain_last_turns` keeps: one message of each turn."""
        return 0, max(1, policy.compaction.retain_last_turns)

    def _plan_summary(self, search: CutSearch, *, deep: bool) -> Plan:
        cut = search.turns_cut(search.policy.compaction.retain_last_turns)
        if not deep:
            cut = search.target_cut(0, latest=cut)
        return self._summary_plan(search, 0, cut)


class Provider(RetainSummary):
    """Leaves compactions to the provider, and runs `retain_summary` where it has none.

    [strategy.provider]
    """

    name = StrategyName.PROVIDER
    description = "The provider's own compaction; `retain_summary` where the provider has none."

    def _plan(self, search: CutSearch, *, deep: bool, failures: int) -> Plan:
        return RetainSummary()._plan(search, deep=deep, failures=failures)
