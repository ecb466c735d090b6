"""The strategies by name."""

from app.compaction.strategies.base import Strategy
from app.compaction.strategies.chain import Chain
from app.compaction.strategies.retain_summary import Provider, RetainSummary
from app.compaction.strategies.sandwich import Sandwich
from app.compaction.strategies.tree_summary import TreeSummary
from app.compaction.strategies.uncompacted import FullHistory, SlidingWindow
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
