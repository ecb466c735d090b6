"""The strategies by name, one module for each."""

from app.domain.common.policy import StrategyName
from app.domain.compaction.strategies.base import Strategy
from app.domain.compaction.strategies.chain import Chain
from app.domain.compaction.strategies.full_history import FullHistory
from app.domain.compaction.strategies.provider import Provider
from app.domain.compaction.strategies.retain_summary import RetainSummary
from app.domain.compaction.strategies.sandwich import Sandwich
from app.domain.compaction.strategies.sliding_window import SlidingWindow
from app.domain.compaction.strategies.tree_summary import TreeSummary

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
