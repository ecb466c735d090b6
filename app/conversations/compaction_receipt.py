"""What compactions did: receipts, failures, and the view they leave."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum

from app.common.answers import answer
from app.conversations.view import Span, Summary, View


class Trigger(StrEnum):
    """What started a compaction, or a clearing of tool results.

    `PROVIDER` is a provider's own compaction, whose item was appended.
    """

    BACKGROUND = "background"
    PROACTIVE = "proactive"
    FORCED = "forced"
    EMERGENCY = "emergency"
    TOOL_OUTPUT = "tool_output"
    PROVIDER = "provider"


PROVIDER_ITEM_SUMMARY = "[summarised by the provider, in an item that only its models read]"
"""The stored summary of a receipt whose provider's item has no readable text."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """The receipt of one compaction.

    - `hidden_span` is the whole hidden range, and `view` what is shown instead.
    - `made` are the summaries that this compaction made. The view may also have older summaries,
      or have merged a new one into another.
    - `strategy` is the strategy that ran, `policy_strategy` the one of the policy at that time. A
      view with a provider's item has `provider` instead: it does not depend on the policy.
    - `model` is None without model calls. Of `input_tokens` it read `cached_tokens` from its
      provider's cache.
    - `degraded` lists what the compaction did without. `target_tokens` were asked for by its
      caller, None where the policy decided.
    - The conversation's state takes `hidden_tokens`, `hidden_messages` and `summary_tokens`.
    """

    compaction_id: str
    parent_id: str | None
    trigger: str
    strategy: str
    policy_strategy: str
    strategies_run: tuple[str, ...]
    hidden_span: Span
    view: View
    made: tuple[Summary, ...] = ()
    summary_tokens: int = 0
    hidden_tokens: int = 0
    hidden_messages: int = 0
    before_tokens: int = 0
    after_tokens: int = 0
    before_msg_count: int = 0
    after_msg_count: int = 0
    model: str | None = None
    prompt_hash: str | None = None
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    duration_ms: int = 0
    degraded: tuple[str, ...] = ()
    cached_tokens: int = 0
    target_tokens: int | None = None
    created_at: datetime | None = None
    undone_at: datetime | None = None

    @property
    def summary(self) -> str | None:
        """The text of all summaries, None without any."""
        texts = [summary.text for summary in self.view.summaries]
        return "\n\n".join(texts) if texts else None

    def is_shown_with(self, strategy: str) -> bool:
        """Whether its view is shown while the policy has this strategy."""
        return is_shown_with(self.policy_strategy, strategy)


_COLUMNS = {"compaction_id", "parent_id", "trigger", "policy_strategy", "hidden_span"}
_COLUMNS |= {"view", "made", "created_at", "undone_at"}
FACTS = {field.name: str(field.type) for field in fields(Compaction) if field.name not in _COLUMNS}
"""The fields of a receipt that no statement reads, with their types: one column stores them."""


def is_shown_with(policy_strategy: str | None, strategy: str) -> bool:
    """Whether a view made with one strategy is shown while the policy has another one.

    [strategy.change-drops-summary]
    """
    return policy_strategy in (None, strategy, Trigger.PROVIDER)


@answer()
@dataclass(frozen=True, slots=True)
class Failure:
    """Why the last compaction failed, without message content."""

    trigger: Trigger
    """What started it."""
    code: str
    """Code of the error."""
    reason: str
    """Reason code, such as `rate_limited`, `timeout` or `bad_answer`."""
    detail: str
    """The reason in a sentence."""
    calls: int
    """Number of model calls."""
    failed_at: datetime
    """When it failed."""
    failures: int
    """Number of automatic compactions that failed in a row."""
    retry_at: datetime | None
    """When the next automatic compaction may run; null when none is suspended."""


@dataclass(frozen=True, slots=True)
class ViewState:
    """What a conversation's state stores of its view: the receipt, and how much the view hides.

    `kept_seqs` are the seqs that it shows whole although the receipt hid or cleared them.
    """

    view: View
    compaction_id: str | None
    summary_tokens: int
    hidden_tokens: int
    hidden_messages: int
    kept_seqs: tuple[int, ...] = ()
