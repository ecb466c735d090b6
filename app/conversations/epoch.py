"""Epochs of a conversation's payloads, and what a build reads from the database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from app.conversations.conversation import Conversation
from app.conversations.messages.row import LogRow
from app.conversations.view import View


@dataclass(frozen=True, slots=True)
class Epoch:
    """The start of an epoch: all inputs of a payload except for newer messages.

    `start_json` holds the view and the limits. `window` is the context window in tokens that the
    request sets, 0 for none.
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
class PastEpoch:
    """An epoch in the list of a conversation's epochs, as `Epoch`."""

    epoch: int
    epoch_id: str
    payload_stream: str
    format: str
    window: int
    reason: str | None
    start_seq: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class BuildInput:
    """The stored values that a build starts from, read in one statement.

    `epoch` is the newest of the payload stream; `window_epoch` the newest for this request's
    context window, if that is another one. `view` is that of the active compaction, None without
    one or if the cached epoch has it. That compaction ran at `compacted_at`, when the policy had
    the strategy `compaction_strategy`. `other_streams` are the payload streams of the same format,
    if this one has no epoch yet. `pins` are the pinned seqs. `rows` are the messages that came
    since the cached payload of the newest epoch.
    """

    conversation: Conversation
    epoch: Epoch | None
    window_epoch: Epoch | None
    view: View | None
    compaction_strategy: str | None
    compacted_at: datetime | None
    other_streams: tuple[str, ...]
    pins: tuple[int, ...]
    rows: list[LogRow]
