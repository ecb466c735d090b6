"""The stateless interface: messages and a cached state come in, nothing is stored.

1. Tokens are UTF-8 bytes of the content / 4, floored per message [tokens.counters].
2. Compress iff `tokens > floor(max x threshold)` and `count > top + bottom`.
3. A cached summary is valid iff its range starts at `preserve_top` and ends at
   `count - preserve_bottom`; a summary of another strategy is not looked at.
4. Messages stay as they are; only the middle is replaced, by one system message.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.common.errors import ValidationError
from app.conversations.compaction_results import ContextState

STRATEGY = "sandwich"

WireMessage = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ends:
    """The messages kept at both ends, and the share of the window that triggers.

    A policy has more bounds.
    """

    preserve_top: int = 5
    preserve_bottom: int = 5
    compression_threshold: float = 0.75


@dataclass(frozen=True, slots=True)
class ShowAll:
    """The full history is sent."""


@dataclass(frozen=True, slots=True)
class ReuseSummary:
    """The cached summary stands for the middle."""

    summary: str


@dataclass(frozen=True, slots=True)
class CompressMiddle:
    """The messages `[start, end)` must be summarised first."""

    start: int
    end: int


BuildPlan = ShowAll | ReuseSummary | CompressMiddle


def estimate_tokens(messages: Sequence[WireMessage]) -> int:
    """Return an estimate: the bytes of each message's text / 4, floored."""
    return sum(_content_bytes(message.get("content")) // 4 for message in messages)


def needs_compression(messages: Sequence[WireMessage], max_context_tokens: int, ends: Ends) -> bool:
    """Whether the middle must be summarised (rule 2).

    Raises ValidationError for a limit that is not positive and for no messages.
    """
    if max_context_tokens <= 0:
        raise ValidationError.at("/max_context_tokens", "Context limit must be positive")
    require_messages(messages)
    threshold = math.floor(max_context_tokens * ends.compression_threshold)
    preserved = ends.preserve_top + ends.preserve_bottom
    return estimate_tokens(messages) > threshold and len(messages) > preserved


def is_valid(state: ContextState, count: int, ends: Ends) -> bool:
    """Whether the state's summary covers exactly the middle of `count` messages (rule 3)."""
    return state.summary_range == middle_range(count, ends)


def middle_range(count: int, ends: Ends) -> tuple[int, int]:
    """Return the half-open range of messages between the preserved ends."""
    return ends.preserve_top, count - ends.preserve_bottom


def plan_build(
    messages: Sequence[WireMessage],
    state: ContextState | None,
    max_context_tokens: int,
    ends: Ends,
) -> BuildPlan:
    """Return what a build must do; raises ValidationError as `needs_compression` does."""
    if not needs_compression(messages, max_context_tokens, ends):
        return ShowAll()
    count = len(messages)
    if state is not None and state.strategy == STRATEGY and is_valid(state, count, ends):
        return ReuseSummary(state.summary)
    start, end = middle_range(count, ends)
    return CompressMiddle(start, end)


def assemble(messages: Sequence[WireMessage], summary: str, ends: Ends) -> list[WireMessage]:
    """Return top, summary and bottom, the messages that stand for all of them."""
    start, end = middle_range(len(messages), ends)
    note = {"role": "system", "content": f"[Earlier conversation summary: {summary}]"}
    return [*messages[:start], note, *messages[end:]]


def new_state(plan: CompressMiddle, summary: str, compressed_at: str) -> ContextState:
    """Return the state to cache once the planned summary is there."""
    return ContextState(STRATEGY, summary, (plan.start, plan.end), compressed_at)


def require_messages(messages: Sequence[object]) -> None:
    """Raise ValidationError when there is nothing to compress."""
    if not messages:
        raise ValidationError.at("/messages", "Conversation has no messages")


def _content_bytes(content: object) -> int:
    if isinstance(content, str):
        return len(content.encode("utf-8", "surrogatepass"))
    if isinstance(content, list):
        texts = (part.get("text") for part in content if isinstance(part, Mapping))
        return sum(_content_bytes(text) for text in texts if isinstance(text, str))
    return 0
