"""Gemini contents, in and out (A5, K1, provider rules HG).

1. Fields are read in camelCase and snake_case. What is sent is camelCase, but what came from
   Gemini goes back as it came.
2. A user content with k function responses is k tool messages and one user message with its other
   parts. `split` cuts the raw the same way.
3. A call without an id is known by its name, the nth of a name in one content as `name#n`; so is
   a response without an id, among those of its own content. Such an id is never sent (G1).
4. A response is an object: a text goes as `output`, that of a failed tool as `error`. Media of
   results follow their content's responses as parts, since not every model takes them inside.
5. Signatures and signed thoughts go back verbatim or not at all; thoughts without one never do.
   The first call of a step without a signature gets the documented stand-in for it, in every turn
   and for every model, so that it reads the same whatever follows (G2, N9).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, assert_never

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
    sendable,
    sendable_json,
)
from app.domain.formats import json_fields, labels

if TYPE_CHECKING:
    from app.domain.formats import ToolDefinition

RESULT_KEY = "response"
"""Where a result holds its content."""
MEDIA_FOLLOWS = "[media follows]"
STAND_IN_SIGNATURE = "skip_thought_signature_validator"
"""Tells Gemini that a call was not made by the model it goes to (G2)."""

_FORMAT = FormatName.GEMINI
_SNAKE = {
    "functionCall": "function_call",
    "functionResponse": "function_response",
    "inlineData": "inline_data",
    "fileData": "file_data",
    "mimeType": "mime_type",
    "fileUri": "file_uri",
    "displayName": "display_name",
    "thoughtSignature": "thought_signature",
}
_RESPONSE_FIELDS = (
    "id",
    "name",
    "response",
    "parts",
    "scheduling",
    "willContinue",
    "will_continue",
)
_SAID = ("output", "result", "error")
_IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp", "image/heic", "image/heif")
_FILE_TYPES = ("text/", "audio/", "video/")
_PDF = "application/pdf"
_TYPES_BY_SUFFIX = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "webp": "image/webp",
    "heic": "image/heic",
    "heif": "image/heif",
}
_OWN_FILES = "https://generativelanguage.googleapis.com/"
_NAME = re.compile(r"[a-zA-Z0-9_.:-]{1,128}")


def parse(raw: Mapping[str, Any], pointer: str) -> tuple[Message, ...]:
    """Read one content as one or more neutral messages (A1, A5).

    Raises `ValidationError` at the field below `pointer` that is wrong.
    """
    raw = json_fields.object_at(raw, pointer)
    role = raw.get("role")
    if role not in ("user", "model", "function"):
        json_fields.refuse_role(role, pointer, "user, model, function")
    at = f"{pointer}/parts"
    parts = [
        (json_fields.object_at(part, f"{at}/{index}"), f"{at}/{index}")
        for index, part in enumerate(json_fields.list_at(raw.get("parts"), at))
    ]
    if role == "model":
        return (Message(Role.ASSISTANT, _parse_model(parts)),)
    return _parse_user(parts)


def split(raw: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Give the raw to store for each neutral message that `parse` makes of it (A1, A5).

    Each part is in one of the pieces; the first piece keeps the unknown fields of the content.
    """
    parts = raw["parts"] if raw.get("role") != "model" else []
    pieces = [[part] for part in parts if _is_response(part)]
    rest = [part for part in parts if not _is_response(part)]
    if not pieces or (len(pieces) == 1 and not rest):
        return (dict(raw),)
    pieces += [rest] if rest else []
    others = ({"role": "user", "parts": piece} for piece in pieces[1:])
    return (dict(raw) | {"parts": pieces[0]}, *others)


def results(raw: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """List the objects of a raw that hold a tool's result, with their places in it."""
    parts = raw.get("parts")
    found = []
    for index, part in enumerate(parts if isinstance(parts, list) else []):
        key = _key(part, "functionResponse") if isinstance(part, Mapping) else ""
        if key and isinstance(part.get(key), Mapping):
            found.append((f"/parts/{index}/{key}", part[key]))
    return found


def adapt(message: Message, ids: Mapping[str, str] = json_fields.NO_IDS) -> Message:
    """Return a clean message as this format can say it, the same object when it can as is.

    `ids` maps call ids to the ids to send; others become `json_fields.sendable_id`, and those of
    calls that have none in Gemini stay (rule 3). Parts only another format understands are
    described in text (N12). Reasoning stays in the neutral message, since it is counted apart;
    `shown` decides about it.
    """
    parts = [new for part in message.parts for new in _adapt_part(part, message, ids)]
    if message.role is Role.TOOL and _original(message) is None:
        parts = _joined_texts(parts)
    elif message.role is Role.TOOL:
        parts = _as_sent(parts)
    elif message.role is Role.ASSISTANT:
        parts = _with_derived_ids(parts)
    return json_fields.adapted(message, parts, ids, json_fields.result_name(message))


def shown(
    message: Message, ids: Mapping[str, str] = json_fields.NO_IDS, *, keep_reasoning: bool = False
) -> Message:
    """Return an adapted message with exactly the parts that a payload has.

    With `keep_reasoning`, signed thoughts that Gemini made go back (rule 5).
    """
    message = adapt(message, ids)
    parts = [new for part in message.parts for new in _shown_part(part, keep_reasoning)]
    same = len(parts) == len(message.parts) and all(map(_same, parts, message.parts))
    return message if same else replace(message, parts=tuple(parts))


def render(
    message: Message,
    ids: Mapping[str, str] = json_fields.NO_IDS,
    *,
    keep_reasoning: bool = False,
    asked: Mapping[str, Any] | None = None,
) -> tuple[Literal["user", "model"], list[dict[str, Any]]]:
    """Render a clean message as a wire role and its parts (K1, HG).

    `asked` is the function call, as it is sent, that a result answers: name and id are its (G1).
    The first part of a result is the response.
    """
    message = shown(message, ids, keep_reasoning=keep_reasoning)
    match message.role:
        case Role.USER:
            return "user", [_wire_part(part, keep_reasoning) for part in message.parts]
        case Role.ASSISTANT:
            return "model", _wire_model(message, keep_reasoning)
        case Role.TOOL:
            return "user", _wire_result(message, asked)
        case _:
            assert_never(message.role)


def function_calls(parts: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """List the function calls among rendered parts, in their order."""
    keys = ((part, _key(part, "functionCall")) for part in parts)
    return [part[key] for part, key in keys if key in part]


def signature_in(part: Mapping[str, Any]) -> str:
    """Return the thought signature of a wire part, empty without one."""
    signature = _field(part, "thoughtSignature")
    return signature if isinstance(signature, str) else ""


def tool_media(message: Message) -> tuple[Part, ...]:
    """List what an adapted tool message hands to parts after the responses (rule 4)."""
    if message.role is not Role.TOOL or _original(message) is not None:
        return ()
    return tuple(part for part in message.parts if isinstance(part, Image | File))


def response_name(message: Message) -> str:
    """Give the name that an adapted tool message's response is sent with, asked by no call."""
    name = message.name or "tool"
    return name if _NAME.fullmatch(name) else json_fields.tool_name(name)


def response_json(message: Message) -> str:
    """Give the response object of an adapted tool message as the JSON it is sent as."""
    return json_fields.compact(_response(message))


def media_label(message: Message) -> str:
    """Give the text that stands before the media of an adapted tool message."""
    return f"[media from tool call {message.tool_call_id}]"


def tools_to_wire(tools: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
    """Render tool definitions as the one `Tool` that declares them all, in their order."""
    return [{"functionDeclarations": [_wire_tool(tool) for tool in tools]}] if tools else []


def _wire_tool(tool: ToolDefinition) -> dict[str, Any]:
    rendered: dict[str, Any] = {"name": tool.name}
    if tool.description:
        rendered["description"] = sendable(tool.description)
    return rendered | {"parametersJsonSchema": sendable_json(tool.parameters)}


def _same(new: object, old: object) -> bool:
    return new is old


# --- in -----------------------------------------------------------------------------------------


def _key(raw: Mapping[str, Any], name: str) -> str:
    """Give a field's name as it is spelled in `raw`, in camelCase where it is absent."""
    snake = _SNAKE.get(name, name)
    return snake if name not in raw and snake in raw else name


def _field(raw: Mapping[str, Any], name: str) -> Any:
    return raw.get(_key(raw, name))


def _optional_text(raw: Mapping[str, Any], name: str, pointer: str) -> str | None:
    return json_fields.optional_text_at(raw, _key(raw, name), pointer)


def _is_response(part: Mapping[str, Any]) -> bool:
    return _field(part, "functionResponse") is not None


def _nth(name: str, number: int) -> str:
    return name if number == 1 else f"{name}#{number}"


def _parse_user(parts: Sequence[tuple[Mapping[str, Any], str]]) -> tuple[Message, ...]:
    told: dict[str, int] = {}
    found = [_parse_response(part, at, told) for part, at in parts if _is_response(part)]
    rest = [(part, at) for part, at in parts if not _is_response(part)]
    if rest or not found:
        said = tuple(_parse_part(part, at, Role.USER) for part, at in rest)
        found.append(Message(Role.USER, said))
    return tuple(found)


def _parse_model(parts: Sequence[tuple[Mapping[str, Any], str]]) -> tuple[Part, ...]:
    found: list[Part] = []
    told: dict[str, int] = {}
    seen: set[str] = set()
    for raw, at in parts:
        if _field(raw, "functionCall") is None:
            found.append(_parse_part(raw, at, Role.ASSISTANT))
            continue
        call = _parse_call(raw, at, told)
        if call.id in seen:
            detail = "two calls of one content must not share an id"
            raise ValidationError.at(f"{at}/{_key(raw, 'functionCall')}/id", detail)
        seen.add(call.id)
        found.append(call)
    return tuple(found)


def _parse_call(raw: Mapping[str, Any], pointer: str, told: dict[str, int]) -> ToolCall:
    _signature(raw, pointer)
    at = f"{pointer}/{_key(raw, 'functionCall')}"
    call = json_fields.object_at(_field(raw, "functionCall"), at)
    name = json_fields.filled_text_at(call, "name", at)
    args = json_fields.object_at(call["args"], f"{at}/args") if call.get("args") is not None else {}
    arguments = json_fields.compact(json_fields.json_at(args, f"{at}/args"))
    call_id = json_fields.optional_text_at(call, "id", at)
    if not call_id:
        told[name] = told.get(name, 0) + 1
        call_id = _nth(name, told[name])
    block = json_fields.json_at(dict(raw), pointer)
    return ToolCall(call_id, name, arguments, block=block, format=_FORMAT)


def _parse_response(raw: Mapping[str, Any], pointer: str, told: dict[str, int]) -> Message:
    key = _key(raw, "functionResponse")
    at = f"{pointer}/{key}"
    answer = json_fields.object_at(raw[key], at)
    name = json_fields.filled_text_at(answer, "name", at)
    call_id = json_fields.optional_text_at(answer, "id", at)
    if not call_id:
        told[name] = told.get(name, 0) + 1
        call_id = _nth(name, told[name])
    response: Mapping[str, Any] = {}
    if answer.get(RESULT_KEY) is not None:
        response = json_fields.object_at(answer[RESULT_KEY], f"{at}/{RESULT_KEY}")
    kept = {field: value for field, value in answer.items() if field in _RESPONSE_FIELDS}
    block = json_fields.json_at({**raw, key: kept}, pointer)
    parts: list[Part] = [Text(response_text(response), block, _FORMAT)]
    if answer.get("parts") is not None:
        for index, item in enumerate(json_fields.list_at(answer["parts"], f"{at}/parts")):
            place = f"{at}/parts/{index}"
            parts.append(_parse_part(json_fields.object_at(item, place), place, Role.TOOL))
    is_error = isinstance(response.get("error"), str) and len(response) == 1
    return Message(Role.TOOL, tuple(parts), call_id, name, is_error)


def response_text(response: Mapping[str, Any]) -> str:
    """Give what a function response says as text: its only text, or all of it as JSON."""
    if not response:
        return ""
    key = said_key(response)
    return response[key] if key is not None else json_fields.compact(response)


def said_key(response: Mapping[str, Any]) -> str | None:
    """Give the field that holds the only text of a function response, None where there is none."""
    (key, *others) = response or ("",)
    is_text = not others and key in _SAID and isinstance(response.get(key), str)
    return key if is_text else None


def _parse_part(raw: Mapping[str, Any], pointer: str, role: Role) -> Part:
    signed = _signature(raw, pointer)
    if _field(raw, "functionCall") is not None or _is_response(raw):
        key = "functionResponse" if _is_response(raw) else "functionCall"
        raise ValidationError.at(f"{pointer}/{_key(raw, key)}", "cannot stand here")
    if raw.get("text") is not None:
        return _parse_text(raw, pointer, role, signed=signed)
    for name in ("inlineData", "fileData"):
        key = _key(raw, name)
        if raw.get(key) is not None:
            at = f"{pointer}/{key}"
            media = json_fields.object_at(raw[key], at)
            read = _parse_inline if name == "inlineData" else _parse_uri
            part = read(media, at)
            return part if not _says_more(raw, key) else _opaque(raw, pointer)
    if not _says_more(raw):
        raise ValidationError.at(pointer, "a part must hold something")
    return _opaque(raw, pointer)


def _says_more(raw: Mapping[str, Any], *known: str) -> bool:
    return any(value for key, value in raw.items() if key not in known)


def _opaque(raw: Mapping[str, Any], pointer: str) -> Opaque:
    return Opaque(json_fields.json_at(dict(raw), pointer), _FORMAT)


def _signature(raw: Mapping[str, Any], pointer: str) -> bool:
    """Check a part's signature, which must be base64, and tell whether there is one."""
    signature = _optional_text(raw, "thoughtSignature", pointer)
    if signature and not json_fields.is_base64(signature):
        at = f"{pointer}/{_key(raw, 'thoughtSignature')}"
        raise ValidationError.at(at, "must be base64")
    return bool(signature)


def _parse_text(
    raw: Mapping[str, Any], pointer: str, role: Role, *, signed: bool
) -> Text | Reasoning:
    text = json_fields.text_at(raw, "text", pointer)
    block = json_fields.json_at(dict(raw), pointer)
    is_thought = role is Role.ASSISTANT and raw.get("thought") is True
    if is_thought or (signed and not text.strip()):
        return Reasoning(text, block, _FORMAT) if signed else Reasoning(text)
    return Text(text, block, _FORMAT) if _says_more(raw, "text") else Text(text)


def _parse_inline(media: Mapping[str, Any], pointer: str) -> Image | File:
    data = json_fields.filled_text_at(media, "data", pointer)
    if not json_fields.is_base64(data):
        raise ValidationError.at(f"{pointer}/data", "must be base64")
    media_type = json_fields.filled_text_at(media, _key(media, "mimeType"), pointer)
    name = _optional_text(media, "displayName", pointer)
    if media_type.lower().startswith("image/"):
        return Image(media_type, data)
    return File(media_type, data, name=name)


def _parse_uri(media: Mapping[str, Any], pointer: str) -> Image | File:
    uri = json_fields.filled_text_at(media, _key(media, "fileUri"), pointer)
    media_type = _optional_text(media, "mimeType", pointer)
    name = _optional_text(media, "displayName", pointer)
    if not _is_web(uri) or uri.startswith(_OWN_FILES):
        return File(media_type, file_id=uri, name=name, format=_FORMAT)
    if (media_type or "").lower().startswith("image/"):
        return Image(media_type, url=uri)
    return File(media_type, url=uri, name=name)


def _is_web(uri: str | None) -> bool:
    return (uri or "").lower().startswith(("https://", "http://"))


# --- as the format can say it -------------------------------------------------------------------


def _adapt_part(part: Part, message: Message, ids: Mapping[str, str]) -> Iterable[Part]:
    match part:
        case ToolCall():
            return (_adapt_call(part, ids),) if message.role is Role.ASSISTANT else ()
        case Image() | File() if _original(message) is not None:
            return (part,)
        case Image():
            return (_adapt_image(part),)
        case File():
            return (_adapt_file(part),)
        case Opaque():
            fits = message.role is not Role.TOOL or _original(message) is not None
            return (part if part.format is _FORMAT and fits else labels.label_for(part),)
        case _:
            return (part,)


def _original(message: Message) -> Mapping[str, Any] | None:
    """Give the part that a result came as, where it still says the same."""
    if message.role is not Role.TOOL:
        return None
    own = (p.block for p in message.parts if isinstance(p, Text) and p.format is _FORMAT)
    return next((block for block in own if block is not None), None)


def _own_call(call: ToolCall) -> Mapping[str, Any] | None:
    """Give the function call as Gemini made it, None for a call of another provider."""
    if call.block is None or call.format is not _FORMAT:
        return None
    found: Mapping[str, Any] = _field(call.block, "functionCall")
    return found


def _has_no_id(call: ToolCall) -> bool:
    own = _own_call(call)
    return own is not None and not own.get("id")


def _with_derived_ids(parts: list[Part]) -> list[Part]:
    """Give calls without an id the ids that reading them back would give (rule 3)."""
    told: dict[str, int] = {}
    for place, part in enumerate(parts):
        if isinstance(part, ToolCall) and _has_no_id(part):
            told[part.name] = told.get(part.name, 0) + 1
            call_id = _nth(part.name, told[part.name])
            if call_id != part.id:
                parts[place] = replace(part, id=call_id)
    return parts


def _adapt_call(call: ToolCall, ids: Mapping[str, str]) -> ToolCall:
    sent = call.id if _has_no_id(call) else json_fields.sent_id(call.id, ids)
    name = call.name if _NAME.fullmatch(call.name) else json_fields.tool_name(call.name)
    arguments = _adapt_arguments(call.arguments)
    if (sent, name) == (call.id, call.name) and arguments is call.arguments and not call.custom:
        return call
    return replace(call, id=sent, name=name, arguments=arguments, custom=False)


def _adapt_arguments(text: str) -> str:
    """The args are sent as an object, so what JSON escapes hide must be sendable too."""
    arguments = json_fields.arguments_object(text)
    if arguments is None:
        return json_fields.wrapped_arguments(text)
    cleaned = sendable_json(arguments) if "\\u" in text else arguments
    return text if cleaned is arguments else json_fields.compact(cleaned)


def _adapt_image(image: Image) -> Image | Text:
    declared = json_fields.media_type_of(image)
    if image.data is None and declared is None:
        suffix = (image.url or "").partition("?")[0].rpartition(".")[2].lower()
        declared = _TYPES_BY_SUFFIX.get(suffix, "image/jpeg")
    media_type = "image/jpeg" if declared == "image/jpg" else declared
    data = _base64(image.data) if image.data is not None else None
    if media_type not in _IMAGE_TYPES or not (data or (image.data is None and _is_web(image.url))):
        return labels.label_for(image)
    if media_type == image.media_type and data is image.data:
        return image
    return replace(image, media_type=media_type, data=data)


def _base64(data: str) -> str | None:
    """Give base64 as Gemini takes it: in one line, and None for what is none."""
    if json_fields.is_base64(data):
        return data
    joined = "".join(data.split())
    return joined if json_fields.is_base64(joined) else None


def _adapt_file(file: File) -> File | Image | Text:
    media_type = json_fields.media_type_of(file)
    if file.data is not None:
        if (media_type or "").startswith("image/"):
            return _adapt_image(Image(media_type, file.data))
        data = _base64(file.data)
        if not data or not (media_type == _PDF or (media_type or "").startswith(_FILE_TYPES)):
            return labels.label_for(file)
        same = data is file.data and media_type == file.media_type
        return file if same else replace(file, data=data, media_type=media_type)
    if file.text is not None and file.text.strip():
        return Text(f"{labels.file_label(file)}\n{file.text}" if file.name else file.text)
    if file.file_id is not None and file.format is _FORMAT:
        return file
    if not _is_web(file.url) or (file.url or "").startswith(_OWN_FILES):
        return labels.label_for(file)
    if (media_type or "").startswith("image/"):
        return _adapt_image(Image(media_type, url=file.url))
    return file


def _as_sent(parts: list[Part]) -> list[Part]:
    """Let a response read as it is sent: what JSON escapes hide in its text was made sendable."""
    answer, *others = parts
    if not isinstance(answer, Text) or "\\u" not in answer.text or answer.block is None:
        return parts
    text = response_text(answer.block[_key(answer.block, "functionResponse")].get(RESULT_KEY) or {})
    return parts if text == answer.text else [replace(answer, text=text), *others]


def _joined_texts(parts: list[Part]) -> list[Part]:
    """A response says one text."""
    texts = [part for part in parts if isinstance(part, Text)]
    if len(texts) < 2:
        return parts
    return [json_fields.joined(texts), *(part for part in parts if not isinstance(part, Text))]


def _shown_part(part: Part, keep_reasoning: bool) -> Iterable[Part]:
    match part:
        case Reasoning():
            is_own = part.format is _FORMAT and part.block is not None
            return (part,) if keep_reasoning and is_own else ()
        case Opaque() if not keep_reasoning and _field(part.block, "thoughtSignature"):
            return (replace(part, block=_unsigned(part.block)),)
        case _:
            return (part,)


# --- out ----------------------------------------------------------------------------------------


def _wire_model(message: Message, keep_reasoning: bool) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    is_first = True
    for part in message.parts:
        wired = _wire_part(part, keep_reasoning)
        if isinstance(part, ToolCall):
            if is_first and not _field(wired, "thoughtSignature"):
                wired = _unsigned(wired) | {"thoughtSignature": STAND_IN_SIGNATURE}
            is_first = False
        parts.append(wired)
    return parts


def _unsigned(block: Mapping[str, Any]) -> dict[str, Any]:
    signatures = ("thoughtSignature", "thought_signature")
    return {key: item for key, item in block.items() if key not in signatures}


def _wire_part(part: Part, keep_reasoning: bool) -> dict[str, Any]:
    match part:
        case Text(block=Mapping()) | Opaque() if part.format is _FORMAT:
            block = part.block or {}
            return dict(block) if keep_reasoning else _unsigned(block)
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
    arguments = json_fields.arguments_object(call.arguments) or {}
    own = _own_call(call)
    if own is None or call.block is None:
        return {"functionCall": {"id": call.id, "name": call.name, "args": arguments}}
    said = {**own, "name": call.name}
    if arguments or "args" in own:
        said["args"] = arguments
    if own.get("id"):
        said["id"] = call.id
    block = call.block if keep_reasoning else _unsigned(call.block)
    return {**block, _key(block, "functionCall"): said}


def _wire_media(media: Image | File) -> dict[str, Any]:
    name = media.name if isinstance(media, File) else None
    shown_as = {"displayName": name} if name else {}
    typed = {"mimeType": media.media_type} if media.media_type else {}
    if media.data is not None:
        return {"inlineData": {**typed, "data": media.data, **shown_as}}
    uri = media.url
    if isinstance(media, File) and media.file_id is not None and media.format is _FORMAT:
        uri = media.file_id
    return {"fileData": {"fileUri": uri, **typed, **shown_as}}


def _wire_result(message: Message, asked: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    original = _original(message)
    call_id: str | None = message.tool_call_id
    if asked is not None:
        call_id, message = asked.get("id"), replace(message, name=asked["name"])
    elif original is not None and not _field(original, "functionResponse").get("id"):
        call_id = None
    known = {"id": call_id} if call_id else {}
    known["name"] = response_name(message)
    if original is not None:
        key = _key(original, "functionResponse")
        answer = {**original[key], **known}
        if not call_id:
            answer.pop("id", None)
        return [{**_unsigned(original), key: answer}]
    media = tool_media(message)
    answer = {**known, RESULT_KEY: _response(message)}
    parts: list[dict[str, Any]] = [{"functionResponse": answer}]
    if media:
        parts.append({"text": media_label(message)})
        parts += [_wire_part(part, False) for part in media]
    return parts


def _response(message: Message) -> Mapping[str, Any]:
    original = _original(message)
    if original is not None:
        found: Mapping[str, Any] = _field(original, "functionResponse").get(RESULT_KEY) or {}
        return found
    return {"error" if message.is_error else "output": message.text or MEDIA_FOLLOWS}
