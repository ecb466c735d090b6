"""Times in a question: "on 8 May 2023", "last May", "yesterday", "two weeks ago", "in 2023".

1. Dates and months by name, in ISO 8601 or with the characters 年, 月 and 日. Without a year, the
   newest one that has begun.
2. Days, weeks, months and years before the newest message of a conversation.
3. What happened is often told a little later, so a span ends later than its words say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

_Unit = Literal["day", "week", "month", "year"]

_MONTHS = """
january januar januari janvier enero janeiro gennaio января январе январь
february februar februari fevrier février febrero fevereiro febbraio февраля феврале февраль
march märz maerz maart mars marzo março marco марта марте март
april avril abril aprile апреля апреле апрель
may mai mei mayo maio maggio мая мае май
june juni juin junio junho giugno июня июне июнь
july juli juillet julio julho luglio июля июле июль
august augustus août aout agosto августа августе август
september sept septembre septiembre setembro settembre сентября сентябре сентябрь
october oktober octobre octubre outubro ottobre октября октябре октябрь
november novembre noviembre novembro ноября ноябре ноябрь
december dezember december décembre decembre diciembre dezembro dicembre декабря декабре декабрь
"""
_MONTH: Final[Mapping[str, int]] = {
    name: number
    for number, names in enumerate(_MONTHS.strip().splitlines(), 1)
    for name in names.split()
}
_AMBIGUOUS = frozenset({"may", "march", "mars", "mai", "marco", "mei", "мая"})
"""Names of months that are also other words, so that a number or preposition has to be beside."""
_PREPOSITION_WORDS = """
in of last since until till this next during by before after on early late mid around
im seit letzten en de em del al au в с
"""  # noqa: RUF001 - Cyrillic is meant
_PREPOSITIONS = frozenset(_PREPOSITION_WORDS.split())
_NUMBER_WORDS = "zero one two three four five six seven eight nine ten eleven twelve"
_NUMBERS: Final = {
    **{word: number for number, word in enumerate(_NUMBER_WORDS.split(" "))},
    **{"a": 1, "an": 1, "couple": 2, "few": 3},
}
_BACK: Sequence[tuple[_Unit, int, str]] = (
    ("day", 0, "today|tonight|this morning|heute|aujourd'hui|hoy|hoje|oggi|сегодня|今日|今天"),
    ("day", 1, "yesterday|last night|gestern|hier|ayer|ontem|ieri|вчера|昨日|昨天|어제"),
    ("day", 2, "day before yesterday|vorgestern|avant-hier|anteayer|позавчера|一昨日|前天"),
    ("week", 0, "this week|diese woche|cette semaine|esta semana|今週|这周|本周"),
    ("week", 1, "last week|last weekend|letzte woche|la semaine dernière|先週|上周"),
    ("week", 1, "la semana pasada|la settimana scorsa|a semana passada|на прошлой неделе"),
    ("month", 0, "this month|diesen monat|ce mois|este mes|今月|这个月"),
    ("month", 1, "last month|letzten monat|le mois dernier|el mes pasado|先月|上个月"),
    ("year", 0, "this year|dieses jahr|cette année|este año|今年"),
    ("year", 1, "last year|letztes jahr|l'année dernière|el año pasado|去年"),
)
_RELATIVE: Final[Mapping[str, tuple[_Unit, int]]] = {
    phrase: (unit, back) for unit, back, phrases in _BACK for phrase in phrases.split("|")
}
_RELATIVE_PHRASE = re.compile(
    "|".join(
        rf"\b{re.escape(phrase)}\b" if phrase[0] < "\u3000" else re.escape(phrase)
        for phrase in sorted(_RELATIVE, key=len, reverse=True)
    )
)
_AGO = re.compile(r"\b(\w{1,8})(?: of)? (day|week|month|year)s? ago\b")
_ISO = re.compile(r"(?<!\d)((?:19|20)\d\d)-(\d\d)(?:-(\d\d))?(?!\d)")
_IDEOGRAPHIC = re.compile(
    r"(?:((?:19|20)\d\d)年)?(?:(\d{1,2})月)(?:(\d{1,2})日)?|((?:19|20)\d\d)年"
)
_TOKEN = re.compile(r"\d+|[^\W\d_]+")
_YEAR = re.compile(r"(?<![\d.,/:-])(?:19|20)\d\d(?![\d.,/:-]*\d)")
_LENGTHS: Final[Mapping[_Unit, timedelta]] = {
    "day": timedelta(days=1),
    "week": timedelta(days=7),
    "month": timedelta(days=31),
    "year": timedelta(days=366),
}
_BOOSTS: Final[Mapping[_Unit, float]] = {"day": 3.0, "week": 2.0, "month": 2.0, "year": 1.1}
_RELATIVE_BOOST = 1.5
_EARLY, _LATE = timedelta(days=1), timedelta(days=3)


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """When something was said, the end exclusive, and how much that raises a message's score."""

    start: datetime
    end: datetime
    boost: float


@dataclass(frozen=True, slots=True)
class TimeWords:
    """A date with its known parts, or a number of units before now."""

    unit: _Unit
    year: int | None = None
    month: int | None = None
    day: int | None = None
    back: int | None = None

    def span(self, now: datetime) -> TimeSpan | None:
        """Return the time that is meant in a conversation whose newest message is of this time."""
        try:
            if self.back is not None:
                return self._before(now, self.back)
            start, end = self._dates(now)
            return TimeSpan(start - _EARLY, end + _LATE, _BOOSTS[self.unit])
        except (ValueError, OverflowError):
            return None

    def _dates(self, now: datetime) -> tuple[datetime, datetime]:
        month, day = self.month or 1, self.day or 1
        year = self.year or now.year
        if self.year is None and datetime(year, month, day, tzinfo=UTC) > now:
            year -= 1
        start = datetime(year, month, day, tzinfo=UTC)
        if self.unit == "year":
            return start, datetime(year + 1, 1, 1, tzinfo=UTC)
        if self.unit == "month":
            following = (year + 1, 1) if month == 12 else (year, month + 1)
            return start, datetime(*following, 1, tzinfo=UTC)
        return start, start + _LENGTHS["day"]

    def _before(self, now: datetime, back: int) -> TimeSpan:
        """Return the span of a whole unit, from half a unit early on."""
        today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        length = _LENGTHS[self.unit]
        if self.unit == "day":
            start = today - back * length
            return TimeSpan(start, start + length, _RELATIVE_BOOST)
        middle = today - back * length
        return TimeSpan(middle - length / 2, middle + length, _RELATIVE_BOOST)


def time_words(text: str) -> TimeWords | None:
    """Return the time that a question names, the most exact kind first; text in lower case."""
    return _date(text) or _relative(text) or _year(text)


def _date(text: str) -> TimeWords | None:
    if found := _ISO.search(text):
        return _made(found[1], found[2], found[3])
    if found := _IDEOGRAPHIC.search(text):
        return _made(found[1] or found[4], found[2], found[3])
    tokens = _TOKEN.findall(text)
    for at, token in enumerate(tokens):
        if token not in _MONTH:
            continue
        before = tokens[max(0, at - 3) : at]
        after = tokens[at + 1 : at + 4]
        if before and before[-1] in {"of", "de"}:
            before = before[:-1]
        day = next((part for part in _ordinal(before) if _is_day(part)), None)
        if day is None and after and _is_day(after[0]):
            day = after[0]
        years = (part for part in after if len(part) == 4 and part.isdecimal())
        year = next(years, None)
        beside = tokens[at - 1] if at else ""
        if day or year or token not in _AMBIGUOUS or beside in _PREPOSITIONS:
            return _made(year, str(_MONTH[token]), day)
    return None


def _ordinal(before: list[str]) -> list[str]:
    """Return the number directly before a month, also one with an ending such as `8th`."""
    if before and before[-1] in {"st", "nd", "rd", "th"}:
        before = before[:-1]
    return before[-1:]


def _is_day(part: str) -> bool:
    return part.isdecimal() and len(part) <= 2 and 1 <= int(part) <= 31


def _made(year: str | None, month: str | None, day: str | None) -> TimeWords:
    unit: _Unit = "day" if day else "month" if month else "year"
    numbers = (int(part) if part else None for part in (year, month, day))
    return TimeWords(unit, *numbers)


def _relative(text: str) -> TimeWords | None:
    if found := _AGO.search(text):
        unit: _Unit = found[2]  # type: ignore[assignment]
        number = int(found[1]) if found[1].isdecimal() else _NUMBERS.get(found[1])
        return TimeWords(unit, back=number) if number is not None else None
    if phrase := _RELATIVE_PHRASE.search(text):
        unit, back = _RELATIVE[phrase[0]]
        return TimeWords(unit, back=back)
    return None


def _year(text: str) -> TimeWords | None:
    found = _YEAR.search(text)
    return TimeWords("year", year=int(found[0])) if found else None


_TOLD = re.compile(
    r"\b(?:yesterday|today|tonight|tomorrow|ago|week|weekend|month|year|morning|recently|since"
    r"|days?|weeks|months|years|hours?|(?:mon|tues|wednes|thurs|fri|satur|sun)day|last|next"
    r"|gestern|heute|morgen|woche|jahr|hier|ayer|ontem|ieri|вчера|\d{4}|\d{1,2}:\d\d|"
    + "|".join(sorted(_MONTH))
    + r")\b|昨日|昨天|今日|今天|[年月日]"
)


def tells_time(text: str) -> bool:
    """Whether a text in lower case has words that tell when something happens."""
    return _TOLD.search(text) is not None


_COUNTED = re.compile(
    r"\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|once|twice|several|couple|dozen"
    r"|first|second|third|few|both|eins?|zwei|drei|vier|fünf|deux|trois|quatre|dos|tres|cuatro)\b"
    r"|[一二三四五六七八九十]"
)


def tells_number(text: str) -> bool:
    """Whether a text in lower case has a number."""
    return _COUNTED.search(text) is not None
