"""The strategies by name, one module for each."""

from app.compaction.strategies.base import Strategy
from app.compaction.strategies.chain import Chain
from app.compaction.strategies.full_history import FullHistory
from app.compaction.strategies.provider import Provider
from app.compaction.strategies.retain_summary import RetainSummary
from app.compaction.strategies.sandwich import Sandwich
from app.compaction.strategies.sliding_window import SlidingWindow
from app.compaction.strategies.tree_summary import TreeSummary
from app.policy.policy import StrategyName

STRATEGIES: dict[StrategyName, Strategy] = {
    strategy.name: strategy
    for strategy in (
        Sandwich(),
        SlidingWindow(),
        FullHistory(),
        TreeSummary(),
        RetainSummary(),
        Chain(),
        Provider(),
    )
}
