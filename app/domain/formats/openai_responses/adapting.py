"""Returns neutral messages as OpenAI Responses can carry them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.domain.common.messages import (
    ONLY_REASONING,
    OPENAI_FORMATS,
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
from app.domain.formats import adapting, inline_media, labels, tool_calls
from app.domain.formats.openai_responses.items import (
    BUILT_IN_CALLS,
    TOOL_SEARCH_TYPES,
    built_in_arguments,
)

_FORMAT = FormatName.OPENAI_RESPONSES
_DETAILS = ("low", "high", "original")
_ID_REQUIRED = ("computer_call", "local_shell_call")


def adapt(message: Message, ids: Mapping[str, str] = tool_calls.NO_IDS) -> Message:
    """Adapt a clean message, as `Format.adapt`; `for_payload` decides about its reasoning."""
    parts = [new for part in message.parts for new in _adapt_part(part, message.role, ids)]
    return adapting.adapted(message, parts, ids, adapting.result_name(message))


def for_payload(
    message: Message, ids: Mapping[str, str] = tool_calls.NO_IDS, *, keep_reasoning: bool = False
) -> Message:
    """Adapt a clean message and leave out the parts that a payload does not have (rule 4).

    With `keep_reasoning`, reasoning and compaction that OpenAI made stay.
    """
    message = adapt(message, ids)
    if message.role is not Role.ASSISTANT:
        return message
    adapted: Sequence[Part] = message.parts
    is_only_reasoning = all(isinstance(part, Reasoning) for part in adapted[:-1])
    if len(adapted) > 1 and is_only_reasoning and adapted[-1] == Text(ONLY_REASONING):
        adapted = adapted[:-1]
    parts: list[Part] = []
    is_unbound = False
    for part in adapted:
        if not isinstance(part, Reasoning):
            parts.append(_without_id(part) if is_unbound else part)
        elif part.block is not None and part.format is _FORMAT:
            if keep_reasoning:
                parts.append(part)
            is_unbound = not keep_reasoning
    while parts and isinstance(parts[-1], Reasoning) and not _is_compaction(parts[-1]):
        parts.pop()
    if not parts:
        parts.append(Text(ONLY_REASONING))
    return adapting.with_parts(message, parts)


def _adapt_part(part: Part, role: Role, ids: Mapping[str, str]) -> Iterable[Part]:
    match part:
        case ToolCall():
            is_sent = role is Role.ASSISTANT
            return (_with_sent_arguments(adapting.openai_call(part, ids)),) if is_sent else ()
        case Image() | File() if role is Role.ASSISTANT:
            return (labels.label_for(part),)
        case Image():
            return (adapting.openai_image(part, _DETAILS),)
        case File():
            return (_adapt_file(part),)
        case Opaque():
            return (part if part.format is _FORMAT else labels.label_for(part),)
        case _:
            return (part,)


def _with_sent_arguments(call: ToolCall) -> ToolCall:
    """Take the arguments from the object that is sent, whose escaped characters were replaced."""
    kind = call.block.get("type") if call.block and call.format is _FORMAT else None
    if kind not in BUILT_IN_CALLS or "\\u" not in call.arguments or call.block is None:
        return call
    return replace(call, arguments=built_in_arguments(call.block, kind))


def _adapt_file(file: File) -> File | Text:
    if (content := adapting.openai_content(file)) is not None:
        return content
    is_uploaded = file.file_id is not None and file.format in OPENAI_FORMATS
    is_sendable = is_uploaded or inline_media.is_web_url(file.url)
    return file if is_sendable else labels.label_for(file)


def _is_compaction(part: Part) -> bool:
    return isinstance(part, Reasoning) and (part.block or {}).get("type") == "compaction"


def _without_id(part: Part) -> Part:
    """Return a part as the provider accepts it without the reasoning before it (rule 4)."""
    match part:
        case Text(block=Mapping()) | ToolCall(block=Mapping()) if part.format is _FORMAT:
            block = part.block or {}
            if block.get("type") in _ID_REQUIRED:
                return replace(part, block=None, format=None)
            return part if "id" not in block else replace(part, block=_block_without_id(block))
        case Opaque():
            if part.block.get("type") not in TOOL_SEARCH_TYPES:
                return labels.label_for(part)
            has_id = "id" in part.block
            return replace(part, block=_block_without_id(part.block)) if has_id else part
        case _:
            return part


def _block_without_id(block: Mapping[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in block.items() if key != "id"}
