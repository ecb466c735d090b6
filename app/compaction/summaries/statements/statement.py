"""Statements: what the built-in summariser keeps of a conversation, one sentence or unit each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What a statement says; its value heads the statement's section in a summary."""

    FIRST_REQUEST = "First request"
    STANDING = "Standing instructions"
    CONSTRAINT = "Constraints"
    PREFERENCE = "Preferences"
    GOAL = "Goals"
    FACT = "Facts and values"
    DECISION = "Decisions"
    TODO = "Todo list"
    OPEN = "Open items"
    REQUEST = "Requests"
    ERROR = "Errors"
    CHECK = "Commands and tests"
    EDITED = "Files changed"
    READ = "Files read"
    REFERENCE = "References"
    FINDING = "Findings"
    REMARK = "Other remarks"
    CALL = "Other calls"
    EARLIER = "Earlier summary"
    REPLACED = "Replaced, no longer valid"


class Author(StrEnum):
    """Who stated something; `tool` also for what is read from calls and their results."""

    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


AGELESS = frozenset({Kind.STANDING, Kind.CONSTRAINT, Kind.PREFERENCE, Kind.GOAL, Kind.FACT})
"""Kinds that weigh the same however long ago a user stated them."""
STATE_KINDS = frozenset(
    {Kind.TODO, Kind.ERROR, Kind.CHECK, Kind.EDITED, Kind.READ, Kind.REFERENCE, Kind.CALL}
)
"""Kinds that are read from calls and their results, never from prose."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement.

    `mentions` counts how often it was made. `updates` is set where its words say that it changes
    something that held before. `is_salient` is set where it names a value, a name or a number.
    `earlier` are older statements that it may change, newest first: they are shown with it.
    `is_earlier` is set where something newer that is shown elsewhere may change it.
    """

    kind: Kind
    text: str
    author: Author = Author.USER
    mentions: int = 1
    updates: bool = False
    is_salient: bool = False
    earlier: tuple[str, ...] = ()
    is_earlier: bool = False
