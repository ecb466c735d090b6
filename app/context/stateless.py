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
from app.conversations.compaction_receipt import ContextState

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


def middle(count: int, ends: Ends) -> range:
    """Return the indices of the messages between the preserved ends."""
    return range(ends.preserve_top, count - ends.preserve_bottom)


def plan_build(
    messages: Sequence[WireMessage],
    state: ContextState | None,
    max_context_tokens: int,
    ends: Ends,
) -> range | str | None:
    """Return the messages to summarise first, a summary that is valid, or None to send all.

    Raises ValidationError as `needs_compression` does.
    """
    if not needs_compression(messages, max_context_tokens, ends):
        return None
    planned = middle(len(messages), ends)
    if state is None or state.strategy != STRATEGY:
        return planned
    return state.summary if state.summary_range == (planned.start, planned.stop) else planned


def assemble(messages: Sequence[WireMessage], summary: str, ends: Ends) -> list[WireMessage]:
    """Return top, summary and bottom, the messages that stand for all of them."""
    hidden = middle(len(messages), ends)
    note = {"role": "system", "content": f"[Earlier conversation summary: {summary}]"}
    return [*messages[: hidden.start], note, *messages[hidden.stop :]]


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
