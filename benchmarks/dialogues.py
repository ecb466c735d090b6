"""Long dialogues with questions about them: those of LoCoMo, and made ones.

1. `locomo10.json` of `CONTEXT_DIALOGUES_DIR` holds ten dialogues of two people over months, with
   1 536 questions whose evidence is in them (github.com/snap-research/locomo, CC BY-NC 4.0). The
   file is not part of this repository. Questions without evidence, and those of category 5, which
   have no answer, are left out.
2. A made dialogue mixes small talk with facts. One person asks for a fact, the other tells it in
   other words, and the question about it has words of both.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson

FOLDER = "CONTEXT_DIALOGUES_DIR"
TUNING = frozenset({"conv-26", "conv-41", "conv-48"})
"""Dialogues that the ranking was tuned on; figures of the others are reported apart."""
_EVIDENCE = re.compile(r"D(\d+):0*(\d+)")
_NO_ANSWER = 5


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, and the places of the messages that answer it, from 0 on."""

    text: str
    evidence: frozenset[int]


@dataclass(frozen=True, slots=True)
class Said:
    """A message of a dialogue."""

    speaker: str
    text: str
    time: datetime


@dataclass(frozen=True, slots=True)
class Dialogue:
    """Messages in order, with questions about them."""

    name: str
    messages: tuple[Said, ...]
    questions: tuple[Asked, ...]

    def sent(self, *, named: bool) -> list[dict[str, Any]]:
        """Return the messages as a caller appends them: the first speaker is the user."""
        first = self.messages[0].speaker
        return [
            {
                "role": "user" if item.speaker == first else "assistant",
                "content": f"{item.speaker}: {item.text}" if named else item.text,
                "timestamp": item.time.isoformat(),
            }
            for item in self.messages
        ]


def recorded() -> list[Dialogue]:
    """Return the dialogues of LoCoMo, none without its file."""
    folder = os.environ.get(FOLDER)
    path = Path(folder or ".") / "locomo10.json"
    if not folder or not path.is_file():
        return []
    return [_recorded(item) for item in orjson.loads(path.read_bytes())]


def _recorded(item: dict[str, Any]) -> Dialogue:
    said: list[Said] = []
    places: dict[tuple[str, str], int] = {}
    talk = item["conversation"]
    numbers = sorted(int(key[8:]) for key in talk if re.fullmatch(r"session_\d+", key))
    for number in numbers:
        time = datetime.strptime(talk[f"session_{number}_date_time"], "%I:%M %p on %d %B, %Y")
        for line in talk[f"session_{number}"]:
            places[_EVIDENCE.findall(line["dia_id"])[0]] = len(said)
            said.append(Said(line["speaker"], line["text"], time.replace(tzinfo=UTC)))
    asked = []
    for raw in item["qa"]:
        found = {place for text in raw["evidence"] for place in _EVIDENCE.findall(text)}
        evidence = frozenset(places[place] for place in found if place in places)
        if raw["category"] != _NO_ANSWER and evidence:
            asked.append(Asked(raw["question"], evidence))
    return Dialogue(item["sample_id"], tuple(said), tuple(asked))


# What one asks, what the other tells, and a question about it.
_FACTS = (
    ("Did you find a place to stay in {place}?", "Yes, {name} let me have the attic.",
     "Who did {teller} live with in {place}?"),
    ("How was the pottery class?", "Lovely. I glazed a {color} bowl for {name}.",
     "What did {teller} make at pottery for {name}?"),
    ("Which port does the staging database use?", "It moved to {number} last night.",
     "On which port is the staging database listening?"),
    ("What are you training for?", "The half marathon in {place}, {number} runners so far.",
     "Which race is {teller} preparing for in {place}?"),
    ("Have you heard from {name}?", "They broke a wrist while skating in {place}.",
     "How did {name} get hurt?"),
    ("What's the new puppy called?", "We went for {name}, because of the {color} ears.",
     "What name did {teller} give the puppy?"),
    ("Any luck with the budget?", "We agreed on {number} euros for the library.",
     "How much money was decided for the library?"),
    ("What did the doctor say?", "No more {food} until spring, sadly.",
     "What does {teller} have to avoid eating after the doctor's visit?"),
    ("Where are you flying in the summer?", "To {place}, with {name} and the kids.",
     "Where is {teller} travelling for the summer flight?"),
    ("Who fixed the deployment?", "{name} rolled the {color} cluster back to version {number}.",
     "To which version was the {color} cluster rolled back?"),
    ("What shall we cook on Friday?", "Let's do {food}, {name} brings the wine.",
     "What did they plan to cook with {name} bringing the wine?"),
    ("Is the car still running?", "I sold it for {number} and bought a {color} bicycle.",
     "What did {teller} buy after selling the car?"),
)  # fmt: skip
_VALUES = """
place Lisbon Bergen Tampere Utrecht Ghent Porto Graz Brno Split Turku Malmo Cork Nantes Parma Leeds
name Ilse Tomas Renata Oskar Maren Pavel Imogen Karim Noemi Anselm Yara Dmitri Beatrix Hugo Salma
color teal amber crimson ivory indigo olive scarlet turquoise
food risotto dumplings paella goulash lentils mushrooms pancakes curry
"""
_WORDS = {kind: words for kind, *words in map(str.split, _VALUES.strip().splitlines())}
_TALK = (
    "That sounds wonderful, tell me more when we meet.",
    "I had a long day at work and could not sleep well.",
    "The weather was awful here, so we stayed at home and read.",
    "Good to hear from you! How are the kids?",
    "Same here, it has been a busy week with too many meetings.",
    "I keep thinking about the trip we took last year.",
    "My neighbour plays the piano at night, which is quite nice.",
    "We should do that again soon, it was so much fun.",
    "I am proud of you, that took courage.",
    "Thanks, your support means a lot to me.",
    "Did you watch the match? I missed the second half.",
    "The garden needs water, and I need a holiday.",
    "I tried a new recipe and it went wrong.",
    "Let me know if you want to talk about it.",
    "What a surprise! I did not expect that at all.",
    "Work on the database is slow, the server is old.",
)


def made(seed: int, sessions: int = 40) -> Dialogue:
    """Return a dialogue of about 25 messages a session, one session every few days."""
    source = random.Random(seed)
    people = source.sample(_WORDS["name"], 2)
    time = datetime(2025, 1, 6, 18, tzinfo=UTC)
    said: list[Said] = []
    evidence: dict[str, set[int]] = {}
    for _ in range(sessions):
        time += timedelta(days=source.randint(1, 9))
        for text, question in _session(source, people, len(said)):
            if question is not None:
                evidence.setdefault(question, set()).add(len(said))
            said.append(Said(people[len(said) % 2], text, time))
    asked = (Asked(text, frozenset(places)) for text, places in evidence.items())
    return Dialogue(f"made-{seed}", tuple(said), tuple(asked))


def _session(
    source: random.Random, people: Sequence[str], start: int
) -> Iterator[tuple[str, str | None]]:
    """Yield texts, each with the question that it answers if it has one."""
    at = start
    for _ in range(source.randint(2, 4)):
        for _ in range(source.randint(2, 7)):
            yield source.choice(_TALK), None
            at += 1
        ask, tell, question = source.choice(_FACTS)
        values = {key: source.choice(words) for key, words in _WORDS.items()}
        values |= {"number": str(source.randint(1000, 9999)), "teller": people[(at + 1) % 2]}
        yield ask.format(**values), None
        yield tell.format(**values), question.format(**values)
        at += 2
