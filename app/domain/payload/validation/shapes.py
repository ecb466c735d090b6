"""Reads payloads that may be malformed: a value of a wrong type is read as absent.

1. Only a payload without a list of items raises.
2. Gemini's fields are read in both spellings, and from `config` as well as from the top.
3. Values are compared as the bytes that would be sent, without breakpoints for a provider's cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from app.domain.common import json_text
from app.domain.common.errors import ValidationError
from app.domain.common.messages import FormatName
from app.domain.conversations.view import RETAIN_PREFIX, SUMMARY_PREFIX
from app.domain.formats.json_fields import json_type

Object = Mapping[str, Any]
EMPTY_OBJECT: Object = {}
BREAKPOINT_FIELDS = frozenset(("cache_control", "prompt_cache_breakpoint"))
"""The fields of cache breakpoints; rules compare values without them."""

_SYSTEM = ("system", "developer")
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens")


@dataclass(frozen=True, slots=True)
class Shape:
    """The parts of a payload: items, tools and system prompt, each with its pointer."""

    payload: Object
    items: Sequence[Any]
    items_at: str
    tools: Sequence[Any]
    tools_at: str
    system: Any
    system_at: str

    def objects(self) -> Iterator[tuple[str, Object]]:
        """Yield the items with their pointers; one that is no object is an empty one."""
        for index, item in enumerate(self.items):
            yield f"{self.items_at}/{index}", object_of(item)

    def tool_objects(self) -> Iterator[tuple[str, Object]]:
        """Yield the tools with their pointers; one that is no object is an empty one."""
        for index, tool in enumerate(self.tools):
            yield f"{self.tools_at}/{index}", object_of(tool)

    @property
    def max_output_tokens(self) -> int | None:
        """The output limit, under any of its names."""
        config = object_of(self.payload.get("config"))
        limits = (holder.get(name) for holder in (self.payload, config) for name in _LIMITS)
        return next((limit for limit in limits if type(limit) is int), None)


def read(payload: object, format: FormatName, root: str = "") -> Shape:
    """Return the parts of a payload; raises ValidationError, below `root`, without items."""
    if not isinstance(payload, Mapping):
        raise ValidationError.at(root, f"must be an object, not {json_type(payload)}")
    match format:
        case FormatName.OPENAI_CHAT:
            return _shape(payload, "messages", root, None, "")
        case FormatName.ANTHROPIC:
            return _shape(payload, "messages", root, payload.get("system"), "/system")
        case FormatName.OPENAI_RESPONSES:
            return _shape(payload, "input", root, payload.get("instructions"), "/instructions")
        case FormatName.GEMINI:
            at, system = _gemini_field(payload, "system_instruction", "systemInstruction")
            return _shape(payload, "contents", root, system, at)
        case _:
            assert_never(format)


def _shape(payload: Object, name: str, root: str, system: Any, system_at: str) -> Shape:
    items = payload.get(name)
    if isinstance(items, str) and name != "messages":
        content = {"parts": [{"text": items}]} if name == "contents" else {"content": items}
        items = [{"role": "user", **content}]
    if not isinstance(items, list | tuple):
        detail = "must be a list" if name in payload else "is required: the list of items"
        raise ValidationError.at(f"{root}/{name}", detail)
    tools_at, tools = "/tools", payload.get("tools")
    if name == "contents":
        tools_at, tools = _gemini_field(payload, "tools", "tools")
    return Shape(payload, items, f"/{name}", list_of(tools), tools_at, system, system_at)


def _gemini_field(payload: Object, *names: str) -> tuple[str, Any]:
    for at, holder in (("/config", object_of(payload.get("config"))), ("", payload)):
        for name in names:
            if holder.get(name) is not None:
                return f"{at}/{name}", holder[name]
    return f"/{names[0]}", None


def object_of(value: object) -> Object:
    """Return an object as it is, and anything else as an empty one."""
    if type(value) is dict:  # what JSON gives; the general check takes ten times as long
        return value
    return value if isinstance(value, Mapping) else EMPTY_OBJECT


def list_of(value: object) -> Sequence[Any]:
    """Return a list as it is, and anything else as an empty one."""
    return value if isinstance(value, list | tuple) else ()


def string_of(value: object) -> str:
    """Return a string as it is, and anything else as an empty one."""
    return value if isinstance(value, str) else ""


def first_set_field(raw: Object, *names: str) -> Any:
    """Return the first of these fields that is set."""
    return next((raw[name] for name in names if raw.get(name) is not None), None)


def is_blank(value: object) -> bool:
    """Whether this is a text without visible characters."""
    return isinstance(value, str) and (not value or value.isspace())


def is_empty(value: object) -> bool:
    """Whether a message's content is empty or missing."""
    return not isinstance(value, str | list | tuple) or not value or is_blank(value)


def texts_in(value: object) -> Iterator[str]:
    """Yield the texts of a content in any provider's form."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from texts_in(value.get("parts"))
        if isinstance(value.get("text"), str):
            yield value["text"]
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts_in(item)


def is_summary(item: object) -> bool:
    """Whether a message is a summary of earlier ones."""
    text = next(texts_in(object_of(item).get("content")), "")
    return text.startswith((SUMMARY_PREFIX, RETAIN_PREFIX))


def wire_bytes(value: object) -> bytes:
    """Return a value as the JSON bytes of a request, without cache breakpoints."""
    return wire_bytes_with_breakpoints(without_breakpoints(value))


def wire_bytes_with_breakpoints(value: object) -> bytes:
    """Return a value as the JSON bytes of a request."""
    try:
        return json_text.dump_payload(value)
    except ValueError:  # NaN, which is no JSON: sent nowhere, but compared
        return repr(value).encode("utf-8", "surrogatepass")


def without_breakpoints(value: object) -> object:
    """Return a value without cache breakpoints, the same object where it has none."""
    if isinstance(value, Mapping):
        pairs = {
            key: without_breakpoints(item)
            for key, item in value.items()
            if key not in BREAKPOINT_FIELDS
        }
        same = len(pairs) == len(value) and all(pairs[key] is value[key] for key in pairs)
        return value if same else pairs
    if isinstance(value, list | tuple):
        items = [without_breakpoints(item) for item in value]
        return value if all(a is b for a, b in zip(items, value, strict=True)) else items
    return value


def same_on_wire(left: object, right: object) -> bool:
    """Whether two values would be sent as the same bytes, cache breakpoints aside."""
    return left is right or wire_bytes(left) == wire_bytes(right)


def first_difference(items: Sequence[Any], old: Sequence[Any]) -> int | None:
    """Return the index of the first old item that is missing or different, None without any."""
    for index, item in enumerate(old):
        if index >= len(items) or not same_on_wire(items[index], item):
            return index
    return None


def blocks_of(item: object) -> list[tuple[str, Object]]:
    """Return the blocks of an Anthropic message with their paths in it; a string is one block."""
    content = object_of(item).get("content")
    if isinstance(content, str):
        return [("/content", {"type": "text", "text": content})]
    return [(f"/content/{i}", object_of(block)) for i, block in enumerate(list_of(content))]
