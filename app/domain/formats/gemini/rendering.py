"""Renders neutral messages as Gemini contents, and tools as function declarations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, assert_never

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
)
from app.domain.formats import adapting, tool_calls
from app.domain.formats.gemini.adapting import for_payload
from app.domain.formats.gemini.fields import (
    STAND_IN_SIGNATURE,
    field_in,
    key_in,
    original_call,
    unsigned,
)
from app.domain.formats.gemini.function_responses import (
    RESULT_KEY,
    original_part,
    response_name,
    response_of,
    tool_media,
)
from app.domain.formats.tools import ToolDefinition, wire_fields

_FORMAT = FormatName.GEMINI


def render(
    message: Message,
    ids: Mapping[str, str] = tool_calls.NO_IDS,
    *,
    keep_reasoning: bool = False,
    call: Mapping[str, Any] | None = None,
) -> tuple[Literal["user", "model"], list[dict[str, Any]]]:
    """Render a clean message as a wire role and its parts.

    `call` is the rendered function call that a result answers: it decides about name and id. The
    first part of a result is the response.
    """
    message = for_payload(message, ids, keep_reasoning=keep_reasoning)
    match message.role:
        case Role.USER:
            return "user", [_wire_part(part, keep_reasoning) for part in message.parts]
        case Role.ASSISTANT:
            return "model", _wire_model(message, keep_reasoning)
        case Role.TOOL:
            return "user", _wire_result(message, call)
        case _:
            assert_never(message.role)


def function_calls(parts: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """List the function calls among rendered parts, in their order."""
    keys = ((part, key_in(part, "functionCall")) for part in parts)
    return [part[key] for part, key in keys if key in part]


def tools_to_wire(tools: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
    """Render tool definitions as one `Tool` that declares them all, in their order."""
    declarations = [wire_fields(tool, "parametersJsonSchema") for tool in tools]
    return [{"functionDeclarations": declarations}] if tools else []


def _wire_model(message: Message, keep_reasoning: bool) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    is_first = True
    for part in message.parts:
        wired = _wire_part(part, keep_reasoning)
        if isinstance(part, ToolCall):
            if is_first and not field_in(wired, "thoughtSignature"):
                wired = unsigned(wired) | {"thoughtSignature": STAND_IN_SIGNATURE}
            is_first = False
        parts.append(wired)
    return parts


def _wire_part(part: Part, keep_reasoning: bool) -> dict[str, Any]:
    match part:
        case Text(block=Mapping()) | Opaque() if part.format is _FORMAT:
            block = part.block or {}
            return dict(block) if keep_reasoning else unsigned(block)
        case Text():
            return {"text": part.text}
        case Image() | File():
            return _wire_media(part)
        case ToolCall():
            return _wire_call(part, keep_reasoning)
        case Reasoning() | Opaque():
            return dict(part.block or {})
        case _:
            assert_never(part)


def _wire_call(call: ToolCall, keep_reasoning: bool) -> dict[str, Any]:
    arguments = tool_calls.arguments_object(call.arguments) or {}
    own = original_call(call)
    if own is None or call.block is None:
        return {"functionCall": {"id": call.id, "name": call.name, "args": arguments}}
    function = {**own, "name": call.name}
    if arguments or "args" in own:
        function["args"] = arguments
    if own.get("id"):
        function["id"] = call.id
    block = call.block if keep_reasoning else unsigned(call.block)
    return {**block, key_in(block, "functionCall"): function}


def _wire_media(media: Image | File) -> dict[str, Any]:
    named = {"displayName": media.name} if isinstance(media, File) and media.name else {}
    typed = {"mimeType": media.media_type} if media.media_type else {}
    if media.data is not None:
        return {"inlineData": {**typed, "data": media.data, **named}}
    uri = media.url
    if isinstance(media, File) and media.file_id is not None and media.format is _FORMAT:
        uri = media.file_id
    return {"fileData": {"fileUri": uri, **typed, **named}}


def _wire_result(message: Message, call: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    original = original_part(message)
    call_id: str | None = message.tool_call_id
    if call is not None:
        call_id, message = call.get("id"), replace(message, name=call["name"])
    elif original is not None and not field_in(original, "functionResponse").get("id"):
        call_id = None
    identity = {"id": call_id} if call_id else {}
    identity["name"] = response_name(message)
    if original is not None:
        key = key_in(original, "functionResponse")
        response = {**original[key], **identity}
        if not call_id:
            response.pop("id", None)
        return [{**unsigned(original), key: response}]
    media = tool_media(message)
    response = {**identity, RESULT_KEY: response_of(message)}
    parts: list[dict[str, Any]] = [{"functionResponse": response}]
    if media:
        parts.append({"text": adapting.media_label(message)})
        parts += [_wire_part(part, False) for part in media]
    return parts
