"""Gemini contents.

1. Fields are read in camelCase and snake_case, and sent in camelCase.
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

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from app.common import json_text
from app.common.errors import ValidationError
from app.formats import json_fields, media
from app.formats.base import (
    AgentCall,
    BlockProvider,
    Original,
    Provider,
    System,
    SystemPrompt,
    without,
)
from app.formats.json_fields import Fields, Raw, Wire, camel, object_in
from app.formats.media import PDF
from app.formats.message import (
    GOOGLE_FORMATS,
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
from app.formats.reasoning import GEMINI, STAND_IN_SIGNATURE
from app.formats.tools import ToolDefinition, arguments_object, own_id, wire_fields, with_own_ids

_CALL, _RESPONSE, _SIGNATURE = "functionCall", "functionResponse", "thoughtSignature"
_HOLDERS = (
    *(_CALL, _RESPONSE, "inlineData", "fileData", "toolCall", "toolResponse"),
    *("executableCode", "codeExecutionResult", "videoMetadata", "mediaResolution"),
)
"""Fields of a part whose objects have fields of their own that are spelled in two ways."""
_TEXT_KEYS = ("output", "result", "error")
_OWN_FILES = "https://generativelanguage.googleapis.com/"
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}")
_RESPONSE_FIELDS = ("id", "name", "response", "parts", "scheduling", "willContinue")
_HELD_NOT_COUNTED = ("id", "name", "args", "response", "parts")


class GoogleProvider(Provider):
    """What Google's two formats share."""

    family = GEMINI
    called_fields = ("id", "name")
    ends_with_reasoning = True
    image_types: ClassVar[tuple[str, ...]] = (
        "image/png",
        "image/jpeg",
        "image/webp",
        "image/heic",
        "image/heif",
    )
    file_types: ClassVar[tuple[str, ...]] = ("text/", "audio/", "video/")
    """How the media types of documents begin that it takes beside PDF."""

    def _function_name(self, name: str) -> str:
        """Return the name of a function as Gemini accepts it [gemini.names]."""
        valid = name if _NAME.fullmatch(name) else super()._function_name(name)
        return valid if _NAME.fullmatch(valid) else f"_{valid}"

    def media_at(
        self, uri: str, media_type: str | None, name: str | None, *, is_image: bool
    ) -> Image | File:
        """Return media by their URI, which may be the id of an uploaded file."""
        if not media.is_web_url(uri) or uri.startswith(_OWN_FILES):
            return File(media_type, file_id=uri, name=name, format=self.name)
        return Image(media_type, url=uri) if is_image else File(media_type, url=uri, name=name)

    def linked(self, message: Message, call: Raw | None) -> Message:
        """Return a result with the name of its call."""
        return replace(message, name=call["name"]) if call is not None else message

    @staticmethod
    def uri_of(part: Image | File) -> str:
        """Return the URI of media: an id of Google's, which is valid in both formats, or a URL."""
        own_id = part.file_id if isinstance(part, File) else None
        return (own_id if part.format in GOOGLE_FORMATS else None) or part.url or ""

    def _image_type(self, image: Image) -> str | None:
        """Return the type of an image, of one by URL as its suffix tells."""
        declared = super()._image_type(image)
        if image.data is not None or declared is not None:
            return declared
        suffix = (image.url or "").partition("?")[0].rpartition(".")[2].lower()
        return f"image/{suffix}" if f"image/{suffix}" in self.image_types else "image/jpeg"

    def _adapt_file(self, file: File) -> File | Image | Text:
        media_type = media.media_type_of(file) or ""
        if file.data is not None:
            if media_type.startswith("image/"):
                image = Image(media_type, file.data, block=file.block, format=file.format)
                return self._adapt_image(image)
            if not (media_type == PDF or media_type.startswith(self.file_types)):
                return media.label_for(file)
            return file if media_type == file.media_type else replace(file, media_type=media_type)
        if (document := media.document_text(file)) is not None:
            return document
        if file.file_id is not None and file.format in GOOGLE_FORMATS:
            return file
        if not media.is_web_url(file.url) or (file.url or "").startswith(_OWN_FILES):
            return media.label_for(file)
        is_image = media_type.startswith("image/")
        return self._adapt_image(Image(media_type, url=file.url)) if is_image else file


class Gemini(GoogleProvider, BlockProvider):
    """Gemini."""

    name = FormatName.GEMINI
    assembler = "gemini"
    blocks_key = "parts"
    id_keys = ("id", "id")
    result_key = "response"
    assistant = "model"
    items_key = "contents"
    derives_ids = True
    results_are_objects = True
    apart_types = (Image, File)
    not_counted = (_SIGNATURE, "text", "thought", _CALL, _RESPONSE)

    def parse(self, raw: Raw, pointer: str) -> tuple[Message, ...]:
        """Read one content as one or more neutral messages."""
        content = Fields(raw, pointer)
        role = content.get("role")
        if role not in ("user", "model", "function"):
            json_fields.refuse_role(role, pointer, "user, model, function")
        parts = list(map(_camelled, content.objects("parts")))
        if role != "model":
            return self._parse_user(parts)
        parsed = (self._parse_part(part, Role.ASSISTANT) for part in parts)
        return (Message(Role.ASSISTANT, with_own_ids(parsed)),)

    def calls(self, raw: Raw) -> list[Wire]:
        """List the function calls of a content."""
        return _held(raw["parts"], _CALL)

    def is_result(self, block: Raw) -> bool:
        """Whether a part is a function response."""
        return bool(_held([block], _RESPONSE))

    def results(self, raw: Raw) -> list[tuple[str, Any]]:
        """List the function responses of a content, each with its JSON pointer."""
        parts = raw.get("parts")
        return [
            (f"/parts/{index}/{key}", part[key])
            for index, part in enumerate(parts if isinstance(parts, list) else [])
            if isinstance(part, Mapping)
            for key in (_RESPONSE, "function_response")
            if isinstance(part.get(key), Mapping)
        ]

    def _parse_results(self, blocks: Sequence[Fields]) -> list[Message]:
        """Read responses, each with an id of its own (rule 3)."""
        messages: list[Message] = []
        answered: set[str] = set()
        for message in map(self._parse_result, blocks):
            call_id = own_id(message.tool_call_id or "", answered)
            answered.add(call_id)
            messages.append(replace(message, tool_call_id=call_id))
        return messages

    def _parse_result(self, result: Fields) -> Message:
        answer = result.object(_RESPONSE)
        name = answer.filled_text("name")
        call_id = answer.optional_text("id") or name
        response: Raw = {}
        if answer.get(self.result_key) is not None:
            response = answer.object(self.result_key).raw
        fields = {field: value for field, value in answer.raw.items() if field in _RESPONSE_FIELDS}
        block = json_fields.json_at({**result.raw, _RESPONSE: fields}, result.at)
        key = self.text_key(response)
        text = response[key] if key else json_fields.compact(response)
        parts: list[Part] = [Text(text if response else "", block, self.name)]
        if answer.get("parts") is not None:
            held = map(_camelled, answer.objects("parts"))
            parts += [self._parse_part(item, Role.TOOL) for item in held]
        is_error = isinstance(response.get("error"), str) and len(response) == 1
        return Message(Role.TOOL, tuple(parts), call_id, name, is_error)

    def _parse_part(self, part: Fields, role: Role) -> Part:
        is_signed = bool(signature := part.optional_text(_SIGNATURE))
        if signature and media.strict_base64(signature) is None:
            raise part.error(_SIGNATURE, "must be base64")
        for key in (_RESPONSE, _CALL):
            if part.get(key) is not None and (key == _RESPONSE or role is not Role.ASSISTANT):
                raise part.error(key, "is not allowed here")
        if part.get(_CALL) is not None:
            call = part.object(_CALL)
            called = call.filled_text("name")
            args = call.object("args").json() if call.get("args") is not None else {}
            call_id, text = call.optional_text("id") or called, json_fields.compact(args)
            return ToolCall(call_id, called, text, block=part.json(), format=self.name)
        if part.get("text") is not None:
            text, block = part.text("text"), part.json()
            is_thought = part.get("thought") is True or (is_signed and not text.strip())
            if is_thought and role is Role.ASSISTANT:
                return Reasoning(text, block, self.name) if is_signed else Reasoning(text)
            return Text(text, block, self.name) if without(block, "text") else Text(text)
        for key in ("inlineData", "fileData"):
            if part.get(key) is not None:
                return self._opaque(part) if is_signed else self._parse_media(part, key)
        if not any(part.raw.values()):
            raise ValidationError.at(part.at, "a part must have content")
        return self._opaque(part)

    def _parse_media(self, part: Fields, key: str) -> Image | File:
        held = part.object(key)
        name, media_type = held.optional_text("displayName"), held.optional_text("mimeType")
        is_image = (media_type or "").lower().startswith("image/")
        found: Image | File
        if key == "inlineData":
            data = held.filled_text("data")
            media_type = held.filled_text("mimeType")
            found = Image(media_type, data) if is_image else File(media_type, data, name=name)
        else:
            found = self.media_at(held.filled_text("fileUri"), media_type, name, is_image=is_image)
        known = ("displayName",) if isinstance(found, File) else ()
        blob = held.beside(self.name, "data", "mimeType", "fileUri", *known).get("block", {})
        own = part.beside(self.name, key).get("block", {}) | ({key: blob} if blob else {})
        return replace(found, block=own, format=self.name) if own else found

    def tools_to_wire(self, tools: Sequence[ToolDefinition]) -> list[Wire]:
        """Render functions as one `Tool` that declares them all, and hosted tools after it."""
        declarations = [self._function(tool) for tool in tools if tool.hosted is None]
        hosted = super().tools_to_wire([tool for tool in tools if tool.hosted is not None])
        return [*([{"functionDeclarations": declarations}] if declarations else []), *hosted]

    def _function(self, tool: ToolDefinition) -> Wire:
        return wire_fields(tool, "parametersJsonSchema") | {"name": self._function_name(tool.name)}

    def _adapt_part(self, part: Part, message: Message, ids: Mapping[str, str]) -> Part | None:
        """Adapt a part; media of the assistant stay, and so does a response as it came."""
        is_original = _original_part(message) is not None
        match part:
            case Image() | File() if is_original:
                return part
            case Image():
                return self._adapt_image(part)
            case File():
                return self._adapt_file(part)
            case Opaque() if message.role is Role.TOOL and not is_original:
                return media.label_for(part)
            case _:
                return super()._adapt_part(part, message, ids)

    def _arranged(self, parts: list[Part], message: Message) -> list[Part]:
        if message.role is Role.ASSISTANT:
            # Calls without an id have those that `parse` would derive from these parts (rule 3).
            named = (
                replace(part, id=part.name)
                if isinstance(part, ToolCall) and self._has_no_id(part)
                else part
                for part in parts
            )
            derived = zip(parts, with_own_ids(named), strict=True)
            return [part if new == part else new for part, new in derived]
        texts = [part for part in parts if isinstance(part, Text)]
        is_own = message.role is not Role.TOOL or _original_part(message) is not None
        if is_own or len(texts) < 2:
            return parts
        return [media.join_texts(texts), *(p for p in parts if not isinstance(p, Text))]

    def _has_no_id(self, call: ToolCall) -> bool:
        own = self.beside(call)
        return bool(own) and not own[_CALL].get("id")

    def _sent_id(self, call: ToolCall, ids: Mapping[str, str]) -> str:
        """Return the id to send; a derived one stays as it is (rule 3)."""
        return call.id if self._has_no_id(call) else super()._sent_id(call, ids)

    def sent_parts(self, message: Message, accepts: Sequence[str], *, replays: bool) -> list[Part]:
        """Leave out signatures as well as thoughts (rule 5)."""
        parts = super().sent_parts(message, accepts, replays=replays)
        return [
            replace(part, block=_unsigned(part.block))
            if not (replays or isinstance(part, Image | File) or part.block is None)
            and part.format is self.name
            and _SIGNATURE in part.block
            else part
            for part in parts
        ]

    def apart(self, message: Message) -> tuple[Part, ...]:
        """List the media of a result that are sent as parts of their own (rule 4)."""
        return () if _original_part(message) is not None else super().apart(message)

    def render(self, message: Message, call: Raw | None = None) -> list[Wire]:
        """Render a message as its parts, a result as a response before its media.

        The call that a result answers decides about its id.
        """
        if message.role is Role.TOOL:
            return self._wire_result(message, call)
        parts = list(map(self._wire_part, message.parts))
        calls = [at for at, part in enumerate(message.parts) if isinstance(part, ToolCall)]
        if calls and not parts[calls[0]].get(_SIGNATURE):
            parts[calls[0]] = _unsigned(parts[calls[0]]) | {_SIGNATURE: STAND_IN_SIGNATURE}
        return parts

    def _wire_text(self, text: str) -> Wire:
        return {"text": text}

    def _wire_call(self, call: ToolCall) -> Wire:
        arguments = arguments_object(call.arguments) or {}
        if not (block := self.beside(call)):
            return {_CALL: {"id": call.id, "name": call.name, "args": arguments}}
        function = {**block[_CALL], "name": call.name}
        if arguments or "args" in function:
            function["args"] = arguments
        if function.get("id"):
            function["id"] = call.id
        return {**block, _CALL: function}

    def _wire_media(self, part: Image | File) -> Wire:
        named = {"displayName": part.name} if isinstance(part, File) and part.name else {}
        typed = {"mimeType": part.media_type} if part.media_type else {}
        own = self.beside(part)
        if part.data is not None:
            key, held = "inlineData", {**typed, "data": part.data, **named}
        else:
            uri = self.uri_of(part)
            key, held = "fileData", {"fileUri": uri, **typed, **named}
        return {key: {**held, **(own.pop(key, None) or {})}, **own}

    def _wire_result(self, message: Message, call: Raw | None) -> list[Wire]:
        original = _original_part(message)
        call_id: str | None = message.tool_call_id
        if call is not None:
            call_id = call.get("id")
        elif original is not None and not original[_RESPONSE].get("id"):
            call_id = None
        identity = {"id": call_id} if call_id else {}
        identity["name"] = self._function_name(message.name or "tool")
        if original is not None:
            response = {**original[_RESPONSE], **identity}
            if not call_id:
                response.pop("id", None)
            return [{**_unsigned(original), _RESPONSE: response}]
        media_parts = self.apart(message)
        label = [Text(media.media_label(message))] if media_parts else []
        response = {**identity, self.result_key: self._response_of(message)}
        return [{_RESPONSE: response}, *map(self._wire_part, (*label, *media_parts))]

    def _response_of(self, message: Message) -> Raw:
        """Return the response object of an adapted tool message (rule 4)."""
        if (original := _original_part(message)) is not None:
            return original[_RESPONSE].get(self.result_key) or {}
        return {"error" if message.is_error else "output": message.text or media.MEDIA_FOLLOWS}

    def _extra_fields(self, part: Original, block: Raw) -> Wire:
        """Return the fields of a part, and those of its call or response."""
        fields = super()._extra_fields(part, block)
        for key in (_CALL, _RESPONSE):
            fields |= without(object_in(block, key), *_HELD_NOT_COUNTED)
        return fields

    def signature_of(self, part: Text | ToolCall) -> Raw:
        """Return the thought signature of a part, unless it is the stand-in."""
        signature = (part.block or {}).get(_SIGNATURE)
        is_own = signature not in (None, "", STAND_IN_SIGNATURE)
        return {_SIGNATURE: signature} if is_own else {}

    def result_texts(self, message: Message) -> tuple[str, ...]:
        """Return the response object as JSON, and its name."""
        name = self._function_name(message.name or "tool")
        return json_fields.compact(self._response_of(message)), name

    def text_key(self, content: Any) -> str | None:
        """Return the field of a response's only text."""
        (key, *others) = content or ("",)
        is_text = not others and key in _TEXT_KEYS and isinstance(content[key], str)
        return key if is_text else None

    def result_content(self, text: str) -> Any:
        """Return a response with a text."""
        return {"output": text}

    def system(self, prompt: SystemPrompt, marked: Collection[int]) -> System:
        """Return an instruction with a part per text."""
        texts = prompt.texts
        instruction = {"parts": [{"text": text} for text in texts]} if texts else None
        return System((), instruction, json_text.dump_payload(instruction))

    def body(self, items: Any, max_output: int, system: Any, tools: Raw, cache_key: Raw) -> Wire:
        """Return contents, and a configuration that has the rest."""
        instruction = {"system_instruction": system} if system is not None else {}
        config = {"max_output_tokens": max_output, **tools, **instruction}
        return {self.items_key: items, "config": config}

    def read_call(self, call: Fields) -> AgentCall:
        """Read a part with a `functionCall`."""
        function = call.object("function_call" if "function_call" in call.raw else _CALL)
        call_id = function.optional_text("id") or None
        return AgentCall(call_id, Fields({"args": {}, **function.raw}, function.at), "args")

    def emptied(self, message: Message, text: str) -> Wire:
        """Return a content; ids that are made from names are left out, so that they stay."""
        original = _original_part(message)
        if message.role is not Role.TOOL:
            return super().emptied(message, text)
        own = original is None or original[_RESPONSE].get("id")
        return self.result(message.tool_call_id if own else None, message.name, text)

    def _identity(self, call: ToolCall) -> Raw | None:
        own = object_in(self.beside(call), _CALL)
        return {_CALL: {key: own[key] for key in ("id", "name", "args") if key in own}}


def _camelled(part: Fields) -> Fields:
    """Return a part with the names of its fields in camel case (rule 1)."""
    fields = {camel(key): value for key, value in part.raw.items()}
    for key in _HOLDERS:
        if isinstance(held := fields.get(key), Mapping):
            fields[key] = {camel(name): value for name, value in held.items()}
    return Fields(fields, part.at)


def _held(parts: Iterable[Raw], *names: str) -> list[Wire]:
    """List the objects in raw parts that have one of these names, in either spelling."""
    return [
        value
        for part in parts
        for key, value in part.items()
        if value is not None and camel(key) in names
    ]


def _unsigned(part: Raw) -> Wire:
    return {key: item for key, item in part.items() if key != _SIGNATURE}


def _original_part(message: Message) -> Raw | None:
    """Return the part that a result came as, None where its text has been replaced since."""
    if message.role is not Role.TOOL:
        return None
    own = (p.block for p in message.parts if isinstance(p, Text) and p.format is FormatName.GEMINI)
    return next((block for block in own if block is not None), None)
