"""`full_history` and `sliding_window`: what is shown moves with the log, without a summary."""

from __future__ import annotations

from app.compaction.strategies.base import Strategy
from app.compaction.strategies.cuts import CutSearch
from app.conversations.plans import NoCompaction, Plan, SlidingCut
from app.conversations.turns import group_boundary_before
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


class SlidingWindow(Strategy):
    """Shows the last `keep_last_n` messages; moves with each build. [strategy.sliding-window]"""

    name = StrategyName.SLIDING_WINDOW
    description = "The last N messages; what came before is not shown."
    compacts = False

    def preserved(self, policy: Policy) -> tuple[int | None, int | None]:
        """Return nothing at the top, and `keep_last_n` at the bottom."""
        return 0, policy.sliding_window.keep_last_n

    def _plan(self, search: CutSearch, *, deep: bool, failures: int) -> Plan:
        history = search.history
        keep = search.policy.sliding_window.keep_last_n
        cut = group_boundary_before(history, len(history) - keep)
        kept = tuple(entry.seq for entry in history[:cut] if entry.seq in search.never_hidden)
        if len(kept) == cut:
            return NoCompaction("all messages are inside the window")
        return SlidingCut(history[cut].seq, kept)
