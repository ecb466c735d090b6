"""Builds a settings dataclass from parsed JSON, by the types of its fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from app.common.errors import ValidationError

_PYTHON_TYPES: Mapping[Any, Any] = {bool: bool, int: int, str: str, float: (int, float)}


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def build(kind: type, values: Mapping[str, Any], pointer: str) -> object:
    """Return a dataclass with these values; fields without one have their default.

    Raises ValidationError at the JSON pointer of an unknown field or a wrong value.
    """
    names = {item.name for item in fields(kind)}
    arguments = {}
    for key, value in values.items():
        field_pointer = f"{pointer}/{key}"
        if key not in names:
            raise ValidationError.at(field_pointer, f"Unknown policy setting {key!r}")
        hint = _hints(kind)[key]
        if not is_dataclass(hint):
            arguments[key] = _leaf(hint, value, field_pointer)
        elif isinstance(value, Mapping):
            arguments[key] = build(cast(type, hint), value, field_pointer)
        else:
            raise ValidationError.at(field_pointer, "An object is needed here")
    return kind(**arguments)


def _leaf(hint: Any, value: Any, pointer: str) -> Any:
    if hint in _PYTHON_TYPES:
        is_bool = isinstance(value, bool)
        if not isinstance(value, _PYTHON_TYPES[hint]) or (is_bool and hint is not bool):
            raise ValidationError.at(pointer, f"{value!r} has the wrong type")
        return value
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        try:
            return hint(value)
        except ValueError:
            raise _not_listed(value, list(hint), pointer) from None
    if get_origin(hint) is tuple:
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise ValidationError.at(pointer, "A list of strings is needed here")
        kind = get_args(hint)[0]
        return tuple(_leaf(kind, item, f"{pointer}/{i}") for i, item in enumerate(value))
    return _union(get_args(hint), value, pointer)


def _union(hints: tuple[Any, ...], value: Any, pointer: str) -> Any:
    """Read a value that may be one of some literals in place of another type."""
    literals = [text for hint in hints if get_origin(hint) is Literal for text in get_args(hint)]
    if literals and isinstance(value, str):
        if value not in literals:
            raise _not_listed(value, literals, pointer)
        return value
    (kind,) = (hint for hint in hints if hint is not NoneType and get_origin(hint) is not Literal)
    return _leaf(kind, value, pointer)


def _not_listed(value: Any, allowed: list[Any], pointer: str) -> ValidationError:
    return ValidationError.at(pointer, f"{value!r} is none of {', '.join(allowed)}")
