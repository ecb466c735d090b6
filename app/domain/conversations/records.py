"""What is stored besides the log's rows: agents, conversations, heads, epochs, compactions.

Settings are layers of JSON text, weakest first: service, agent, conversation, request. They are
kept as text here, because most reads only compare them with what is already parsed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from app.domain.common.messages import FormatName, Role
from app.domain.conversations.active_window import (
    DEFAULT_ROLLING_WINDOW_SECONDS,
    NO_LIMIT,
    ActiveWindow,
    has_to_move,
)
from app.domain.conversations.log import LogRow, parse_stored
from app.domain.conversations.view import Span, Summary, View
from app.domain.models.calibration import Calibration
from app.domain.tool_output.blobs import ToolOutputRef
from app.domain.tool_output.offloading import Output, inline_output, output_from


@dataclass(frozen=True, slots=True)
class Settings:
    """One layer: an agent's or a conversation's own settings, as JSON text."""

    model: str | None = None
    policy: str = "{}"
    sections: str = "[]"
    tools: str = "[]"


class Versioned(StrEnum):
    """The lists of a layer whose earlier versions are kept (G1)."""

    SECTIONS = "sections"
    TOOLS = "tools"


@dataclass(frozen=True, slots=True)
class Versions:
    """Which version each list of a layer has: 1 is the first that was given, 0 is none."""

    sections: int = 0
    tools: int = 0


@dataclass(frozen=True, slots=True)
class Agent:
    """A stored agent (B1); without `rolling_window_seconds` its windows have no limit of time."""

    agent_id: str
    name: str
    settings: Settings
    metadata: str
    created_at: datetime
    updated_at: datetime
    versions: Versions = Versions()
    rolling_window_seconds: int | None = DEFAULT_ROLLING_WINDOW_SECONDS
    cleared_at: datetime | None = None

    @property
    def last_cleared_at(self) -> datetime:
        """When it was cleared last; by default, when it was created (B1)."""
        return self.cleared_at or self.created_at


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
    `is_due` says that a compaction is due, `failures` counts compactions that failed in a row, and
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
    settings: Settings
    agent: Settings
    metadata: str
    created_at: datetime
    updated_at: datetime
    state: ConversationState
    model_entry: str | None = None
    versions: Versions = Versions()
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


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as the transcript shows it; `body` is the message as it came (A1).

    Of an offloaded result `body` has the view, and `stored_output` says where the rest is.
    """

    id: str
    seq: int
    turn: int
    role: str
    format: str
    token_count: int
    body: str
    created_at: datetime
    stored_output: str | None = None

    @property
    def byte_size(self) -> int:
        """The bytes of the body as JSON."""
        return len(self.body) if self.body.isascii() else len(self.body.encode())

    @property
    def output(self) -> Output | None:
        """What the row says of a tool result; a small one's is worked out."""
        if self.stored_output is not None:
            return output_from(self.stored_output)
        if self.role != Role.TOOL:
            return None
        return inline_output(parse_stored(self.body.encode(), FormatName(self.format)))

    @property
    def output_ref(self) -> ToolOutputRef | None:
        """What a tool result is called for by (F1)."""
        output = self.output
        return output.ref_in(self.id, self.seq) if output is not None else None


@dataclass(frozen=True, slots=True)
class Epoch:
    """The start of an epoch: everything a payload follows from, apart from newer messages (G3).

    `resolved` is JSON: the view and the limits. `window` is the request's own window, 0 for none.
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
class Failure:
    """Why the last compaction failed (E9); nothing of it is content.

    `calls` of a model were made for it, `failures` automatic ones have failed in a row, and
    `retry_at` is when the next one is due.
    """

    trigger: str
    code: str
    reason: str
    detail: str
    calls: int
    failed_at: datetime
    failures: int
    retry_at: datetime | None


class Trigger(StrEnum):
    """What made a compaction run (E6), or a clearing of tool results (F3)."""

    BACKGROUND = "background"
    PROACTIVE = "proactive"
    FORCED = "forced"
    EMERGENCY = "emergency"
    TOOL_OUTPUT = "tool_output"


@dataclass(frozen=True, slots=True)
class Compaction:
    """The receipt of one reduction (E8).

    `span` is the whole range hidden since, `view` what is shown in its place, with `made` the
    summaries made for it (the view may hold older ones, or have folded a new one away again).
    `strategy` is what ran, `policy_strategy` what the policy said then. `model` is None where
    none was asked, `degraded` names what it had to do without. `hidden_tokens`,
    `hidden_messages` and `summary_tokens` go to the head.
    """

    compaction_id: str
    parent_id: str | None
    trigger: str
    strategy: str
    policy_strategy: str
    strategies_run: tuple[str, ...]
    span: Span
    view: View
    made: tuple[Summary, ...]
    summary_tokens: int
    hidden_tokens: int
    hidden_messages: int
    before_tokens: int
    after_tokens: int
    before_msg_count: int
    after_msg_count: int
    model: str | None
    prompt_hash: str | None
    calls: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    duration_ms: int
    degraded: tuple[str, ...] = ()
    created_at: datetime | None = None
    undone_at: datetime | None = None

    @property
    def summary(self) -> str | None:
        """The text that stands for the range, None where nothing was summarised."""
        texts = [summary.text for summary in self.view.summaries]
        return "\n\n".join(texts) if texts else None


@dataclass(frozen=True, slots=True)
class VisibleState:
    """What a head is to show: a view, whose receipt made it, and what it takes out of the log.

    `kept` are the seqs it shows whole although the receipt hid or cleared them.
    """

    view: View
    compaction_id: str | None
    summary_tokens: int
    hidden_tokens: int
    hidden_messages: int
    kept: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """Work a caller may wait for; `status` is queued, running, done or failed."""

    job_id: str
    tenant_id: str
    conversation_id: str
    kind: str
    ask: str
    status: str
    result: str | None
    error: str | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Claim:
    """Background work that a worker took under a lease: a job, or the compaction that is due.

    `attempts` counts this claim and those before it that ended in an error or with their process.
    `ends_at` is when the lease expires unless it is renewed, on the clock of the event loop.
    """

    tenant_id: str
    conversation_id: str
    job_id: str | None
    holder: str
    attempts: int
    ends_at: float = 0.0


@dataclass(frozen=True, slots=True)
class ContextRead:
    """What one select tells a build.

    `epoch` is the lane's newest; `window_epoch` the newest of this request's window, when that
    is another. `view` is the active compaction's, None without one or where the epoch in hand
    has it. `other_lanes` are those of the same format, where this one has no epoch yet. `pins` are
    the pinned seqs. `rows` are the shown messages not in hand yet, when `rows_read`.
    """

    conversation: Conversation
    epoch: Epoch | None
    window_epoch: Epoch | None
    view: View | None
    compacted_for: str | None
    compacted_at: datetime | None
    other_lanes: tuple[str, ...]
    pins: tuple[int, ...]
    rows_read: bool
    rows: list[LogRow]
