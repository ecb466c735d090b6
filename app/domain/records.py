"""What is stored besides the log's rows: agents, conversations, heads, epochs, compactions.

Settings are layers of JSON text, weakest first: service, agent, conversation, request. They are
kept as text here, because most reads only compare them with what is already parsed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from app.domain.log import LogRow
from app.domain.strategies import Span


@dataclass(frozen=True, slots=True)
class Settings:
    """One layer: an agent's or a conversation's own settings, as JSON text."""

    model: str | None = None
    policy: str = "{}"
    sections: str = "[]"
    tools: str = "[]"


@dataclass(frozen=True, slots=True)
class Agent:
    """A stored agent (B1)."""

    agent_id: str
    name: str
    settings: Settings
    metadata: str
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Head:
    """The moving end of a conversation's log, and the state of its view.

    `tokens` sums the whole log in the conversation's counter, `hidden_tokens` those that the
    active compaction replaces. `view_version` rises with every change of what is shown.
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


@dataclass(frozen=True, slots=True)
class Conversation:
    """A stored conversation with its head and the layers that apply to it.

    `model_entry` is the tenant's own registry entry for the effective model, as JSON text.
    """

    conversation_id: str
    agent_id: str | None
    counter: str
    settings: Settings
    agent: Settings
    metadata: str
    created_at: datetime
    updated_at: datetime
    head: Head
    model_entry: str | None = None

    @property
    def model(self) -> str | None:
        """The model that the conversation or its agent names."""
        return self.settings.model or self.agent.model


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as the transcript shows it; `body` is the message as it came (A1)."""

    id: str
    seq: int
    turn: int
    role: str
    format: str
    token_count: int
    body: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Epoch:
    """The start of an epoch: everything a payload follows from, apart from newer messages (G3).

    `frame` is JSON: the view and the limits. `window` is the request's own window, 0 for none.
    """

    epoch: int
    epoch_id: str
    lane: str
    format: str
    window: int
    reason: str | None
    start_seq: int
    view_version: int
    frame: str
    sections_hash: str
    tools_hash: str
    policy_hash: str


@dataclass(frozen=True, slots=True)
class Compaction:
    """The receipt of one reduction (E8); `span` holds the seqs its summary stands for."""

    compaction_id: str
    parent_id: str | None
    trigger: str
    strategy: str
    span: Span
    summary: str
    summary_tokens: int
    before_tokens: int
    after_tokens: int
    before_msg_count: int
    after_msg_count: int
    model: str
    prompt_hash: str
    cost_usd: float | None
    duration_ms: int
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ContextRead:
    """What one select tells a build.

    `epoch` is the lane's newest; `window_epoch` the newest of this request's window, when that
    is another. `rows` are the shown messages not in hand yet, when `rows_read`.
    """

    conversation: Conversation
    epoch: Epoch | None
    window_epoch: Epoch | None
    summary: str | None
    compacted_by: str | None
    compacted_at: datetime | None
    has_other_lane: bool
    rows_read: bool
    rows: list[LogRow]
