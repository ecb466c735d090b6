"""The neutral message: every wire format is parsed to it and rendered from it.

1. A message has one of four roles. The system prompt is no message: it is sections. A system
   message came later in a conversation.
2. A message is an ordered tuple of parts. Providers check their order, so it is kept.
3. A tool message has exactly one result; a wire message with several becomes several messages.
4. Parts do not depend on a wire format. The wire message is stored beside them, unchanged.
5. A payload is made of messages that `media.clean` returned: these can be sent
   [neutral.no-empty-content].
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final


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
    INTERACTIONS = "gemini_interactions"


OPENAI_FORMATS: Final = (FormatName.OPENAI_CHAT, FormatName.OPENAI_RESPONSES)
"""The two formats of OpenAI: one provider, so file ids are valid in both."""
GOOGLE_FORMATS: Final = (FormatName.GEMINI, FormatName.INTERACTIONS)
"""The two formats of Google, likewise."""


LOG_FORMAT: Final = FormatName.OPENAI_CHAT
"""The format whose payload items are stored with the messages of the log, and counted."""


@dataclass(frozen=True, slots=True)
class Text:
    """Plain text.

    `block` is the original of a `format` with fields beside the text, such as citations or an
    item's id: it is replayed unchanged to that format, the text alone to every other.
    """

    text: str
    block: Mapping[str, Any] | None = None
    format: FormatName | None = None


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


def placeholder_for(role: Role) -> Text:
    """Return the text for a message without parts."""
    return Text(EMPTY_RESULT if role is Role.TOOL else EMPTY_MESSAGE)
