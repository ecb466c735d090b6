"""When a background compaction is due [compaction.due]."""

from __future__ import annotations

import math
from dataclasses import dataclass

from app.conversations.conversation import ConversationState
from app.models.budget import Limits
from app.policy.policy import CompactionPolicy
from app.prompt.resolved_settings import ResolvedSettings

RESUME_SHARE = 0.05
"""The log has to grow by this share of the effective window before a compaction is tried again."""

MIN_NEW_MESSAGES = 10


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
        return is_over or (self.messages is not None and state.shown_messages > self.messages)


NO_THRESHOLD = CompactionThreshold()


def compaction_threshold(resolved: ResolvedSettings) -> CompactionThreshold:
    """Return where a background compaction is due, `NO_THRESHOLD` if it never is."""
    policy, limits = resolved.policy.compaction, resolved.policy_limits
    if not (policy.enabled and policy.auto) or policy.mode == "inline":
        return NO_THRESHOLD
    if limits is None or limits.due_at is None:
        return NO_THRESHOLD
    used = limits.due_at * limits.effective_window
    tokens = math.ceil(used / resolved.factor) - resolved.raw_fixed.fixed
    return CompactionThreshold(tokens, policy.max_messages)


def exceeds_messages(policy: CompactionPolicy, state: ConversationState) -> bool:
    """Whether a conversation shows so many messages that a compaction is due, whatever it frees."""
    is_automatic = policy.enabled and policy.auto and not state.is_suspended
    return is_automatic and _has_too_many(policy, state)


def _has_too_many(policy: CompactionPolicy, state: ConversationState) -> bool:
    return policy.max_messages is not None and state.shown_messages > policy.max_messages


def resume_at_tokens(
    state: ConversationState, limits: Limits, policy: CompactionPolicy | None = None
) -> int:
    """Return how many tokens the log needs before it is compacted automatically again.

    While more messages are shown than the policy allows, half as many new ones are enough, at least
    `MIN_NEW_MESSAGES`.
    """
    tokens = int(RESUME_SHARE * limits.effective_window)
    if policy is not None and policy.max_messages and _has_too_many(policy, state):
        average = state.shown_tokens // max(1, state.shown_messages)
        tokens = min(tokens, average * max(MIN_NEW_MESSAGES, policy.max_messages // 2))
    return state.tokens + tokens
