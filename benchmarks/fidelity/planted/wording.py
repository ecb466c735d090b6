"""Wordings: sentences with places for values, and what of them must survive.

1. `{subject}`, `{value}` and the like are filled in, and each is needed afterwards. A word in
   square brackets is needed as well; the brackets are removed.
2. A needed text with `|` is found where any of its alternatives is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The kinds of planted statements."""

    SAFETY = "safety rules"
    CONSTRAINT = "hard constraints"
    FACT = "facts"
    GOAL = "goals"
    PREFERENCE = "preferences"
    STANDING = "standing instructions, English"
    STANDING_OTHER = "standing instructions, 8 languages"
    DECISION = "decisions with reasons"
    UPDATE = "updated values"


@dataclass(frozen=True, slots=True)
class Plant:
    """A planted statement: it survives where all of `needed` stand close together.

    `old` are the earlier values of the same subject, which are no longer true.
    """

    kind: Kind
    text: str
    needed: tuple[str, ...]
    author: str = "user"
    old: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Wording:
    """One set of wordings and words; the phrases of each list are used at most once a session."""

    fact_by_user: Sequence[str]
    fact_by_assistant: Sequence[str]
    update: Sequence[str]
    qualifiers: Sequence[str]
    attributes: Mapping[str, str]
    words: Sequence[str]
    people: Sequence[str]
    safety: Sequence[str]
    forbidden: Sequence[str]
    constraint: Sequence[str]
    limits: Sequence[str]
    goal: Sequence[str]
    goals: Sequence[str]
    preference: Sequence[str]
    preferences: Sequence[str]
    standing: Sequence[str]
    rules: Sequence[str]
    standing_whole: Sequence[str]
    standing_other: Sequence[Sequence[str]]
    reversed_instructions: Sequence[tuple[str, str, str, str]]
    decision: Sequence[str]
    decisions: Sequence[tuple[str, str]]
    first_request: Sequence[str]
    requests: Sequence[str]
    acknowledgements: Sequence[str]
    small_talk: Sequence[str]
    harness: Sequence[str]
    narrations: Sequence[str]
    endings: Sequence[str]
    todos: Sequence[str]
    stems: Sequence[str]
    folders: Sequence[str]
    roots: Sequence[str]
    log_lines: Sequence[str]
    decoy_errors: Sequence[str]
    decoy_decisions: Sequence[str]
    failures: Sequence[str]
