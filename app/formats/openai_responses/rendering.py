"""Renders neutral messages as OpenAI Responses items, and tools as function tools.

`adapt` returns a message as the format can carry it; `render` writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, assert_never

from app.common import json_text
from app.formats import adapting, base64_media, inline_media, labels, openai_shared, tool_calls
from app.formats.compactions import is_compaction
from app.formats.hosted_tools import hosted_definition
from app.formats.message import (
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
from app.formats.openai_responses.items import (
    BUILT_IN_CALLS,
    FUNCTION,
    ITEM_TYPES,
    OUTPUT_TYPES,
    TOOL_SEARCH_TYPES,
    built_in_arguments,
)
from app.formats.tools import ToolDefinition, wire_fields

_FORMAT = FormatName.OPENAI_RESPONSES
_DETAILS = ("low", "high", "original")
_ID_REQUIRED = ("computer_call", "local_shell_call")
_ID_PREFIXES = {"message": "msg", FUNCTION: "fc", "custom_tool_call": "ctc"}
_NO_SCREENSHOT = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mP4DwABAQ"
    "EAHLCMmQAAAABJRU5ErkJggg=="
)
"""One white pixel."""


def adapt(message: Message, ids: Mapping[str, str] = tool_calls.NO_IDS) -> Message:
    """Adapt a clean message, as `Format.adapt`; `for_payload` decides about its reasoning."""
    parts = adapting.adapt_parts(
        message,
        _FORMAT,
        lambda call: _with_sent_arguments(openai_shared.adapt_call(call, ids)),
        lambda image: openai_shared.adapt_image(image, _DETAILS),
        _adapt_file,
    )
    return adapting.adapted_message(message, parts, ids, adapting.result_name(message))


def for_payload(
    message: Message, ids: Mapping[str, str] = tool_calls.NO_IDS, *, keep_reasoning: bool = False
) -> Message:
    """Adapt a clean message and leave out the parts that a payload does not have (rule 4).

    With `keep_reasoning`, reasoning and compaction that OpenAI made stay.
    """
    message = adapt(message, ids)
    if message.role is not Role.ASSISTANT:
        return message
    parts: list[Part] = []
    is_unbound = False
    for part in message.parts:
        if not isinstance(part, Reasoning):
            parts.append(_without_id(part) if is_unbound else part)
        elif part.block is not None and part.format is _FORMAT:
            if keep_reasoning:
                parts.append(part)
            is_unbound = not keep_reasoning
    while parts and isinstance(parts[-1], Reasoning) and not is_compaction(parts[-1]):
        parts.pop()
    return adapting.with_parts(message, parts)


def without_foreign(message: Message, accepts: Sequence[str]) -> Message:
    """Return a message with labels for items that the provider of these families does not have.

    The same object is returned where there are none.
    """
    known = ITEM_TYPES.get(accepts[0]) if len(accepts) == 1 else None
    if known is None or message.role is not Role.ASSISTANT:
        return message
    parts = [
        labels.label_for(part)
        if isinstance(part, Opaque) and labels.kind_of(part.block) not in known
        else part
        for part in message.parts
    ]
    return adapting.with_parts(message, parts)


def unbound(message: Message) -> Message:
    """Return a message whose parts after a compaction item are accepted without it (rule 4)."""
    parts: list[Part] = []
    is_unbound = False
    for part in message.parts:
        parts.append(_without_id(part) if is_unbound else part)
        is_unbound = is_unbound or is_compaction(part)
    return adapting.with_parts(message, parts)


def without_repeated_ids(message: Message, seen: set[str]) -> Message:
    """Return a message without the ids of earlier items, which `seen` has (rule 6).

    Reasoning with such an id is that of an earlier item: it is left out.
    """
    if message.role is not Role.ASSISTANT:
        return message
    parts: list[Part] = []
    for part in message.parts:
        block = part.block if not isinstance(part, Image | File) else None
        item_id = (block or {}).get("id") if part.format is _FORMAT else None
        if not isinstance(item_id, str) or item_id not in seen:
            parts.append(part)
        elif not isinstance(part, Reasoning):
            parts.append(_without_id(part))
        seen |= {item_id} if isinstance(item_id, str) else set()
    return adapting.with_parts(message, parts)


def _with_sent_arguments(call: ToolCall) -> ToolCall:
    """Take the arguments from the object that is sent, whose escaped characters were replaced."""
    kind = call.block.get("type") if call.block and call.format is _FORMAT else None
    if kind not in BUILT_IN_CALLS or "\\u" not in call.arguments or call.block is None:
        return call
    return replace(call, arguments=built_in_arguments(call.block, kind))


def _adapt_file(file: File) -> File | Text:
    if (content := openai_shared.adapt_content(file)) is not None:
        return content
    if file.file_id is not None and file.format in OPENAI_FORMATS:
        return replace(file, name=None) if file.name else file  # an uploaded file has its own name
    return file if base64_media.is_web_url(file.url) else labels.label_for(file)


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


def render(
    message: Message,
    ids: Mapping[str, str] = tool_calls.NO_IDS,
    *,
    keep_reasoning: bool = False,
    call_type: str | None = None,
) -> list[dict[str, Any]]:
    """Render a clean message as items, each a `ResponseInputItemParam` dict.

    `call_type` is the type of the rendered call that a result answers (rule 3).
    """
    message = for_payload(message, ids, keep_reasoning=keep_reasoning)
    match message.role:
        case Role.USER:
            return _user_items(message)
        case Role.SYSTEM:
            content = [_wire_part(part) for part in message.parts]
            return [{"type": "message", "role": "developer", "content": content}]
        case Role.ASSISTANT:
            return [_item(part) for part in message.parts]
        case Role.TOOL:
            return [_wire_result(message, call_type)]
        case _:
            assert_never(message.role)


def tools_to_wire(tools: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
    """Render tool definitions as `ToolParam` dicts, in their order.

    The default of `strict` is true there, and requires every argument.
    """
    return [
        hosted_definition(tool.hosted)
        if tool.hosted is not None
        else {"type": "function", **wire_fields(tool, "parameters", strict=bool(tool.strict))}
        for tool in tools
    ]


def _user_items(message: Message) -> list[dict[str, Any]]:
    approvals = [
        part
        for part in message.parts
        if isinstance(part, Opaque) and part.block.get("type") == "mcp_approval_response"
    ]
    items = [dict(part.block) for part in approvals]
    if content := [_wire_part(part) for part in message.parts if part not in approvals]:
        item = {"type": "message", "role": "user", "content": content}
        items.append(item | adapting.beside(message, _FORMAT))
    return items


def _item(part: Part) -> dict[str, Any]:
    match part:
        case Text(block=Mapping()) if part.format is _FORMAT:
            return _with_own_id(dict(part.block or {}), "message")
        case Text():
            content = {"type": "output_text", "text": part.text, "annotations": []}
            return {"type": "message", "role": "assistant", "content": [content]}
        case ToolCall():
            return _wire_call(part)
        case Reasoning() | Opaque():
            return dict(part.block or {})
        case _:
            raise TypeError(f"{type(part).__name__} is not a part of an assistant message")


def _with_own_id(item: dict[str, Any], kind: str) -> dict[str, Any]:
    """Drop an id that the provider would refuse (rule 6)."""
    if "id" in item and not str(item["id"]).startswith(_ID_PREFIXES[kind]):
        del item["id"]
    return item


def _wire_call(call: ToolCall) -> dict[str, Any]:
    block = dict(call.block or {}) if call.format is _FORMAT else {}
    if block.get("type") in BUILT_IN_CALLS:
        return block | {"call_id": call.id}
    kind, key = ("custom_tool_call", "input") if call.custom else (FUNCTION, "arguments")
    item = {"type": kind} | block
    item |= {"call_id": call.id, "name": call.name, key: call.arguments}
    return _with_own_id(item, kind)


def _wire_result(message: Message, call_type: str | None) -> dict[str, Any]:
    own = adapting.beside(message, _FORMAT)
    original_kind = own.pop("type", OUTPUT_TYPES[FUNCTION])
    kind = OUTPUT_TYPES[call_type] if call_type is not None else original_kind
    fields = own if kind == original_kind else {}
    identity = {"type": kind, "call_id": message.tool_call_id}
    match kind:
        case "tool_search_output":
            tools = _read_list(message.text) or []
            return identity | {"execution": "client"} | fields | {"tools": tools}
        case "shell_call_output":
            outcome = {"type": "exit", "exit_code": 0}
            plain = [{"stdout": message.text, "stderr": "", "outcome": outcome}]
            output = _read_list(message.text) if kind == original_kind else None
            return identity | fields | {"output": plain if output is None else output}
        case "computer_call_output":
            return identity | fields | {"output": _wire_screenshot(message)}
        case "local_shell_call_output":
            return {"type": kind, "id": message.tool_call_id} | fields | {"output": message.text}
        case "apply_patch_call_output":
            return identity | {"status": "completed"} | fields | {"output": message.text}
        case _:
            output = [_wire_part(part) for part in message.parts]
            is_text = len(output) == 1 and isinstance(message.parts[0], Text)
            return identity | {"output": message.text if is_text else output} | fields


def _read_list(text: str) -> list[Any] | None:
    value = json_text.loads_exact(text) if tool_calls.is_json(text) else None
    is_list = isinstance(value, list) and all(isinstance(item, Mapping) for item in value)
    return value if is_list else None


def _wire_screenshot(message: Message) -> dict[str, Any]:
    """Return the screenshot of a result, an empty one where there is none to send."""
    for part in message.parts:
        if isinstance(part, Image):
            return {"type": "computer_screenshot", "image_url": inline_media.url_of(part)}
        if isinstance(part, Opaque) and "file_id" in part.block:
            return {"type": "computer_screenshot", "file_id": part.block["file_id"]}
    return {"type": "computer_screenshot", "image_url": _NO_SCREENSHOT}


def _wire_part(part: Part) -> dict[str, Any]:
    match part:
        case Text():
            return {"type": "input_text", "text": part.text}
        case Image():
            detail = part.detail or "auto"
            image = {"type": "input_image", "image_url": inline_media.url_of(part)}
            return image | {"detail": detail} | adapting.beside(part, _FORMAT)
        case File():
            return {"type": "input_file"} | _wire_file(part) | adapting.beside(part, _FORMAT)
        case Opaque():
            return dict(part.block)
        case _:
            raise TypeError(f"{type(part).__name__} is not a content part")


def _wire_file(file: File) -> dict[str, Any]:
    if file.data is not None:
        return {"filename": file.name, "file_data": inline_media.url_of(file)}
    name = {"filename": file.name} if file.name else {}
    if file.file_id is not None and file.format in OPENAI_FORMATS:
        return {"file_id": file.file_id}
    return {"file_url": file.url} | name
