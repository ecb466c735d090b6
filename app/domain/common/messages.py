"""The neutral message: what every wire format is parsed into and rendered from.

1. A message has one of three roles. System text is never a message; it is a section (A1).
2. A message is an ordered tuple of parts. Order is kept, because providers judge it.
3. A tool message carries exactly one result; a wire message with several becomes several (A5).
4. Parts hold meaning, not wire shapes. The wire original is stored beside them, untouched (A1).
5. `clean` is the one door between the log and a payload: what it returns can be sent (N6).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, TypeVar, assert_never


class Role(StrEnum):
    """Who speaks."""

    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class FormatName(StrEnum):
    """The wire formats accepted and produced (A5, K1)."""

    OPENAI_CHAT = "openai_chat"
    OPENAI_RESPONSES = "openai_responses"
    ANTHROPIC = "anthropic"
    GEMINI = "gemini"


OPENAI_FORMATS: Final = (FormatName.OPENAI_CHAT, FormatName.OPENAI_RESPONSES)
"""The two formats of OpenAI: one provider, so file ids are valid in both."""


def takes_system(format: FormatName) -> bool:
    """Return whether messages of a format may have the system role, whatever the model."""
    return format in OPENAI_FORMATS


@dataclass(frozen=True, slots=True)
class Text:
    """Plain text.

    `block` is the original of a `format` that says more than its text, such as citations or an
    item's id; that format gets it back as it was, every other the text (A5). `stands_for` names
    the types of content that the text is a label of, where a format cannot carry the content.
    """

    text: str
    block: Mapping[str, Any] | None = None
    format: FormatName | None = None
    stands_for: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Image:
    """An image, by base64 `data` with its media type or by `url`."""

    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class File:
    """A document, by base64 `data`, `url`, provider `file_id` or plain `text`.

    `format` names the wire format whose provider holds `file_id`; no other knows it.
    """

    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    file_id: str | None = None
    text: str | None = None
    name: str | None = None
    format: FormatName | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the assistant asks for; `arguments` is JSON text exactly as it came.

    `custom` marks OpenAI's free-text custom tools, whose `arguments` are not JSON. `block` is the
    original of a `format` that says more, as with `Text`.
    """

    id: str
    name: str
    arguments: str
    custom: bool = False
    block: Mapping[str, Any] | None = None
    format: FormatName | None = None


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Thinking; a provider's signed or encrypted `block` goes back whole or not at all (K3).

    `format` names the wire format whose provider made the block; None for plain text. In the Chat
    format the block holds the fields of the message that carry its reasoning, as they came.
    """

    text: str
    block: Mapping[str, Any] | None = None
    format: FormatName | None = None


@dataclass(frozen=True, slots=True)
class Opaque:
    """A part only one format understands; replayed to that format alone (N12)."""

    block: Mapping[str, Any]
    format: FormatName


Part = Text | Image | File | ToolCall | Reasoning | Opaque
_AnyPart = TypeVar("_AnyPart", Text, Image, File, ToolCall, Reasoning)
_Original = TypeVar("_Original", Text, ToolCall)


@dataclass(frozen=True, slots=True)
class Message:
    """One user, assistant or tool message in neutral form.

    `tool_call_id` is set exactly for tool messages; `is_error` marks a failed tool.
    """

    role: Role
    parts: tuple[Part, ...]
    tool_call_id: str | None = None
    name: str | None = None
    is_error: bool = False

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The tool calls, in order."""
        return tuple(part for part in self.parts if isinstance(part, ToolCall))

    @property
    def text(self) -> str:
        """All plain text, parts joined by newlines."""
        return "\n".join(part.text for part in self.parts if isinstance(part, Text))


EMPTY_MESSAGE = "[empty message]"
EMPTY_RESULT = "[no output]"
ONLY_REASONING = "[reasoning]"
"""Stands where a message holds nothing besides its reasoning."""
NO_RESULT = "[no result recorded]"

_UNSENDABLE = re.compile("[\x00\ud800-\udfff]")
_SLICE = 1 << 18  # characters at a time: one pass over 10 MB would hold the interpreter too long


def is_sendable(text: str) -> bool:
    """Tell whether a text holds neither NUL nor a lone surrogate (decision 3)."""
    if "\x00" in text:
        return False
    return text.isascii() or all(map(_is_encodable, _slices(text)))


def sendable(text: str) -> str:
    """Replace what no provider accepts, NUL and lone surrogates, by U+FFFD (decision 3).

    A text with nothing to replace is returned as the same object.
    """
    if is_sendable(text):
        return text
    return "".join(_UNSENDABLE.sub("\ufffd", piece) for piece in _slices(text))


def sendable_json(value: Any) -> Any:
    """Make every string inside a JSON value sendable; the same object when all of them are."""
    match value:
        case str():
            return sendable(value)
        case Mapping():
            pairs = {sendable(key): sendable_json(item) for key, item in value.items()}
            same = all(key in value and pairs[key] is value[key] for key in pairs)
            return value if same and len(pairs) == len(value) else pairs
        case list() | tuple():
            items = [sendable_json(item) for item in value]
            same = all(new is old for new, old in zip(items, value, strict=True))
            return value if same else items
        case _:
            return value


def clean(message: Message) -> Message:
    """Return the message as it may stand in a payload: sendable, and never empty (N6).

    Blank text parts are dropped; a message left with nothing to show gets a placeholder.
    Ids stay as they are, so that calls and results keep matching: renderers rewrite them.
    A message that is clean already is returned as the same object.
    """
    parts = [_clean_part(part) for part in message.parts if not _is_blank(part)]
    if all(isinstance(part, Reasoning) for part in parts):
        parts.append(placeholder_for(message.role, parts))
    name = sendable(message.name) if message.name is not None else None
    same_parts = len(parts) == len(message.parts) and all(map(_same, parts, message.parts))
    if same_parts and name is message.name:
        return message
    return replace(message, parts=tuple(parts), name=name)


def placeholder_for(role: Role, parts: Sequence[Part]) -> Text:
    """Return the text for a message whose parts, all of them reasoning, show nothing (N6)."""
    if role is Role.TOOL:
        return Text(EMPTY_RESULT)
    return Text(ONLY_REASONING if parts else EMPTY_MESSAGE)


def _slices(text: str) -> Iterator[str]:
    return (text[start : start + _SLICE] for start in range(0, len(text), _SLICE))


def _is_encodable(piece: str) -> bool:
    try:
        piece.encode()
    except UnicodeEncodeError:
        return False
    return True


def _same(new: object, old: object) -> bool:
    return new is old


def _is_blank(part: Part) -> bool:
    return isinstance(part, Text) and (not part.text or part.text.isspace())


def _clean_part(part: Part) -> Part:
    match part:
        case Text():
            return _clean_fields(_clean_block(part), "text")
        case ToolCall():
            return _clean_fields(_clean_block(part), "name", "arguments")
        case Image():
            return _clean_fields(part, "media_type", "data", "url", "detail")
        case File():
            return _clean_fields(part, "media_type", "data", "url", "file_id", "text", "name")
        case Opaque():
            block = sendable_json(part.block)
            return part if block is part.block else replace(part, block=block)
        case Reasoning():
            return _clean_reasoning(part)
        case _:
            assert_never(part)


def _clean_block(part: _Original) -> _Original:
    if part.block is None:
        return part
    block = sendable_json(part.block)
    return part if block is part.block else replace(part, block=block)


def _clean_fields(part: _AnyPart, *names: str) -> _AnyPart:
    values = {name: getattr(part, name) for name in names}
    changes: dict[str, Any] = {
        name: sendable(value)
        for name, value in values.items()
        if value is not None and not is_sendable(value)
    }
    return replace(part, **changes) if changes else part


def _clean_reasoning(part: Reasoning) -> Reasoning:
    """Signed blocks go back byte-exact or not at all (N12), so a changed one loses its block."""
    if part.block is not None and sendable_json(part.block) is not part.block:
        return Reasoning(sendable(part.text))
    return _clean_fields(part, "text")
