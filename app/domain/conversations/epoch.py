"""Epochs of a conversation's payloads, and what a build reads from the database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from app.domain.conversations.conversation import Conversation
from app.domain.conversations.log import LogRow
from app.domain.conversations.view import View


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
