"""Reading payloads that nobody has checked: whatever is not what it should be reads as absent.

1. Nothing here raises on any JSON, but for a payload without a list of items.
2. Gemini's fields are read in both spellings, and from `config` as well as from the top.
3. Values are compared as the bytes that would be sent, without marks for a provider's cache.
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
NOTHING: Object = {}
MARKS = frozenset(("cache_control", "prompt_cache_breakpoint"))
"""The fields with which a payload marks where a cached prefix ends; rules compare without them."""

_SYSTEM = ("system", "developer")
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens")


@dataclass(frozen=True, slots=True)
class Shape:
    """A payload taken apart: items, tools and system prompt, each with its pointer."""

    payload: Object
    items: Sequence[Any]
    at: str
    tools: Sequence[Any]
    tools_at: str
    system: Any
    system_at: str

    @property
    def systems(self) -> Iterator[tuple[str, str]]:
        """The texts that speak with authority, each with its pointer."""
        yield from ((self.system_at, text) for text in texts_in(self.system))
        for index, item in enumerate(self.items):
            if (raw := object_of(item)).get("role") in _SYSTEM:
                said = raw.get("content", raw.get("parts"))
                yield from ((f"{self.at}/{index}", text) for text in texts_in(said))

    @property
    def max_output_tokens(self) -> int | None:
        """The output limit under whichever name it has."""
        config = object_of(self.payload.get("config"))
        found = (holder.get(name) for holder in (self.payload, config) for name in _LIMITS)
        return next((limit for limit in found if type(limit) is int), None)


def read(payload: object, format: FormatName, root: str = "") -> Shape:
    """Take a payload apart; raises ValidationError, below `root`, when it has no list of items."""
    if not isinstance(payload, Mapping):
        raise ValidationError.at(root, f"must be an object, not {json_type(payload)}")
    match format:
        case FormatName.OPENAI_CHAT:
            return _shape(payload, "messages", root, None, "")
        case FormatName.ANTHROPIC:
            return _shape(payload, "messages", root, payload.get("system"), "/system")
        case FormatName.OPENAI_RESPONSES:
            said = payload.get("instructions")
            return _shape(payload, "input", root, said, "/instructions")
        case FormatName.GEMINI:
            at, said = _gemini_field(payload, "system_instruction", "systemInstruction")
            return _shape(payload, "contents", root, said, at)
        case _:
            assert_never(format)


def _shape(payload: Object, name: str, root: str, system: Any, system_at: str) -> Shape:
    items = payload.get(name)
    if isinstance(items, str) and name != "messages":
        said = {"parts": [{"text": items}]} if name == "contents" else {"content": items}
        items = [{"role": "user", **said}]
    if not isinstance(items, list | tuple):
        wanted = "must be a list" if name in payload else "is required: the list of items"
        raise ValidationError.at(f"{root}/{name}", wanted)
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
    return value if isinstance(value, Mapping) else NOTHING


def list_of(value: object) -> Sequence[Any]:
    """Return a list as it is, and anything else as an empty one."""
    return value if isinstance(value, list | tuple) else ()


def word(value: object) -> str:
    """Return a string as it is, and anything else as an empty one."""
    return value if isinstance(value, str) else ""


def either(raw: Object, *names: str) -> Any:
    """Return the first of these fields that is set."""
    return next((raw[name] for name in names if raw.get(name) is not None), None)


def is_blank(value: object) -> bool:
    """Whether this is a text with nothing to read in it."""
    return isinstance(value, str) and (not value or value.isspace())


def is_empty(value: object) -> bool:
    """Whether a message's content says nothing, or is no content at all."""
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
    """Whether a message tells of earlier ones, in whichever role it does."""
    said = next(texts_in(object_of(item).get("content")), "")
    return said.startswith((SUMMARY_PREFIX, RETAIN_PREFIX))


def sent(value: object) -> bytes:
    """Return the bytes of a value as it would be sent, without cache marks."""
    return sent_with_marks(unmarked(value))


def sent_with_marks(value: object) -> bytes:
    """Return the bytes of a value as it would be sent."""
    try:
        return json_text.dump_payload(value)
    except ValueError:  # NaN, which is no JSON: sent nowhere, but compared
        return repr(value).encode("utf-8", "surrogatepass")


def unmarked(value: object) -> object:
    """Return a value without cache marks, the same object where it has none."""
    if isinstance(value, Mapping):
        pairs = {key: unmarked(item) for key, item in value.items() if key not in MARKS}
        same = len(pairs) == len(value) and all(pairs[key] is value[key] for key in pairs)
        return value if same else pairs
    if isinstance(value, list | tuple):
        items = [unmarked(item) for item in value]
        return value if all(a is b for a, b in zip(items, value, strict=True)) else items
    return value


def alike(left: object, right: object) -> bool:
    """Whether two values would be sent as the same bytes, cache marks aside."""
    return left is right or sent(left) == sent(right)


def first_difference(shape: Shape, old: Shape, stable: int | None) -> int | None:
    """Return the first of the promised items of `old` that is not in its place any more."""
    promised = old.items if stable is None else old.items[:stable]
    for index, item in enumerate(promised):
        if index >= len(shape.items) or not alike(shape.items[index], item):
            return index
    return None


def blocks_of(item: object) -> list[tuple[str, Object]]:
    """Return the blocks of an Anthropic message with their pointers; a string is one of text."""
    content = object_of(item).get("content")
    if isinstance(content, str):
        return [("/content", {"type": "text", "text": content})]
    return [(f"/content/{i}", object_of(block)) for i, block in enumerate(list_of(content))]
