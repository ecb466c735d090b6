"""The neutral message: every wire format is parsed to it and rendered from it.

1. A message has one of four roles. The system prompt is no message: it is sections. A system
   message came later in a conversation.
2. A message is an ordered tuple of parts. Providers check their order, so it is kept.
3. A tool message has exactly one result; a wire message with several becomes several messages.
4. Parts do not depend on a wire format. The wire message is stored beside them, unchanged.
5. A payload is made of messages that `clean` returned: these can be sent
   [neutral.no-empty-content].
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from app.common.texts import sendable, sendable_json
from app.formats.base64_media import (
    PDF,
    SAME_TYPES,
    is_web_url,
    sniffed_type,
    split_data_url,
    strict_base64,
)


class Role(StrEnum):
    """The sender of a message."""

    USER = "user"
    SYSTEM = "system"
    ASSISTANT = "assistant"
    TOOL = "tool"


class FormatName(StrEnum):
    """The wire formats that are accepted and rendered."""

    OPENAI_CHAT = "openai_chat"
    OPENAI_RESPONSES = "openai_responses"
    ANTHROPIC = "anthropic"
    GEMINI = "gemini"


OPENAI_FORMATS: Final = (FormatName.OPENAI_CHAT, FormatName.OPENAI_RESPONSES)
"""The two formats of OpenAI: one provider, so file ids are valid in both."""


LOG_FORMAT: Final = FormatName.OPENAI_CHAT
"""The format whose payload items are stored with the messages of the log, and counted."""


@dataclass(frozen=True, slots=True)
class Text:
    """Plain text.

    `block` is the original of a `format` with fields beside the text, such as citations or an
    item's id: it is replayed unchanged to that format, the text alone to every other. Where the
    text is a label for content that a format cannot carry, `stands_for` has its types.
    """

    text: str
    block: Mapping[str, Any] | None = None
    format: FormatName | None = None
    stands_for: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Image:
    """An image: base64 `data` with its media type, or a `url`.

    `block` has the other fields of the original of a `format`, which are sent to it again.
    """

    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    detail: str | None = None
    block: Mapping[str, Any] | None = None
    format: FormatName | None = None


@dataclass(frozen=True, slots=True)
class File:
    """A document: base64 `data`, a `url`, a provider's `file_id` or plain `text`.

    `format` names the wire format of the provider that has `file_id`, and that of `block`, which is
    as with `Image`.
    """

    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    file_id: str | None = None
    text: str | None = None
    name: str | None = None
    format: FormatName | None = None
    block: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call of the assistant; `arguments` is the unchanged JSON text.

    `custom` marks OpenAI's custom tools, whose `arguments` are free text. `block` is the original
    of a `format` with more fields, as with `Text`; of Anthropic and Chat the other fields alone.
    """

    id: str
    name: str
    arguments: str
    custom: bool = False
    block: Mapping[str, Any] | None = None
    format: FormatName | None = None


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Reasoning; a provider's signed or encrypted `block` is replayed whole or left out.

    `format` names the wire format whose provider made the block; None for plain text. In the Chat
    format the block has the fields of the message that carry its reasoning.
    """

    text: str
    block: Mapping[str, Any] | None = None
    format: FormatName | None = None


@dataclass(frozen=True, slots=True)
class Opaque:
    """A part that only one format has; it is replayed to that format alone."""

    block: Mapping[str, Any]
    format: FormatName


Part = Text | Image | File | ToolCall | Reasoning | Opaque


@dataclass(frozen=True, slots=True)
class Message:
    """One user, assistant or tool message in neutral form.

    `tool_call_id` is set for tool messages only; `is_error` marks a failed tool. `block` has the
    fields of the original of a `format` that stand beside its content: they are sent to it again.
    """

    role: Role
    parts: tuple[Part, ...]
    tool_call_id: str | None = None
    name: str | None = None
    is_error: bool = False
    block: Mapping[str, Any] | None = None
    format: FormatName | None = None

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The tool calls, in order."""
        return tuple(part for part in self.parts if isinstance(part, ToolCall))

    @property
    def text(self) -> str:
        """All plain text, joined by newlines."""
        return "\n".join(part.text for part in self.parts if isinstance(part, Text))

    def with_parts(self, parts: Sequence[Part]) -> Message:
        """Return the message with these parts, the same object when it has them already."""
        same = len(parts) == len(self.parts) and all(map(operator.is_, parts, self.parts))
        return self if same else replace(self, parts=tuple(parts))


EMPTY_MESSAGE = "[empty message]"
EMPTY_RESULT = "[no output]"
NO_RESULT = "[no result recorded]"


def clean(message: Message) -> Message:
    """Return the message for use in a payload: sendable, and never empty
    [neutral.no-empty-content].

    Blank text parts are removed. A message without parts gets a placeholder. Media have the type
    that their data show, and data that every provider reads. Ids stay, so that calls and results
    match; rendering replaces them. A clean message is the same object.
    """
    parts = [_clean_part(part) for part in message.parts if not _is_blank(part)]
    if not parts:
        parts.append(placeholder_for(message.role))
    name = sendable(message.name) if message.name is not None else None
    block = sendable_json(message.block)
    message = message.with_parts(parts)
    is_same = name is message.name and block is message.block
    return message if is_same else replace(message, name=name, block=block)


def placeholder_for(role: Role) -> Text:
    """Return the text for a message without parts."""
    return Text(EMPTY_RESULT if role is Role.TOOL else EMPTY_MESSAGE)


def _is_blank(part: Part) -> bool:
    if isinstance(part, Text) or (isinstance(part, Reasoning) and part.block is None):
        return not part.text or part.text.isspace()
    return False


_CLEANED_FIELDS: Mapping[type[Part], tuple[str, ...]] = {
    Text: ("text", "block"),
    ToolCall: ("name", "arguments", "block"),
    Image: ("media_type", "data", "url", "detail", "block"),
    File: ("media_type", "data", "url", "file_id", "text", "name", "block"),
    Reasoning: ("text", "block"),
    Opaque: ("block",),
}


def _clean_part(part: Part) -> Part:
    """Make a part sendable; a reasoning block that would change is dropped.

    Reasoning blocks are replayed byte for byte or left out.
    """
    changes = {}
    for name in _CLEANED_FIELDS[type(part)]:
        value = getattr(part, name)
        cleaned = sendable_json(value)
        if cleaned is not value:
            changes[name] = cleaned
    if isinstance(part, Reasoning) and "block" in changes:
        return Reasoning(sendable(part.text))
    part = replace(part, **changes) if changes else part
    if not isinstance(part, Image | File):
        return part
    data = part.data
    if data is None and sniffed_type(part.url or ""):
        data = part.url  # base64 in the place of a URL
    return part if data is None else _with_data(part, data)


def _with_data(media: Image | File, data: str) -> Part:
    """Return media as every provider reads them: another part where they are not what they claim.

    A data URL gives its data, a web URL in the place of data is a URL, and a label stands for data
    that nobody can read. [formats.media]
    """
    if is_web_url(data):
        return replace(media, data=None, url=data.strip())
    media_type = media.media_type
    if (inline := split_data_url(data)) is not None:
        media_type, data = inline[0] or media_type, inline[1]
    if (strict := strict_base64(data)) is None:
        kind = "image" if isinstance(media, Image) else "file"
        return Text(f"[{kind}: unreadable data]", stands_for=(kind,))
    shown, declared = sniffed_type(strict), (media_type or "").lower()
    if shown is not None and shown != SAME_TYPES.get(declared, declared):
        if isinstance(media, Image) and shown == PDF:
            return File(shown, strict, block=media.block, format=media.format)
        is_image = isinstance(media, Image) or (media_type or "").startswith("image/")
        if not is_image and shown.startswith("image/"):
            return Image(shown, strict, block=media.block, format=media.format)
        media_type = shown if media_type else media_type
    if (media_type, strict, None) == (media.media_type, media.data, media.url):
        return media
    return replace(media, media_type=media_type, data=strict, url=None)
