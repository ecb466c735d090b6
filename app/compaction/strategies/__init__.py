"""The strategies by name."""

from app.compaction.strategies.base import Strategy
from app.compaction.strategies.chain import Chain
from app.compaction.strategies.kinds import (
    FullHistory,
    Provider,
    RetainSummary,
    Sandwich,
    SlidingWindow,
    TreeSummary,
)
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
