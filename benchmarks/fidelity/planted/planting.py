"""Statements to plant: drawn from a wording by a seed, those of one session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

from benchmarks.fidelity.planted.wording import (
    NEGATIONS,
    Deck,
    Kind,
    Plant,
    Wording,
    marked,
    needed_words,
    plain,
    value_of,
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

    def chains(self, scale: float = 1.0) -> list[list[Plant]]:
        """Return the statements in random order; those of one subject are in one list, in time."""
        made = []
        for kind, count in PER_SESSION.items():
            for _ in range(max(1, round(count * scale))):
                made.append(list(self._chain(kind)))
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
            case Kind.STANDING if self.random.random() < len(words.standing_whole) / (
                len(words.standing_whole) + len(words.rules)
            ):
                yield _of(kind, draw(words.standing_whole), {}, ())
            case Kind.STANDING:
                rule = draw(words.rules)
                yield _of(kind, draw(words.standing), {"thing": rule}, needed_words(rule))
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
    plant = Plant(kind, plain(template).format(**given), (*needed, *marked(template)), author)
    return replace(plant, old=old)
