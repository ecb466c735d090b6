"""How many tokens summaries may take in a context window."""

from __future__ import annotations

from app.conversations.plans import HistoryBudget
from app.models.budget import Limits
from app.policy.policy import Policy, StrategyName

MIN_SUMMARY_TOKENS = 64
MAX_SUMMARY_TOKENS = 2048
SUMMARY_SHARE = 0.1
TREE_SHARE = 0.2
MAX_TREE_TOKENS = 8192
SUMMARY_ROOM_SHARE = 0.2
"""The share of what the target leaves that summaries may take."""
TREE_ROOM_SHARE = 0.4
"""The same of the summaries of a tree together."""
ASKED_ROOM_SHARE = 0.5
"""The same where a caller asks for a target."""
FLOOR_TOKENS = 400
FLOOR_SHARE = 0.1
"""A summary may take at least these tokens, or this share of what it stands for if that is more."""
FLOOR_ROOM_SHARE = 0.25
"""The share of what the window leaves for history that this minimum may take."""
LOG_TOKENS_PER_TOKEN = 8
MAX_MODEL_SUMMARY_TOKENS = 4096
"""The limit of one summary by a model, which tends to fill what it is given."""
TREE_NODES = 8
"""So many summaries of a tree fit at their largest; more of them are merged into the next level."""
LABEL_TOKENS = 32
"""The cost of a summary's message besides its text."""
NOTE_TOKENS = 32
"""Reserved for the note that counts the messages left out."""


def summary_text_limit(limits: Limits) -> int:
    """Return how many tokens the text of one summary may take in a reduction for one request."""
    return summary_reserve(StrategyName.SANDWICH, limits) - LABEL_TOKENS


def summary_room(
    strategy: StrategyName,
    limits: Limits,
    policy: Policy,
    fixed: int,
    log_tokens: int,
    factor: float = 1.0,
    target_tokens: int | None = None,
) -> int:
    """Return how many tokens a compaction reserves for its summaries, labels included.

    That is a share of what the target leaves beside the `fixed` tokens, in raw counts: of an
    asked target half, so that it holds what matters of a long history, else a fifth. It grows
    with the log, and is at most half of what it stands for.
    """
    target = target_tokens or int(limits.effective_window * policy.compaction.target)
    free = int(min(target, limits.capacity) / factor) - fixed
    is_tree = strategy is StrategyName.TREE_SUMMARY
    if target_tokens is None:
        maximum = MAX_TREE_TOKENS if is_tree else MAX_SUMMARY_TOKENS
        grown = max(maximum, log_tokens // LOG_TOKENS_PER_TOKEN)
        room = min(int(free * (TREE_ROOM_SHARE if is_tree else SUMMARY_ROOM_SHARE)), grown)
        most = log_tokens // 3
    else:
        room = int(free * ASKED_ROOM_SHARE)
        # To show `free` tokens with a summary of half its source, the excess is enough.
        most = max(0, log_tokens - free)
    minimum = MIN_SUMMARY_TOKENS * (2 if is_tree else 1)
    return max(minimum, min(room, most))


def summary_floor(replaced_tokens: int) -> int:
    """Return what summaries may take at least before more messages stay, labels included."""
    floor = max(FLOOR_TOKENS, int(replaced_tokens * FLOOR_SHARE))
    return min(floor, replaced_tokens // 2)


def tree_node_text_limit(room: int) -> int:
    """Return how many tokens the text of one new summary of a tree may take."""
    return max(MIN_SUMMARY_TOKENS // 2, room // TREE_NODES - LABEL_TOKENS)


def summary_reserve(strategy: StrategyName, limits: Limits) -> int:
    """Return what a strategy reserves for the messages of its summaries, labels included."""
    is_tree = strategy is StrategyName.TREE_SUMMARY
    share = int(limits.effective_window * (TREE_SHARE if is_tree else SUMMARY_SHARE))
    maximum = MAX_TREE_TOKENS if is_tree else MAX_SUMMARY_TOKENS
    return max(MIN_SUMMARY_TOKENS * (2 if is_tree else 1), min(share, maximum))


def history_budget(
    limits: Limits, policy: Policy, fixed: int, summary: int, factor: float
) -> HistoryBudget:
    """Return the budget of a history in raw counts, before the model's factor."""
    return HistoryBudget(
        capacity=int(limits.capacity / factor),
        target=int(limits.effective_window * policy.compaction.target / factor),
        fixed=fixed,
        summary=summary,
    )
