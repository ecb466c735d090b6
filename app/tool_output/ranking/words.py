"""Words of tool definitions and queries, as the index compares them.

1. Text is normalised (NFKC), case and accents are ignored, and English words are stemmed.
2. Names are split at `_`, `-`, `.`, capitals and digits. A word with inner capitals or digits is
   also kept as a whole, to match both "PowerPoint" and "powerpoint".
3. Scripts without spaces give pairs of adjacent characters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise

from app.common.english import FUNCTION_WORDS, stems

_NO_SPACES = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_RUN = re.compile(f"[{_NO_SPACES}]+|[^\\W_{_NO_SPACES}]+")
_IS_UNSPACED = re.compile(f"[{_NO_SPACES}]")
_PART = re.compile("[A-Z]+(?![a-z])|[A-Z]?[^A-Z0-9]+|[0-9]+")
_ACCENT = re.compile("[\u0300-\u036f]")


def words(text: str) -> list[str]:
    """Return the indexed words of a text, without stop words."""
    found: list[str] = []
    for run in _runs(text):
        found.append(run)
        found += _parts(run)
    return _stemmed(found)


def name_parts(name: str) -> frozenset[str]:
    """Return the words that a name is made of, without those kept as a whole."""
    parts = [word for run in _runs(name) for word in (_parts(run) or [run])]
    return frozenset(_stemmed(parts)) or frozenset(words(name))


def _runs(text: str) -> Iterable[str]:
    if text.isascii():
        return _RUN.findall(text)
    text = unicodedata.normalize("NFKC", text)
    text = unicodedata.normalize("NFC", _ACCENT.sub("", unicodedata.normalize("NFD", text)))
    runs = _RUN.findall(text)
    return chain.from_iterable(_pairs(run) if _IS_UNSPACED.match(run) else (run,) for run in runs)


def _pairs(run: str) -> Iterable[str]:
    return map("".join, pairwise(run)) if len(run) > 1 else (run,)


def _parts(run: str) -> list[str]:
    """Return the parts of a word with inner capitals or digits, none of any other."""
    if run.isalpha() and run[1:].islower():
        return []
    parts = _PART.findall(run)
    return parts if len(parts) > 1 else []


def _stemmed(unstemmed: Sequence[str]) -> list[str]:
    folded = (word.casefold() for word in unstemmed)
    return stems([word for word in folded if word not in FUNCTION_WORDS])
