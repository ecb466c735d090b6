"""Sample values of the types of an SDK: each optional field is set in one, at every depth."""

from __future__ import annotations

import collections.abc
import enum
import types
import typing
from collections.abc import Iterator
from typing import Any

import typing_extensions
from pydantic import BaseModel

Sample = tuple[str, Any]
"""The fields that a value sets beyond the required ones, and the value."""

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mP4DwABAQEAHLCMmQAAAABJRU5ErkJggg=="
PDF = "JVBERi0xLjQ="
_DATA = {"PDF": PDF, "Document": PDF, "Audio": "AAAA", "Video": "AAAA"}
_TEXTS = {
    "data": PNG,
    "image_url": "https://a.test/a.png",
    "url": "https://a.test/a.png",
    "file_url": "https://a.test/a.pdf",
    "fileUri": "https://a.test/a.png",
    "uri": "https://a.test/a.png",
    "mimeType": "image/png",
    "signature": "c2ln",
    "media_type": "image/png",
    "arguments": '{"a":1}',
    "name": "read_file",
    "thoughtSignature": "c2ln",
    "file_data": f"data:image/png;base64,{PNG}",
}
_ARRAYS = (list, collections.abc.Iterable, collections.abc.Sequence)
_WRAPPERS: tuple[Any, ...] = (
    typing.Annotated,
    typing_extensions.Required,
    typing_extensions.NotRequired,
)
_CACHE_MARKS = ("cache_control", "prompt_cache_breakpoint")
_ONE_OF = {
    "Part": (
        *("text", "inlineData", "fileData", "functionCall", "functionResponse"),
        *("executableCode", "codeExecutionResult", "toolCall", "toolResponse"),
    ),
    "FileFile": ("file_data", "file_id"),
    **dict.fromkeys(
        (f"{kind}ContentParam" for kind in ("Image", "Document", "Audio", "Video")), ("uri", "data")
    ),
    "ResponseInputFileParam": ("file_data", "file_id", "file_url"),
    "ResponseInputFileContentParam": ("file_data", "file_id", "file_url"),
    "ResponseInputImageParam": ("image_url", "file_id"),
    "ResponseInputImageContentParam": ("image_url", "file_id"),
    "ResponseComputerToolCallOutputScreenshotParam": ("image_url", "file_id"),
}
"""Fields of which a value has exactly one."""
_NEEDED = {
    "FunctionCall": ("name",),
    "FunctionResponse": ("name", "response"),
    "Content": ("role", "parts"),
    "Blob": ("data", "mimeType"),
    "FileData": ("fileUri",),
    "FunctionResponseBlob": ("data", "mimeType"),
    "FunctionResponseFileData": ("fileUri",),
    "FunctionResponsePart": ("inlineData",),
    "FunctionCallOutput": ("call_id",),
}
"""Fields that a value needs, whatever its type says."""
_ID_PREFIXES = {"message": "msg", "function_call": "fc", "custom_tool_call": "ctc"}


def samples(hint: Any, field: str = "", inside: tuple[str, ...] = ()) -> Iterator[Sample]:
    """Yield a smallest value of each type in a hint, and one more for every optional field."""
    hint = _bare(hint)
    origin, arguments = typing_extensions.get_origin(hint), typing_extensions.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        members = [member for member in arguments if member is not type(None)]
        deep = [member for member in members if _is_deep(_bare(member))]
        for member in members if len(deep) == len(members) else [*members[:1], *deep]:
            yield from samples(member, field, inside)
    elif _is_object(hint):
        if inside.count(hint.__name__) == 0:
            yield from _of_object(hint, (*inside, hint.__name__))
    elif _is_array(hint):
        for label, value in samples(arguments[0] if arguments else Any, field, inside):
            yield label, [value]
    elif origin in (typing.Literal, typing_extensions.Literal):
        yield "", _TEXTS[field] if _TEXTS.get(field) in arguments else arguments[0]
    elif isinstance(hint, type) and issubclass(hint, enum.Enum):
        yield "", list(hint)[-1].value
    else:
        data = (
            data for kind, data in _DATA.items() if field == "data" and kind in str(inside[-1:])
        )
        yield "", next(data, None) or _plain(hint, field)


def _of_object(hint: Any, inside: tuple[str, ...]) -> Iterator[Sample]:
    name, fields, required = hint.__name__, _fields(hint), _required(hint)
    one_of = [key for key in _ONE_OF.get(name, ()) if key in fields]
    for held in one_of or [""]:
        needed = {key: list(samples(fields[key], key, inside)) for key in required | {held} - {""}}
        if not all(needed.values()):
            continue
        smallest = {key: found[0][1] for key, found in needed.items()}
        item_id = f"{_ID_PREFIXES.get(str(smallest.get('type')), 'x')}_1"
        smallest |= {"id": item_id} if "id" in smallest else {}
        yield f"{name}.{held}" if held else "", smallest
        for key, found in needed.items():
            for label, value in found[1:]:
                yield f"{name}.{label or key}", {**smallest, key: value}
        for key in fields:
            if key in needed or key in one_of or key in _CACHE_MARKS:
                continue
            for label, value in samples(fields[key], key, inside):
                own = f"{held}+{key}" if held else key
                set_value = item_id if key == "id" else value
                yield f"{name}.{own}" + (f".{label}" if label else ""), {**smallest, key: set_value}


def _fields(hint: Any) -> dict[str, Any]:
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return {field.alias or key: field.annotation for key, field in hint.model_fields.items()}
    return typing_extensions.get_type_hints(hint, include_extras=True)


def _required(hint: Any) -> set[str]:
    needed = set(_NEEDED.get(hint.__name__, ())) & set(_fields(hint))
    fields = _fields(hint)
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return needed or (set() if hint.__name__ in _ONE_OF else set(list(fields)[:1]))
    marks: Any = typing_extensions.get_origin
    marked = {key for key in fields if marks(fields[key]) is typing_extensions.Required}
    optional = {key for key in fields if marks(fields[key]) is typing_extensions.NotRequired}
    return needed | marked | set(hint.__required_keys__) - optional


def _bare(hint: Any) -> Any:
    while True:
        if isinstance(hint, typing_extensions.TypeAliasType):
            hint = hint.__value__
        elif typing_extensions.get_origin(hint) in _WRAPPERS:
            hint = typing_extensions.get_args(hint)[0]
        else:
            return hint


def _is_object(hint: Any) -> bool:
    return typing_extensions.is_typeddict(hint) or (
        isinstance(hint, type)
        and issubclass(hint, BaseModel)
        and hint.__module__.startswith("google")
    )


def _is_array(hint: Any) -> bool:
    origin = typing_extensions.get_origin(hint) or hint
    return origin in _ARRAYS or "SequenceNotStr" in str(origin)


def _is_deep(hint: Any) -> bool:
    is_union = typing_extensions.get_origin(hint) in (typing.Union, types.UnionType)
    return is_union or _is_object(hint) or _is_array(hint)


def _plain(hint: Any, field: str) -> Any:
    if hint in (str, bytes):
        return _TEXTS.get(field, "text")
    plain: dict[Any, Any] = {bool: True, int: 1, float: 0.5, object: {"a": 1}, Any: {"a": 1}}
    return plain.get(hint, {"a": 1})
