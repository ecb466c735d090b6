"""OpenAI Chat Completions messages, in and out (A5, K1, provider rules HB).

1. One wire message is one neutral message; system text is refused (A1).
2. `adapt` says what this format can say: ids, names, arguments and parts it accepts.
   It returns the same object when there is nothing to change, and then the stored count holds.
3. `render` only changes the shape of what `adapt` returns. Reasoning goes back as it came, to a
   model of the family that made it; `dialects` says which that is (N12).
4. A tool message carries text alone (B4): its media follow in a user message, `render_media`.
5. What this format cannot carry is told by a label.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, assert_never

from app.domain.common.errors import ValidationError
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
    clean,
    is_sendable,
    sendable,
    sendable_json,
)
from app.domain.formats import json_fields, labels, openai_common, reasoning_fields

if TYPE_CHECKING:
    from app.domain.formats import ToolDefinition

sendable_id = json_fields.sendable_id
tool_name = json_fields.tool_name

MEDIA_FOLLOWS = "[media follows]"
RESULT_KEY = "content"
"""Where a result holds its content."""
_FORMAT = FormatName.OPENAI_CHAT
_DETAILS = ("auto", "low", "high")


def parse(raw: Mapping[str, Any], pointer: str) -> tuple[Message, ...]:
    """Read one wire message; unknown fields are tolerated, malformed ones refused (A1, A5).

    Raises `ValidationError` at the field below `pointer` that is wrong.
    """
    raw = json_fields.object_at(raw, pointer)
    match raw.get("role"):
        case "user":
            return (_parse_user(raw, pointer),)
        case "assistant":
            return (_parse_assistant(raw, pointer),)
        case "tool":
            return (_parse_tool(raw, pointer),)
        case role:
            json_fields.refuse_role(role, pointer, "user, assistant, tool")


def split(raw: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Give the raw to store for each neutral message: here always the one raw itself."""
    return (dict(raw),)


def results(raw: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """List the objects of a raw that hold a tool's result, with their place in it."""
    return [("", raw)] if raw.get("role") == "tool" else []


def adapt(message: Message, ids: Mapping[str, str] = json_fields.NO_IDS) -> Message:
    """Return a clean message as this format can say it, the same object when it can as is.

    `ids` maps call ids to the ids to send; others become `json_fields.sendable_id`. Parts only
    another format understands are described in text (N12). Reasoning stays in the neutral
    message, since it is counted apart; `render` decides about it.
    """
    parts = [new for part in message.parts for new in _adapt_part(part, message.role, ids)]
    if message.role is Role.ASSISTANT:
        parts = _join_texts(parts)
    name = (
        message.name
        if message.role is Role.TOOL or json_fields.is_name(message.name or "")
        else None
    )
    return json_fields.adapted(message, parts, ids, name)


def render(
    message: Message,
    ids: Mapping[str, str] = json_fields.NO_IDS,
    *,
    accepts: Collection[str] = (),
    keep_reasoning: bool = False,
) -> dict[str, Any]:
    """Render a clean message as one `ChatCompletionMessageParam` dict (K1, HB).

    `accepts` names whose reasoning the model takes. With `keep_reasoning` it goes back; without,
    the model gets only what it would refuse the message without.
    """
    goes_back = reasoning_fields.goes_back(message, accepts)
    message = adapt(message, ids)
    match message.role:
        case Role.USER:
            content = _content(message.parts)
            return {"role": "user", "content": content} | _name(message)
        case Role.ASSISTANT:
            if not goes_back:
                return _render_assistant(message)
            return _with_reasoning(message) if keep_reasoning else _with_left_behind(message)
        case Role.TOOL:
            texts = [part for part in message.parts if isinstance(part, Text)]
            content = _content(texts) if texts else MEDIA_FOLLOWS
            return {"role": "tool", "tool_call_id": message.tool_call_id, "content": content}
        case _:
            assert_never(message.role)


def render_media(
    message: Message, ids: Mapping[str, str] = json_fields.NO_IDS
) -> dict[str, Any] | None:
    """Render the user message that carries a tool message's media, None without any (B4).

    It belongs after the last tool message of the call group, since results stand together (B1).
    """
    message = adapt(message, ids)
    media = tool_media(message)
    if not media:
        return None
    label = Text(media_label(message))
    return {"role": "user", "content": [_wire_part(part) for part in (label, *media)]}


def tool_media(message: Message) -> tuple[Part, ...]:
    """List what a tool message of this format must hand to a following user message."""
    if message.role is not Role.TOOL:
        return ()
    return tuple(part for part in message.parts if isinstance(part, Image | File | Opaque))


def media_label(message: Message) -> str:
    """Give the text that opens a media message; the message is an adapted tool message."""
    return f"[media from tool call {message.tool_call_id}]"


def is_faithful(raw: Mapping[str, Any], message: Message) -> bool:
    """Tell whether `raw` equals the rendering of its own parse, so it can be sent as stored.

    `message` is what `parse` made of `raw`. Plain text messages are judged without rendering.
    """
    content = raw.get("content")
    if len(raw) == 2 and isinstance(content, str):
        return is_sendable(content) and bool(content) and not content.isspace()
    return dict(raw) == render(clean(message))


def tools_to_wire(tools: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
    """Render tool definitions as `ChatCompletionFunctionToolParam` dicts, in their order."""
    return [{"type": "function", "function": _function(tool)} for tool in tools]


def _function(tool: ToolDefinition) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = sendable(tool.description)
    function["parameters"] = sendable_json(tool.parameters)
    if tool.strict is not None:
        function["strict"] = tool.strict
    return function


def _parse_user(raw: Mapping[str, Any], pointer: str) -> Message:
    if raw.get("content") is None:
        raise ValidationError.at(f"{pointer}/content", "user content must not be null")
    _refuse_calls(raw, pointer)
    name = json_fields.optional_text_at(raw, "name", pointer)
    return Message(Role.USER, _parse_content(raw, pointer), name=name)


def _parse_assistant(raw: Mapping[str, Any], pointer: str) -> Message:
    if raw.get("function_call") is not None:
        detail = "function_call is deprecated: send tool_calls"
        raise ValidationError.at(f"{pointer}/function_call", detail)
    parts = [*_parse_reasoning(raw, pointer), *_parse_content(raw, pointer, Role.ASSISTANT)]
    refusal = json_fields.optional_text_at(raw, "refusal", pointer)
    if refusal:
        parts.append(Opaque({"type": "refusal", "refusal": refusal}, _FORMAT))
    parts.extend(_parse_output(raw))
    parts.extend(_parse_calls(raw.get("tool_calls"), f"{pointer}/tool_calls"))
    name = json_fields.optional_text_at(raw, "name", pointer)
    return Message(Role.ASSISTANT, tuple(parts), name=name)


def _parse_tool(raw: Mapping[str, Any], pointer: str) -> Message:
    call_id = json_fields.filled_text_at(raw, "tool_call_id", pointer)
    _refuse_calls(raw, pointer)
    name = json_fields.optional_text_at(raw, "name", pointer)
    return Message(Role.TOOL, _parse_content(raw, pointer), call_id, name)


def _refuse_calls(raw: Mapping[str, Any], pointer: str) -> None:
    if raw.get("tool_calls"):
        raise ValidationError.at(f"{pointer}/tool_calls", "only assistant messages call tools")


def _parse_reasoning(raw: Mapping[str, Any], pointer: str) -> list[Reasoning]:
    for key in ("reasoning_content", "reasoning"):
        json_fields.optional_text_at(raw, key, pointer)
    fields = reasoning_fields.fields_of(raw)
    return [Reasoning(reasoning_fields.text_of(fields), fields, _FORMAT)] if fields else []


def _parse_output(raw: Mapping[str, Any]) -> Iterable[Part]:
    """Read what a model made besides text: sound, and pictures as gateways give them.

    Sound is known to the provider for a short time only, and what is malformed is ignored, so it
    never goes back as it came.
    """
    if isinstance(raw.get("audio"), Mapping):
        yield Opaque({"type": "audio", "audio": dict(raw["audio"])}, _FORMAT)
    images = raw.get("images")
    for item in images if isinstance(images, list) else ():
        held = item.get("image_url") if isinstance(item, Mapping) else None
        url = held.get("url") if isinstance(held, Mapping) else held
        if isinstance(url, str) and url:
            yield _generated(url)


def _generated(url: str) -> Image:
    inline = json_fields.split_data_url(url)
    return Image(url=url) if inline is None else Image(media_type=inline[0], data=inline[1])


def _parse_content(
    raw: Mapping[str, Any], pointer: str, role: Role | None = None
) -> tuple[Part, ...]:
    match raw.get("content"):
        case None:
            return ()
        case str(text):
            return (Text(text),)
        case list(items):
            at = f"{pointer}/content"
            places = ((item, f"{at}/{index}") for index, item in enumerate(items))
            return tuple(_parse_part(item, place, role) for item, place in places)
        case other:
            detail = f"must be a string or a list of parts, not {json_fields.json_type(other)}"
            raise ValidationError.at(f"{pointer}/content", detail)


def _parse_part(value: object, pointer: str, role: Role | None) -> Part:
    raw = json_fields.object_at(value, pointer)
    if role is Role.ASSISTANT and (thought := reasoning_fields.part_of(raw, pointer)) is not None:
        return thought
    match json_fields.filled_text_at(raw, "type", pointer):
        case "text":
            return Text(json_fields.text_at(raw, "text", pointer))
        case "image_url":
            return _parse_image(raw.get("image_url"), f"{pointer}/image_url")
        case "file":
            return _parse_file(raw.get("file"), f"{pointer}/file")
        case "refusal":
            json_fields.text_at(raw, "refusal", pointer)
    kept = {key: item for key, item in raw.items() if key != "prompt_cache_breakpoint"}
    return Opaque(json_fields.json_at(kept, pointer), _FORMAT)


def _parse_image(value: object, pointer: str) -> Image:
    raw = {"url": value} if isinstance(value, str) else json_fields.object_at(value, pointer)
    url = json_fields.filled_text_at(raw, "url", pointer)
    detail = json_fields.optional_text_at(raw, "detail", pointer)
    return json_fields.image_from_url(url, f"{pointer}/url", detail)


def _parse_file(value: object, pointer: str) -> File:
    raw = json_fields.object_at(value, pointer)
    name = json_fields.optional_text_at(raw, "filename", pointer)
    file_data = json_fields.optional_text_at(raw, "file_data", pointer)
    if file_data:
        media_type, data = json_fields.split_data_url(file_data) or (None, file_data)
        return File(media_type=media_type, data=data, name=name)
    file_id = json_fields.optional_text_at(raw, "file_id", pointer)
    if not file_id:
        raise ValidationError.at(pointer, "must have file_data or file_id")
    return File(file_id=file_id, name=name, format=_FORMAT)


def _parse_calls(value: object, pointer: str) -> Iterable[ToolCall]:
    if value is None:
        return []
    items = json_fields.list_at(value, pointer)
    calls = [_parse_call(item, f"{pointer}/{index}") for index, item in enumerate(items)]
    seen: set[str] = set()
    for index, call in enumerate(calls):
        if call.id in seen:
            detail = "two calls of one message must not share an id"
            raise ValidationError.at(f"{pointer}/{index}/id", detail)
        seen.add(call.id)
    return calls


def _parse_call(value: object, pointer: str) -> ToolCall:
    raw = json_fields.object_at(value, pointer)
    call_id = json_fields.filled_text_at(raw, "id", pointer)
    block = reasoning_fields.call_fields_of(raw) or None
    format = _FORMAT if block else None
    match raw.get("type", "function"):
        case "function":
            at = f"{pointer}/function"
            function = json_fields.object_at(raw.get("function"), at)
            arguments = json_fields.text_at(function, "arguments", at)
            name = json_fields.text_at(function, "name", at)
            return ToolCall(call_id, name, arguments, block=block, format=format)
        case "custom":
            at = f"{pointer}/custom"
            custom = json_fields.object_at(raw.get("custom"), at)
            text = json_fields.text_at(custom, "input", at)
            return ToolCall(call_id, json_fields.text_at(custom, "name", at), text, custom=True)
        case _:
            raise ValidationError.at(f"{pointer}/type", 'must be "function" or "custom"')


def _adapt_part(part: Part, role: Role, ids: Mapping[str, str]) -> tuple[Part, ...]:
    match part:
        case ToolCall():
            return (openai_common.adapt_call(part, ids),) if role is Role.ASSISTANT else ()
        case Image():
            if role is Role.ASSISTANT:
                return (labels.label_for(part),)
            return (openai_common.adapt_image(part, _DETAILS),)
        case File():
            return (labels.label_for(part) if role is Role.ASSISTANT else _adapt_file(part),)
        case Opaque():
            is_refusal = part.block.get("type") == "refusal"
            fits = part.format is _FORMAT and is_refusal == (role is Role.ASSISTANT)
            return (part if fits else labels.label_for(part),)
        case _:
            return (part,)


def _adapt_file(file: File) -> File | Text:
    if (content := openai_common.adapt_content(file)) is not None:
        return content
    if file.file_id is not None and file.format in json_fields.OPENAI_FORMATS:
        return file
    return labels.label_for(replace(file, name=None) if file.url else file)


def _join_texts(parts: list[Part]) -> list[Part]:
    """Assistant content is one string, unless a refusal makes it a list of parts."""
    texts = [part for part in parts if isinstance(part, Text)]
    if len(texts) < 2 or any(isinstance(part, Opaque) for part in parts):
        return parts
    joined = json_fields.joined(texts)
    first = parts.index(texts[0])
    rest = [part for part in parts[first:] if not isinstance(part, Text)]
    return [*parts[:first], joined, *rest]


def _render_assistant(message: Message) -> dict[str, Any]:
    shown = [part for part in message.parts if not isinstance(part, Reasoning | ToolCall)]
    rendered: dict[str, Any] = {"role": "assistant"}
    rendered["content"] = _content(shown) if shown else None
    calls = [_wire_call(call) for call in message.calls]
    if calls:
        rendered["tool_calls"] = calls
    return rendered | _name(message)


def _with_reasoning(message: Message) -> dict[str, Any]:
    """Render an assistant message with the fields of its reasoning as they came."""
    rendered = _render_assistant(message)
    content = [part for part in message.parts if not isinstance(part, ToolCall)]
    thoughts = [
        reasoning_fields.content_part(part) for part in content if isinstance(part, Reasoning)
    ]
    if any(thoughts):
        shown = (
            reasoning_fields.content_part(part) if isinstance(part, Reasoning) else _wire_part(part)
            for part in content
        )
        rendered["content"] = [dict(part) for part in shown if part is not None]
    calls = {call.id: call.block or {} for call in message.calls if call.format is _FORMAT}
    return _with_fields(rendered, reasoning_fields.message_fields(message), calls)


def _with_left_behind(message: Message) -> dict[str, Any]:
    calls = {call.id: reasoning_fields.call_left_behind(call) for call in message.calls}
    return _with_fields(_render_assistant(message), reasoning_fields.left_behind(message), calls)


def _with_fields(
    rendered: dict[str, Any], fields: Mapping[str, Any], calls: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Add fields to a message, after its content, and to its calls."""
    for call in rendered.get("tool_calls", ()):
        added = dict(calls.get(call["id"], {}))
        if function := added.pop("function", None):
            call["function"] |= function
        call.update(added)
    return {
        "role": rendered.pop("role"),
        "content": rendered.pop("content"),
        **fields,
        **rendered,
    }


def _name(message: Message) -> dict[str, str]:
    return {"name": message.name} if message.name is not None else {}


def _content(parts: Sequence[Part]) -> str | list[dict[str, Any]]:
    shown = [part for part in parts if not isinstance(part, Reasoning)]
    match shown:
        case [Text(text)]:
            return text
        case _:
            return [_wire_part(part) for part in shown]


def _wire_call(call: ToolCall) -> dict[str, Any]:
    if call.custom:
        custom = {"name": call.name, "input": call.arguments}
        return {"id": call.id, "type": "custom", "custom": custom}
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _wire_part(part: Part) -> dict[str, Any]:
    match part:
        case Text():
            return {"type": "text", "text": part.text}
        case Image():
            url = part.url if part.data is None else f"data:{part.media_type};base64,{part.data}"
            detail = {"detail": part.detail} if part.detail else {}
            return {"type": "image_url", "image_url": {"url": url} | detail}
        case File():
            return {"type": "file", "file": _wire_file(part)}
        case Opaque():
            return dict(part.block)
        case _:
            raise TypeError(f"{type(part).__name__} is no content part")


def _wire_file(file: File) -> dict[str, Any]:
    if file.data is not None:
        data_url = f"data:{file.media_type};base64,{file.data}"
        return {"file_data": data_url, "filename": file.name}
    name = {"filename": file.name} if file.name else {}
    return {"file_id": file.file_id} | name
