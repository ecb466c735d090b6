"""Statements to plant: drawn from a wording by a seed, those of one session."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from random import Random
from typing import TypeVar

from benchmarks.fidelity.planted.wording import Kind, Plant, Wording

MIN_NEEDED_CHARS = 4
"""Shorter words of a phrase, such as `the`, are not needed."""
_MARKED = re.compile(r"\[([^\]]+)\]")
_WORD = re.compile(r"[\w.:/@-]+")
Item = TypeVar("Item")
NEGATIONS = (
    "never|not|don't|must not|under no circumstances|forbidden|prohibited|off limits|no one"
    "|nobody|no |refuse|without"
)
PER_SESSION = {
    Kind.SAFETY: 8,
    Kind.CONSTRAINT: 10,
    Kind.FACT: 28,
    Kind.GOAL: 5,
    Kind.PREFERENCE: 9,
    Kind.STANDING: 8,
    Kind.STANDING_OTHER: 12,
    Kind.DECISION: 7,
    Kind.UPDATE: 13,
}
REVERSED = 2
"""So many of the updates take back an instruction."""
SECOND_UPDATES = 0.3
"""The share of updated values that change once more."""
ASSISTANTS_FACTS = 0.35


class Planter:
    """Draws the statements of one session."""

    def __init__(self, wording: Wording, seed: str) -> None:
        self.random = Random(seed)
        self.wording = wording
        self.deck = Deck(self.random)
        pairs = [(q, a) for q in wording.qualifiers for a in wording.attributes]
        self.random.shuffle(pairs)
        self._subjects = iter(pairs)
        self._reversed = 0

    def chains(self) -> list[list[Plant]]:
        """Return the statements in random order; those of one subject are in one list, in time."""
        kinds = [kind for kind, count in PER_SESSION.items() for _ in range(count)]
        made = [list(self._chain(kind)) for kind in kinds]
        self.random.shuffle(made)
        return made

    def _chain(self, kind: Kind) -> Iterator[Plant]:
        words, draw = self.wording, self.deck.draw
        match kind:
            case Kind.SAFETY:
                thing = draw(words.forbidden)
                needed = (*needed_words(thing), NEGATIONS)
                yield _of(kind, draw(words.safety), {"thing": thing}, needed)
            case Kind.CONSTRAINT:
                yield self._simple(kind, words.constraint, words.limits)
            case Kind.GOAL:
                yield self._simple(kind, words.goal, words.goals)
            case Kind.PREFERENCE:
                yield self._simple(kind, words.preference, words.preferences)
            case Kind.STANDING:
                whole = len(words.standing_whole)
                if self.random.random() < whole / (whole + len(words.rules)):
                    yield _of(kind, draw(words.standing_whole), {}, ())
                else:
                    yield self._simple(kind, words.standing, words.rules)
            case Kind.STANDING_OTHER:
                yield _of(kind, draw(draw(words.standing_other)), {}, ())
            case Kind.DECISION:
                choice, reason = draw(words.decisions)
                needed = (*needed_words(choice), *needed_words(reason))
                given = {"choice": choice, "reason": reason}
                yield _of(kind, draw(words.decision), given, needed, author="assistant")
            case Kind.FACT:
                yield self._fact()
            case Kind.UPDATE:
                yield from self._updated()

    def _simple(self, kind: Kind, templates: Sequence[str], things: Sequence[str]) -> Plant:
        thing = self.deck.draw(things)
        return _of(kind, self.deck.draw(templates), {"thing": thing}, needed_words(thing))

    def _fact(self) -> Plant:
        words = self.wording
        by_assistant = self.random.random() < ASSISTANTS_FACTS
        templates = words.fact_by_assistant if by_assistant else words.fact_by_user
        subject, value = self._subject()
        needed = (value, *needed_words(subject))
        given = {"subject": subject, "value": value}
        author = "assistant" if by_assistant else "user"
        return _of(Kind.FACT, self.deck.draw(templates), given, needed, author=author)

    def _subject(self) -> tuple[str, str]:
        qualifier, attribute = next(self._subjects)
        return f"{qualifier} {attribute}", self._value(attribute)

    def _value(self, attribute: str) -> str:
        return value_of(self.wording.attributes[attribute], self.wording, self.random)

    def _updated(self) -> Iterator[Plant]:
        """Yield a statement that does not last, then what replaces it."""
        words = self.wording
        if self._reversed < REVERSED:
            self._reversed += 1
            first, old, then, new = self.deck.draw(words.reversed_instructions)
            yield Plant(Kind.UPDATE, first, (old,))
            yield Plant(Kind.UPDATE, then, (new,), old=(old,))
            return
        subject, value = self._subject()
        attribute = subject.partition(" ")[2]
        first = self.deck.draw(words.fact_by_user)
        yield _of(Kind.UPDATE, first, {"subject": subject, "value": value}, ())
        ended: tuple[str, ...] = ()
        count = 2 if self.random.random() < SECOND_UPDATES else 1
        for number in range(count):
            ended, value = (*ended, value), self._value(attribute)
            template = self.deck.draw(words.update)
            while "{old}" in template and number < count - 1:  # names two values that end
                template = self.deck.draw(words.update)
            given = {"subject": subject, "value": value, "old": ended[-1]}
            needed = (value, *needed_words(subject))
            yield _of(Kind.UPDATE, template, given, needed, old=ended)


def _of(
    kind: Kind,
    template: str,
    given: dict[str, str],
    needed: tuple[str, ...],
    author: str = "user",
    old: tuple[str, ...] = (),
) -> Plant:
    """Fill a template; what is marked in it is needed besides."""
    given = given | {key.capitalize(): text[:1].upper() + text[1:] for key, text in given.items()}
    if "thing" in given:
        given["rule"] = given["thing"]
    text = _MARKED.sub(r"\1", template).format(**given)
    return Plant(kind, text, (*needed, *_MARKED.findall(template)), author, old)


def needed_words(phrase: str) -> tuple[str, ...]:
    """Return the words of a phrase that have to survive; text without spaces is one word."""
    words = _WORD.findall(phrase)
    return tuple(word for word in words if len(word.rstrip(".,")) >= MIN_NEEDED_CHARS)


class Deck:
    """Draws from each list without repetition, as long as it lasts."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._left: dict[int, list[object]] = {}

    def draw(self, items: Sequence[Item]) -> Item:
        """Return an item that was not drawn since the list was last used up."""
        left = self._left.get(id(items))
        if not left:
            left = list(items)
            self._random.shuffle(left)
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
        case _:
            return f"{number(1_001, 9_999)} ms"
