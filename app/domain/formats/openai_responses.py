"""OpenAI Responses items, in and out (A5, K1, provider rules HC).

1. What the model makes in a row (reasoning, messages, calls, hosted calls, compaction) is one
   neutral message, because its calls are one group. `gather` puts such neighbours of a batch
   together as `{"role": "assistant", "output": [items]}`, which is a message of this format too.
   Everything else is one message for each item.
2. Items of the model keep their original as `block` and go back verbatim (C2, C3, C6). On a
   result the block is the item without its content.
3. A call that the client runs is a tool call, whatever its type, and its output has the type that
   belongs to it (C1). Hosted calls, whose output the provider has itself, are opaque (C7).
4. Reasoning and compaction are bound to what stood before them. Where they do not go back, items
   made after them lose the `id` that would demand them, and a label stands for hosted calls that
   need one. Reasoning whose product was stored apart is left out too (C2).
5. Of the ids that are optional only the provider's own are sent: it refuses any others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, assert_never

from app.domain.common import json_text
from app.domain.common.errors import ValidationError
from app.domain.common.messages import (
    ONLY_REASONING,
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
    sendable_json,
)
from app.domain.formats import json_fields, labels, openai_common

if TYPE_CHECKING:
    from app.domain.formats import ToolDefinition

RESULT_KEY = "output"
"""Where a result holds its content."""
FUNCTION = "function_call"

_FORMAT = FormatName.OPENAI_RESPONSES
_DETAILS = ("low", "high", "original")
_OWN_FIELDS = (
    "timestamp",
    "seq",
    "turn",
    "token_count",
    "format",
    "created_at",
    "conversation_id",
    "agent_id",
    "output_ref",
    "content_truncated",
    "content_collected",
    "visibility",
    "pinned",
    "restored_at",
    "restored_from",
    "given",
)
"""What the service says of an item where the log is read: it may come back with the item."""
_OUTPUTS = {
    FUNCTION: "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "tool_search_call": "tool_search_output",
    "computer_call": "computer_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
}
_NATIVE = {
    "tool_search_call": ("tool_search", "arguments"),
    "computer_call": ("computer", "action"),
    "local_shell_call": ("local_shell", "action"),
    "shell_call": ("shell", "action"),
    "apply_patch_call": ("apply_patch", "operation"),
}
"""Calls of tools that OpenAI defines: the tool's name, and where the arguments are."""
_ENVELOPES = {
    "function_call_output": ("caller", "name", "namespace", "status"),
    "custom_tool_call_output": ("caller",),
    "tool_search_output": ("execution", "status"),
    "computer_call_output": ("acknowledged_safety_checks", "status"),
    "local_shell_call_output": ("status",),
    "shell_call_output": ("caller", "max_output_length", "status"),
    "apply_patch_call_output": ("caller", "status"),
}
"""Fields of outputs that go back beside the content."""
_ID_PREFIXES = {"message": "msg", FUNCTION: "fc", "custom_tool_call": "ctc"}
_ID_REQUIRED = ("computer_call", "local_shell_call")
_ID_OPTIONAL = ("tool_search_call", "tool_search_output")
_REFUSED = {
    "item_reference": "the log keeps items themselves: send the item, not a reference to it",
    "compaction_trigger": "belongs to a request, not to the log",
}
_NO_SCREENSHOT = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mP4DwABAQ"
    "EAHLCMmQAAAABJRU5ErkJggg=="
)
"""One white pixel."""


def gather(raws: Sequence[Any]) -> list[tuple[int, Any]]:
    """Put neighbours that the model made together; each with the index of its first (rule 1).

    An item alone stays as it came.
    """
    found: list[tuple[int, Any]] = []
    run: list[Any] = []
    for index, raw in enumerate(raws):
        if not _is_model_made(raw):
            run = []
            found.append((index, raw))
            continue
        run.append(raw)
        if len(run) == 1:
            found.append((index, raw))
        else:
            found[-1] = (index + 1 - len(run), {"role": "assistant", "output": list(run)})
    return found


def parse(raw: Mapping[str, Any], pointer: str) -> tuple[Message, ...]:
    """Read one item, or what `gather` made of several; malformed ones are refused (A1, A5).

    Raises `ValidationError` at the field below `pointer` that is wrong.
    """
    raw = json_fields.object_at(raw, pointer)
    if is_gathered(raw):
        return (Message(Role.ASSISTANT, _parse_output(raw["output"], f"{pointer}/output")),)
    kind = _kind(raw)
    if kind == "message" and raw.get("role") == "user":
        return (Message(Role.USER, _parse_content(raw, "content", pointer)),)
    if kind == "mcp_approval_response":
        return (Message(Role.USER, (_opaque(raw, pointer),)),)
    if kind in _ENVELOPES and not _is_hosted(raw):
        return (_parse_result(raw, pointer),)
    return (Message(Role.ASSISTANT, (_parse_item(raw, pointer),)),)


def split(raw: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Give the raw to store for each neutral message: here always the one raw itself."""
    return (dict(raw),)


def results(raw: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """List the objects of a raw that hold a tool's result, with their place in it."""
    return [("", raw)] if _kind(raw) in _ENVELOPES and not _is_hosted(raw) else []


def is_gathered(raw: Mapping[str, Any]) -> bool:
    """Tell whether a raw holds several items of the model in its `output`."""
    is_bare = raw.get("type") is None and raw.get("role") == "assistant"
    return is_bare and isinstance(raw.get("output"), list)


def adapt(message: Message, ids: Mapping[str, str] = json_fields.NO_IDS) -> Message:
    """Return a clean message as this format can say it, the same object when it can as is.

    `ids` maps call ids to the ids to send; others become `json_fields.sendable_id`. Parts only
    another format understands are described in text (N12). Reasoning stays in
    the neutral message, since it is counted apart; `shown` decides about it.
    """
    parts = [new for part in message.parts for new in _adapt_part(part, message.role, ids)]
    return json_fields.adapted(message, parts, ids, json_fields.result_name(message))


def shown(
    message: Message, ids: Mapping[str, str] = json_fields.NO_IDS, *, keep_reasoning: bool = False
) -> Message:
    """Return an adapted message with exactly the parts that a payload has (rule 4).

    With `keep_reasoning`, reasoning and compaction that OpenAI made go back.
    """
    message = adapt(message, ids)
    if message.role is not Role.ASSISTANT:
        return message
    given: Sequence[Part] = message.parts
    is_said = any(not isinstance(part, Reasoning) for part in given[:-1])
    if len(given) > 1 and not is_said and given[-1] == Text(ONLY_REASONING):
        given = given[:-1]
    parts: list[Part] = []
    lacks = False
    for part in given:
        if not isinstance(part, Reasoning):
            parts.extend(_without_id(part) if lacks else (part,))
        elif part.block is not None and part.format is _FORMAT:
            if keep_reasoning:
                parts.append(part)
            lacks = not keep_reasoning
    while parts and isinstance(parts[-1], Reasoning) and not _is_compaction(parts[-1]):
        parts.pop()
    if not parts:
        parts.append(Text(ONLY_REASONING))
    same = len(parts) == len(message.parts) and all(map(_same, parts, message.parts))
    return message if same else replace(message, parts=tuple(parts))


def render(
    message: Message,
    ids: Mapping[str, str] = json_fields.NO_IDS,
    *,
    keep_reasoning: bool = False,
    answers: str | None = None,
) -> list[dict[str, Any]]:
    """Render a clean message as items, each a `ResponseInputItemParam` dict (K1, HC).

    `answers` is the type of the call that a result is for, where the payload has another than
    the result came for (rule 3).
    """
    message = shown(message, ids, keep_reasoning=keep_reasoning)
    match message.role:
        case Role.USER:
            return _user_items(message)
        case Role.ASSISTANT:
            return [_item(part) for part in message.parts]
        case Role.TOOL:
            return [_wire_result(message, answers)]
        case _:
            assert_never(message.role)


def call_types(items: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Give the type of each call among rendered items by its call id (C1)."""
    return {item["call_id"]: item["type"] for item in items if item.get("type") in _OUTPUTS}


def call_fields(block: Mapping[str, Any]) -> tuple[str, ...]:
    """List the fields of a call's item that hold its id, its name and its arguments."""
    kind = block.get("type")
    if isinstance(kind, str) and kind in _NATIVE:
        _, key = _NATIVE[kind]
        return ("call_id", key, f"{key}s")
    return ("call_id", "name", "arguments" if kind == FUNCTION else "input")


def tools_to_wire(tools: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
    """Render tool definitions as `FunctionToolParam` dicts, in their order.

    Left out, `strict` would be true there, and then no argument could be left out.
    """
    return [_wire_tool(tool) for tool in tools]


def _wire_tool(tool: ToolDefinition) -> dict[str, Any]:
    rendered: dict[str, Any] = {"type": "function", "name": tool.name}
    if tool.description:
        rendered["description"] = sendable(tool.description)
    rendered["parameters"] = sendable_json(tool.parameters)
    rendered["strict"] = bool(tool.strict)
    return rendered


def _same(new: object, old: object) -> bool:
    return new is old


# --- in -----------------------------------------------------------------------------------------


def _kind(raw: Mapping[str, Any]) -> str:
    kind = raw.get("type")
    if kind is None and "role" in raw:
        return "message"
    return kind if isinstance(kind, str) else ""


def _is_hosted(raw: Mapping[str, Any]) -> bool:
    """Whether a tool search ran at the provider, which has its result already (C7)."""
    if _kind(raw) not in _ID_OPTIONAL:
        return False
    return raw.get("execution") == "server" or raw.get("call_id") is None


def _is_model_made(raw: Any) -> bool:
    if not isinstance(raw, Mapping) or is_gathered(raw):
        return False
    kind = _kind(raw)
    if kind == "message":
        return raw.get("role") == "assistant"
    is_ours = kind in _ENVELOPES and not _is_hosted(raw)
    is_other = kind in ("", *_REFUSED, "additional_tools", "mcp_approval_response")
    return not (is_ours or is_other)


def _parse_output(items: list[Any], pointer: str) -> tuple[Part, ...]:
    parts: list[Part] = []
    seen: set[str] = set()
    for index, item in enumerate(items):
        at = f"{pointer}/{index}"
        raw = json_fields.object_at(item, at)
        if is_gathered(raw) or (not _is_model_made(raw) and _kind(raw) in _ENVELOPES):
            raise ValidationError.at(f"{at}/type", "only items that the model made belong here")
        part = _parse_item(raw, at)
        if isinstance(part, ToolCall):
            if part.id in seen:
                detail = "two calls of one message must not share an id"
                raise ValidationError.at(f"{at}/call_id", detail)
            seen.add(part.id)
        parts.append(part)
    return tuple(parts)


def _parse_item(raw: Mapping[str, Any], pointer: str) -> Part:
    """Read an item that the model made."""
    kind = _kind(raw)
    if kind == "additional_tools" or (kind == "message" and raw.get("role") != "assistant"):
        json_fields.refuse_role(raw.get("role"), pointer, "user, assistant")
    if not kind:
        raise ValidationError.at(f"{pointer}/type", "must name the type of the item")
    if kind in _REFUSED:
        raise ValidationError.at(f"{pointer}/type", _REFUSED[kind])
    match kind:
        case "message":
            return _parse_said(raw, pointer)
        case "reasoning":
            return _parse_reasoning(raw, pointer)
        case "compaction":
            json_fields.text_at(raw, "encrypted_content", pointer)
            return Reasoning("", _original(raw, pointer), _FORMAT)
    if kind in _OUTPUTS and not _is_hosted(raw):
        return _parse_call(raw, kind, pointer)
    return _opaque(raw, pointer)


def _original(raw: Mapping[str, Any], pointer: str) -> Any:
    ours = _OWN_FIELDS if _kind(raw) == "message" else (*_OWN_FIELDS, "role")
    return json_fields.json_at({key: item for key, item in raw.items() if key not in ours}, pointer)


def _opaque(raw: Mapping[str, Any], pointer: str) -> Opaque:
    """Cache marks are the payload's to place (C8), not part of what was said."""
    kept = {key: item for key, item in raw.items() if key != "prompt_cache_breakpoint"}
    return Opaque(_original(kept, pointer), _FORMAT)


def _parse_said(raw: Mapping[str, Any], pointer: str) -> Text | Opaque:
    block = _original(raw, pointer)
    content = raw.get("content")
    if isinstance(content, str):
        return Text(content, block, _FORMAT)
    at = f"{pointer}/content"
    texts: list[str] = []
    told: list[str] = []
    items = json_fields.list_at(content, at)
    for index, item in enumerate(items):
        part = json_fields.object_at(item, f"{at}/{index}")
        match json_fields.filled_text_at(part, "type", f"{at}/{index}"):
            case "output_text":
                texts.append(json_fields.text_at(part, "text", f"{at}/{index}"))
            case "refusal":
                json_fields.text_at(part, "refusal", f"{at}/{index}")
                told.append("refusal")
                texts.append(labels.block_label(part))
            case "input_text" | "input_image" | "input_file":
                detail = "what the assistant said is output_text or refusal"
                raise ValidationError.at(f"{at}/{index}/type", detail)
            case _:
                told.append(labels.kind_of(part))
                texts.append(labels.block_label(part))
    if items and len(told) == len(items) and "refusal" not in told:
        return Opaque(block, _FORMAT)
    return Text("\n".join(texts), block, _FORMAT, tuple(told))


def _parse_reasoning(raw: Mapping[str, Any], pointer: str) -> Reasoning:
    texts: list[str] = []
    for key in ("summary", "content"):
        if key != "summary" and raw.get(key) is None:
            continue
        at = f"{pointer}/{key}"
        found = [
            json_fields.text_at(
                json_fields.object_at(item, f"{at}/{index}"), "text", f"{at}/{index}"
            )
            for index, item in enumerate(json_fields.list_at(raw.get(key), at))
        ]
        texts = texts or found
    return Reasoning("\n".join(texts), _original(raw, pointer), _FORMAT)


def _parse_call(raw: Mapping[str, Any], kind: str, pointer: str) -> ToolCall:
    call_id = json_fields.filled_text_at(raw, "call_id", pointer)
    block = _original(raw, pointer)
    if kind in _NATIVE:
        name, _ = _NATIVE[kind]
        arguments = _native_arguments(block, kind)
        return ToolCall(call_id, name, arguments, block=block, format=_FORMAT)
    is_custom = kind != FUNCTION
    name = json_fields.text_at(raw, "name", pointer)
    text = json_fields.text_at(raw, "input" if is_custom else "arguments", pointer)
    return ToolCall(call_id, name, text, is_custom, block, _FORMAT)


def _parse_result(raw: Mapping[str, Any], pointer: str) -> Message:
    kind = raw["type"]
    key = "id" if kind == "local_shell_call_output" and "call_id" not in raw else "call_id"
    call_id = json_fields.filled_text_at(raw, key, pointer)
    kept = {key: raw[key] for key in _ENVELOPES[kind] if raw.get(key) is not None}
    envelope = json_fields.json_at({"type": kind, **kept}, pointer)
    name = None
    parts: Sequence[Part]
    match kind:
        case "tool_search_output":
            tools = json_fields.json_at(
                json_fields.list_at(raw.get("tools"), f"{pointer}/tools"), pointer
            )
            parts = (Text(json_fields.compact(tools)),)
        case "shell_call_output":
            output = json_fields.json_at(
                json_fields.list_at(raw.get("output"), f"{pointer}/output"), pointer
            )
            parts = (Text(json_fields.compact(output)),)
        case "computer_call_output":
            parts = (_parse_screenshot(raw, pointer),)
        case _:
            name = json_fields.optional_text_at(raw, "name", pointer)
            parts = _parse_content(raw, "output", pointer)
    if len(envelope) > 1 or kind != _OUTPUTS[FUNCTION]:
        parts = _with_envelope(parts, envelope)
    return Message(Role.TOOL, tuple(parts), call_id, name)


def _with_envelope(parts: Sequence[Part], envelope: Mapping[str, Any]) -> list[Part]:
    """Note on the first text what goes back beside the content."""
    noted = list(parts)
    for place, part in enumerate(noted):
        if isinstance(part, Text):
            noted[place] = Text(part.text, envelope, _FORMAT)
            break
    return noted


def _parse_screenshot(raw: Mapping[str, Any], pointer: str) -> Part:
    at = f"{pointer}/output"
    output = json_fields.object_at(raw.get("output"), at)
    if url := json_fields.optional_text_at(output, "image_url", at):
        return json_fields.image_from_url(url, f"{at}/image_url")
    file_id = json_fields.filled_text_at(output, "file_id", at)
    return Opaque({"type": "input_image", "file_id": file_id, "detail": "auto"}, _FORMAT)


def _parse_content(raw: Mapping[str, Any], key: str, pointer: str) -> tuple[Part, ...]:
    at = f"{pointer}/{key}"
    match raw.get(key):
        case None if key == RESULT_KEY:
            return ()
        case str(text):
            return (Text(text),)
        case list(items):
            return tuple(_parse_part(item, f"{at}/{index}") for index, item in enumerate(items))
        case other:
            detail = f"must be a string or a list of parts, not {json_fields.json_type(other)}"
            raise ValidationError.at(at, detail)


def _parse_part(value: object, pointer: str) -> Part:
    raw = json_fields.object_at(value, pointer)
    match json_fields.filled_text_at(raw, "type", pointer):
        case "input_text":
            return Text(json_fields.text_at(raw, "text", pointer))
        case "input_image" if raw.get("file_id") is None:
            url = json_fields.filled_text_at(raw, "image_url", pointer)
            detail = json_fields.optional_text_at(raw, "detail", pointer)
            known = detail if detail != "auto" else None
            return json_fields.image_from_url(url, f"{pointer}/image_url", known)
        case "input_file":
            return _parse_file(raw, pointer)
    return _opaque(raw, pointer)


def _parse_file(raw: Mapping[str, Any], pointer: str) -> File:
    name = json_fields.optional_text_at(raw, "filename", pointer)
    data = json_fields.optional_text_at(raw, "file_data", pointer)
    if data:
        media_type, data = json_fields.split_data_url(data) or (None, data)
        return File(media_type=media_type, data=data, name=name)
    if url := json_fields.optional_text_at(raw, "file_url", pointer):
        return File(url=url, name=name)
    if file_id := json_fields.optional_text_at(raw, "file_id", pointer):
        return File(file_id=file_id, name=name, format=_FORMAT)
    raise ValidationError.at(pointer, "must have file_data, file_url or file_id")


# --- as the format can say it -------------------------------------------------------------------


def _adapt_part(part: Part, role: Role, ids: Mapping[str, str]) -> Iterable[Part]:
    match part:
        case ToolCall():
            return (
                (_as_sent(openai_common.adapt_call(part, ids)),) if role is Role.ASSISTANT else ()
            )
        case Image():
            if role is Role.ASSISTANT:
                return (labels.label_for(part),)
            return (openai_common.adapt_image(part, _DETAILS),)
        case File():
            return (labels.label_for(part) if role is Role.ASSISTANT else _adapt_file(part),)
        case Opaque():
            return (part if part.format is _FORMAT else labels.label_for(part),)
        case _:
            return (part,)


def _as_sent(call: ToolCall) -> ToolCall:
    """Let what is sent as an object read as it is sent, where escapes hid what is not sendable."""
    kind = call.block.get("type") if call.block and call.format is _FORMAT else None
    if kind not in _NATIVE or "\\u" not in call.arguments or call.block is None:
        return call
    return replace(call, arguments=_native_arguments(call.block, kind))


def _native_arguments(block: Mapping[str, Any], kind: str) -> str:
    _, key = _NATIVE[kind]
    return json_fields.compact(block.get(key, block.get(f"{key}s", {})))


def _adapt_file(file: File) -> File | Text:
    if (content := openai_common.adapt_content(file)) is not None:
        return content
    is_web = (file.url or "").lower().startswith(("https://", "http://"))
    is_known = file.file_id is not None and file.format in json_fields.OPENAI_FORMATS
    return file if is_web or is_known else labels.label_for(file)


def _is_compaction(part: Part) -> bool:
    return isinstance(part, Reasoning) and (part.block or {}).get("type") == "compaction"


def _without_id(part: Part) -> Iterable[Part]:
    """Give a part as it may stand without the reasoning that it was made with (rule 4)."""
    match part:
        case Text(block=Mapping()) | ToolCall(block=Mapping()) if part.format is _FORMAT:
            block = part.block or {}
            if block.get("type") in _ID_REQUIRED:
                return (replace(part, block=None, format=None),)
            return (part,) if "id" not in block else (replace(part, block=_bare(block)),)
        case Opaque():
            if part.block.get("type") not in _ID_OPTIONAL:
                return (labels.label_for(part),)
            return (replace(part, block=_bare(part.block)),) if "id" in part.block else (part,)
        case _:
            return (part,)


def _bare(block: Mapping[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in block.items() if key != "id"}


# --- out ----------------------------------------------------------------------------------------


def _user_items(message: Message) -> list[dict[str, Any]]:
    apart = [
        part
        for part in message.parts
        if isinstance(part, Opaque) and part.block.get("type") == "mcp_approval_response"
    ]
    content = [_wire_part(part) for part in message.parts if part not in apart]
    items: list[dict[str, Any]] = [dict(part.block) for part in apart]
    if content:
        items.append({"type": "message", "role": "user", "content": content})
    return items


def _item(part: Part) -> dict[str, Any]:
    match part:
        case Text(block=Mapping()) if part.format is _FORMAT:
            return _with_own_id(dict(part.block or {}), "message")
        case Text():
            said = {"type": "output_text", "text": part.text, "annotations": []}
            return {"type": "message", "role": "assistant", "content": [said]}
        case ToolCall():
            return _wire_call(part)
        case Reasoning() | Opaque():
            return dict(part.block or {})
        case _:
            raise TypeError(f"{type(part).__name__} is no part of an assistant message")


def _with_own_id(item: dict[str, Any], kind: str) -> dict[str, Any]:
    """Drop an id that the provider would refuse (rule 5)."""
    if "id" in item and not str(item["id"]).startswith(_ID_PREFIXES[kind]):
        del item["id"]
    return item


def _wire_call(call: ToolCall) -> dict[str, Any]:
    block = dict(call.block or {}) if call.format is _FORMAT else {}
    if block.get("type") in _NATIVE:
        return block | {"call_id": call.id}
    kind, key = ("custom_tool_call", "input") if call.custom else (FUNCTION, "arguments")
    item = {"type": kind} | block
    item |= {"call_id": call.id, "name": call.name, key: call.arguments}
    return _with_own_id(item, kind)


def _wire_result(message: Message, answers: str | None) -> dict[str, Any]:
    envelope = _envelope(message)
    came_as = envelope.get("type", _OUTPUTS[FUNCTION])
    kind = _OUTPUTS[answers] if answers is not None else came_as
    kept = {key: item for key, item in envelope.items() if key != "type" and kind == came_as}
    head = {"type": kind, "call_id": message.tool_call_id}
    is_native = kind == came_as and bool(envelope)
    match kind:
        case "tool_search_output":
            tools = _read_list(message.text) if is_native else []
            return head | {"execution": "client"} | kept | {"tools": tools}
        case "shell_call_output":
            said = {"type": "exit", "exit_code": 0}
            plain = [{"stdout": message.text, "stderr": "", "outcome": said}]
            return head | kept | {"output": _read_list(message.text) if is_native else plain}
        case "computer_call_output":
            return head | kept | {"output": _wire_screenshot(message)}
        case "local_shell_call_output":
            return {"type": kind, "id": message.tool_call_id} | kept | {"output": message.text}
        case "apply_patch_call_output":
            return head | {"status": "completed"} | kept | {"output": message.text}
        case _:
            return head | {"output": _wire_output(message)} | kept


def _envelope(message: Message) -> Mapping[str, Any]:
    noted = (p.block for p in message.parts if isinstance(p, Text) and p.format is _FORMAT)
    return next((block for block in noted if block is not None), {})


def _read_list(text: str) -> list[Any]:
    found = json_text.loads_exact(text) if json_fields.is_json(text) else []
    return found if isinstance(found, list) else []


def _wire_screenshot(message: Message) -> dict[str, Any]:
    """Give the screenshot of a result; where there is none to send, an empty one stands."""
    for part in message.parts:
        if isinstance(part, Image):
            return {"type": "computer_screenshot", "image_url": _image_url(part)}
        if isinstance(part, Opaque) and "file_id" in part.block:
            return {"type": "computer_screenshot", "file_id": part.block["file_id"]}
    return {"type": "computer_screenshot", "image_url": _NO_SCREENSHOT}


def _wire_output(message: Message) -> str | list[dict[str, Any]]:
    match message.parts:
        case (Text(text),):
            return text
        case parts:
            return [_wire_part(part) for part in parts]


def _wire_part(part: Part) -> dict[str, Any]:
    match part:
        case Text():
            return {"type": "input_text", "text": part.text}
        case Image():
            detail = part.detail or "auto"
            return {"type": "input_image", "image_url": _image_url(part), "detail": detail}
        case File():
            return {"type": "input_file"} | _wire_file(part)
        case Opaque():
            return dict(part.block)
        case _:
            raise TypeError(f"{type(part).__name__} is no content part")


def _image_url(image: Image) -> str | None:
    return image.url if image.data is None else f"data:{image.media_type};base64,{image.data}"


def _wire_file(file: File) -> dict[str, Any]:
    if file.data is not None:
        data_url = f"data:{file.media_type};base64,{file.data}"
        return {"filename": file.name, "file_data": data_url}
    name = {"filename": file.name} if file.name else {}
    if file.file_id is not None and file.format in json_fields.OPENAI_FORMATS:
        return {"file_id": file.file_id}
    return {"file_url": file.url} | name
