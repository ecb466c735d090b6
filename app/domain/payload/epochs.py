"""Epochs: when a payload may extend the last one, and why it does not (G3, decision 16).

1. An epoch belongs to a lane: one format and one model of a conversation.
2. It stands for one frame and one view. While both stay the same, every payload extends the one
   before; when either changes, a new epoch starts and names the reason.
3. Only its start is recorded. Every payload of it follows from that record and the log.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from app.domain.common import json_text
from app.domain.compaction.text_shortening import SHORTENED
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

OWN_WINDOW = 0
"""The `window` of an epoch built for the policy's own window, not for a request's."""


_BUILD_ID = re.compile(
    r"(?P<epoch_id>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
    r"\.(?P<through_seq>[1-9][0-9]{0,17})(?:\.(?P<tail>[0-9a-f]{64}))?"
)

NEAR_FACTOR = 0.05
"""A model's factor that moved by no more than this share leaves an epoch as it is (J3)."""


@dataclass(frozen=True, slots=True)
class Start:
    """What an epoch starts from; `degraded` names what its view had to give up (C4).

    `tools` are the tools besides the caller's and those deferred. Counts are multiplied by
    `factor`. `dynamic` is the hash of the dynamic text before the history, empty without any.
    """

    view: View
    total: int
    max_output_tokens: int
    tools: PayloadTools = NO_PAYLOAD_TOOLS
    degraded: tuple[str, ...] = ()
    factor: float = 1.0
    dynamic: str = ""

    def as_json(self) -> str:
        """Return the text that is stored as the epoch's frame."""
        stored = {"offer" if key == "tools" else key: value for key, value in asdict(self).items()}
        return json_text.dumps(stored)


@lru_cache(maxsize=1024)
def start_from(text: str) -> Start:
    """Read a stored frame back; every build of the epoch does."""
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
    """Read what became of the tools, as this version wrote it or an earlier one."""
    if "offer" in raw:
        given = raw["offer"]
        return PayloadTools(tuple(given["extra"]), tuple(given["deferred"]), given["native"])
    if "extra_tools" in raw:
        return PayloadTools(tuple(raw["extra_tools"]))
    return PayloadTools((STUB_TOOL.name,)) if raw["stub_tools"] else NO_PAYLOAD_TOOLS


def factor_in(start: Start, current: float) -> float:
    """Return the factor to count by: the epoch's own, until the model's has moved far (J3)."""
    return start.factor if abs(current / start.factor - 1) <= NEAR_FACTOR else current


@dataclass(frozen=True, slots=True)
class BuildName:
    """What a build's id says: its epoch, its newest message, and the hash of its tail."""

    epoch_id: str
    through_seq: int
    tail: str | None = None

    @property
    def build_id(self) -> str:
        """The id as it is answered."""
        name = f"{self.epoch_id}.{self.through_seq}"
        return name if self.tail is None else f"{name}.{self.tail}"


def build_name(build_id: str) -> BuildName | None:
    """Read a build's id; None for a text that can be none."""
    match = _BUILD_ID.fullmatch(build_id)
    if match is None:
        return None
    return BuildName(match["epoch_id"], int(match["through_seq"]), match["tail"])


def payload_stream_of(ask: RequestSettings, model: str) -> str:
    """Return the lane's name; the same text the build's select makes (rule 1)."""
    return f"{ask.format}:{model}"


def model_in(payload_stream: str) -> str:
    """Return the model of a lane."""
    return payload_stream.partition(":")[2]


def requested_window(ask: RequestSettings) -> int:
    """Return the request's own window, OWN_WINDOW when it leaves that to the policy."""
    return ask.max_context_tokens or OWN_WINDOW


def view_holds(
    epoch: Epoch, start: Start, resolved: ResolvedSettings, limits: Limits, version: int
) -> bool:
    """Whether a view made for this epoch still says what the state and the policy ask for."""
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
    """Return why a payload cannot extend those of the lane's last epoch; None when it can.

    `after` is what the payload starts from, should it begin an epoch, in this window of its own:
    two windows of one size are read apart, and so have epochs apart. `pins` are the seqs that are
    pinned now.
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
    return (
        _pin_change(before.view, after.view, pins)
        or _view_change(before.view, after.view)
        or _count_change(before, after)
    )


def _pin_change(old: View, new: View, pins: Collection[int]) -> str | None:
    """Return whether a pin shows what was not shown, or an unpinned message is no longer shown."""
    if old.spans == new.spans and old.untrimmed == new.untrimmed:
        return None
    if any(not old.shows(seq) or old.trims(seq) for seq in pins):
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
    if (old.trimmed_through, old.untrimmed) != (new.trimmed_through, new.untrimmed):
        return "tool_results_cleared"
    if old.shortened != new.shortened:
        return SHORTENED
    return None


def _count_change(before: Start, after: Start) -> str | None:
    if before.tools != after.tools:
        return "tools_changed"
    return "budget_changed" if before.factor != after.factor else None


def keeps_prefix(
    last: Epoch,
    before: Start,
    after: Start,
    resolved: ResolvedSettings,
    state: ConversationState,
    window: int,
    pins: Collection[int] = (),
) -> bool:
    """Whether an epoch that begins counts anew, but shows what the last one showed (J3, E10)."""
    same = replace(after, factor=before.factor)
    return break_reason(last, before, same, resolved, state, window, pins) is None
