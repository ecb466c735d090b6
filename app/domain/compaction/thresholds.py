"""When a background compaction is due. [compaction.due]"""

from __future__ import annotations

import math
from dataclasses import dataclass

from app.domain.common.policy import CompactionMode
from app.domain.conversations.conversation import ConversationState
from app.domain.models.budget import Limits
from app.domain.prompt.resolved_settings import ResolvedSettings

RESUME_SHARE = 0.05
"""The log has to grow by this share of the window before a compaction is tried again."""


@dataclass(frozen=True, slots=True)
class CompactionThreshold:
    """Where a compaction becomes due: raw tokens of history and summary, and messages.

    None is never.
    """

    tokens: int | None = None
    messages: int | None = None

    def reached(self, state: ConversationState) -> bool:
        """Whether a conversation is over the threshold, and has grown to `resume_at_tokens`."""
        if state.is_suspended:
            return False
        shown = state.shown_tokens + state.summary_tokens
        is_over = self.tokens is not None and shown >= self.tokens
        return is_over or self.exceeds_messages(state)

    def exceeds_messages(self, state: ConversationState) -> bool:
        """Whether a conversation shows more messages than it may: then any gain is accepted."""
        messages = state.head_seq - state.hidden_messages
        return self.messages is not None and messages > self.messages


NO_THRESHOLD = CompactionThreshold()


def compaction_threshold(resolved: ResolvedSettings) -> CompactionThreshold:
    """Return where a background compaction is due, `NO_THRESHOLD` if it never is."""
    policy, limits = resolved.policy.compaction, resolved.policy_limits
    if not (policy.enabled and policy.auto) or policy.mode is CompactionMode.INLINE:
        return NO_THRESHOLD
    if limits is None or limits.due_at is None:
        return NO_THRESHOLD
    used = limits.due_at * limits.effective_window
    tokens = math.ceil(used / resolved.factor) - resolved.raw_fixed.fixed
    return CompactionThreshold(tokens, policy.max_messages)


def resume_at_tokens(state: ConversationState, limits: Limits) -> int:
    """Return how many tokens the log needs before it is compacted automatically again."""
    return state.tokens + int(RESUME_SHARE * limits.effective_window)
