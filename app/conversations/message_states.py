"""How the current context shows each message: its `State`.

The current context is that of the policy's own context window: the active window, of that the view
of the active compaction, and of that the last messages with a sliding window policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from app.common.answers import answer
from app.conversations.conversation import ConversationState
from app.conversations.turns import MAX_PLACEHOLDER_TOKENS, Entry
from app.conversations.view import View
from app.formats.message import Role


class State(StrEnum):
    """The state of a message in the current context."""

    VERBATIM = "verbatim"
    CLEARED = "cleared"
    SUMMARISED = "summarised"
    LEFT_OUT = "left_out"
    OUTSIDE = "outside"


@answer()
@dataclass(frozen=True, slots=True)
class Visibility:
    """How the current context, which is the input of the next build, shows a message."""

    state: State
    """`verbatim`: unchanged. `cleared`: a tool result with a placeholder in its place.
    `summarised`: a summary replaces it. `left_out`: hidden to fit the context window, without
    a summary. `outside`: outside the active window, because of its time, a clear, or a
    sliding window."""
    compaction_id: str | None = None
    """The active compaction, which clears or hides the message; null for other states."""
    restored_at: datetime | None = None
    """When it was put back into the active window; null for other messages."""


def visibility_of(
    item: Entry, view: View, state: ConversationState, starts_at: int = 1, newest_user: int = 0
) -> Visibility:
    """Return how a view shows a message before a build reduces it.

    A sliding window begins at the seq `starts_at`; pinned messages and that of the `newest_user`
    are shown before it as well.
    """
    seq, stands, shown = item.seq, view.provider_item, State.VERBATIM
    if not any(span.holds(seq) for span in view.window):
        shown = State.OUTSIDE
    elif view.shows(seq):
        if seq < starts_at and not (item.pinned or seq == newest_user):
            shown = State.OUTSIDE
        elif item.role is Role.TOOL and item.tokens > MAX_PLACEHOLDER_TOKENS:
            shown = State.CLEARED if view.clears_result(seq) else shown
    else:
        covered = any(summary.span.holds(seq) for summary in view.summaries)
        covered = covered or (stands is not None and seq < stands.seq)
        shown = State.SUMMARISED if covered else State.LEFT_OUT
    is_reduced = shown not in (State.VERBATIM, State.OUTSIDE)
    at = next((part.at for part in state.window.restored if part.span.holds(seq)), None)
    return Visibility(shown, state.compaction_id if is_reduced else None, at)
