"""The words of a tool's parameters, and of what the values in a query are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

MAX_CHARACTERS = 8_192
"""The indexed length of a tool's description, and of its parameters."""

_VALUES = ("default", "const", "example")
_LISTS = ("enum", "examples")


def parameters_text(schema: Mapping[str, Any]) -> str:
    """Return names, descriptions and values of parameters, nested ones included."""
    texts: list[str] = []
    size = 0
    for text in _texts(schema):
        texts.append(text)
        size += len(text) + 1
        if size > MAX_CHARACTERS:
            break
    return " ".join(texts)[:MAX_CHARACTERS]


def _texts(schema: Mapping[str, Any]) -> Iterator[str]:
    level: list[Mapping[str, Any]] = [schema]
    while level:
        inner: list[Mapping[str, Any]] = []
        for item in level:
            properties = item.get("properties")
            named = properties if isinstance(properties, Mapping) else {}
            for name, value in named.items():
                yield name
                if isinstance(value, Mapping):
                    if isinstance(description := value.get("description"), str):
                        yield description
                    inner.append(value)
            yield from _values(item)
            inner += _variants(item)
        level = inner


def _values(schema: Mapping[str, Any]) -> Iterator[str]:
    """Return the values that a schema names: those allowed, its default, its examples."""
    listed = (schema.get(key) for key in _LISTS)
    several = chain.from_iterable(value for value in listed if isinstance(value, list))
    for value in chain(several, (schema.get(key) for key in _VALUES)):
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            yield str(value)


def _variants(schema: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """Return the alternatives of a schema, and the schema of its items."""
    listed = (schema.get(key) for key in ("anyOf", "oneOf", "allOf"))
    several = chain.from_iterable(value for value in listed if isinstance(value, list))
    items = [schema.get("items"), *several]
    return [item for item in items if isinstance(item, Mapping)]


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
