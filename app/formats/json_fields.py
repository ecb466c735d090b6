"""Reads fields of JSON objects whose structure a provider's type describes.

A function takes a value and its JSON pointer, and raises `ValidationError` there when the value
has another type.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NoReturn

from app.common.errors import ValidationError
from app.formats.message import FormatName

Raw = Mapping[str, Any]
"""A JSON object as it came."""
Wire = dict[str, Any]
"""A JSON object as it is sent."""
MAX_DEPTH: Final = 100
OBJECT: Final = (dict, Mapping)
"""The types of JSON objects. A check of an abstract type alone takes ten times as long."""
_TYPES: Final = {str: "a string", bool: "a boolean", int | float: "a number", Mapping: "an object"}
_SCALARS: Final = (str, int, float, type(None))
CACHE_MARKS: Final = ("cache_control", "prompt_cache_breakpoint")
"""Fields that mark a cache breakpoint."""


def refuse_role(role: object, pointer: str, accepted: str) -> NoReturn:
    """Raise for a role that a format does not accept."""
    is_old = role == "function"
    hint = ': "function" is deprecated, send "tool" with a tool_call_id' if is_old else ""
    raise ValidationError.at(f"{pointer}/role", f"role must be one of {accepted}{hint}")


class Fields:
    """The fields of a JSON object, and its JSON pointer `at`."""

    __slots__ = ("at", "raw")

    def __init__(self, value: object, pointer: str) -> None:
        if not isinstance(value, OBJECT):
            raise ValidationError.at(pointer, f"must be an object, not {json_type(value)}")
        self.raw: Raw = value
        self.at = pointer

    def error(self, key: str, detail: str) -> ValidationError:
        """Return the error for a field."""
        return ValidationError.at(f"{self.at}/{key}", detail)

    def get(self, key: str) -> Any:
        """Return any value, None where the field is absent."""
        return self.raw.get(key)

    def object(self, key: str) -> Fields:
        """Read a required object."""
        return Fields(self.raw.get(key), f"{self.at}/{key}")

    def items(self, key: str) -> list[tuple[Any, str]]:
        """Read a required array as its items with their JSON pointers."""
        value, at = self.raw.get(key), f"{self.at}/{key}"
        if not isinstance(value, list):
            raise ValidationError.at(at, f"must be a list, not {json_type(value)}")
        return [(item, f"{at}/{index}") for index, item in enumerate(value)]

    def objects(self, key: str) -> Iterator[Fields]:
        """Read a required array of objects."""
        return (Fields(item, at) for item, at in self.items(key))

    def text(self, key: str) -> str:
        """Read a required string, which may be empty."""
        if key not in self.raw:
            raise self.error(key, "is required")
        value = self.raw[key]
        if not isinstance(value, str):
            raise self.error(key, f"must be a string, not {json_type(value)}")
        return value

    def filled_text(self, key: str) -> str:
        """Read a required string that may not be empty."""
        if not (value := self.text(key)):
            raise self.error(key, "must not be empty")
        return value

    def optional_text(self, key: str) -> str | None:
        """Read a string that may be null or absent."""
        return None if self.raw.get(key) is None else self.text(key)

    def expect_type(self, expected: str, default: str | None = None) -> None:
        """Raise for a `type` that is another one."""
        if self.raw.get("type", default) != expected:
            raise self.error("type", f'must be "{expected}"')

    def optional_boolean(self, key: str) -> bool | None:
        """Read a boolean that may be null or absent."""
        value = self.raw.get(key)
        if not isinstance(value, bool | None):
            raise self.error(key, f"must be a boolean, not {json_type(value)}")
        return value

    def json(self, *excluded: str) -> Wire:
        """Return the object without the excluded fields, checked by `json_at`."""
        fields = {key: item for key, item in self.raw.items() if key not in excluded}
        return json_at(fields, self.at)  # type: ignore[no-any-return]

    def beside(self, format: FormatName, *known: str) -> Wire:
        """Return `block` and `format` of a part with the fields beside the known ones, if any.

        Cache breakpoints are no such fields: each payload places them itself.
        """
        block = without_nulls(self.json("type", *CACHE_MARKS, *known))
        return {"block": block, "format": format} if block else {}


def without_nulls(raw: Raw, required: Sequence[str] = ()) -> Wire:
    """Leave out null fields, which SDKs write for absent ones and providers refuse.

    The `required` ones, which other SDK calls leave out where they are null, are there.
    """
    filled = {key: item for key, item in raw.items() if item is not None or key in required}
    return filled | {key: None for key in required if key not in filled}


def json_at(value: object, pointer: str) -> Any:
    """Return any JSON value; raises for more than `MAX_DEPTH` levels, NaN and infinity."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        if not level:
            return value
        if any(isinstance(item, float) and not math.isfinite(item) for item in level):
            raise ValidationError.at(pointer, "numbers must be finite")
        held = (item for item in level if not isinstance(item, _SCALARS))
        values = (item.values() if isinstance(item, OBJECT) else item for item in held)
        level = list(chain.from_iterable(values))
    raise ValidationError.at(pointer, f"is nested deeper than {MAX_DEPTH} levels")


def object_in(value: object, key: str) -> Raw:
    """Return the object in a field, an empty one where there is none or `value` is no object."""
    item = value.get(key) if isinstance(value, OBJECT) else None
    return item if isinstance(item, OBJECT) else {}


def text_in(value: object, key: str) -> str:
    """Return the string in a field, the empty one where there is none or `value` is no object."""
    item = value.get(key) if isinstance(value, OBJECT) else None
    return item if isinstance(item, str) else ""


def json_type(value: object) -> str:
    """Return the JSON type of a value, for error details."""
    if value is None:
        return "null"
    return next((name for kind, name in _TYPES.items() if isinstance(value, kind)), "a list")


def camel(name: str) -> str:
    """Return the name of a field in camel case."""
    return re.sub("_(.)", lambda match: match[1].upper(), name) if "_" in name else name


def compact(value: Any) -> str:
    """Write JSON without spaces and without ASCII escapes, keys in their order."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
