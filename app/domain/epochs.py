"""Epochs: when a payload may extend the last one, and why it does not (G3, decision 16).

1. An epoch belongs to a lane: one format and one model of a conversation.
2. It stands for one frame and one view. While both stay the same, every payload extends the one
   before; when either changes, a new epoch starts and names the reason.
3. Only its start is recorded. Every payload of it follows from that record and the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from app.domain import jsontext
from app.domain.budget import Limits
from app.domain.frames import STUB_TOOL, Ask, Frame
from app.domain.records import Epoch, Head
from app.domain.views import View, view_from

OWN_WINDOW = 0
"""The `window` of an epoch built for the policy's own window, not for a request's."""


@dataclass(frozen=True, slots=True)
class Start:
    """What an epoch starts from; `degraded` names what its view had to give up (C4).

    `extra_tools` are those a payload has besides the caller's: own ones, or the stub (L1, A6).
    """

    view: View
    total: int
    max_output_tokens: int
    extra_tools: tuple[str, ...]
    degraded: tuple[str, ...] = ()

    def as_json(self) -> str:
        """Return the text that is stored as the epoch's frame."""
        return jsontext.dumps(asdict(self))


@lru_cache(maxsize=1024)
def start_from(text: str) -> Start:
    """Read a stored frame back; every build of the epoch does."""
    raw = jsontext.loads(text)
    return Start(
        view_from(raw["view"]),
        raw["total"],
        raw["max_output_tokens"],
        _extra_tools(raw),
        tuple(raw["degraded"]),
    )


def _extra_tools(raw: Mapping[str, Any]) -> tuple[str, ...]:
    if "extra_tools" in raw:
        return tuple(raw["extra_tools"])
    return (STUB_TOOL.name,) if raw["stub_tools"] else ()  # the first version knew the stub alone


def lane_of(ask: Ask, model: str) -> str:
    """Return the lane's name; the same text the build's select makes (rule 1)."""
    return f"{ask.format}:{model}"


def window_of(ask: Ask) -> int:
    """Return the request's own window, OWN_WINDOW when it leaves that to the policy."""
    return ask.max_context_tokens or OWN_WINDOW


def same_ground(epoch: Epoch, start: Start, frame: Frame, limits: Limits, version: int) -> bool:
    """Whether a view made for this epoch still says what the state and the policy ask for."""
    return (
        epoch.view_version == version
        and epoch.policy_hash == frame.policy_hash
        and start.total == limits.total
        and start.max_output_tokens == limits.max_output_tokens
    )


def break_reason(
    last: Epoch,
    before: Start,
    frame: Frame,
    limits: Limits,
    head: Head,
    view: View,
    extra_tools: tuple[str, ...],
) -> str | None:
    """Return why a payload cannot extend those of the lane's last epoch; None when it can."""
    if last.tools_hash != frame.tools_hash:
        return "tools_changed"
    if last.sections_hash != frame.sections_hash:
        return "sections_changed"
    if (before.total, before.max_output_tokens) != (limits.total, limits.max_output_tokens):
        return "budget_changed"
    if last.policy_hash != frame.policy_hash:
        return "policy_changed"
    old = before.view
    if last.view_version != head.view_version:
        return head.view_cause or "compaction"
    if old.summary_texts() != view.summary_texts():
        return "compaction"
    if old.spans != view.spans:
        return "window_moved"
    if (old.trimmed_through, old.untrimmed) != (view.trimmed_through, view.untrimmed):
        return "tool_results_cleared"
    if before.extra_tools != extra_tools:
        return "tools_changed"
    return None
