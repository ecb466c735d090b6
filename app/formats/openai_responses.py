"""OpenAI Responses items.

1. The model made reasoning, messages, calls, hosted calls and compaction. Every other item is one
   message.
2. The block of a part that the model made is its original item, which is replayed verbatim, but
   for null fields: those that the provider requires are sent, and no others. The block of a result
   or of a user message is the item without its content.
3. A call that the client runs is a tool call, whatever its type, and its output has the type that
   belongs to the call. Hosted calls, whose output the provider holds, are opaque.
4. Reasoning and compaction are bound to the items before them. Where they are left out, items made
   after them lose the `id` that refers to them, and a label replaces hosted calls that need one.
   Reasoning whose output was stored apart is left out, too.
5. An item of a type that the provider does not know was made by another: a label replaces it, and
   reasoning beside it is left out.
6. Optional ids are sent only where the provider made them: it refuses any other, and one that
   another item has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.common import json_text
from app.common.texts import sendable_json
from app.formats import json_fields, media
from app.formats.base import AgentCall, Compaction, Original, System, SystemPrompt, without
from app.formats.items import LOG_FIELDS, ItemProvider, is_item_group
from app.formats.json_fields import Fields, Raw, Wire, without_nulls
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
from app.formats.openai_chat import OpenAIProvider, system_messages
from app.formats.reasoning import OPENAI, XAI, is_compaction
from app.formats.tools import ToolChange, ToolDefinition, Tools, is_json, wire_fields

FUNCTION = "function_call"
CALLS = {
    FUNCTION: ("", "arguments"),
    "custom_tool_call": ("", "input"),
    "tool_search_call": ("tool_search", "arguments"),
    "computer_call": ("computer", "action"),
    "local_shell_call": ("local_shell", "action"),
    "shell_call": ("shell", "action"),
    "apply_patch_call": ("apply_patch", "operation"),
}
"""Calls that the client runs: the name of a tool of OpenAI's own, and the field of arguments."""
OUTPUTS = {kind: f"{kind}_output" for kind in CALLS} | {"tool_search_call": "tool_search_output"}
"""The type of the output of each."""
_TOOL_SEARCH_TYPES = ("tool_search_call", "tool_search_output")
_SHARED_TYPES = (
    *("message", "reasoning", "compaction", *OUTPUTS, *OUTPUTS.values()),
    *("web_search_call", "file_search_call", "code_interpreter_call", "mcp_call"),
)
CONFIGURATIONS = ("configuration_update", "additional_tools")
"""Items that change settings or tools for all later responses: every payload has to have them."""
ITEM_TYPES = {
    OPENAI: (
        *(*_SHARED_TYPES, "image_generation_call", "mcp_list_tools", "mcp_approval_request"),
        *("mcp_approval_response", *CONFIGURATIONS, "program", "program_output"),
    ),
    XAI: (*_SHARED_TYPES, "x_search_call", "view_image_call", "view_x_video_call"),
}
"""The types of items that a family of models takes; others are taken to take any."""
_REQUIRED_NULLS = {
    "code_interpreter_call": ("code", "outputs"),
    "image_generation_call": ("result",),
    **dict.fromkeys(_TOOL_SEARCH_TYPES, ("call_id",)),
}
"""Fields that are sent even where they are null."""
_REFUSED_TYPES = {
    "item_reference": "is not stored: send the item, not a reference to it",
    "compaction_trigger": "belongs to a request, not to the log",
}
_ASKING = {"user": Role.USER, "system": Role.SYSTEM, "developer": Role.SYSTEM}
_ID_REQUIRED = ("computer_call", "local_shell_call")
_ID_PREFIXES = {"message": "msg", FUNCTION: "fc", "custom_tool_call": "ctc"}
_NO_SCREENSHOT = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mP4DwABAQ"
    "EAHLCMmQAAAABJRU5ErkJggg=="
)
"""One white pixel."""
_TEXT_FIELDS = {"output_text": ("type", "text"), "refusal": ("type", "refusal")}
_FILE_FIELDS = ("file_data", "file_url", "file_id", "filename")


class OpenAIResponses(ItemProvider, OpenAIProvider):
    """OpenAI Responses, which xAI has as well."""

    name = FormatName.OPENAI_RESPONSES
    part_types = (
        *("input_text", "output_text", "input_image", "input_file", "input_audio", "refusal"),
        *("reasoning", "compaction"),
    )
    assembler = "responses"
    id_keys = ("call_id", "call_id")
    result_key = "output"
    items_key = "input"
    max_output_key = "max_output_tokens"
    defers_tools = True
    compacting_families = ((), (OPENAI,), (XAI,))
    keeps_user_messages = True
    makes_ids = True
    details = ("low", "high", "original")
    has_file_urls = True
    joins_answers = False
    called_fields = ("type", "caller", "async")
    linked_fields = ("caller",)
    not_counted = ("type", "id", "role", "status", "phase", "execution", "encrypted_content")

    def parse(self, raw: Raw, pointer: str) -> tuple[Message, ...]:
        """Read one item, or several that `group_items` joined."""
        item = Fields(raw, pointer)
        if is_item_group(item.raw):
            return (self._parse_group(item),)
        kind = item_type(item.raw)
        if kind == "message" and (role := _ASKING.get(str(item.get("role")))) is not None:
            beside = item.beside(self.name, "id", "role", "content", *LOG_FIELDS)
            return (Message(role, self._parse_content(item, "content", Role.USER), **beside),)
        if kind == "mcp_approval_response":
            return (Message(Role.USER, (self._opaque(item),)),)
        if self.is_output(item.raw):
            return (self._parse_result(item),)
        return (Message(Role.ASSISTANT, (self._parse_item(item),)),)

    def call_id_fields(self, raw: Wire) -> list[tuple[Wire, str]]:
        """List calls and results; that of a local shell may have its call's id as its own."""
        return [(raw, "id")] if _has_call_id_as_id(raw) else super().call_id_fields(raw)

    def enveloped(self, raw: Wire) -> Wire:
        """Wrap an item of the model, unless it is the result of a local shell."""
        return raw | {"call_id": raw["id"]} if _has_call_id_as_id(raw) else super().enveloped(raw)

    def is_output(self, raw: Raw) -> bool:
        """Whether an item is the result of a call that the client ran."""
        return item_type(raw) in OUTPUTS.values() and not _is_hosted(raw)

    def is_call(self, raw: Raw) -> bool:
        """Whether an item is a call that the client runs."""
        return item_type(raw) in CALLS and not _is_hosted(raw)

    def is_made_by_model(self, raw: Raw) -> bool:
        """Whether the model made an item."""
        if self.is_output(raw):
            return False
        if (kind := item_type(raw)) == "message":
            return raw.get("role") == "assistant"
        others = ("", *_REFUSED_TYPES, *CONFIGURATIONS, "mcp_approval_response")
        return kind not in others

    def _parse_item(self, item: Fields) -> Part:
        """Read an item that the model made."""
        kind, role = item_type(item.raw), item.get("role")
        if kind == "message" and role != "assistant":
            json_fields.refuse_role(role, item.at, "user, assistant, system, developer")
        if not kind or kind in _REFUSED_TYPES:
            raise item.error("type", _REFUSED_TYPES.get(kind, "must name the type of the item"))
        if kind == "message":
            return self._parse_message(item)
        if kind == "compaction":
            item.text("encrypted_content")
            return Reasoning("", _original(item), self.name)
        if kind == "reasoning":
            keys = [key for key in ("summary", "content") if key == "summary" or item.get(key)]
            found = [[part.text("text") for part in item.objects(key)] for key in keys]
            texts = next(filter(None, found), [])
            return Reasoning("\n".join(texts), _original(item), self.name)
        return self._parse_call(item) if self.is_call(item.raw) else self._opaque(item)

    def _opaque(self, block: Fields, *excluded: str) -> Opaque:
        """Keep an item as it is, but for cache breakpoints, which each payload places itself."""
        return Opaque(_original(block, *json_fields.CACHE_MARKS[1:], *excluded), self.name)

    def _parse_message(self, message: Fields) -> Text | Opaque:
        block = _original(message)
        if isinstance(content := message.get("content"), str):
            return Text(content, block, self.name)
        texts: list[str] = []
        is_said = False
        for part in message.objects("content"):
            kind = part.filled_text("type")
            if kind in ("input_text", "input_image", "input_file"):
                raise part.error("type", "content of the assistant is output_text or refusal")
            is_said = is_said or kind in _TEXT_FIELDS
            said = part.text(_TEXT_FIELDS[kind][1]) if kind in _TEXT_FIELDS else ""
            texts.append(said if kind == "output_text" else media.block_label(part.raw))
        if texts and not is_said:
            return Opaque(block, self.name)
        return Text("\n".join(texts), block, self.name)

    def _parse_call(self, item: Fields) -> ToolCall:
        call_id, block, kind = item.filled_text("call_id"), _original(item), item.raw["type"]
        name, key = CALLS[kind]
        if (arguments := _built_in_arguments(block)) is not None:
            return ToolCall(call_id, name, arguments, block=block, format=self.name)
        is_custom = kind != FUNCTION
        arguments = item.optional_text(key) or ("" if is_custom else "{}")
        return ToolCall(call_id, item.text("name"), arguments, is_custom, block, self.name)

    def _parse_result(self, result: Fields) -> Message:
        kind, name = result.raw["type"], None
        call_id = result.filled_text("id" if _has_call_id_as_id(result.raw) else "call_id")
        parts: tuple[Part, ...]
        match kind:
            case "tool_search_output" | "shell_call_output":
                items = result.items("tools" if kind == "tool_search_output" else "output")
                listed = json_fields.json_at([item for item, _ in items], result.at)
                parts = (Text(json_fields.compact(listed)),)
            case "computer_call_output":
                output = result.object("output")
                if url := output.optional_text("image_url"):
                    parts = (media.image_from_url(url, f"{output.at}/image_url"),)
                else:
                    shown = {"file_id": output.filled_text("file_id"), "detail": "auto"}
                    parts = (Opaque({"type": "input_image", **shown}, self.name),)
            case _:
                name = result.optional_text("name")
                parts = self._parse_content(result, "output", Role.TOOL)
        fields = result.beside(self.name, "id", "call_id", "output", "tools", *LOG_FIELDS)
        block = fields.get("block", {})
        if not block and kind == OUTPUTS[FUNCTION]:
            return Message(Role.TOOL, parts, call_id, name)
        own = {"type": kind, **block}
        return Message(Role.TOOL, parts, call_id, name, block=own, format=self.name)

    def _parse_part(self, part: Fields, *, is_assistant: bool) -> Part:
        match part.filled_text("type"):
            case "input_text":
                return Text(part.text("text"))
            case "input_image" if part.get("file_id") is None:
                url, detail = part.filled_text("image_url"), part.optional_text("detail")
                explicit = detail if detail != "auto" else None
                image = media.image_from_url(url, f"{part.at}/image_url", explicit)
                return replace(image, **part.beside(self.name, "image_url", "file_id", "detail"))
            case "input_file":
                return replace(self._parse_file(part), **part.beside(self.name, *_FILE_FIELDS))
        return self._opaque(part)

    def _adapt_file_source(self, file: File) -> File | Text:
        if self.is_uploaded(file):  # an uploaded file has its own name
            return replace(file, name=None) if file.name else file
        return file if media.is_web_url(file.url) else media.label_for(file)

    def sent_parts(self, message: Message, accepts: Sequence[str], *, replays: bool) -> list[Part]:
        """Leave out reasoning, and what refers to it (rule 4)."""
        return self._without(
            message,
            lambda part: (
                isinstance(part, Reasoning)
                and not (replays and part.block is not None and part.format is self.name)
            ),
        )

    def unbound(self, message: Message) -> Message:
        """Return a message without its compactions, as it is accepted without them (rule 4)."""
        return message.with_parts(self._without(message, is_compaction))

    def _without(self, message: Message, is_left_out: Callable[[Part], bool]) -> list[Part]:
        parts: list[Part] = []
        is_unbound = False
        for part in message.parts:
            if is_left_out(part):
                is_unbound = is_unbound or (part.block is not None and part.format is self.name)
            else:
                parts.append(self._without_id(part) if is_unbound else part)
        return parts

    def without_foreign(self, message: Message, accepts: Sequence[str]) -> Message:
        """Return a message with labels for items that no provider of these families has."""
        known = ITEM_TYPES.get(accepts[0]) if len(accepts) == 1 else None
        if known is None or message.role is not Role.ASSISTANT:
            return message
        parts = [
            media.label_for(part)
            if isinstance(part, Opaque) and media.kind_of(part.block) not in known
            else part
            for part in message.parts
        ]
        return message.with_parts(parts)

    def without_repeated_ids(self, message: Message, seen: set[str]) -> Message:
        """Return a message without the ids of earlier items, which `seen` has (rule 6).

        Reasoning with such an id is that of an earlier item: it is left out.
        """
        if message.role is not Role.ASSISTANT:
            return message
        parts: list[Part] = []
        for part in message.parts:
            item_id = (part.block or {}).get("id") if part.format is self.name else None
            if not isinstance(item_id, str) or item_id not in seen:
                parts.append(part)
            elif not isinstance(part, Reasoning):
                parts.append(self._without_id(part))
            seen |= {item_id} if isinstance(item_id, str) else set()
        return message.with_parts(parts)

    def _without_id(self, part: Part) -> Part:
        """Return a part as the provider accepts it without the reasoning before it (rule 4)."""
        block = part.block or {}
        if isinstance(part, Opaque) and block.get("type") not in _TOOL_SEARCH_TYPES:
            return media.label_for(part)
        if isinstance(part, Image | File | Reasoning) or part.format is not self.name:
            return part
        if block.get("type") in _ID_REQUIRED and not isinstance(part, Opaque):
            return replace(part, block=None, format=None)
        bare = {key: item for key, item in block.items() if key != "id"}
        return replace(part, block=bare) if "id" in block else part

    def render(self, message: Message, call: Raw | None = None) -> list[Wire]:
        """Render a message as items, each a `ResponseInputItemParam` dict.

        The call that a result answers decides about its type (rule 3).
        """
        if message.role is Role.ASSISTANT:
            return list(map(self._item, message.parts))
        if message.role is Role.TOOL:
            return [self._wire_result(message, call)]
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

    def is_reshaped(self, call: Raw | None) -> bool:
        """Whether a call is none of a function: outputs of other types have no place for texts."""
        return call is not None and call["type"] != FUNCTION

    def _item(self, part: Part) -> Wire:
        if not isinstance(part, Text):
            return self._wire_part(part)
        if part.block is not None and part.format is self.name:
            return _with_own_id(dict(part.block), "message")
        content = {"type": "output_text", "text": part.text, "annotations": []}
        return {"type": "message", "role": "assistant", "content": [content]}

    def _wire_call(self, call: ToolCall) -> Wire:
        block = self.beside(call)
        if _built_in_arguments(block) is not None:
            return block | {"call_id": call.id}
        kind = "custom_tool_call" if call.custom else FUNCTION
        named = {"call_id": call.id, "name": call.name, CALLS[kind][1]: call.arguments}
        return _with_own_id({"type": kind, **block, **named}, kind)

    def _wire_result(self, message: Message, call: Raw | None) -> Wire:
        own = self.beside(message)
        original_kind = own.pop("type", OUTPUTS[FUNCTION])
        kind = OUTPUTS[call["type"]] if call is not None else original_kind
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
                shown: Wire = {"image_url": _NO_SCREENSHOT}
                for part in reversed(message.parts):
                    if isinstance(part, Image):
                        shown = {"image_url": media.url_of(part)}
                    elif isinstance(part, Opaque) and "file_id" in part.block:
                        shown = {"file_id": part.block["file_id"]}
                return identity | fields | {"output": {"type": "computer_screenshot", **shown}}
            case "local_shell_call_output":
                named = {"type": kind, "id": message.tool_call_id}
                return named | fields | {"output": message.text}
            case "apply_patch_call_output":
                return identity | {"status": "completed"} | fields | {"output": message.text}
            case _:
                pieces = list(map(self._wire_part, message.parts))
                is_text = len(pieces) == 1 and isinstance(message.parts[0], Text)
                return identity | {"output": message.text if is_text else pieces} | fields

    def _wire_text(self, text: str) -> Wire:
        return {"type": "input_text", "text": text}

    def _wire_media(self, part: Image | File) -> Wire:
        url = media.url_of(part)
        if isinstance(part, Image):
            shown: Wire = {"type": "input_image", "image_url": url, "detail": part.detail or "auto"}
        elif part.data is not None:
            shown = {"type": "input_file", "filename": part.name, "file_data": url}
        elif self.is_uploaded(part):
            shown = {"type": "input_file", "file_id": part.file_id}
        else:
            named = {"filename": part.name} if part.name else {}
            shown = {"type": "input_file", "file_url": url, **named}
        return shown | self.beside(part)

    def _extra_fields(self, part: Original, block: Raw) -> Wire:
        """Return the fields of an item, and those of its content."""
        fields = super()._extra_fields(part, block)
        if isinstance(part, ToolCall):
            _, key = CALLS.get(item_type(block), CALLS[FUNCTION])
            return without(fields, "call_id", "name", key, f"{key}s")
        content = fields.pop("content", None) if isinstance(part, Text) else None
        parts = content if isinstance(content, list) else []
        rest = [without(item, *_TEXT_FIELDS.get(item["type"], ())) for item in parts]
        return fields | ({"content": rest} if any(rest) else {})

    def system(self, prompt: SystemPrompt, marked: Collection[int]) -> System:
        """Return a developer message with a part per section: `instructions` take no breakpoint."""
        parts = [
            self.marked(self._wire_text(text), is_marked=index in marked)
            for index, text in enumerate(prompt.sections)
        ]
        contents = [
            *([parts] if parts else []),
            *([self._wire_text(text)] for text in prompt.dynamic_texts),
        ]
        return system_messages(
            {"type": "message", "role": "developer", "content": content} for content in contents
        )

    def change(self, model: str, text: str, tools: ToolChange) -> list[Wire] | None:
        """Return a developer message and new tools; there is no item that takes a tool away."""
        if self.accepted_families(model)[:1] != (OPENAI,) or tools.redefined or tools.removed:
            return None
        items = self.render(Message(Role.SYSTEM, (Text(text),))) if text else []
        added = {"type": "additional_tools", "role": "developer"}
        return items + (
            [{**added, "tools": self.tools_to_wire(tools.added)}] if tools.added else []
        )

    def _function(self, tool: ToolDefinition) -> Wire:
        """Render a function, whose `strict` is true by default, and requires every argument."""
        function = wire_fields(tool, "parameters", strict=bool(tool.strict))
        return {"type": "function", **function, **({"async": True} if tool.is_async else {})}

    def deferred_to_wire(self, tools: Tools, deferred: Collection[str], search: str) -> list[Wire]:
        """Render OpenAI's tool search instead of the function, and no deferred tools."""
        remaining = [tool for tool in tools if tool.name not in deferred]
        own = {"type": "tool_search", "execution": "client"}
        return [
            own | {key: wire.get(key, "") for key in ("description", "parameters")}
            if tool.name == search
            else wire
            for tool, wire in zip(remaining, self.tools_to_wire(remaining), strict=True)
        ]

    def search_output(self, call_id: str | None, tools: Tools, status: str) -> Wire:
        """Return an output with definitions."""
        found = [{**wire, "defer_loading": True} for wire in self.tools_to_wire(tools)]
        output = {"type": "tool_search_output", "call_id": call_id, "execution": "client"}
        return output | {"status": status, "tools": found}

    def compaction(self, threshold: int, requested: bool | None, *, asks: bool) -> Compaction:
        """Return the threshold at which OpenAI compacts."""
        entry = {"type": "compaction", "compact_threshold": threshold}
        return Compaction({"context_management": [entry]}) if asks else Compaction()

    def read_call(self, call: Fields) -> AgentCall:
        """Read a `function_call` item, or a `tool_search_call` for the client."""
        is_search = call.get("type") == "tool_search_call"
        if is_search and call.raw.get("execution", "client") != "client":
            detail = 'must be "client": any other search has been executed already'
            raise call.error("execution", detail)
        if not is_search:
            call.expect_type("function_call")
        return AgentCall(call.filled_text("call_id"), call, "arguments", is_search)


def item_type(raw: Raw) -> str:
    """Return the type of an item, `message` by default, empty where it is malformed."""
    kind = raw.get("type")
    if kind is None and "role" in raw:
        return "message"
    return kind if isinstance(kind, str) else ""


def _is_hosted(raw: Raw) -> bool:
    """Return whether a tool search ran at the provider, which holds its result."""
    is_search = item_type(raw) in _TOOL_SEARCH_TYPES
    return is_search and (raw.get("execution") == "server" or raw.get("call_id") is None)


def is_configuration(message: Message) -> bool:
    """Return whether a message is a change of settings or tools and nothing else."""
    return all(
        isinstance(part, Opaque) and part.block.get("type") in CONFIGURATIONS
        for part in message.parts
    )


def _built_in_arguments(block: Raw) -> str | None:
    """Return the arguments of a call of OpenAI's own tool as JSON, None for any other call."""
    name, key = CALLS.get(item_type(block), ("", ""))
    if not name:
        return None
    return json_fields.compact(sendable_json(block.get(key, block.get(f"{key}s", {}))))


def _has_call_id_as_id(item: Raw) -> bool:
    """Return whether a result has the id of its call as its own."""
    return item.get("type") == "local_shell_call_output" and "call_id" not in item


def _original(item: Fields, *excluded: str) -> Wire:
    """Return an item as it is sent back: as the model made it, whichever way an SDK wrote nulls."""
    kind = item_type(item.raw)
    role = () if kind in ("message", "additional_tools") else ("role",)
    sent = without_nulls(item.json(*LOG_FIELDS, *role, *excluded), _REQUIRED_NULLS.get(kind, ()))
    if kind == "message" and isinstance(content := sent.get("content"), list):
        sent["content"] = [without_nulls(part) for part in content if isinstance(part, Mapping)]
    if kind == "web_search_call" and isinstance(action := sent.get("action"), Mapping):
        sent["action"] = without_nulls(action)
    return sent


def _with_own_id(item: Wire, kind: str) -> Wire:
    """Drop an id that the provider would refuse (rule 6)."""
    if "id" in item and not str(item["id"]).startswith(_ID_PREFIXES[kind]):
        del item["id"]
    return item


def _read_list(text: str) -> list[Any] | None:
    value = json_text.loads_exact(text) if is_json(text) else None
    is_list = isinstance(value, list) and all(isinstance(item, Mapping) for item in value)
    return value if is_list else None
