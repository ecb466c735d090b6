"""Conversations: their settings, and the state of their log and view."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from app.domain.conversations.active_window import NO_LIMIT, ActiveWindow, has_to_move
from app.domain.conversations.settings import NO_VERSIONS, ListVersions, StoredSettings
from app.domain.conversations.view import Span
from app.domain.models.calibration import Calibration


@dataclass(frozen=True, slots=True)
class ConversationState:
    """The moving end of a conversation's log, and the state of its view.

    `tokens` sums the whole log in the conversation's counter, `hidden_tokens` those of it that no
    payload shows: `outside_tokens` outside the active window, and what the active compaction takes
    out of that. What it hides lies in `span`, but for the seqs in `kept`. The `window` was moved
    last by a rolling window of `window_seconds`; `oldest_at` is the time of the oldest message in
    it, and all up to `cleared_seq` was there at the last clear (B2, B3). `view_version` rises with
    every change of what is shown, `view_cause` says why.
    Results up to `trimmed_through` were cleared, `mentions` are the own tools that cut ones name.
    `promoted` are the tools that searches found in the turn `promoted_turn` (H2).
    Until the log has `resume_at` tokens nothing is compacted in the background (decision 24).
    `is_due` tells of the due mark, `failures` counts compactions that failed in a row, and
    `is_resting` says that the next attempt has to wait. `became_due` is the append's own word.
    """

    head_seq: int = 0
    turns: int = 0
    tokens: int = 0
    open_calls: tuple[str, ...] = ()
    view_version: int = 0
    compaction_id: str | None = None
    span: Span | None = None
    summary_tokens: int = 0
    hidden_tokens: int = 0
    hidden_messages: int = 0
    kept: tuple[int, ...] = ()
    view_cause: str | None = None
    trimmed_through: int = 0
    mentions: tuple[str, ...] = ()
    promoted: tuple[str, ...] = ()
    promoted_turn: int = 0
    resume_at: int = 0
    is_due: bool = False
    is_resting: bool = False
    became_due: bool = False
    failures: int = 0
    window: ActiveWindow = NO_LIMIT
    outside_tokens: int = 0
    outside_messages: int = 0
    window_seconds: int | None = None
    cleared_at: datetime | None = None
    cleared_seq: int = 0
    oldest_at: datetime | None = None

    @property
    def shown_messages(self) -> int:
        """Messages that a build shows, results that were cleared among them."""
        return self.head_seq - self.hidden_messages

    @property
    def promoted_now(self) -> tuple[str, ...]:
        """The tools that searches found in the current turn."""
        return self.promoted if self.promoted_turn == self.turns else ()

    @property
    def shown_tokens(self) -> int:
        """Tokens of the messages a build shows, the summary not among them."""
        return self.tokens - self.hidden_tokens


@dataclass(frozen=True, slots=True)
class Conversation:
    """A stored conversation with its head and the layers that apply to it.

    `model_entry` is the tenant's own registry entry for the effective model, as JSON text;
    `calibration` is what reports have said of that model's counts (J3).
    """

    conversation_id: str
    agent_id: str | None
    counter: str
    settings: StoredSettings
    agent: StoredSettings
    metadata: str
    created_at: datetime
    updated_at: datetime
    state: ConversationState
    model_entry: str | None = None
    versions: ListVersions = NO_VERSIONS
    calibration: Calibration | None = None
    rolling_window_seconds: int | None = None

    def is_outdated(self, now: datetime) -> bool:
        """Whether its active window has to be moved before anything is told of it (B2)."""
        state = self.state
        return has_to_move(
            state.window_seconds,
            self.rolling_window_seconds,
            state.cleared_at,
            state.oldest_at,
            now,
        )

    @property
    def model(self) -> str | None:
        """The model that the conversation or its agent names."""
        return self.settings.model or self.agent.model
