"""Epochs: when a payload extends the last one, and why it does not.

1. An epoch belongs to a payload stream: one format and one model of a conversation.
2. It has one set of resolved settings and one view. While both stay the same, every payload extends
   the one before. When either changes, a new epoch starts, with the reason.
3. Only its start is stored. Each of its payloads follows from the start and the log.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from app.domain.common import json_text
from app.domain.compaction.reduction.text_shortening import MESSAGES_SHORTENED
from app.domain.conversations.conversation import ConversationState
from app.domain.conversations.epoch import Epoch
from app.domain.conversations.view import View, minus, view_from
from app.domain.models.budget import Limits
from app.domain.prompt.resolved_settings import (
    NO_PAYLOAD_TOOLS,
    STUB_TOOL,
    PayloadTools,
    RequestSettings,
    ResolvedSettings,
)

NO_REQUESTED_WINDOW = 0
"""The `window` of an epoch for the policy's own context window, not a requested one."""


_BUILD_ID = re.compile(
    r"(?P<epoch_id>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
    r"\.(?P<through_seq>[1-9][0-9]{0,17})(?:\.(?P<tail>[0-9a-f]{64}))?"
)

NEAR_FACTOR = 0.05
"""An epoch keeps its factor while the model's own is within this share of it."""


@dataclass(frozen=True, slots=True)
class Start:
    """What an epoch starts from; `degraded` lists what its view lacks.

    `tools` are the agent tools in the payload, and which tools are deferred. Token counts
    are multiplied by `factor`. `dynamic` is the hash of the dynamic text before the history, empty
    without any.
    """

    view: View
    total: int
    max_output_tokens: int
    tools: PayloadTools = NO_PAYLOAD_TOOLS
    degraded: tuple[str, ...] = ()
    factor: float = 1.0
    dynamic: str = ""

    def as_json(self) -> str:
        """Return the text that is stored with the epoch."""
        # Stored under the names that earlier versions read.
        stored: dict[str, Any] = {}
        for name, value in asdict(self).items():
            if name == "tools":
                stored["offer"] = {"extra": value.pop("agent_tools"), **value}
            else:
                stored[name] = value
        return json_text.dumps(stored | {"view": self.view.as_stored()})


@lru_cache(maxsize=1024)
def start_from(text: str) -> Start:
    """Read a stored start; every build of the epoch does."""
    raw = json_text.loads(text)
    return Start(
        view_from(raw["view"]),
        raw["total"],
        raw["max_output_tokens"],
        _tools(raw),
        tuple(raw["degraded"]),
        raw.get("factor", 1.0),
        raw.get("dynamic", ""),
    )


def _tools(raw: Mapping[str, Any]) -> PayloadTools:
    """Read the tools, as this version or an earlier one wrote them."""
    if "offer" in raw:
        tools = raw["offer"]
        return PayloadTools(tuple(tools["extra"]), tuple(tools["deferred"]), tools["native"])
    if "extra_tools" in raw:
        return PayloadTools(tuple(raw["extra_tools"]))
    return PayloadTools((STUB_TOOL.name,)) if raw["stub_tools"] else NO_PAYLOAD_TOOLS


def factor_in(start: Start, current: float) -> float:
    """Return the epoch's factor, or the current one once it is too far from that."""
    return start.factor if abs(current / start.factor - 1) <= NEAR_FACTOR else current


@dataclass(frozen=True, slots=True)
class BuildId:
    """The parts of a build's id: its epoch, its newest message, and the hash of its tail."""

    epoch_id: str
    through_seq: int
    tail: str | None = None

    @property
    def build_id(self) -> str:
        """The id as clients see it."""
        name = f"{self.epoch_id}.{self.through_seq}"
        return name if self.tail is None else f"{name}.{self.tail}"


def build_name(build_id: str) -> BuildId | None:
    """Parse a build's id; None for a text that is none."""
    match = _BUILD_ID.fullmatch(build_id)
    if match is None:
        return None
    return BuildId(match["epoch_id"], int(match["through_seq"]), match["tail"])


def payload_stream_of(settings: RequestSettings, model: str) -> str:
    """Return the name of the payload stream, as the select of a build computes it."""
    return f"{settings.format}:{model}"


def model_in(payload_stream: str) -> str:
    """Return the model of a payload stream."""
    return payload_stream.partition(":")[2]


def requested_window(settings: RequestSettings) -> int:
    """Return the requested context window, NO_REQUESTED_WINDOW where the policy decides."""
    return settings.max_context_tokens or NO_REQUESTED_WINDOW


def view_holds(
    epoch: Epoch, start: Start, resolved: ResolvedSettings, limits: Limits, version: int
) -> bool:
    """Whether the view of this epoch is still the one that state and policy lead to."""
    return (
        epoch.view_version == version
        and epoch.policy_hash == resolved.policy_hash
        and start.total == limits.total
        and start.max_output_tokens == limits.max_output_tokens
    )


def break_reason(
    last: Epoch,
    before: Start,
    after: Start,
    resolved: ResolvedSettings,
    state: ConversationState,
    window: int,
    pins: Collection[int] = (),
) -> str | None:
    """Return why a payload cannot extend those of the stream's last epoch, None when it can.

    `after` is the start of an epoch that would begin now, for this requested window. `pins` are
    the seqs that are pinned now.
    """
    if last.tools_hash != resolved.tools_hash:
        return "tools_changed"
    if (last.sections_hash, before.dynamic) != (resolved.sections_hash, after.dynamic):
        return "sections_changed"
    totals = (before.total, before.max_output_tokens)
    if totals != (after.total, after.max_output_tokens) or last.window != window:
        return "budget_changed"
    if last.policy_hash != resolved.policy_hash:
        return "policy_changed"
    if last.view_version != state.view_version:
        return state.view_cause or "compaction"
    if reason := _pin_change(before.view, after.view, pins) or _view_change(
        before.view, after.view
    ):
        return reason
    if before.tools != after.tools:
        return "tools_changed"
    return "budget_changed" if before.factor != after.factor else None


def _pin_change(old: View, new: View, pins: Collection[int]) -> str | None:
    """Return `pinned` where a pin shows a hidden message, `unpinned` where one is hidden again."""
    if old.spans == new.spans and old.uncleared_results == new.uncleared_results:
        return None
    if any(not old.shows(seq) or old.clears_result(seq) for seq in pins):
        return "pinned"
    gone = minus(old.spans, new.spans)
    is_same_tail = old.spans[-1] == new.spans[-1]
    if gone and is_same_tail and not minus(new.spans, old.spans) and old.note == new.note:
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
    return None
