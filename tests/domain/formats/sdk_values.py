"""Strategies for JSON values that the types of an SDK allow: messages as a client may send them."""

from __future__ import annotations

import collections.abc
import functools
import types
import typing
from os import PathLike
from typing import Any

import typing_extensions
from hypothesis import strategies as st

_ARRAYS = (list, collections.abc.Iterable, collections.abc.Sequence)
_OBJECTS = (dict, collections.abc.Mapping)
_PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mP4DwABAQEAHLCMmQAAAABJRU5ErkJggg=="
)
_TEXTS = {
    "data": [_PNG],
    "image_url": ["https://a.test/a.png", f"data:image/png;base64,{_PNG}"],
    "url": ["https://a.test/a.png"],
    "arguments": ["{}", '{"a": 1}'],
    "name": ["f", "get_thing"],
    "signature": ["c2ln"],
    "encrypted_content": ["c2ln"],
}
"""Texts of fields with a meaning; others have any of `_WORDS`."""
_WORDS = ["", " ", "x", "two words", "漢🙂"]


@functools.cache
def sdk_values(hint: Any, field: str = "") -> st.SearchStrategy[Any]:
    """Return the values of a hint; `field` is the name of the field that has it."""
    origin, arguments = typing_extensions.get_origin(hint), typing_extensions.get_args(hint)
    if isinstance(hint, typing_extensions.TypeAliasType):
        return sdk_values(hint.__value__, field)
    if typing_extensions.is_typeddict(hint):
        return _objects(hint)
    if origin in (typing.Annotated, typing_extensions.Required, typing_extensions.NotRequired):
        return sdk_values(arguments[0], field)
    if origin in (typing.Union, types.UnionType):
        members = filter(_is_json, arguments)
        return st.one_of([_later(m, field) for m in members])
    if origin in (typing.Literal,):
        return st.sampled_from(arguments)
    if origin in _ARRAYS or "SequenceNotStr" in str(origin):
        return st.lists(_later(arguments[0]), max_size=2)
    if origin in _OBJECTS or hint in _OBJECTS:
        return st.sampled_from([{}, {"a": "b"}])
    simple: dict[Any, st.SearchStrategy[Any]] = {
        type(None): st.none(),
        bool: st.booleans(),
        int: st.integers(0, 9),
        float: st.sampled_from([0.5, 1]),
        str: st.sampled_from(_TEXTS.get(field, _WORDS)),
        object: st.sampled_from(["x", {"a": 1}]),
        Any: st.sampled_from(["x", {"a": 1}]),
    }
    if field == "id" or field.endswith("_id"):
        simple[str] = st.sampled_from(["i1", "i2", "i3"])
    return simple[hint]


def _later(hint: Any, field: str = "") -> st.SearchStrategy[Any]:
    """Return the values of a hint that may hold itself."""
    return st.deferred(lambda: sdk_values(hint, field))


def _is_json(hint: Any) -> bool:
    """Return whether a member of a union is one of JSON values: no file, no model of a response."""
    is_file = (typing_extensions.get_origin(hint) or hint) in (bytes, PathLike, typing.IO)
    return not is_file and not hasattr(hint, "model_fields")


def _objects(hint: Any) -> st.SearchStrategy[dict[str, Any]]:
    required: dict[str, st.SearchStrategy[Any]] = {}
    optional: dict[str, st.SearchStrategy[Any]] = {}
    for field, inner in typing_extensions.get_type_hints(hint, include_extras=True).items():
        origin: Any = typing_extensions.get_origin(inner)
        is_required = origin is typing_extensions.Required or field in hint.__required_keys__
        held = required if is_required else optional
        held[field] = _later(inner, field)
    return st.fixed_dictionaries(required, optional=optional)
