"""Agents and conversations: their settings, and the state of a log and its view.

Settings are stored as the caller gave them, without defaults. They stay JSON text because most
reads only compare them with settings that are already parsed. Sections and tools are changed as
whole lists: each list is a new version, and the newest versions stay readable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Literal, TypeVar

from app.common import json_text
from app.common.errors import ValidationError
from app.conversations.messages.row import NO_CALLS, Calls
from app.conversations.view import WHOLE_LOG_WINDOW, ActiveWindow, Span, marker_of
from app.formats import parse_tool
from app.models.calibration import Calibration

INHERIT: Final = "inherit"
BreakReason = Literal[
    "compaction",
    "tool_results_cleared",
    "messages_shortened",
    "sections_changed",
    "tools_changed",
    "window_moved",
    "pinned",
    "unpinned",
    "budget_changed",
    "policy_changed",
    "model_changed",
    "cleared",
    "restored",
    "rewound",
    "undone",
    "redacted",
    "reasoning_dropped",
    "media_left_out",
    "provider_compacted",
]
"""Why an epoch of payloads ended and the next one began."""
OwnWindow = int | None | Literal["inherit"]
"""The length of the rolling window that one level sets, in seconds; None is no limit."""
DEFAULT_AGENT_WINDOW_SECONDS: Final = 86_400


def stored_rolling_window(own: OwnWindow) -> int | None:
    """Return the length that a level sets as it is stored: None inherits, 0 is no limit."""
    return None if own == INHERIT else own or 0


def rolling_window_of(*stored: int | None) -> int | None:
    """Return the first length that is set, the strongest level first; None is no limit."""
    return next((seconds for seconds in stored if seconds is not None), 0) or None


class SettingsList(StrEnum):
    """The lists of which earlier versions are stored."""

    SECTIONS = "sections"
    TOOLS = "tools"


@dataclass(frozen=True, slots=True)
class StoredSettings:
    """The own settings of an agent or a conversation, without those it inherits.

    The version of a list is 1 for the first list that was set, and 0 for none.
    """

    model: str | None = None
    policy: str = "{}"
    sections: str = "[]"
    tools: str = "[]"
    sections_version: int = 0
    tools_version: int = 0

    def with_list(self, kind: SettingsList, items: Sequence[Mapping[str, Any]]) -> StoredSettings:
        """Return the settings with another list, a new version if it differs.

        Raises ValidationError for a tool that is none, or a name used twice.
        """
        seen: set[str] = set()
        for index, item in enumerate(items):
            is_tool = kind is SettingsList.TOOLS
            name = parse_tool(item, f"/tools/{index}").name if is_tool else item["name"]
            if name in seen:
                problem = f"The name {name!r} is used twice"
                raise ValidationError.at(f"/{kind}/{index}/name", problem)
            seen.add(name)
        body, version = json_text.dumps(list(items)), f"{kind}_version"
        if body == getattr(self, kind):
            return self
        changes: dict[str, Any] = {kind.value: body, version: getattr(self, version) + 1}
        return replace(self, **changes)


NO_SETTINGS: Final = StoredSettings()


@dataclass(frozen=True, slots=True)
class Agent:
    """A stored agent; its `own_window` is as `stored_rolling_window` returns it."""

    agent_id: str
    name: str
    settings: StoredSettings
    metadata: str
    created_at: datetime
    updated_at: datetime
    own_window: int | None = None
    rolling_window_seconds: int | None = DEFAULT_AGENT_WINDOW_SECONDS
    cleared_at: datetime | None = None

    @property
    def key(self) -> str:
        """The id under which it is stored."""
        return self.agent_id

    @property
    def model(self) -> str | None:
        """The model of its conversations, unless they have their own."""
        return self.settings.model

    @property
    def last_cleared_at(self) -> datetime:
        """When it was last cleared; if it never was, when it was created."""
        return self.cleared_at or self.created_at


@dataclass(frozen=True, slots=True)
class ConversationState:
    """The state of a conversation's log and view, which every append and compaction changes.

    - `tokens` is the sum of the whole log by the conversation's counter. No payload shows
      `hidden_tokens` of them: the `outside_tokens` outside the active window, and the tokens that
      the active compaction hides.
    - The active compaction hides `hidden_span`. The messages in `protected_seqs`, such as pinned
      ones, are neither hidden nor cleared. `view_version` grows with every change of the view, and
      `view_cause` is the reason of the last one.
    - The active `window` was last moved for a rolling window of `window_seconds`. `oldest_at` is
      the time of its oldest message. The last clear was at `cleared_at`, after `cleared_seq`.
    - Tool results up to the seq `results_cleared_through` are placeholders. `named_tools` are the
      agent tools that previews name. `promoted` are the tools that searches found in the turn
      `promoted_turn`.
    - No background compaction runs before the log has `resume_at_tokens` tokens. `is_due` is set
      when one is due, and `became_due` when the last append made it due. `failures` counts failed
      attempts in a row; after one, `is_backing_off` until the next may run.
    - `redacted_version` is the view version of the last redaction, 0 without any. `input_version`
      grows with each epoch and pin.
    - The newest payload has `extra_tokens` more than follows from the rest, or less: reasoning,
      what its format sends otherwise, and what was left out of it alone. They are after the factor.
    """

    head_seq: int = 0
    turns: int = 0
    tokens: int = 0
    calls: Calls = NO_CALLS
    view_version: int = 0
    compaction_id: str | None = None
    hidden_span: Span | None = None
    summary_tokens: int = 0
    hidden_tokens: int = 0
    hidden_messages: int = 0
    protected_seqs: tuple[int, ...] = ()
    view_cause: BreakReason | None = None
    results_cleared_through: int = 0
    named_tools: tuple[str, ...] = ()
    promoted: tuple[str, ...] = ()
    promoted_turn: int = 0
    resume_at_tokens: int = 0
    is_due: bool = False
    is_backing_off: bool = False
    became_due: bool = False
    failures: int = 0
    window: ActiveWindow = WHOLE_LOG_WINDOW
    outside_tokens: int = 0
    outside_messages: int = 0
    window_seconds: int | None = None
    cleared_at: datetime | None = None
    cleared_seq: int = 0
    oldest_at: datetime | None = None
    redacted_version: int = 0
    input_version: int = 0
    extra_tokens: int = 0

    @property
    def open_calls(self) -> tuple[str, ...]:
        """The calls of the client that have no result."""
        return tuple(self.calls.open)

    @property
    def shown_messages(self) -> int:
        """The number of messages that a build shows, including cleared results."""
        return self.head_seq - self.hidden_messages

    @property
    def promoted_now(self) -> tuple[str, ...]:
        """The tools that searches found in the current turn."""
        return self.promoted if self.promoted_turn == self.turns else ()

    @property
    def is_suspended(self) -> bool:
        """Whether automatic compactions wait for the log to grow, as after an undo."""
        return self.tokens < self.resume_at_tokens

    @property
    def shown_tokens(self) -> int:
        """Tokens of the messages that a build shows, without summaries."""
        return self.tokens - self.hidden_tokens


@dataclass(frozen=True, slots=True)
class Conversation:
    """A stored conversation with its state, its own settings and those of its `agent`.

    `own_model_info` has the tenant's own limits and prices of the effective model, as JSON text.
    `calibration` corrects token counts for that model by reported usage. `last_message_at` is when
    the newest message was received, where it was read. `own_id` is the id that its caller gave it,
    None if that is `conversation_id`. `origin_id` is the conversation that it was forked from, at
    first, None for one that is no fork.
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
    own_model_info: str | None = None
    calibration: Calibration | None = None
    last_message_at: datetime | None = None
    own_window: int | None = None
    rolling_window_seconds: int | None = None
    own_id: str | None = None
    origin_id: str | None = None
    expires_at: datetime | None = None

    @property
    def key(self) -> str:
        """The id under which it is stored."""
        return self.conversation_id

    @property
    def cache_key(self) -> str:
        """The id by which a provider routes it and its forks, which share a prefix."""
        return self.origin_id or self.conversation_id

    @property
    def cleared_at(self) -> datetime | None:
        """The last clear that its stored active window takes into account."""
        return self.state.cleared_at

    @property
    def public_id(self) -> str:
        """The id that callers use."""
        return self.own_id or self.conversation_id

    @property
    def last_cleared_at(self) -> datetime | None:
        """When it was last cleared, alone or with its agent; None if it never was.

        A clear of its agent from before its creation counts for its active window only.
        """
        state = self.state
        is_older = state.cleared_at is None or state.cleared_at < self.created_at
        return None if is_older and not state.cleared_seq else state.cleared_at

    def is_outdated(self, now: datetime) -> bool:
        """Whether its active window has to be moved before it is read."""
        state, seconds = self.state, self.rolling_window_seconds
        if state.window_seconds != seconds:
            return True
        marker = marker_of(state.cleared_at, seconds, now)
        return marker is not None and state.oldest_at is not None and state.oldest_at <= marker

    @property
    def model(self) -> str | None:
        """Its own model, or else its agent's."""
        return self.settings.model or self.agent.model


Resource = TypeVar("Resource", Agent, Conversation)
"""A kind of resource with settings of its own."""
