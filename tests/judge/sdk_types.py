"""Strict checks of JSON values against the types of the provider SDKs.

The request types of the OpenAI and Anthropic SDKs are TypedDicts. pydantic's TypeAdapter is lenient
with them: it reads an `Iterable` lazily, ignores unknown keys, and accepts a response model where
JSON needs a dictionary. So their hints are compiled here to a closed core schema:

1. An `Iterable` or a `Sequence` is a JSON array, and all its items are checked.
2. An unknown key is an error.
3. There is no coercion: "1" is no number, and `True` is no integer.
4. A TypedDict without keys is any object.
5. Members of a union that no JSON value can have (files, paths, response models) do not count.

The types of google-genai are pydantic models that forbid unknown keys. They read JSON strictly.
"""

from __future__ import annotations

import collections.abc
import functools
import json
import types
import typing
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

import typing_extensions
from pydantic import BaseModel, ValidationError
from pydantic_core import CoreSchema, ErrorDetails, SchemaValidator, core_schema

from tests.judge.findings import Finding

MAX_SHOWN = 4
"""Findings that one value makes at most: a union of types repeats one mistake many times."""

_ARRAYS = (list, collections.abc.Iterable, collections.abc.Sequence)
_UNIONS = (typing.Union, types.UnionType)
_NOT_JSON = (bytes, PathLike, typing.IO)


def check_type(value: object, hint: Any, place: str = "$") -> list[Finding]:
    """Return how a JSON value differs from a hint of the OpenAI or Anthropic SDK."""
    try:
        _validator(hint).validate_python(value)
    except ValidationError as invalid:
        return _findings(invalid.errors(include_url=False, include_input=False), place)
    return []


def check_model(value: object, model: type[BaseModel], place: str = "$") -> list[Finding]:
    """Return how a JSON value differs from a model of google-genai."""
    try:
        with warnings.catch_warnings(action="error", category=UserWarning):
            model.model_validate_json(json.dumps(value), strict=True)
    except UserWarning as unknown:  # google-genai accepts an unknown member of an enumeration
        return [Finding("sdk-type", place, str(unknown))]
    except ValidationError as invalid:
        return _findings(invalid.errors(include_url=False, include_input=False), place)
    except (AttributeError, TypeError, ValueError) as unreadable:  # in a validator of the SDK
        return [Finding("sdk-type", place, str(unreadable))]
    return []


def check_json(value: object, place: str = "$") -> list[Finding]:
    """Return what keeps a value from being sent as UTF-8 JSON."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as unreadable:
        return [Finding("not-json", place, str(unreadable))]
    try:
        text.encode()
    except UnicodeEncodeError:
        return [Finding("lone-surrogate", place, "a text holds half of a surrogate pair")]
    if "\\u0000" in text.replace("\\\\", ""):
        return [Finding("nul-character", place, "a text holds U+0000", "warning")]
    return []


# --- compiling hints ------------------------------------------------------------------------


@dataclass(slots=True)
class _Compiler:
    """Compiles one hint; a TypedDict is compiled once and referred to, since some are recursive."""

    definitions: dict[str, CoreSchema] = field(default_factory=dict)
    started: set[str] = field(default_factory=set)

    def schema(self, hint: Any) -> CoreSchema:
        """Return the schema of a hint; raises TypeError for a hint that is not understood."""
        hint = _unwrapped(hint)[0]
        origin, arguments = typing_extensions.get_origin(hint), typing_extensions.get_args(hint)
        if hint in (Any, object):
            return core_schema.any_schema()
        if hint in (None, type(None)):
            return core_schema.none_schema()
        if simple := _simple(hint):
            return simple
        if origin in _UNIONS:
            members: list[CoreSchema | tuple[CoreSchema, str]] = [
                self.schema(member) for member in _members(arguments)
            ]
            return core_schema.union_schema(members)
        if origin in (typing.Literal, typing_extensions.Literal):
            return core_schema.literal_schema(list(arguments))
        if typing_extensions.is_typeddict(hint):
            return self._typed_dict(hint)
        if origin in (dict, collections.abc.Mapping) or hint is dict:
            keys, values = arguments or (str, Any)
            return core_schema.dict_schema(self.schema(keys), self.schema(values), strict=True)
        if _is_array(hint):
            return core_schema.list_schema(self.schema(arguments[0]), strict=True)
        raise TypeError(f"{hint!r} is a hint of an unknown kind")

    def _typed_dict(self, kind: Any) -> CoreSchema:
        name = f"{kind.__module__}.{kind.__qualname__}"
        if name not in self.started:
            self.started.add(name)
            fields = {}
            for key, annotation in typing_extensions.get_type_hints(
                kind, include_extras=True
            ).items():
                hint, marks = _unwrapped(annotation)
                required = typing_extensions.Required in marks or (
                    key in kind.__required_keys__ and typing_extensions.NotRequired not in marks
                )
                fields[key] = core_schema.typed_dict_field(self.schema(hint), required=required)
            self.definitions[name] = core_schema.typed_dict_schema(
                fields,
                cls_name=kind.__name__,
                strict=True,
                extra_behavior="allow" if _is_open(kind) else "forbid",
                ref=name,
            )
        return core_schema.definition_reference_schema(name)


@functools.lru_cache(maxsize=256)
def _compiled(hint: Hashable) -> SchemaValidator:
    compiler = _Compiler()
    schema = compiler.schema(hint)
    return SchemaValidator(
        core_schema.definitions_schema(schema, list(compiler.definitions.values()))
    )


def _validator(hint: Any) -> SchemaValidator:
    return _compiled(hint)


def _unwrapped(hint: Any) -> tuple[Any, set[Any]]:
    """Return a hint without annotations and aliases, and the markers that were around it."""
    marks: set[Any] = set()
    while True:
        origin = typing_extensions.get_origin(hint)
        if origin is typing_extensions.Annotated:
            hint = typing_extensions.get_args(hint)[0]
        elif origin in (typing_extensions.Required, typing_extensions.NotRequired):
            marks.add(origin)
            hint = typing_extensions.get_args(hint)[0]
        elif isinstance(hint, typing_extensions.TypeAliasType):
            hint = hint.__value__
        else:
            return hint, marks


def _simple(hint: Any) -> CoreSchema | None:
    if isinstance(hint, type) and issubclass(hint, str):
        return core_schema.str_schema(strict=True)
    if hint is bool:
        return core_schema.bool_schema(strict=True)
    if hint is int:
        return core_schema.int_schema(strict=True)
    return core_schema.float_schema(strict=True) if hint is float else None


def _members(hints: Sequence[Any]) -> list[Any]:
    """Return the members of a union that say most: a plain dictionary gives way to an open one."""
    found = [hint for hint in hints if _is_json(hint)]
    if any(_is_open(hint) for hint in found):
        return [hint for hint in found if typing_extensions.get_origin(hint) is not dict]
    return found


def _is_json(hint: Any) -> bool:
    """Whether a JSON value can be of this member of a union."""
    hint = _unwrapped(hint)[0]
    kind = typing_extensions.get_origin(hint) or hint
    if kind in _UNIONS:
        return any(map(_is_json, typing_extensions.get_args(hint)))
    if kind in _NOT_JSON:
        return False
    return not (isinstance(kind, type) and issubclass(kind, BaseModel))


def _is_array(hint: Any) -> bool:
    origin = typing_extensions.get_origin(hint) or hint
    return origin in _ARRAYS or getattr(origin, "__name__", "") == "SequenceNotStr"


def _is_open(kind: Any) -> bool:
    config = getattr(kind, "__pydantic_config__", None) or {}
    is_any = typing_extensions.is_typeddict(kind) and not kind.__annotations__
    return is_any or bool(config.get("extra") == "allow")


# --- the errors of a union ------------------------------------------------------------------


def _findings(errors: Sequence[ErrorDetails], place: str) -> list[Finding]:
    """Return the errors of the union members that the value's `type` or `role` names."""
    others = {
        error["loc"][:-1]
        for error in errors
        if error["type"] == "literal_error" and error["loc"][-1:] in (("type",), ("role",))
    }
    named = [
        error
        for error in errors
        if not any(error["loc"][: len(other)] == other for other in others)
    ]
    if not named:
        known = sorted({error["msg"] for error in errors if error["type"] == "literal_error"})
        return [Finding("sdk-type", place, f"no type of the SDK fits: {' '.join(known)[:300]}")]
    named.sort(key=lambda error: -len(error["loc"]))
    return [
        Finding("sdk-type", f"{place}{_path(error['loc'])}", error["msg"])
        for error in named[:MAX_SHOWN]
    ]


def _path(location: Sequence[int | str]) -> str:
    """Return where an error stands, without the labels of arrays that pydantic adds."""
    steps = (str(step) for step in location)
    return "".join(f".{step}" for step in steps if not step.startswith("list["))
