"""Epochs: when a payload extends the last one, and why it does not.

1. An epoch belongs to a payload stream: one format and one model of a conversation.
2. It has one set of resolved settings and one view. While both stay the same, every payload extends
   the one before. When either changes, a new epoch starts, with the reason.
3. Only its start is stored. Each of its payloads follows from the start and the log.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import lru_cache

from app.common import json_text
from app.conversations.conversation import Conversation, ConversationState
from app.conversations.messages.row import LogRow
from app.conversations.sent_media import MEDIA_LEFT_OUT
from app.conversations.text_shortening import MESSAGES_SHORTENED
from app.conversations.view import View, minus, view_from
from app.models.budget import Limits
from app.prompt.resolved_settings import (
    NO_PAYLOAD_TOOLS,
    PayloadTools,
    RequestSettings,
    ResolvedSettings,
)

NO_REQUESTED_WINDOW = 0
"""The `window` of an epoch for the policy's own context window, not a requested one."""


_BUILD_ID = re.compile(
    r"(?P<epoch_id>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
    r"\.(?P<through_seq>[1-9][0-9]{0,17})(?:\.(?P<tail_hash>[0-9a-f]{64}))?"
)

PROVIDER_COMPACTED = "provider_compacted"
"""The cause of a view that begins with a provider's compaction item."""
MAX_FACTOR_DRIFT = 0.05
"""An epoch keeps its factor while the model's present factor differs by at most this share."""
LONG_CHARS = 4096
"""Longer starts have long summaries: a process remembers fewer of them."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """The start of an epoch: all inputs of a payload except for newer messages.

    `start_json` holds the view and the limits. `window` is the context window in tokens that the
    request sets, 0 for none.
    """

    epoch: int
    epoch_id: str
    payload_stream: str
    format: str
    window: int
    reason: str | None
    start_seq: int
    view_version: int
    start_json: str
    sections_hash: str
    tools_hash: str
    policy_hash: str


@dataclass(frozen=True, slots=True)
class BuildInput:
    """The stored values that a build starts from, read in one statement.

    `epoch` is the newest of the payload stream; `window_epoch` the newest for this request's
    context window, if that is another one. `view` is that of the active compaction, None without
    one or if the cached epoch has it. That compaction ran at `compacted_at`, when the policy had
    the strategy `compaction_strategy`. `other_streams` are the payload streams of the same format,
    if this one has no epoch yet. `pins` are the pinned seqs. `rows` are the messages that came
    since the cached payload of the newest epoch.
    """

    conversation: Conversation
    epoch: Epoch | None
    window_epoch: Epoch | None
    view: View | None
    compaction_strategy: str | None
    compacted_at: datetime | None
    other_streams: tuple[str, ...]
    pins: tuple[int, ...]
    rows: list[LogRow]


@dataclass(frozen=True, slots=True)
class EpochStart:
    """What is stored when an epoch begins; with the log it gives every payload of the epoch.

    `total` is the context window in tokens. `tools` are the agent tools of the payload and the
    deferred tools. `degraded` lists what the view lacks. Token counts are multiplied by `factor`.
    `dynamic_hash` is the hash of the dynamic text before the history, empty without any.
    """

    view: View
    total: int
    max_output_tokens: int
    tools: PayloadTools = NO_PAYLOAD_TOOLS
    degraded: tuple[str, ...] = ()
    factor: float = 1.0
    dynamic_hash: str = ""

    def as_json(self) -> str:
        """Return the JSON that is stored with the epoch."""
        return json_text.dumps(asdict(self) | {"view": self.view.as_stored()})


def epoch_start_from(text: str) -> EpochStart:
    """Read a stored start; cached, because every build of the epoch needs it."""
    return (_long_start if len(text) > LONG_CHARS else _short_start)(text)


def _read_start(text: str) -> EpochStart:
    raw = json_text.loads(text)
    tools = raw["tools"]
    parsed = {
        **raw,
        "view": view_from(raw["view"]),
        "tools": PayloadTools(
            tuple(tools["agent_tools"]), tuple(tools["deferred"]), tools["native"]
        ),
        "degraded": tuple(raw["degraded"]),
    }
    return EpochStart(**parsed)


_short_start = lru_cache(1024)(_read_start)
_long_start = lru_cache(32)(_read_start)


def epoch_factor(start: EpochStart, current: float) -> float:
    """Return the epoch's factor, or the model's current one where they differ too much."""
    return start.factor if abs(current / start.factor - 1) <= MAX_FACTOR_DRIFT else current


@dataclass(frozen=True, slots=True)
class BuildId:
    """The parts of a build's id: its epoch, the seq of its newest message, and its tail."""

    epoch_id: str
    through_seq: int
    tail_hash: str | None = None

    def __str__(self) -> str:
        """Return the id as clients see it."""
        text = f"{self.epoch_id}.{self.through_seq}"
        return text if self.tail_hash is None else f"{text}.{self.tail_hash}"


def parse_build_id(build_id: str) -> BuildId | None:
    """Parse a build's id; None for any other text."""
    match = _BUILD_ID.fullmatch(build_id)
    if match is None:
        return None
    return BuildId(match["epoch_id"], int(match["through_seq"]), match["tail_hash"])


def payload_stream_of(settings: RequestSettings, model: str) -> str:
    """Return the name of the payload stream, as the select of a build computes it."""
    return f"{settings.format}:{model}"


def model_in(payload_stream: str) -> str:
    """Return the model of a payload stream."""
    return payload_stream.partition(":")[2]


def requested_window(settings: RequestSettings) -> int:
    """Return the requested context window, NO_REQUESTED_WINDOW where the policy decides."""
    return settings.max_context_tokens or NO_REQUESTED_WINDOW


def is_view_current(
    epoch: Epoch, start: EpochStart, resolved: ResolvedSettings, limits: Limits, version: int
) -> bool:
    """Whether a build at this view version, policy and window still shows the epoch's view."""
    return (
        epoch.view_version == version
        and epoch.policy_hash == resolved.policy_hash
        and start.total == limits.total
        and start.max_output_tokens == limits.max_output_tokens
    )


def break_reason(
    last_epoch: Epoch,
    last_start: EpochStart,
    new_start: EpochStart,
    resolved: ResolvedSettings,
    state: ConversationState,
    window: int,
    pins: Collection[int] = (),
) -> str | None:
    """Return why a payload cannot extend those of the stream's last epoch, None when it can.

    `new_start` is that of an epoch that would begin now, for this requested window. `pins` are
    the seqs that are pinned now.
    """
    if last_epoch.view_version < state.redacted_version:
        return "redacted"
    if last_epoch.tools_hash != resolved.tools_hash:
        return "tools_changed"
    if (last_epoch.sections_hash, last_start.dynamic_hash) != (
        resolved.sections_hash,
        new_start.dynamic_hash,
    ):
        return "sections_changed"
    totals = (last_start.total, last_start.max_output_tokens)
    if totals != (new_start.total, new_start.max_output_tokens) or last_epoch.window != window:
        return "budget_changed"
    if last_epoch.policy_hash != resolved.policy_hash:
        return "policy_changed"
    if last_epoch.view_version != state.view_version:
        return state.view_cause or "compaction"
    old, new = last_start.view, new_start.view
    if old is not new and (reason := _pin_change(old, new, pins) or _view_change(old, new)):
        return reason
    if last_start.tools != new_start.tools:
        return "tools_changed"
    return "budget_changed" if last_start.factor != new_start.factor else None


def is_same_prefix(reason: str, last_start: EpochStart, new_start: EpochStart) -> bool:
    """Whether a payload begins as those of the last epoch, of which only numbers changed."""
    same = (last_start.view, last_start.tools) == (new_start.view, new_start.tools)
    return same and reason == "budget_changed"


def _pin_change(old: View, new: View, pins: Collection[int]) -> str | None:
    """Return `pinned` where a pin shows a hidden message, `unpinned` where one is hidden again."""
    if old.spans == new.spans and old.uncleared_results == new.uncleared_results:
        return None
    if any(not old.shows(seq) or old.clears_result(seq) for seq in pins):
        return "pinned"
    hidden_again = minus(old.spans, new.spans)
    is_same_end = old.spans[-1] == new.spans[-1]
    if hidden_again and is_same_end and not minus(new.spans, old.spans) and old.note == new.note:
        return "unpinned"
    return None


def _view_change(old: View, new: View) -> str | None:
    if old.summary_texts() != new.summary_texts():
        return "compaction"
    if old.spans != new.spans:
        return "window_moved"
    if (old.results_cleared_through, old.uncleared_results) != (
        new.results_cleared_through,
        new.uncleared_results,
    ):
        return "tool_results_cleared"
    if old.shortened != new.shortened:
        return MESSAGES_SHORTENED
    return MEDIA_LEFT_OUT if old.media_cut != new.media_cut else None
