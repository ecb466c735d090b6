"""How many tokens a message, a tool definition or a whole payload costs (J1, J2, C5).

1. What is counted is the text that is sent. Text is counted part by part with a `CountText`; the
   sum over parts is the message's cost.
2. Every wire message costs `MESSAGE_OVERHEAD`, and every call in it `CALL_OVERHEAD`.
3. An Anthropic tool result is a block, a Gemini one a part: inside a wire message with others it
   costs its id and its content and no overhead of its own. So k neutral messages merged into one
   wire message cost the sum of their counts minus (k - 1) * `MESSAGE_OVERHEAD`. Neighbouring
   Responses items of the model count as one message, because that is how they are read.
4. A call's arguments are counted as they came where a format sends them as text, and as compact
   JSON where it sends an object (Anthropic, Gemini). Gemini sends a result as an object, too: it
   is counted as JSON, with its name.
5. What a provider's original says beside its text (citations, annotations) goes back to that
   provider alone, and is counted there as JSON.
6. Media cost what `media` says of them, never what their base64 text would cost.
7. What a format cannot say as it stands is counted after its `adapt`: for every clean message
   the rendered wire form costs exactly `count_rendered`. `counts_alike` tells where that equals
   the stored count, that of its openai_chat item, which is the ordinary case.
8. Reasoning is counted apart, since most payloads leave it out. It costs the whole block that goes
   back: its text, its signature, what is sealed. The signature of a call or of a text is reasoning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, assert_never

from app.domain.common.messages import (
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
    sendable,
)
from app.domain.formats import (
    FORMATS,
    ToolDefinition,
    adapting,
    gemini,
    group_items,
    json_fields,
    openai_chat,
)
from app.domain.formats.extra_fields import extra_fields
from app.domain.formats.tool_calls import NO_IDS, sent_as_object
from app.domain.models import media

CountText = media.CountText

MESSAGE_OVERHEAD: Final = 4
CALL_OVERHEAD: Final = 4
TOOL_OVERHEAD: Final = 8

_OBJECT_ARGUMENTS = (FormatName.ANTHROPIC, FormatName.GEMINI)


@dataclass(frozen=True, slots=True)
class MessageTokens:
    """The tokens of one message: what every payload shows, and its reasoning."""

    visible: int
    reasoning: int

    @property
    def total(self) -> int:
        """Visible tokens and reasoning together."""
        return self.visible + self.reasoning


def count_message(
    message: Message, count: CountText, format: FormatName = FormatName.OPENAI_CHAT
) -> MessageTokens:
    """Count a clean message as a format sends it; the append does so once, for openai_chat (J1).

    It is exact for a message that the format has adapted.
    """
    return MessageTokens(count_visible(message, count, format), count_reasoning(message, count))


def count_visible(
    message: Message, count: CountText, format: FormatName = FormatName.OPENAI_CHAT
) -> int:
    """Count what every payload of a format shows of a clean message."""
    visible = MESSAGE_OVERHEAD
    is_object = format is FormatName.GEMINI and message.role is Role.TOOL
    for part in message.parts:
        match part:
            case Reasoning():
                pass
            case Text():
                visible += _count_beside(part, format, count)
                visible += 0 if is_object else count(part.text)
            case _:
                visible += _count_part(part, format, count)
    if is_object:
        visible += count(sendable(gemini.response_json(message)))
        visible += count(gemini.response_name(message))
    if message.tool_call_id is not None:
        visible += count(sendable(message.tool_call_id))
    if message.name is not None and message.role is not Role.TOOL:
        visible += count(message.name)
    return visible


def count_reasoning(message: Message, count: CountText) -> int:
    """Count the reasoning of a clean message, and the signatures that its other parts carry."""
    return sum(
        _count_reasoning(part, count)
        if isinstance(part, Reasoning)
        else _count_signature(part, count)
        for part in message.parts
    )


def count_rendered(
    format: FormatName,
    message: Message,
    count: CountText,
    ids: Mapping[str, str] = NO_IDS,
) -> int:
    """Count what a clean message costs in a payload of one format, without reasoning.

    For OpenAI Chat this includes the user message that carries a tool message's media, for Gemini
    the parts that do.
    """
    adapted = FORMATS[format].adapt(message, ids)
    visible = count_message(adapted, count, format).visible
    match format:
        case FormatName.OPENAI_CHAT:
            return visible + media_message_overhead(adapted, count)
        case FormatName.GEMINI:
            return visible + media_parts_overhead(adapted, count)
        case FormatName.OPENAI_RESPONSES | FormatName.ANTHROPIC:
            return visible
        case _:
            assert_never(format)


def counts_alike(message: Message, shown: Message, format: FormatName) -> bool:
    """Tell whether what a format shows of a clean message costs what its chat item does.

    Reasoning is left aside.
    """
    if openai_chat.adapt(message) is not message:
        return False
    if format is FormatName.GEMINI and message.role is Role.TOOL:
        return False
    if not all(_reads_alike(part, format) for part in shown.parts):
        return False
    if (message.name, message.tool_call_id) != (shown.name, shown.tool_call_id):
        return False
    said = [part for part in message.parts if not isinstance(part, Reasoning)]
    kept = [part for part in shown.parts if not isinstance(part, Reasoning)]
    return len(said) == len(kept) and all(a is b for a, b in zip(said, kept, strict=True))


def count_replayed(stored: int, message: Message, shown: Message, count: CountText) -> int:
    """Count the reasoning that goes back: only what the provider made (N12).

    `stored` is the count of all the message's reasoning; `shown` holds what goes back of it, and
    no signature that this format does not send.
    """
    if not stored:
        return 0
    held = [part for part in message.parts if _is_counted_apart(part)]
    sent = [part for part in shown.parts if _is_counted_apart(part)]
    if len(sent) == len(held) and all(a is b for a, b in zip(sent, held, strict=True)):
        return stored
    return count_reasoning(shown, count) if sent else 0


def thoughts_of(message: Message) -> Message:
    """Return a message with its reasoning alone, without what its other parts carry of it."""
    thoughts = (part for part in message.parts if isinstance(part, Reasoning))
    return replace(message, parts=tuple(thoughts))


def count_json(value: Any, count: CountText) -> int:
    """Count a JSON value as it is sent."""
    return count(sendable(json_fields.compact(value)))


def media_message_overhead(message: Message, count: CountText) -> int:
    """Count what OpenAI Chat adds to move a tool message's media to a user message (B4).

    `message` has its final ids; the media themselves are in its own count. 0 without media.
    """
    if not openai_chat.tool_media(message):
        return 0
    added = MESSAGE_OVERHEAD + count(adapting.media_label(message))
    has_text = any(isinstance(part, Text) for part in message.parts)
    return added if has_text else added + count(adapting.MEDIA_FOLLOWS)


def media_parts_overhead(message: Message, count: CountText) -> int:
    """Count what Gemini adds to move a tool message's media behind the responses.

    `message` has its final ids; the media themselves are in its own count, and so is the response
    that announces them. 0 without media.
    """
    return count(adapting.media_label(message)) if gemini.tool_media(message) else 0


def count_ids(message: Message, ids: Mapping[str, str], count: CountText) -> int:
    """Count by how much a message's cost changes when its call ids are replaced by `ids`."""
    old = [call.id for call in message.calls]
    if message.tool_call_id is not None:
        old.append(message.tool_call_id)
    return sum(count(ids[given]) - count(sendable(given)) for given in old if given in ids)


def count_system(text: str, count: CountText) -> int:
    """Count a system prompt sent as one message or one top-level field."""
    return MESSAGE_OVERHEAD + count(text)


def count_payload_messages(
    format: FormatName, messages: Sequence[Mapping[str, Any]], count: CountText
) -> int:
    """Count a payload's message list from scratch, by reading it back (C1).

    Raises `ValidationError` for a message the format does not know.
    """
    return sum(
        _count_wire_message(format, raw, f"/messages/{index}", count)
        for index, raw in group_items(format, messages)
    )


def estimate_tool_defs_tokens(tools: Iterable[ToolDefinition], count: CountText) -> int:
    """Estimate the tokens of tool definitions: name, description, schema (J1, C5)."""
    return sum(
        TOOL_OVERHEAD
        + count(tool.name)
        + count(sendable(tool.description))
        + count(sendable(json_fields.compact(tool.parameters)))
        for tool in tools
    )


def text_bytes_4(text: str) -> int:
    """Estimate a text's tokens as its UTF-8 bytes / 4, floored."""
    return _size_bytes(text) // 4


def text_chars_4(text: str) -> int:
    """Estimate a text's tokens as its characters / 4, floored."""
    return len(text) // 4


def text_chars_2_5(text: str) -> int:
    """Estimate a text's tokens as its characters x 2 / 5, floored (S3)."""
    return len(text) * 2 // 5


def estimate_message_tokens(message: Message, count: CountText = text_chars_2_5) -> int:
    """Estimate everything a message may cost, reasoning and media included (C5, S3)."""
    return count_message(message, count).total


def bytes_4(messages: Iterable[Message]) -> int:
    """Estimate by UTF-8 bytes of content / 4, floored per message (J2, S0, S1).

    These three count content text by the rule they are named after, and what else a message
    carries as a build counts it.
    """
    return sum(
        sum(map(_size_bytes, _texts(message))) // 4 + _count_apart(message, text_bytes_4)
        for message in messages
    )


def chars_4(messages: Sequence[Message]) -> int:
    """Estimate by all characters of content / 4, floored once (J2, S4)."""
    text = sum(sum(map(len, _texts(message))) for message in messages) // 4
    return text + sum(_count_apart(message, text_chars_4) for message in messages)


def chars_2_5(messages: Iterable[Message]) -> int:
    """Estimate by characters of content x 2 / 5, floored per message (J2, S3)."""
    return sum(
        sum(map(len, _texts(message))) * 2 // 5 + _count_apart(message, text_chars_2_5)
        for message in messages
    )


def _count_apart(message: Message, count: CountText) -> int:
    """Count what a message carries beside its content text: calls, media, reasoning, ids, a name.

    A message of text alone has none of it, and costs no overhead.
    """
    apart = tuple(part for part in message.parts if not isinstance(part, Text))
    return count_message(replace(message, parts=apart), count).total - MESSAGE_OVERHEAD


def _texts(message: Message) -> list[str]:
    return [part.text for part in message.parts if isinstance(part, Text)]


def _size_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _reads_alike(part: Part, format: FormatName) -> bool:
    """Whether a part that chat takes as it stands is the same text in another format."""
    match part:
        case Text():
            return not extra_fields(part, format)
        case ToolCall():
            text = part.arguments
            same = format not in _OBJECT_ARGUMENTS or sent_as_object(text) == text
            return same and not extra_fields(part, format)
        case _:
            return True


def _count_part(
    part: Image | File | ToolCall | Opaque, format: FormatName, count: CountText
) -> int:
    match part:
        case Image():
            return media.image_tokens(part, count)
        case File():
            return media.file_tokens(part, count)
        case ToolCall():
            return _count_call(part, format, count) + _count_beside(part, format, count)
        case Opaque():
            rest, tokens = media.without_media(part.block, count)
            return tokens + count_json(rest, count)
        case _:
            assert_never(part)


def _count_call(call: ToolCall, format: FormatName, count: CountText) -> int:
    """Count a call with its arguments as the format sends them."""
    text = call.arguments
    if format in _OBJECT_ARGUMENTS:
        text = sendable(sent_as_object(text))
    return CALL_OVERHEAD + count(sendable(call.id)) + count(call.name) + count(text)


def _count_beside(part: Text | ToolCall, format: FormatName, count: CountText) -> int:
    rest = extra_fields(part, format)
    return count_json(rest, count) if rest else 0


def _count_reasoning(part: Reasoning, count: CountText) -> int:
    return count(part.text) if part.block is None else count_json(part.block, count)


def _count_signature(part: Part, count: CountText) -> int:
    """Count what a call or a text carries of the reasoning before it."""
    if not isinstance(part, Text | ToolCall) or part.block is None:
        return 0
    if part.format is FormatName.GEMINI:
        signature = gemini.signature_in(part.block)
        return count(signature) if signature != gemini.STAND_IN_SIGNATURE else 0
    is_signed = isinstance(part, ToolCall) and part.format is FormatName.OPENAI_CHAT
    return count_json(part.block, count) if is_signed else 0


def _is_counted_apart(part: Part) -> bool:
    if isinstance(part, Reasoning):
        return True
    if not isinstance(part, Text | ToolCall) or part.block is None:
        return False
    if part.format is FormatName.GEMINI:
        return bool(gemini.signature_in(part.block))
    return isinstance(part, ToolCall) and part.format is FormatName.OPENAI_CHAT


def _count_wire_message(
    format: FormatName, raw: Mapping[str, Any], pointer: str, count: CountText
) -> int:
    if raw.get("role") in ("system", "developer"):
        parsed = FORMATS[format].parse({**raw, "role": "user"}, pointer)
    else:
        parsed = FORMATS[format].parse(raw, pointer)
    counted = (count_message(message, count, format).total for message in parsed)
    return MESSAGE_OVERHEAD + sum(tokens - MESSAGE_OVERHEAD for tokens in counted)
