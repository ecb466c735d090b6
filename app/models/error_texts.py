"""The texts, codes and statuses of a provider's error, whatever its form.

The work is bounded: an error of any size is read up to a number of fields and of characters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from app.common import json_text
from app.common.json_structure import MESSAGE_LIMITS

MAX_TEXT_CHARS = 8_000
"""How much of a text is searched, from both of its ends: errors are short, unless they quote."""
MAX_CHARS = 24_000
"""How much of all texts is searched."""
MAX_JSON_CHARS = 200_000
"""The longest JSON inside a text that is parsed."""
MAX_FIELDS = 500
MAX_DEPTH = 20

_ECHOES = frozenset({"input", "messages", "request", "prompt", "contents", "param", "loc"})
"""Fields in which a provider quotes the request: their text is that of the conversation."""
_CODES = frozenset(
    {"code", "error_code", "errorcode", "status", "status_code", "statuscode"}
    | {"stop_reason", "finish_reason", "finishreason"}
)
_ERRORS = frozenset({"error", "errors"})
_STATUS = re.compile(r"^\W*(?:(?:http|status|error|code|request failed)\b\W*)*([45]\d\d)\b")
_MIN_STATUS, _MAX_STATUS = 400, 599
_MAX_CODE = 10**9


@dataclass(slots=True)
class ErrorTexts:
    """What an error contains: its texts in lower case, its codes, and HTTP statuses.

    `is_marked` says that a field of it is for errors.
    """

    texts: list[str] = field(default_factory=list)
    codes: set[str] = field(default_factory=set)
    statuses: set[int] = field(default_factory=set)
    is_marked: bool = False
    chars: int = 0
    fields: int = 0

    def is_full(self) -> bool:
        """Whether no more is read."""
        return self.chars >= MAX_CHARS or self.fields >= MAX_FIELDS

    def add_text(self, text: str) -> None:
        """Add a text, without its middle if it is long."""
        if len(text) > MAX_TEXT_CHARS:
            half = MAX_TEXT_CHARS // 2
            text = f"{text[:half]}\n{text[-half:]}"
        if match := _STATUS.search(text.lower()[:100]):
            self.statuses.add(int(match[1]))
        self.codes.update(match[1] for match in _QUOTED_CODE.finditer(text))
        if plain := _plain(text):
            self.texts.append(plain)
            self.chars += len(plain)

    def add_code(self, code: object) -> None:
        """Add the value of a field for codes."""
        if isinstance(code, bool) or not isinstance(code, int | str):
            return
        if isinstance(code, int) and abs(code) > _MAX_CODE:
            return
        text = str(code)[:100].strip()
        self.codes.add(text)
        if text.isdecimal() and len(text) == 3 and _MIN_STATUS <= int(text) <= _MAX_STATUS:
            self.statuses.add(int(text))


_QUOTED_CODE = re.compile(r"""['"](?:error_?)?code['"]\s{0,3}:\s{0,3}['"]?(\w{1,40})""")
"""A field for codes in a text that is no JSON, such as the representation of a Python dict."""


def texts_of(error: object) -> ErrorTexts:
    """Return the texts of an error, those of JSON inside a text as well."""
    found = ErrorTexts()
    _collect(error, found, 0)
    return found


def _collect(value: object, found: ErrorTexts, depth: int) -> None:
    if depth > MAX_DEPTH or found.is_full():
        return
    found.fields += 1
    if isinstance(value, str):
        inner, before = _parsed(value)
        found.add_text(value if inner is None else before)
        if inner is not None:
            _collect(inner, found, depth + 1)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            if found.is_full():
                break
            if str(name).lower() in _CODES:
                found.add_code(item)
            if (name in _ERRORS and item) or (name == "type" and item == "error"):
                found.is_marked = True
            if name not in _ECHOES or (name == "param" and isinstance(item, str) and " " in item):
                _collect(item, found, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            if found.is_full():
                break
            _collect(item, found, depth + 1)


def _parsed(text: str) -> tuple[object | None, str]:
    """Return the JSON objects in a text, from its first brace to its last, and what precedes them.

    None where it has none.
    """
    start, end = text.find("{"), text.rfind("}")
    if start < 0 or not start < end < start + MAX_JSON_CHARS:
        return None, ""
    for candidate in (text[start : end + 1], f"[{text[start : end + 1]}]"):
        try:
            return json_text.loads_within(candidate, MESSAGE_LIMITS), text[:start]
        except ValueError:
            continue
    return None, ""


def _plain(text: str) -> str:
    """Return the text in lower case, without quotes and with single spaces."""
    without_quotes = re.sub(r"[`'\"\\‘’“”]", "", text.lower())  # noqa: RUF001 - quotes
    return re.sub(r"\s+", " ", without_quotes).strip()
