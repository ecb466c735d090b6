"""Gemini contents.

1. Fields are read in camelCase and snake_case. Rendered fields are camelCase, except that parts
   which came from Gemini are replayed as they came.
2. A user content with k function responses is k tool messages and one user message with its other
   parts. `split` cuts the raw content in the same way.
3. A call without an id is identified by its name; the nth call of a name in one content has the id
   `name#n`. Responses without an id answer the open calls of their name in order. Such an id is
   never sent.
4. A response is an object: a text is sent as `output`, that of a failed tool as `error`. Media of
   results follow the responses of their content as parts, since not every model accepts them
   inside a response.
5. Signatures and signed thoughts are replayed verbatim or left out. Unsigned thoughts are always
   left out. The first call of a step gets the documented stand-in where it has no signature, in
   every turn and for every model, so that its bytes do not depend on what follows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from app.common import json_text
from app.formats import base64_media, json_fields, labels, media_parts, tool_calls
from app.formats.base import Original, without
from app.formats.base64_media import PDF
from app.formats.gemini.parsing import (
    RESULT_KEY,
    STAND_IN_SIGNATURE,
    GeminiParsing,
    field_in,
    function_name,
    is_own_file,
    key_in,
    original_call,
    original_part,
    response_name,
    response_of,
    response_text,
    signature_in,
    text_key,
    tool_media,
    unsigned,
)
from app.formats.json_fields import Fields
from app.formats.message import (
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
from app.formats.reasoning_families import GEMINI
from app.formats.requests import AgentCall, RequestFields, System, SystemPrompt
from app.formats.tools import ToolDefinition, wire_fields

_FILE_TYPES = ("text/", "audio/", "video/")
_CALLS = ("functionCall", "function_call")
_RESPONSES = ("functionResponse", "function_response")
_NOT_COUNTED = ("thoughtSignature", "thought_signature", "text", "thought", *_CALLS, *_RESPONSES)
_HELD_NOT_COUNTED = ("id", "name", "args", "response", "parts")


class Gemini(GeminiParsing):
    """Gemini."""

    name = FormatName.GEMINI
    family = GEMINI
    result_key = RESULT_KEY
    blocks_key = "parts"
    items_key = "contents"
    derives_ids = True
    results_are_objects = True
    image_types = ("image/png", "image/jpeg", "image/webp", "image/heic", "image/heif")

    def tools_to_wire(self, tools: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
        """Render functions as one `Tool` that declares them all, and hosted tools after it."""
        declarations = [self._function(tool) for tool in tools if tool.hosted is None]
        hosted = super().tools_to_wire([tool for tool in tools if tool.hosted is not None])
        return [*([{"functionDeclarations": declarations}] if declarations else []), *hosted]

    def _function(self, tool: ToolDefinition) -> dict[str, Any]:
        return wire_fields(tool, "parametersJsonSchema") | {"name": function_name(tool.name)}

    def _adapt_part(self, part: Part, message: Message, ids: Mapping[str, str]) -> Part | None:
        """Adapt a part; media of the assistant stay, and so does a response as it came."""
        is_original = original_part(message) is not None
        match part:
            case Image() | File() if is_original:
                return part
            case Image():
                return self._adapt_image(part)
            case File():
                return self._adapt_file(part)
            case Opaque() if message.role is Role.TOOL and not is_original:
                return labels.label_for(part)
            case _:
                return super()._adapt_part(part, message, ids)

    def _arranged(self, parts: list[Part], message: Message) -> list[Part]:
        if message.role is Role.ASSISTANT:
            # Calls without an id have those that `parse` would derive from these parts (rule 3).
            named = (
                replace(part, id=part.name)
                if isinstance(part, ToolCall) and _has_no_id(part)
                else part
                for part in parts
            )
            derived = zip(parts, tool_calls.with_own_ids(named), strict=True)
            return [part if new == part else new for part, new in derived]
        texts = [part for part in parts if isinstance(part, Text)]
        if message.role is not Role.TOOL or not texts:
            return parts
        if (original := original_part(message)) is None:
            rest = [part for part in parts if not isinstance(part, Text)]
            return [labels.join_texts(texts), *rest] if len(texts) > 1 else parts
        if "\\u" not in texts[0].text:
            return parts
        # The text is that of the response that is sent, whose escaped characters `clean` replaced.
        text = response_text(field_in(original, "functionResponse").get(RESULT_KEY) or {})
        return parts if text == texts[0].text else [replace(texts[0], text=text), *parts[1:]]

    def _sent_id(self, call: ToolCall, ids: Mapping[str, str]) -> str:
        """Return the id to send; a derived one stays as it is (rule 3)."""
        return call.id if _has_no_id(call) else super()._sent_id(call, ids)

    def _function_name(self, name: str) -> str:
        return function_name(name)

    def _image_type(self, image: Image) -> str | None:
        """Return the type of an image, of one by URL as its suffix tells."""
        declared = super()._image_type(image)
        if image.data is not None or declared is not None:
            return declared
        suffix = (image.url or "").partition("?")[0].rpartition(".")[2].lower()
        return f"image/{suffix}" if f"image/{suffix}" in self.image_types else "image/jpeg"

    def apart(self, message: Message) -> tuple[Part, ...]:
        """List the media of a result that are sent as parts of their own (rule 4)."""
        return tool_media(message)

    def apart_texts(self, message: Message) -> tuple[str, ...]:
        """Return the label before these parts."""
        return (labels.media_label(message),) if tool_media(message) else ()

    def for_payload(
        self,
        message: Message,
        ids: Mapping[str, str] = tool_calls.NO_IDS,
        *,
        keep_reasoning: bool = False,
    ) -> Message:
        """Adapt a clean message and leave out the parts that a payload does not have.

        With `keep_reasoning`, signed thoughts that Gemini made stay (rule 5).
        """
        message = self.adapt(message, ids)
        parts: list[Part] = []
        for part in message.parts:
            if isinstance(part, Reasoning):
                is_own = part.format is self.name and part.block is not None
                parts += [part] if keep_reasoning and is_own else []
            elif keep_reasoning or not isinstance(part, Opaque):
                parts.append(part)
            else:
                is_signed = field_in(part.block, "thoughtSignature")
                parts.append(replace(part, block=unsigned(part.block)) if is_signed else part)
        return message.with_parts(parts)

    def _adapt_file(self, file: File) -> File | Image | Text:
        media_type = media_parts.media_type_of(file) or ""
        if file.data is not None:
            if media_type.startswith("image/"):
                image = Image(media_type, file.data, block=file.block, format=file.format)
                return self._adapt_image(image)
            if not (media_type == PDF or media_type.startswith(_FILE_TYPES)):
                return labels.label_for(file)
            return file if media_type == file.media_type else replace(file, media_type=media_type)
        if (document := labels.document_text(file)) is not None:
            return document
        if file.file_id is not None and file.format is self.name:
            return file
        if not base64_media.is_web_url(file.url) or is_own_file(file.url or ""):
            return labels.label_for(file)
        is_image = media_type.startswith("image/")
        return self._adapt_image(Image(media_type, url=file.url)) if is_image else file

    def render(
        self,
        message: Message,
        ids: Mapping[str, str] = tool_calls.NO_IDS,
        *,
        keep_reasoning: bool = False,
        call: Mapping[str, Any] | None = None,
    ) -> tuple[Literal["user", "model"], list[dict[str, Any]]]:
        """Render a clean message as a wire role and its parts.

        `call` is the rendered function call that a result answers: it decides about name and id.
        The first part of a result is the response.
        """
        message = self.for_payload(message, ids, keep_reasoning=keep_reasoning)
        if message.role is Role.TOOL:
            return "user", self._wire_result(message, call)
        parts = [self._wire_part(part, keep_reasoning) for part in message.parts]
        if message.role is not Role.ASSISTANT:
            return "user", parts
        calls = (at for at, part in enumerate(message.parts) if isinstance(part, ToolCall))
        first = next(calls, None)
        if first is not None and not field_in(parts[first], "thoughtSignature"):
            parts[first] = unsigned(parts[first]) | {"thoughtSignature": STAND_IN_SIGNATURE}
        return "model", parts

    def _wire_part(self, part: Part, keep_reasoning: bool) -> dict[str, Any]:
        match part:
            case Text(block=Mapping()) | Opaque() if part.format is self.name:
                block = part.block or {}
                return dict(block) if keep_reasoning else unsigned(block)
            case Text():
                return {"text": part.text}
            case Image() | File():
                return self._wire_media(part)
            case ToolCall():
                return self._wire_call(part, keep_reasoning)
            case Reasoning() | Opaque():
                return dict(part.block or {})

    def _wire_call(self, call: ToolCall, keep_reasoning: bool) -> dict[str, Any]:
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

    def _wire_media(self, media: Image | File) -> dict[str, Any]:
        named = {"displayName": media.name} if isinstance(media, File) and media.name else {}
        typed = {"mimeType": media.media_type} if media.media_type else {}
        own = self.beside(media)
        if media.data is not None:
            key, held = "inlineData", {**typed, "data": media.data, **named}
        else:
            own_id = media.file_id if isinstance(media, File) else None
            uri = (own_id if media.format is self.name else None) or media.url or ""
            key, held = "fileData", {"fileUri": uri, **typed, **named}
        return {key: {**held, **(own.pop(key_in(own, key), None) or {})}, **own}

    def _wire_result(
        self, message: Message, call: Mapping[str, Any] | None
    ) -> list[dict[str, Any]]:
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
            parts.append({"text": labels.media_label(message)})
            parts += [self._wire_part(part, False) for part in media]
        return parts

    def _extra_fields(self, part: Original, block: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a part, and those of its call or response."""
        fields = without(block, *_NOT_COUNTED)
        for key in (*_CALLS, *_RESPONSES):
            if isinstance(held := block.get(key), Mapping):
                fields |= without(held, *_HELD_NOT_COUNTED)
        return fields

    def signature_of(self, part: Text | ToolCall) -> Mapping[str, Any]:
        """Return the thought signature of a part, unless it is the stand-in."""
        signature = signature_in(part.block or {})
        is_own = signature not in ("", STAND_IN_SIGNATURE)
        return {"thoughtSignature": signature} if is_own else {}

    def result_texts(self, message: Message) -> tuple[str, ...]:
        """Return the response object as JSON, and its name."""
        return json_fields.compact(response_of(message)), response_name(message)

    def text_key(self, content: Any) -> str | None:
        """Return the field of a response's only text."""
        return text_key(content)

    def result_content(self, text: str) -> Any:
        """Return a response with a text."""
        return {"output": text}

    def system(self, prompt: SystemPrompt, marked: Collection[int]) -> System:
        """Return an instruction with a part per text."""
        texts = prompt.texts
        instruction = {"parts": [{"text": text} for text in texts]} if texts else None
        return System((), instruction, json_text.dump_payload(instruction))

    def body(self, fields: RequestFields) -> dict[str, Any]:
        """Return contents, and a configuration that has the rest."""
        system = {"system_instruction": fields.system} if fields.system is not None else {}
        config = {"max_output_tokens": fields.max_output, **fields.tools, **system}
        return {self.items_key: fields.items, "config": config}

    def call_id_fields(self, raw: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
        """List calls and responses."""
        return [(item, "id") for item in _held(raw["parts"], *_CALLS, *_RESPONSES)]

    def named_calls(self, raw: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the ids that calls have; an id by position is not in the content."""
        return tuple(call["id"] for call in _held(raw["parts"], *_CALLS) if call.get("id"))

    def read_call(self, call: Fields) -> AgentCall:
        """Read a part with a `functionCall`."""
        key = "function_call" if "function_call" in call.raw else "functionCall"
        function = call.object(key)
        call_id = function.optional_text("id") or None
        return AgentCall(call_id, Fields({"args": {}, **function.raw}, function.at), "args")

    def result(
        self, call_id: str | None, name: str | None, text: str, *, is_error: bool = False
    ) -> dict[str, Any]:
        """Return a content with one function response."""
        response: dict[str, Any] = {} if call_id is None else {"id": call_id}
        response |= {"name": name, "response": {"error" if is_error else "output": text}}
        return {"role": "user", "parts": [{"functionResponse": response}]}

    def emptied(self, message: Message, text: str) -> dict[str, Any]:
        """Return a content; ids that are made from names are left out, so that they stay."""
        if message.role is Role.TOOL:
            first = message.parts[0] if message.parts else None
            block = first.block if isinstance(first, Text) else None
            return self.result(_own_id(block, "functionResponse"), message.name, text)
        parts: list[dict[str, Any]] = [{"text": text}]
        for call in message.calls:
            own_id = _own_id(call.block, "functionCall")
            identity = {} if own_id is None else {"id": own_id}
            parts.append({"functionCall": {**identity, "name": call.name, "args": {}}})
        return {"role": "user" if message.role is Role.USER else "model", "parts": parts}


def _has_no_id(call: ToolCall) -> bool:
    own = original_call(call)
    return own is not None and not own.get("id")


def function_calls(parts: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """List the function calls among rendered parts, in their order."""
    return [part[key] for part in parts if (key := key_in(part, "functionCall")) in part]


def _held(parts: Iterable[Mapping[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [part[name] for part in parts for name in names if part.get(name) is not None]


def _own_id(block: Mapping[str, Any] | None, name: str) -> str | None:
    fields = field_in(block, name) if block is not None else None
    own_id = fields.get("id") if isinstance(fields, Mapping) else None
    return own_id if isinstance(own_id, str) and own_id else None
