"""Words that mean nearly the same in names and descriptions of tools, and kinds of values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from itertools import chain, permutations

from app.adapters.tool_ranking.words import words

_GROUPS = """
get fetch retrieve obtain read load lookup return
list show display enumerate view browse
search find query seek discover locate lookup
create add new make generate insert build
remove delete drop erase clear
update edit modify change set alter rename
send post submit share deliver
calculate compute determine evaluate estimate
convert transform translate
start run launch execute open begin
stop end close kill terminate cancel
check verify validate test
compare diff difference
summarize summary overview digest
describe explain detail information
save store write keep
download export
upload import attach
copy duplicate clone
move transfer relocate
merge combine join
schedule plan calendar appointment
buy purchase order
book reserve reservation
pay payment transaction
log history record
count number total
average mean
predict forecast
movie film video clip
picture image photo
song music track
car vehicle automobile
cost price
weather forecast
trip travel journey
flight airline plane
hotel accommodation lodging stay
restaurant food dining eat
recipe cook meal
doctor physician
company business corporation firm
job career employment
email mail
phone telephone
house home property
near nearby close around
map direction route
country nation
city town
money currency
stock share equity
rule law legal
case lawsuit
user account profile customer
folder directory
website site webpage page url
"""


_DAY = (
    "january|february|march|april|june|july|august|september|october|november|december"
    "|today|tomorrow|yesterday|tonight"
)
_VALUE_KINDS = (
    (re.compile(r"https?://|www\."), ("url", "link")),
    (re.compile(r"\w@\w"), ("email",)),
    (
        re.compile(r"[$€£¥]\s?\d|\b(?:usd|eur|euros?|dollars?)\b", re.I),
        ("price", "currency", "amount"),
    ),
    (re.compile(rf"\b(?:\d{{4}}-\d\d-\d\d|{_DAY})\b", re.I), ("date",)),
    (re.compile(r"\d\.\d{2,}°?,\s*-?\d+\.\d{2}"), ("latitude", "longitude")),
    (re.compile(r"(?:^|\s)~?/\w[\w.-]*/\w"), ("file", "path")),
)
"""What values look like, with words for their kind."""


def value_words(query: str) -> list[str]:
    """Return words for the kinds of values in a query."""
    found = (kinds for pattern, kinds in _VALUE_KINDS if pattern.search(query))
    return [*chain.from_iterable(found)]


@cache
def synonyms() -> Mapping[str, tuple[str, ...]]:
    """Return the synonyms of each stem, as stems."""
    found: dict[str, set[str]] = {}
    for line in _GROUPS.strip().splitlines():
        for word, other in permutations(words(line), 2):
            found.setdefault(word, set()).add(other)
    return {word: tuple(sorted(others - {word})) for word, others in found.items()}
