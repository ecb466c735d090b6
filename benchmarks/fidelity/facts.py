"""Facts with values that occur nowhere else, and the sentences, rows and calls that state them.

1. A fact has a subject of two words, in the language of what states it, and a value of the
   subject's type. The seed chooses all of them, and the form: labelled, prose, a table's row, a
   JSON value, what an assistant found, a call's argument, a call's result.
2. A corrected fact is stated again later by the user, in one of five languages: with its subject,
   or shortly ("no, make it …") right after the first statement.
3. A quoted fact names a former value in the sentence that replaces it; that is no mistake.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

Value = Callable[[Random], str]
LETTERS = "bcdfghjklmnpqrstvwxz"
FORMS = ("labelled", "prose", "rule", "table", "json", "assistant", "argument", "result", "quoted")
"""English forms; each other language is a form of its own."""


def _word(random: Random) -> str:
    return "".join(random.choice(pair) for pair in (LETTERS, "aeiou") * 3)


def _digits(random: Random, count: int) -> str:
    return str(random.randrange(10 ** (count - 1), 10**count))


def _date(random: Random) -> str:
    return f"20{random.randint(27, 39)}-{random.randint(1, 12):02}-{random.randint(1, 28):02}"


VALUES: dict[str, Value] = {
    "count": lambda random: _digits(random, 4),
    "money": lambda random: f"{random.randint(11, 98)},{_digits(random, 3)} EUR",
    "share": lambda random: f"{random.randint(11, 97)}.{random.randint(1, 9)} %",
    "span": lambda random: f"{_digits(random, 3)} ms",
    "date": _date,
    "id": lambda random: f"{_word(random)[:3].upper()}-{_digits(random, 5)}",
    "path": lambda random: f"/srv/{_word(random)}/{_word(random)}.toml",
    "address": lambda random: f"{_word(random)}@{_word(random)}.example",
    "url": lambda random: f"https://{_word(random)}.example/v{random.randint(2, 9)}",
    "name": lambda random: f"{_word(random).title()} {_word(random).title()}",
    "branch": lambda random: f"topic/{_word(random)}-{_digits(random, 2)}",
}
_WORDS = """
orchid harbour northern saffron walnut lantern granite juniper meadow copper falcon glacier
velvet tundra cobalt marble thistle beacon quarry lagoon ember willow summit canyon
"""
QUALIFIERS = _WORDS.split()
ATTRIBUTES = {
    "quota": "count", "seats": "count", "surcharge": "money", "deposit": "money",
    "threshold": "share", "discount": "share", "timeout": "span", "latency": "span",
    "cutoff": "date", "handover": "date", "ticket": "id", "invoice": "id", "manifest": "path",
    "ledger": "path", "mailbox": "address", "endpoint": "url", "approver": "name",
    "contact": "name", "branch": "branch",
}  # fmt: skip
PROSE = (
    "For the {s} we settled on {v}.",
    "Before I forget it: {v} is what the {s} is from now on.",
    "I'll ask you for the {s} at the end, so keep it in mind: it's {v}.",
    "A colleague looked it up, the {s} is {v}.",
    "As far as the {s} goes, {v} has been agreed with everyone.",
    "You will need the {s} for this sooner or later; {v} is right.",
)
RULES = (
    "Whatever you do, leave the {s} at {v} unless I tell you otherwise.",
    "Never let the {s} be anything but {v}.",
    "The {s} must stay {v}, even if a tool suggests something else.",
    "Please always write the {s} as {v} when you report to me.",
)
LABELLED = (
    "NOTE: {s} = {v}", "CONSTRAINT: the {s} is {v}, no exceptions.", "**{S}**: {v}", "{S} — {v}",
    "Decision - {s}: {v}", "GOAL STATE: {s} is {v}.",
)  # fmt: skip
FOUND = (
    "I checked this twice: the {s} is {v}.",
    "What I found out about the {s}: it is {v}.",
    "Decided: {v} for the {s}.",
)
QUOTED = (
    "The {s} was {o} until last week and is {v} now.",
    "We moved the {s} from {o} to {v}.",
    "Use {v} for the {s} instead of {o}.",
)
SMALL_TALK = (
    "Thanks, that helps.", "Sounds good so far.", "I had a quick look at it over lunch.",
    "No hurry with the rest.", "Go on with what you were doing.", "Let's continue.",
)  # fmt: skip
CORRECTIONS = {
    "en": ("No, use {v} for the {s}.", "Sorry, I was wrong about the {s}: it is {v}.",
           "Correction: {s} {v}, please.", "Scratch that, the {s} will be {v}."),
    "de": ("Nein, nimm {v}: {s}.", "Ich habe mich geirrt, {s} ist jetzt {v}."),
    "fr": ("Non, prends {v} pour {s}.", "Je me suis trompé, {s} : c'est {v}."),
    "es": ("No, usa {v} para {s}.", "Me equivoqué: {s} es {v}."),
    "ja": ("いや、{s}は{v}にしてください。", "訂正します。{s}は{v}です。"),
}  # fmt: skip
SHORTLY = {
    "en": ("No, make it {v}.", "Actually, use {v}.", "Wait, {v} is right."),
    "de": ("Nein, nimm {v}.", "Ach nein, doch {v}."),
    "fr": ("Non, prends plutôt {v}.", "Non, utilise {v}."),
    "es": ("No, usa {v}.",),
    "ja": ("いや、{v}にしてください。",),
}
OTHERS: dict[str, tuple[tuple[str, ...], dict[str, str], tuple[str, ...]]] = {
    "de": (
        ("Ahorn", "Kiesel", "Amsel", "Hafen", "Distel", "Nebel"),
        {"Kontingent": "count", "Anzahlung": "money", "Stichtag": "date", "Vorgang": "id",
         "Postfach": "address", "Ansprechpartner": "name"},
        ("Für {s} gilt ab jetzt {v}.", "Merk dir bitte: {s} ist {v}.",
         "Übrigens haben wir {v} vereinbart ({s})."),
    ),
    "fr": (
        ("érable", "galet", "phare", "brume", "chardon", "merle"),
        {"quota": "count", "acompte": "money", "échéance": "date", "dossier": "id",
         "délai": "span", "responsable": "name"},
        ("Pour {s}, on a retenu {v}.", "Retiens bien ceci : {s}, c'est {v}.",
         "Au fait, {v} a été validé pour {s}."),
    ),
    "es": (
        ("arce", "faro", "niebla", "cardo", "mirlo", "cantera"),
        {"cupo": "count", "anticipo": "money", "plazo": "date", "expediente": "id",
         "buzón": "address", "responsable": "name"},
        ("Para {s} quedamos en {v}.", "Recuerda que {s} es {v}.", "Por cierto, {s}: {v}."),
    ),
    "pt": (
        ("farol", "neblina", "pedreira", "cardo"),
        {"cota": "count", "sinal": "money", "prazo": "date", "processo": "id"},
        ("Para {s} ficou combinado {v}.", "Lembre-se: {s} é {v}."),
    ),
    "ru": (
        ("клён", "маяк", "туман", "гранит"),
        {"квота": "count", "аванс": "money", "срок": "date", "заявка": "id"},
        ("Для {s} договорились: {v}.", "Запомни, пожалуйста: {s} — {v}."),
    ),
    "ja": (
        ("楓", "灯台", "霧", "花崗岩"),
        {"定員": "count", "前金": "money", "期限": "date", "案件": "id"},
        ("{s}は{v}に決まりました。", "覚えておいてください、{s}は{v}です。"),
    ),
    "ko": (
        ("단풍", "등대", "안개", "화강암"),
        {"정원": "count", "선금": "money", "기한": "date", "접수번호": "id"},
        ("{s}은 {v}로 정했습니다.", "기억해 주세요: {s}은 {v}입니다."),
    ),
    "zh": (
        ("枫叶", "灯塔", "浓雾", "花岗岩"),
        {"名额": "count", "定金": "money", "截止日期": "date", "工单": "id"},
        ("{s}定为{v}。", "请记住: {s}是{v}。"),
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fact:
    """What must be there at the end: the value, near the words of its subject."""

    form: str
    subject: tuple[str, str]
    value: str
    old: str = ""
    first: str = ""
    """The statement, of a call its argument or result."""
    second: str = ""
    """The user's correction, if there is one."""
    is_short: bool = False
    """The correction follows right after what it corrects."""

    @property
    def statement(self) -> str:
        """What states the value that holds."""
        return self.second or self.first


class Facts:
    """Draws the facts of one session, whose text has none of their values or subjects."""

    def __init__(self, seed: str, text: str) -> None:
        self.random = Random(seed)
        self._text, self._used = text.casefold(), set[object]()

    def drawn(self, count: int) -> list[Fact]:
        """Return so many facts: every second is English prose, a third is corrected."""
        forms = [*FORMS, *OTHERS]
        chosen = [
            forms[number // 2 % len(forms)] if number % 2 else self.random.choice(FORMS[:3])
            for number in self.random.sample(range(2 * len(forms)), count)
        ]
        return [self._fact(form, number % 3 == 0) for number, form in enumerate(chosen)]

    def _fact(self, form: str, is_corrected: bool) -> Fact:
        random = self.random
        qualifiers, attributes = OTHERS[form][:2] if form in OTHERS else (QUALIFIERS, ATTRIBUTES)
        subject = self._new(lambda: (random.choice(qualifiers), random.choice([*attributes])))
        make = VALUES[attributes[subject[1]]]
        value, old = (self._new(lambda: make(random)) for _ in range(2))
        given = {"s": " ".join(subject), "S": " ".join(subject).capitalize()}
        is_corrected &= form not in ("quoted", "result")
        first = self._stated(form, {**given, "v": old if is_corrected else value, "o": old})
        if form == "quoted" or not is_corrected:
            return Fact(form, subject, value, old if form == "quoted" else "", first)
        language = form if form in CORRECTIONS else "en"
        if form not in OTHERS and random.random() < 0.3:
            language = random.choice([*CORRECTIONS])
        is_short = form not in ("argument", "assistant") and random.random() < 0.3
        wordings = (SHORTLY if is_short else CORRECTIONS)[language]
        second = random.choice(wordings).format(**given, v=value)
        return Fact(form, subject, value, old, first, second, is_short)

    def _new(self, make: Callable[[], Any]) -> Any:
        """Return one that was not drawn before, and that the session does not have."""
        for _ in range(10_000):
            drawn = make()
            text = drawn if isinstance(drawn, str) else " ".join(drawn)
            if drawn not in self._used and text.casefold() not in self._text:
                self._used.add(drawn)
                return drawn
        raise ValueError("there are too few words for so many facts")

    def _stated(self, form: str, given: dict[str, str]) -> str:
        random = self.random
        match form:
            case "table":
                rows = [f"| {given['s']} | {given['v']} |", *self._rows("| {} | {} |")]
                random.shuffle(rows)
                return "\n".join(
                    ("This is what counts:", "", "| what | value |", "|---|---|", *rows)
                )
            case "json" | "argument" | "result":
                rows = [f'"{given["s"].replace(" ", "_")}": {json.dumps(given["v"])}']
                rows += self._rows('"{}": "{}"') if form != "argument" else []
                random.shuffle(rows)
                text = "{" + ", ".join(rows) + "}"
                return f"The settings are these:\n```json\n{text}\n```" if form == "json" else text
        wordings = {"labelled": LABELLED, "prose": PROSE, "rule": RULES, "quoted": QUOTED,
                    "assistant": FOUND}.get(form) or OTHERS[form][2]  # fmt: skip
        said = random.choice(wordings).format(**given)
        if form in ("prose", "rule") and random.random() < 0.5:
            said = " ".join(random.sample([said, *random.sample(SMALL_TALK, 2)], 3))
        return said

    def _rows(self, row: str) -> Iterator[str]:
        """Yield rows that no one asks for."""
        for _ in range(self.random.randint(1, 3)):
            yield row.format(_word(self.random), _word(self.random))
