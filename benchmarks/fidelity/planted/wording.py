"""Wordings: sentences with places for values, and what of them must survive.

1. `{subject}`, `{value}` and the like are filled in, and each is needed afterwards. A word in
   square brackets is needed as well; the brackets are removed.
2. A needed text with `|` is found where any of its alternatives is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import TypeVar

MIN_NEEDED_CHARS = 4
"""Shorter words of a phrase, such as `the`, are not needed."""
_MARKED = re.compile(r"\[([^\]]+)\]")
_WORD = re.compile(r"[\w.:/@-]+")
Item = TypeVar("Item")
NEGATIONS = (
    "never|not|don't|must not|under no circumstances|forbidden|prohibited|off limits|no one"
    "|nobody|no |refuse|without"
)


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


def plain(template: str) -> str:
    """Return a template without its brackets."""
    return _MARKED.sub(r"\1", template)


def needed_words(phrase: str) -> tuple[str, ...]:
    """Return the words of a phrase that have to survive; text without spaces is one word."""
    words = _WORD.findall(phrase)
    return tuple(word for word in words if len(word.rstrip(".,")) >= MIN_NEEDED_CHARS)


def marked(template: str) -> tuple[str, ...]:
    """Return the texts in square brackets."""
    return tuple(_MARKED.findall(template))


@dataclass(slots=True)
class Deck:
    """Draws from each list without repetition, as long as it lasts."""

    random: Random
    _left: dict[int, list[object]] = field(default_factory=dict)

    def draw(self, items: Sequence[Item]) -> Item:
        """Return an item that was not drawn since the list was last used up."""
        left = self._left.get(id(items))
        if not left:
            left = list(items)
            self.random.shuffle(left)
            self._left[id(items)] = left
        item: Item = left.pop()  # type: ignore[assignment]
        return item


def value_of(kind: str, wording: Wording, random: Random) -> str:
    """Return a random value of a kind: one that no two subjects share."""
    number = random.randrange
    word = random.choice(wording.words)
    match kind:
        case "port":
            return str(number(10_000, 64_000))
        case "host":
            return f"{word}-{number(10, 99)}.{random.choice(wording.words)}.example"
        case "id":
            return f"{word.upper()[:4]}-{number(10_000, 99_999)}"
        case "date":
            return f"20{number(27, 39)}-{number(1, 13):02}-{number(1, 29):02}"
        case "amount":
            return f"{number(101, 999)}.{number(11, 99)} EUR"
        case "person":
            return f"{random.choice(wording.people)} {word.capitalize()}{number(2, 99)}"
        case "path":
            return f"/srv/{word}/{random.choice(wording.words)}-{number(100, 999)}.yaml"
        case "version":
            return f"{number(2, 30)}.{number(10, 60)}.{number(10, 99)}"
        case "duration":
            return f"{number(1_001, 9_999)} ms"
        case _:
            raise ValueError(kind)
