"""Usage that providers reported, and what follows from it for compaction and calibration.

1. Input, cache writes, cache reads and output are disjoint: their sum is the whole call.
2. A report is more exact than an estimate, but only for the payload that it was made for: tokens
   appended since are added, and a report of an older epoch does not count.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from app.conversations.conversation import ConversationState
from app.conversations.epochs import NO_REQUESTED_WINDOW, Epoch, EpochStart
from app.formats.message import FormatName
from app.models.budget import Limits, Pressure, Usage, pressure_status
from app.models.usage_objects import TokenUsage
from app.policy.policy import CompactionPolicy, StrategyName
from app.prompt.resolved_settings import ResolvedSettings


@dataclass(frozen=True, slots=True)
class UsageReport:
    """A stored report: the usage object as it was sent, and the values read from it.

    `epoch` is that of its payload stream, None before any build. `estimated_tokens` is the count of
    the payload before the factor, None where that is unknown. `regions` are its parts, None alike.
    """

    report_id: str
    model: str
    format: FormatName
    epoch: int | None
    through_seq: int
    usage: TokenUsage
    usage_json: str
    estimated_tokens: int | None = None
    regions: Usage | None = None
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ReportedUsage:
    """A call's usage, the epoch it belongs to, and the tokens appended after it.

    With `has_item` its payloads have a compaction item, whose cost the estimate can only guess.
    """

    usage: TokenUsage
    epoch: int
    appended_tokens: int = 0
    has_item: bool = False


# --- judging --------------------------------------------------------------------------------


def current_epoch(newest_epoch: Epoch | None, state: ConversationState) -> int:
    """Return the number of a stream's current epoch, the next one when the view has changed."""
    if newest_epoch is None:
        return int(state.view_version > 0)
    return newest_epoch.epoch + (newest_epoch.view_version != state.view_version)


def judged_tokens(estimate: int, reported: ReportedUsage | None, epoch: int) -> int:
    """Return the larger of reported and estimated tokens, without reports of older epochs.

    Of payloads with a provider's compaction item the reported ones count.
    """
    if reported is None or reported.epoch < epoch:
        return estimate
    tokens = reported.usage.total_tokens + reported.appended_tokens
    counts_alone = reported.has_item and reported.usage.sent_tokens > 0
    return tokens if counts_alone else max(estimate, tokens)


def should_compact(
    policy: CompactionPolicy,
    limits: Limits,
    estimate: int,
    reported: ReportedUsage | None,
    epoch: int,
) -> bool:
    """Whether the larger of reported and estimated tokens makes a compaction due."""
    if not (policy.enabled and policy.auto) or limits.due_at is None:
        return False
    return limits.reached(judged_tokens(estimate, reported, epoch), limits.due_at)


def is_suspended(state: ConversationState, used: int, limits: Limits) -> bool:
    """Whether compaction is suspended until the log has grown, as after an undo."""
    if not state.is_suspended:
        return False
    return pressure_status(used, limits).pressure not in (Pressure.COMPACT, Pressure.BLOCKED)


# --- comparing ------------------------------------------------------------------------------


def incomparable_reason(
    newest_epoch: Epoch | None,
    start: EpochStart | None,
    report_epoch: int | None,
    through_seq: int,
    state: ConversationState,
) -> str | None:
    """Return why a report cannot be compared with the service's count, None where it can be.

    The count is known for the newest epoch of the payload stream, while the view is the same, if
    the epoch was built for the policy's own context window.
    """
    if newest_epoch is None or start is None:
        return "never_built"
    if report_epoch != newest_epoch.epoch or through_seq < newest_epoch.start_seq:
        return "older_epoch"
    if newest_epoch.view_version != state.view_version:
        return "view_changed"
    if newest_epoch.window != NO_REQUESTED_WINDOW or start.degraded:
        return "reduced"
    return None


def settings_difference(
    newest_epoch: Epoch, start: EpochStart, resolved: ResolvedSettings
) -> str | None:
    """Return how the stored settings differ from those of this epoch, None where they do not."""
    if (newest_epoch.sections_hash, newest_epoch.tools_hash) != (
        resolved.sections_hash,
        resolved.tools_hash,
    ):
        return "request_settings"
    view = start.view
    is_plain = len(view.spans) == 1 and not (view.results_cleared_through or view.summaries)
    if resolved.policy.strategy is StrategyName.SLIDING_WINDOW and not is_plain:
        return "reduced"
    return None


def raw_payload_usage(
    resolved: ResolvedSettings, start: EpochStart, summary_tokens: int, shown_tokens: int
) -> Usage:
    """Return the count, before the factor, of a payload with `shown_tokens` of the log."""
    return replace(
        resolved.raw_fixed,
        tool_descriptions=resolved.tool_tokens(start.tools),
        summary=summary_tokens,
        conversation=shown_tokens,
    )
