"""OpenAI Responses items.

1. Consecutive items that the model made (reasoning, messages, calls, hosted calls, compaction) are
   one neutral message, because their calls are one group. `group_items` joins such neighbours of a
   batch to `{"role": "assistant", "output": [items]}`, which this format accepts as a message.
   Every other item is one message.
2. The block of a part that the model made is its original item, which is replayed verbatim, but
   for null fields: those that the provider requires are sent, and no others. The block of a result
   or of a user message is the item without its content.
3. A call that the client runs is a tool call, whatever its type, and its output has the type that
   belongs to the call. Hosted calls, whose output the provider holds, are opaque.
4. Reasoning and compaction are bound to the items before them. Where they are left out, items made
   after them lose the `id` that refers to them, and a label replaces hosted calls that need one.
   Reasoning whose output was stored apart is left out, too.
5. An item whose type its provider does not have was made by another: a label replaces it, and
   reasoning beside it is left out.
6. Optional ids are sent only where the provider made them: it refuses any other, and one that
   another item has.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.common import json_text
from app.common.texts import sendable, sendable_json
from app.formats import base64_media, labels, media_parts, tool_calls
from app.formats.base import Original, without
from app.formats.compactions import is_compaction
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
from app.formats.openai_responses import parsing
from app.formats.openai_responses.parsing import (
    BUILT_IN_CALLS,
    FUNCTION,
    ITEM_TYPES,
    OUTPUT_TYPES,
    TOOL_SEARCH_TYPES,
    ResponsesParsing,
    built_in_arguments,
)
from app.formats.reasoning_families import OPENAI, XAI
from app.formats.requests import AgentCall, Compaction, RequestFields, System, SystemPrompt
from app.formats.shared import system_messages
from app.formats.tools import ToolDefinition, wire_fields

_ID_REQUIRED = ("computer_call", "local_shell_call")
_ID_PREFIXES = {"message": "msg", FUNCTION: "fc", "custom_tool_call": "ctc"}
_NO_SCREENSHOT = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mP4DwABAQ"
    "EAHLCMmQAAAABJRU5ErkJggg=="
)
"""One white pixel."""
_NOT_COUNTED = ("type", "id", "role", "status", "phase", "execution", "encrypted_content")
_TEXT_FIELDS = {"output_text": ("type", "text"), "refusal": ("type", "refusal")}


class OpenAIResponses(ResponsesParsing):
    """OpenAI Responses, which xAI has as well."""

    name = FormatName.OPENAI_RESPONSES
    part_types = (
        *("input_text", "output_text", "input_image", "input_file", "input_audio", "refusal"),
        *("reasoning", "compaction"),
    )
    result_key = "output"
    items_key = "input"
    max_output_key = "max_output_tokens"
    defers_tools = True
    compacting_families = ((), (OPENAI,), (XAI,))
    keeps_user_messages = True
    makes_ids = True
    details = ("low", "high", "original")
    has_file_urls = True

    def _adapt_call(self, call: ToolCall, ids: Mapping[str, str]) -> ToolCall:
        """Take the arguments from the object that is sent, whose escaped characters changed."""
        call = super()._adapt_call(call, ids)
        kind = call.block.get("type") if call.block and call.format is self.name else None
        if kind not in BUILT_IN_CALLS or "\\u" not in call.arguments or call.block is None:
            return call
        return replace(call, arguments=built_in_arguments(call.block, kind))

    def _adapt_file_source(self, file: File) -> File | Text:
        if self.is_uploaded(file):  # an uploaded file has its own name
            return replace(file, name=None) if file.name else file
        return file if base64_media.is_web_url(file.url) else labels.label_for(file)

    def _function(self, tool: ToolDefinition) -> dict[str, Any]:
        """Render a function, whose `strict` is true by default, and requires every argument."""
        return {"type": "function", **wire_fields(tool, "parameters", strict=bool(tool.strict))}

    def for_payload(
        self,
        message: Message,
        ids: Mapping[str, str] = tool_calls.NO_IDS,
        *,
        keep_reasoning: bool = False,
    ) -> Message:
        """Adapt a clean message and leave out the parts that a payload does not have (rule 4).

        With `keep_reasoning`, reasoning and compaction that OpenAI made stay.
        """
        message = self.adapt(message, ids)
        if message.role is not Role.ASSISTANT:
            return message
        parts: list[Part] = []
        is_unbound = False
        for part in message.parts:
            if not isinstance(part, Reasoning):
                parts.append(self._without_id(part) if is_unbound else part)
            elif part.block is not None and part.format is self.name:
                if keep_reasoning:
                    parts.append(part)
                is_unbound = not keep_reasoning
        while parts and isinstance(parts[-1], Reasoning) and not is_compaction(parts[-1]):
            parts.pop()
        return message.with_parts(parts)

    def without_foreign(self, message: Message, accepts: Sequence[str]) -> Message:
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
        return message.with_parts(parts)

    def unbound(self, message: Message) -> Message:
        """Return a message whose parts after a compaction item are accepted without it (rule 4)."""
        parts: list[Part] = []
        is_unbound = False
        for part in message.parts:
            parts.append(self._without_id(part) if is_unbound else part)
            is_unbound = is_unbound or is_compaction(part)
        return message.with_parts(parts)

    def without_repeated_ids(self, message: Message, seen: set[str]) -> Message:
        """Return a message without the ids of earlier items, which `seen` has (rule 6).

        Reasoning with such an id is that of an earlier item: it is left out.
        """
        if message.role is not Role.ASSISTANT:
            return message
        parts: list[Part] = []
        for part in message.parts:
            block = part.block if not isinstance(part, Image | File) else None
            item_id = (block or {}).get("id") if part.format is self.name else None
            if not isinstance(item_id, str) or item_id not in seen:
                parts.append(part)
            elif not isinstance(part, Reasoning):
                parts.append(self._without_id(part))
            seen |= {item_id} if isinstance(item_id, str) else set()
        return message.with_parts(parts)

    def _without_id(self, part: Part) -> Part:
        """Return a part as the provider accepts it without the reasoning before it (rule 4)."""
        match part:
            case Text(block=Mapping()) | ToolCall(block=Mapping()) if part.format is self.name:
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

    def render(
        self,
        message: Message,
        ids: Mapping[str, str] = tool_calls.NO_IDS,
        *,
        keep_reasoning: bool = False,
        call_type: str | None = None,
    ) -> list[dict[str, Any]]:
        """Render a clean message as items, each a `ResponseInputItemParam` dict.

        `call_type` is the type of the rendered call that a result answers (rule 3).
        """
        message = self.for_payload(message, ids, keep_reasoning=keep_reasoning)
        if message.role is Role.ASSISTANT:
            return [self._item(part) for part in message.parts]
        if message.role is Role.TOOL:
            return [self._wire_result(message, call_type)]
        approvals = [
            part
            for part in message.parts
            if isinstance(part, Opaque) and part.block.get("type") == "mcp_approval_response"
        ]
        items = [dict(part.block) for part in approvals]
        if content := [self._wire_part(part) for part in message.parts if part not in approvals]:
            role = "user" if message.role is Role.USER else "developer"
            item = {"type": "message", "role": role, "content": content}
            items.append(item | self.beside(message) if message.role is Role.USER else item)
        return items

    def _item(self, part: Part) -> dict[str, Any]:
        match part:
            case Text(block=Mapping()) if part.format is self.name:
                return _with_own_id(dict(part.block or {}), "message")
            case Text():
                content = {"type": "output_text", "text": part.text, "annotations": []}
                return {"type": "message", "role": "assistant", "content": [content]}
            case ToolCall():
                return self._wire_call(part)
            case Reasoning() | Opaque():
                return dict(part.block or {})
            case _:
                raise TypeError(f"{type(part).__name__} is not a part of an assistant message")

    def _wire_call(self, call: ToolCall) -> dict[str, Any]:
        block = dict(call.block or {}) if call.format is self.name else {}
        if block.get("type") in BUILT_IN_CALLS:
            return block | {"call_id": call.id}
        kind, key = ("custom_tool_call", "input") if call.custom else (FUNCTION, "arguments")
        item = {"type": kind} | block
        item |= {"call_id": call.id, "name": call.name, key: call.arguments}
        return _with_own_id(item, kind)

    def _wire_result(self, message: Message, call_type: str | None) -> dict[str, Any]:
        own = self.beside(message)
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
                shown: dict[str, Any] = {"image_url": _NO_SCREENSHOT}
                for part in reversed(message.parts):
                    if isinstance(part, Image):
                        shown = {"image_url": media_parts.url_of(part)}
                    elif isinstance(part, Opaque) and "file_id" in part.block:
                        shown = {"file_id": part.block["file_id"]}
                return identity | fields | {"output": {"type": "computer_screenshot", **shown}}
            case "local_shell_call_output":
                named = {"type": kind, "id": message.tool_call_id}
                return named | fields | {"output": message.text}
            case "apply_patch_call_output":
                return identity | {"status": "completed"} | fields | {"output": message.text}
            case _:
                output = [self._wire_part(part) for part in message.parts]
                is_text = len(output) == 1 and isinstance(message.parts[0], Text)
                return identity | {"output": message.text if is_text else output} | fields

    def _wire_part(self, part: Part) -> dict[str, Any]:
        match part:
            case Text():
                return {"type": "input_text", "text": part.text}
            case Image():
                detail = part.detail or "auto"
                image = {"type": "input_image", "image_url": media_parts.url_of(part)}
                return image | {"detail": detail} | self.beside(part)
            case File():
                return {"type": "input_file"} | self._wire_file(part) | self.beside(part)
            case Opaque():
                return dict(part.block)
            case _:
                raise TypeError(f"{type(part).__name__} is not a content part")

    def _wire_file(self, file: File) -> dict[str, Any]:
        if file.data is not None:
            return {"filename": file.name, "file_data": media_parts.url_of(file)}
        if self.is_uploaded(file):
            return {"file_id": file.file_id}
        return {"file_url": file.url} | ({"filename": file.name} if file.name else {})

    def group_items(self, raws: Sequence[Any]) -> list[tuple[int, Any]]:
        """Join items of the model that follow each other (rule 1)."""
        return parsing.group_items(raws)

    def own_fields(self, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the item, of several the fields of the first one too."""
        is_group = parsing.is_item_group(raw) and raw["output"]
        return {**raw["output"][0], **raw} if is_group else raw

    def enveloped(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Wrap an item of the model: payloads leave out the fields of an envelope."""
        if parsing.has_call_id_as_id(raw):
            return raw | {"call_id": raw["id"]}
        (parsed,) = self.parse(raw, "")
        if parsed.role is not Role.ASSISTANT:
            return raw
        if not parsing.is_item_group(raw):
            raw = {"role": "assistant", "output": [raw]}
        first, *others = raw["output"] or [{}]
        if "timestamp" not in first:
            return raw
        bare = {key: value for key, value in first.items() if key != "timestamp"}
        return {"timestamp": first["timestamp"]} | raw | {"output": [bare, *others]}

    def _extra_fields(self, part: Original, block: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of an item, and those of its content."""
        match part:
            case ToolCall():
                return without(block, *_NOT_COUNTED, *parsing.call_fields(block))
            case Text():
                content = block.get("content")
                parts = content if isinstance(content, list) else []
                rest = [without(item, *_TEXT_FIELDS.get(item["type"], ())) for item in parts]
                fields = without(block, *_NOT_COUNTED, "content")
                return fields | ({"content": rest} if any(rest) else {})
            case _:
                return without(block, *_NOT_COUNTED)

    def system(self, prompt: SystemPrompt, marked: Collection[int]) -> System:
        """Return a developer message with a part per section: `instructions` take no breakpoint."""
        parts = [
            self.marked({"type": "input_text", "text": text}, is_marked=index in marked)
            for index, text in enumerate(prompt.sections)
        ]
        contents = [parts] if parts else []
        contents += map(self._said, prompt.dynamic_texts)
        return system_messages(
            {"type": "message", "role": "developer", "content": content} for content in contents
        )

    def body(self, fields: RequestFields) -> dict[str, Any]:
        """Return items, limit and tools."""
        limit = {self.max_output_key: fields.max_output}
        return {self.items_key: fields.items, **limit, **fields.tools, **fields.cache_key}

    def _said(self, text: str) -> Any:
        return [{"type": "input_text", "text": text}]

    def deferred_to_wire(
        self, tools: Sequence[ToolDefinition], deferred: Collection[str], search: str
    ) -> list[dict[str, Any]]:
        """Render OpenAI's tool search instead of the function, and no deferred tools."""
        remaining = [tool for tool in tools if tool.name not in deferred]
        wire = self.tools_to_wire(remaining)
        for index, tool in enumerate(remaining):
            if tool.name == search:
                described = {"description": sendable(tool.description)}
                schema = {"parameters": sendable_json(tool.parameters)}
                wire[index] = {"type": "tool_search", "execution": "client", **described, **schema}
        return wire

    def search_output(
        self, call_id: str | None, tools: Sequence[ToolDefinition], status: str
    ) -> dict[str, Any]:
        """Return an output with definitions."""
        return {
            "type": "tool_search_output",
            "call_id": call_id,
            "execution": "client",
            "status": status,
            "tools": [{**wire, "defer_loading": True} for wire in self.tools_to_wire(tools)],
        }

    def compaction(self, threshold: int, requested: bool | None, *, asks: bool) -> Compaction:
        """Return the threshold at which OpenAI compacts."""
        entry = {"type": "compaction", "compact_threshold": threshold}
        return Compaction({"context_management": [entry]}) if asks else Compaction()

    def call_id_fields(self, raw: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
        """List the items of a message; a result of a local shell may have its call's id as id."""
        held = raw["output"] if parsing.is_item_group(raw) else [raw]
        return [(item, "id" if parsing.has_call_id_as_id(item) else "call_id") for item in held]

    def read_call(self, call: Fields) -> AgentCall:
        """Read a `function_call` item, or a `tool_search_call` for the client."""
        is_search = call.get("type") == "tool_search_call"
        if is_search and call.raw.get("execution", "client") != "client":
            detail = 'must be "client": any other search has been executed already'
            raise call.error("execution", detail)
        if not is_search:
            call.expect_type("function_call")
        return AgentCall(call.filled_text("call_id"), call, "arguments", is_search)

    def result(
        self, call_id: str | None, name: str | None, text: str, *, is_error: bool = False
    ) -> dict[str, Any]:
        """Return the output of a function call."""
        output = f"Error: {text}" if is_error else text
        return {"type": "function_call_output", "call_id": call_id, "output": output}

    def emptied(self, message: Message, text: str) -> dict[str, Any]:
        """Return items; calls of built-in tools become calls of functions."""
        if message.role is Role.TOOL:
            return self.result(message.tool_call_id, None, text)
        if message.role is not Role.ASSISTANT:
            return {"role": message.role, "content": text}
        items: list[dict[str, Any]] = [{"type": "message", "role": "assistant", "content": text}]
        for call in message.calls:
            kind, key = ("custom_tool_call", "input") if call.custom else (FUNCTION, "arguments")
            bare = "" if call.custom else "{}"
            items.append({"type": kind, "call_id": call.id, "name": call.name, key: bare})
        return {"role": "assistant", "output": items}


def _block_without_id(block: Mapping[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in block.items() if key != "id"}


def _with_own_id(item: dict[str, Any], kind: str) -> dict[str, Any]:
    """Drop an id that the provider would refuse (rule 6)."""
    if "id" in item and not str(item["id"]).startswith(_ID_PREFIXES[kind]):
        del item["id"]
    return item


def _read_list(text: str) -> list[Any] | None:
    value = json_text.loads_exact(text) if tool_calls.is_json(text) else None
    is_list = isinstance(value, list) and all(isinstance(item, Mapping) for item in value)
    return value if is_list else None
