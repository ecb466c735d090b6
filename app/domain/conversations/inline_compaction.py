"""What a compaction inside a build reads besides the build, and what it stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.domain.conversations.compaction_receipt import Compaction, ViewState
from app.domain.conversations.log.row import LogRow
from app.domain.conversations.view import Span, Summary


@dataclass(frozen=True, slots=True)
class InlineBasis:
    """What an inline compaction starts from, besides what its build has read.

    `newest_made` are the summaries of the newest receipt that made some, where the active one made
    none. With `is_leased` another compaction of the conversation runs.
    """

    event_seq: int
    is_leased: bool
    active: Compaction | None
    newest_made: tuple[Summary, ...]


@dataclass(frozen=True, slots=True)
class InlineRows:
    """The messages in `span` as a summary reads them, and those in `shown_spans` for the build.

    The `stored` form of messages after the hidden range is that of the build, except for messages
    of users.
    """

    span: Span
    stored: Sequence[LogRow]
    shown: Sequence[LogRow]
    shown_spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class InlineChange:
    """A receipt with what its conversation shows then, and the events about it.

    It is stored only where the view has `view_version` and the newest event is `event_seq`.
    """

    receipt: Compaction
    visible: ViewState
    view_version: int
    event_seq: int
    cause: str
    resume_at_tokens: int
    events: Sequence[tuple[str, str]]
