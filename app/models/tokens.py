"""Token counts of messages, tool definitions and payloads.

1. The text that is sent is counted, part by part with a `CountText`. A message costs the sum over
   its parts.
2. Every wire message costs `MESSAGE_OVERHEAD`, and every call in it `CALL_OVERHEAD`.
3. An Anthropic tool result is a block, a Gemini one a part. In a wire message with others it costs
   its id and its content, without an overhead. So k neutral messages merged into one wire message
   cost the sum of their counts minus (k - 1) * `MESSAGE_OVERHEAD`. Consecutive Responses items of
   the model count as one message.
4. A call's arguments are counted unchanged where a format sends them as text, and as compact JSON
   where it sends an object (Anthropic, Gemini). Gemini sends a result as an object, too: it is
   counted as JSON, with its name.
5. Fields beside the text of an original block (citations, annotations) are sent to its own provider
   only, and are counted there as JSON.
6. Media are counted by `media`, never by their base64 text.
7. Content that a format cannot carry is counted after its `adapt`: for every clean message the
   rendered wire form costs exactly `count_rendered`. In most cases that is the stored count, that
   of the openai_chat item (`counts_as_stored`).
8. Reasoning is counted apart, since most payloads leave it out. It costs the whole block that is
   replayed: text, signature, encrypted data. The signature of a call or of a text is reasoning.

Without a tokenizer, `text_bytes_4`, `text_chars_4` and `text_chars_2_5` estimate one text and serve
as a `CountText`. `bytes_4`, `chars_4` and `chars_2_5` estimate messages: content text by the rule
in the name, everything else as a build counts it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from app.common.texts import sendable
from app.formats import LOG_PROVIDER, PROVIDERS, ToolDefinition, json_fields
from app.formats.base import Original, Provider
from app.formats.message import (
    LOG_FORMAT,
    File,
    FormatName,
    Image,
    Message,
    Opaque,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
)
from app.formats.tools import NO_IDS, hosted_definition, sent_as_object
from app.models import media

CountText = media.CountText
MESSAGE_OVERHEAD: Final = 4
CALL_OVERHEAD: Final = 4
TOOL_OVERHEAD: Final = 8
HOSTED_TOOL_TOKENS: Final = 735
"""What a provider adds for a hosted tool: the largest number that one publishes, for one tool."""


class Tokenizer(Protocol):
    """Counts tokens."""

    def count(self, text: str) -> int:
        """Return the number of tokens of the text; never raises, whatever the text."""
        ...


@dataclass(frozen=True, slots=True)
class MessageTokens:
    """The tokens of one message: those in every payload, and those of its reasoning."""

    visible: int
    reasoning: int

    @property
    def total(self) -> int:
        """Visible tokens and reasoning."""
        return self.visible + self.reasoning


def count_message(
    message: Message, count: CountText, format: FormatName = LOG_FORMAT
) -> MessageTokens:
    """Count a clean message as a format sends it; an append does so once, for the log.

    The count is exact for a message that the format has adapted.
    """
    return MessageTokens(count_visible(message, count, format), count_reasoning(message, count))


def count_visible(message: Message, count: CountText, format: FormatName = LOG_FORMAT) -> int:
    """Count the parts of a clean message that are in every payload of a format."""
    provider = PROVIDERS[format]
    visible = MESSAGE_OVERHEAD + _count_extra_fields(message, provider, count)
    is_object = provider.results_are_objects and message.role is Role.TOOL
    for part in message.parts:
        match part:
            case Reasoning():
                pass
            case Text():
                visible += _count_extra_fields(part, provider, count)
                visible += 0 if is_object else count(part.text)
            case Image():
                visible += media.image_tokens(part, count)
                visible += _count_extra_fields(part, provider, count)
            case File():
                visible += media.file_tokens(part, count)
                visible += _count_extra_fields(part, provider, count)
            case ToolCall():
                arguments = part.arguments
                if provider.sends_objects:
                    arguments = sendable(sent_as_object(arguments))
                visible += CALL_OVERHEAD + sum(
                    map(count, (sendable(part.id), part.name, arguments))
                )
                visible += _count_extra_fields(part, provider, count)
            case Opaque():
                visible += count_json(part.block, count)
    if is_object:
        visible += sum(count(sendable(text)) for text in provider.result_texts(message))
    if message.tool_call_id is not None:
        visible += count(sendable(message.tool_call_id))
    if message.name is not None and message.role is not Role.TOOL:
        visible += count(message.name)
    return visible


def count_reasoning(message: Message, count: CountText) -> int:
    """Count the reasoning of a clean message, and the signatures of its other parts."""
    tokens = 0
    for part in message.parts:
        if not isinstance(part, Reasoning):
            signature = _signature_of(part)  # which belongs to the reasoning before the part
            tokens += count_json(signature, count) if signature else 0
        elif part.block is None:
            tokens += count(part.text)
        else:
            # What a block seals is the reasoning that its text shows or sums up.
            rest, media_tokens, sealed = media.without_data(part.block, count)
            tokens += media_tokens + max(_count_text(rest, count), sealed)
    return tokens


def count_sealed(message: Message, format: FormatName, count: CountText) -> int:
    """Count the sealed text in the visible parts of a message, which its count includes."""
    tokens = 0
    for part in message.parts:
        match part:
            case Opaque():
                tokens += media.without_data(part.block, count).sealed
            case Text() | ToolCall() if part.block is not None:
                tokens += media.without_data(PROVIDERS[format].extra_fields(part), count).sealed
    return tokens


def count_rendered(
    format: FormatName,
    message: Message,
    count: CountText,
    ids: Mapping[str, str] = NO_IDS,
) -> int:
    """Count a clean message in a payload of one format, without reasoning.

    For OpenAI Chat this includes the user message with a tool message's media, for Gemini their
    parts.
    """
    adapted = PROVIDERS[format].adapt(message, ids)
    return count_visible(adapted, count, format) + media_overhead(format, adapted, count)


def counts_as_stored(message: Message, sent: Message, format: FormatName) -> bool:
    """Return whether a clean message costs what its chat item does where a format sends `sent`.

    Reasoning is not compared.
    """
    provider = PROVIDERS[format]
    if LOG_PROVIDER.adapt(message) is not message:
        return False
    if provider.results_are_objects and message.role is Role.TOOL:
        return False
    if not all(_counts_alike(part, provider) for part in (sent, *sent.parts)):
        return False
    if (message.name, message.tool_call_id) != (sent.name, sent.tool_call_id):
        return False
    visible = [part for part in message.parts if not isinstance(part, Reasoning)]
    sent_parts = [part for part in sent.parts if not isinstance(part, Reasoning)]
    return len(visible) == len(sent_parts) and all(map(operator.is_, visible, sent_parts))


def count_replayed(
    stored: int, message: Message, sent: Message, count: CountText, format: FormatName
) -> int:
    """Count the reasoning that is replayed: only that of the provider itself
    [neutral.opaque-family].

    `stored` is the count of all the message's reasoning; `sent` has the reasoning that is replayed,
    and the signatures that this format sends.
    """
    all_parts = signed_parts(message)
    replayed = [part for part in signed_parts(sent) if part.format is format] if stored else []
    if len(replayed) == len(all_parts) and all(map(operator.is_, replayed, all_parts)):
        return stored if replayed else 0
    return count_reasoning(replace(sent, parts=tuple(replayed)), count) if replayed else 0


def count_json(value: Any, count: CountText) -> int:
    """Count a JSON value as it is sent, its media and its sealed text by what they stand for."""
    rest, media_tokens, sealed = media.without_data(value, count)
    return media_tokens + sealed + _count_text(rest, count)


def _count_text(value: Any, count: CountText) -> int:
    return count(sendable(json_fields.compact(value)))


def media_overhead(format: FormatName, message: Message, count: CountText) -> int:
    """Count what is added to a tool message's media that a format sends apart; 0 without media.

    OpenAI Chat has a user message for them [openai-chat.sizes], Gemini parts after the responses.
    The message is adapted; its own count has the media themselves.
    """
    provider = PROVIDERS[format]
    texts = provider.apart_texts(message)
    overhead = MESSAGE_OVERHEAD if texts and provider.sends_apart_message else 0
    return overhead + sum(map(count, texts))


def count_system(text: str, count: CountText) -> int:
    """Count a system prompt sent as one message or one top-level field."""
    return MESSAGE_OVERHEAD + count(text)


def count_payload_messages(
    format: FormatName, messages: Sequence[Mapping[str, Any]], count: CountText
) -> int:
    """Count a payload's messages from scratch, by parsing them.

    Raises `ValidationError` for a message that the format does not have.
    """
    total = 0
    for index, raw in PROVIDERS[format].group_items(messages):
        is_system = raw.get("role") in ("system", "developer")
        wire = {**raw, "role": "user"} if is_system else raw
        parsed = PROVIDERS[format].parse(wire, f"/messages/{index}")
        counted = [count_message(message, count, format).total for message in parsed]
        total += sum(counted) - MESSAGE_OVERHEAD * (len(counted) - 1)
    return total


def estimate_tool_defs_tokens(tools: Iterable[ToolDefinition], count: CountText) -> int:
    """Count tool definitions: name, description and schema.

    A hosted tool costs its definition and `HOSTED_TOOL_TOKENS`.
    """
    tokens = 0
    for tool in tools:
        if tool.hosted is not None:
            tokens += HOSTED_TOOL_TOKENS + count_json(hosted_definition(tool.hosted), count)
        else:
            texts = (sendable(tool.description), sendable(json_fields.compact(tool.parameters)))
            tokens += TOOL_OVERHEAD + sum(map(count, (tool.name, *texts)))
    return tokens


def _counts_alike(part: Message | Part, provider: Provider) -> bool:
    """Return whether a provider sends for a part, or beside all parts, the same text as chat."""
    if isinstance(part, Reasoning | Opaque):
        return True
    text = part.arguments if isinstance(part, ToolCall) and provider.sends_objects else ""
    return sent_as_object(text) == text and not provider.extra_fields(part)


def _count_extra_fields(part: Original, provider: Provider, count: CountText) -> int:
    rest = provider.extra_fields(part) if part.block is not None else None
    return count_json(rest, count) if rest else 0


def _signature_of(part: Part) -> Mapping[str, Any]:
    """Return the fields with the signature of a call or a text, empty without one."""
    if not isinstance(part, Text | ToolCall) or part.block is None or part.format is None:
        return {}
    return PROVIDERS[part.format].signature_of(part)


def signed_parts(message: Message) -> list[Reasoning | Text | ToolCall]:
    """Return the parts that are reasoning or have a signature."""
    return [
        part
        for part in message.parts
        if isinstance(part, Reasoning)
        or (isinstance(part, Text | ToolCall) and bool(_signature_of(part)))
    ]


def text_bytes_4(text: str) -> int:
    """Estimate a text as its UTF-8 bytes / 4, rounded down."""
    return _size_bytes(text) // 4


def text_chars_4(text: str) -> int:
    """Estimate a text as its characters / 4, rounded down."""
    return len(text) // 4


def text_chars_2_5(text: str) -> int:
    """Estimate a text as its characters x 2 / 5, rounded down."""
    return len(text) * 2 // 5


def bytes_4(messages: Iterable[Message]) -> int:
    """Estimate by UTF-8 bytes of content / 4, rounded down per message."""
    return sum(
        sum(map(_size_bytes, _texts(message))) // 4 + _count_apart(message, text_bytes_4)
        for message in messages
    )


def chars_4(messages: Sequence[Message]) -> int:
    """Estimate by all characters of content / 4, rounded down once."""
    text = sum(sum(map(len, _texts(message))) for message in messages) // 4
    return text + sum(_count_apart(message, text_chars_4) for message in messages)


def chars_2_5(messages: Iterable[Message]) -> int:
    """Estimate by characters of content x 2 / 5, rounded down per message."""
    return sum(
        sum(map(len, _texts(message))) * 2 // 5 + _count_apart(message, text_chars_2_5)
        for message in messages
    )


def _count_apart(message: Message, count: CountText) -> int:
    """Count everything but content text: calls, media, reasoning, ids and a name; no overhead."""
    apart = tuple(part for part in message.parts if not isinstance(part, Text))
    return count_message(replace(message, parts=apart), count).total - MESSAGE_OVERHEAD


def _texts(message: Message) -> list[str]:
    return [part.text for part in message.parts if isinstance(part, Text)]


def _size_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
