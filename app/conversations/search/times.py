"""Times in a question: "on 8 May 2023", "last May", "2023-05", "yesterday", "two weeks ago".

1. Dates and months by their English names or in ISO 8601, and years. Without a year it is the
   newest one that has begun.
2. Days, weeks, months and years before the newest message of a conversation.
3. What happened is often told a little later, so a span ends later than its words say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

_MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july", "august"),
    *("september", "october", "november", "december"),
)
_DAY = r"(\d{1,2})(?:st|nd|rd|th)?(?!\w)"
_YEAR = r"(?:19|20)\d\d"
_ISO = re.compile(rf"(?<!\d)({_YEAR})-(\d\d)(?:-(\d\d))?(?!\d)")
_NAMED = re.compile(
    rf"(?:\b{_DAY} (?:of )?)?\b({'|'.join(_MONTHS)})\b(?: {_DAY})?(?:,? (?:of )?({_YEAR})\b)?"
)
_PREPOSITION = re.compile(
    r"\b(?:in|of|last|since|until|till|this|next|during|by|before|after|on) $"
)
_ANY_YEAR = re.compile(rf"(?<![\d.,/:-]){_YEAR}(?![\d.,/:-]*\d)")
_LAST = re.compile(r"\b(?:(yesterday|last night)|(today|tonight)|(this|last) (week|month|year))\b")
_AGO = re.compile(r"\b(\w{1,8}) (day|week|month|year)s? ago\b")
_NUMBER_WORDS = ("a", "an", "one", "two", "three", "four", "five", "six")
_NUMBERS: Final = dict(zip(_NUMBER_WORDS, (1, 1, 1, 2, 3, 4, 5, 6), strict=True))
_LENGTHS: Final = {
    **{"day": timedelta(days=1), "week": timedelta(days=7)},
    **{"month": timedelta(days=31), "year": timedelta(days=366)},
}
_BOOSTS: Final = {"day": 3.0, "month": 2.0, "year": 1.1}
_RELATIVE_BOOST = 1.5
_EARLY, _LATE = timedelta(days=1), timedelta(days=3)
_TELLS = re.compile(
    r"\b(?:yesterday|today|tonight|tomorrow|ago|weekend|morning|recently|since|last|next|\d{4}"
    r"|(?:day|week|month|year|hour)s?|(?:mon|tues|wednes|thurs|fri|satur|sun)day|\d{1,2}:\d\d"
    rf"|{'|'.join(_MONTHS)})\b"
)


@dataclass(frozen=True, slots=True)
class Time:
    """A date with its known parts, or a number of units before now."""

    unit: str
    year: int | None = None
    month: int | None = None
    day: int | None = None
    back: int | None = None

    def span(self, now: datetime) -> tuple[datetime, datetime, float] | None:
        """Return when that is, the end exclusive, and how much it raises the score of a message.

        `now` is the time of the newest message. An impossible date is None.
        """
        length = _LENGTHS[self.unit]
        try:
            if self.back is not None:
                midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
                middle = midnight - self.back * length
                early = timedelta(0) if self.unit == "day" else length / 2
                return middle - early, middle + length, _RELATIVE_BOOST
            start = datetime(self.year or now.year, self.month or 1, self.day or 1, tzinfo=UTC)
            if self.year is None and start > now:
                start = start.replace(year=start.year - 1)
            return start - _EARLY, start + length + _LATE, _BOOSTS[self.unit]
        except (ValueError, OverflowError):
            return None


def time_in(text: str) -> Time | None:
    """Return the time that a question names, the most exact kind first; text in lower case."""
    if found := _ISO.search(text):
        return _date(*found.groups())
    for found in _NAMED.finditer(text):
        before, name, after, year = found.groups()
        is_sure = name not in {"may", "march"} or _PREPOSITION.search(text[: found.start()])
        if before or after or year or is_sure:
            return _date(year, str(_MONTHS.index(name) + 1), before or after)
    if found := _AGO.search(text):
        number = int(found[1]) if found[1].isdecimal() else _NUMBERS.get(found[1])
        return Time(found[2], back=number) if number is not None else None
    if found := _LAST.search(text):
        return Time(found[4] or "day", back=int(bool(found[1]) or found[3] == "last"))
    found = _ANY_YEAR.search(text)
    return _date(found[0], None, None) if found else None


def _date(*parts: str | None) -> Time:
    year, month, day = (int(part) if part else None for part in parts)
    return Time("day" if day else "month" if month else "year", year, month, day)


def tells_time(text: str) -> bool:
    """Whether a text in lower case has words that tell when something happens."""
    return _TELLS.search(text) is not None
