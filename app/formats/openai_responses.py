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
5. An item of a type that the provider does not know was made by another: a label replaces it, and
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
from app.formats import json_fields, labels, media, responses_items
from app.formats.base import AgentCall, Compaction, Original, System, SystemPrompt, without
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
from app.formats.provider_items import is_compaction
from app.formats.reasoning import OPENAI, XAI
from app.formats.responses_items import (
    CALLS,
    FUNCTION,
    LOG_FIELDS,
    OUTPUTS,
    built_in_arguments,
    is_item_group,
    item_type,
)
from app.formats.shared import OpenAIProvider, system_messages
from app.formats.tools import ToolDefinition, is_json, wire_fields, with_own_ids

_ASKING = {"user": Role.USER, "system": Role.SYSTEM, "developer": Role.SYSTEM}
_ID_REQUIRED = ("computer_call", "local_shell_call")
_ID_PREFIXES = {"message": "msg", FUNCTION: "fc", "custom_tool_call": "ctc"}
_NO_SCREENSHOT = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mP4DwABAQ"
    "EAHLCMmQAAAABJRU5ErkJggg=="
)
"""One white pixel."""
_TEXT_FIELDS = {"output_text": ("type", "text"), "refusal": ("type", "refusal")}


class OpenAIResponses(OpenAIProvider):
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
    joins_answers = False
    linked_fields = ("caller",)
    not_counted = ("type", "id", "role", "status", "phase", "execution", "encrypted_content")

    def parse(self, raw: Mapping[str, Any], pointer: str) -> tuple[Message, ...]:
        """Read one item, or several that `group_items` joined."""
        item = Fields(raw, pointer)
        if is_item_group(item.raw):
            return (Message(Role.ASSISTANT, self._parse_output(item)),)
        kind = item_type(item.raw)
        if kind == "message" and (role := _ASKING.get(str(item.get("role")))) is not None:
            beside = item.beside(self.name, "id", "role", "content", *LOG_FIELDS)
            return (Message(role, self._parse_content(item, "content"), **beside),)
        if kind == "mcp_approval_response":
            return (Message(Role.USER, (self._opaque(item),)),)
        if responses_items.is_output(item.raw):
            return (self._parse_result(item),)
        return (Message(Role.ASSISTANT, (self._parse_item(item),)),)

    def results(self, raw: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
        """List the item itself where it is a tool's result."""
        return [("", raw)] if responses_items.is_output(raw) else []

    def group_items(self, raws: Sequence[Any]) -> list[tuple[int, Any]]:
        """Join items of the model that follow each other (rule 1)."""
        return responses_items.group_items(raws)

    def own_fields(self, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the item, of several the fields of the first one too."""
        is_group = is_item_group(raw) and raw["output"]
        return {**raw["output"][0], **raw} if is_group else raw

    def enveloped(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Wrap an item of the model: payloads leave out the fields of an envelope."""
        if responses_items.has_call_id_as_id(raw):
            return raw | {"call_id": raw["id"]}
        (parsed,) = self.parse(raw, "")
        if parsed.role is not Role.ASSISTANT:
            return raw
        if not is_item_group(raw):
            raw = {"role": "assistant", "output": [raw]}
        first, *others = raw["output"] or [{}]
        if "timestamp" not in first:
            return raw
        bare = {key: value for key, value in first.items() if key != "timestamp"}
        return {"timestamp": first["timestamp"]} | raw | {"output": [bare, *others]}

    def _parse_output(self, group: Fields) -> tuple[Part, ...]:
        items = list(group.objects("output"))
        for item in items:
            if is_item_group(item.raw) or responses_items.is_output(item.raw):
                raise item.error("type", "only items that the model made are allowed here")
        return with_own_ids(map(self._parse_item, items))

    def _parse_item(self, item: Fields) -> Part:
        """Read an item that the model made."""
        kind, role = item_type(item.raw), item.get("role")
        if kind == "additional_tools" or (kind == "message" and role != "assistant"):
            json_fields.refuse_role(role, item.at, "user, assistant, system, developer")
        if not kind:
            raise item.error("type", "must name the type of the item")
        if kind in responses_items.REFUSED_TYPES:
            raise item.error("type", responses_items.REFUSED_TYPES[kind])
        if kind == "message":
            return self._parse_message(item)
        if kind == "compaction":
            item.text("encrypted_content")
            return Reasoning("", responses_items.original(item), self.name)
        if kind == "reasoning":
            keys = [key for key in ("summary", "content") if key == "summary" or item.get(key)]
            found = [[part.text("text") for part in item.objects(key)] for key in keys]
            texts = next(filter(None, found), [])
            return Reasoning("\n".join(texts), responses_items.original(item), self.name)
        return self._parse_call(item) if responses_items.is_call(item.raw) else self._opaque(item)

    def _opaque(self, block: Fields, *excluded: str) -> Opaque:
        """Keep an item as it is, but for cache breakpoints, which each payload places itself."""
        marks = json_fields.CACHE_MARKS[1:]
        return Opaque(responses_items.original(block, *marks, *excluded), self.name)

    def _parse_message(self, message: Fields) -> Text | Opaque:
        block = responses_items.original(message)
        if isinstance(content := message.get("content"), str):
            return Text(content, block, self.name)
        texts: list[str] = []
        labelled: list[str] = []
        for part in message.objects("content"):
            match part.filled_text("type"):
                case "output_text":
                    texts.append(part.text("text"))
                    continue
                case "refusal":
                    part.text("refusal")
                case "input_text" | "input_image" | "input_file":
                    raise part.error("type", "content of the assistant is output_text or refusal")
            labelled.append(labels.kind_of(part.raw))
            texts.append(labels.block_label(part.raw))
        if texts and len(labelled) == len(texts) and "refusal" not in labelled:
            return Opaque(block, self.name)
        return Text("\n".join(texts), block, self.name, tuple(labelled))

    def _parse_call(self, item: Fields) -> ToolCall:
        call_id, block = item.filled_text("call_id"), responses_items.original(item)
        kind = item.raw["type"]
        name, key = CALLS[kind]
        if (arguments := built_in_arguments(block)) is not None:
            return ToolCall(call_id, name, arguments, block=block, format=self.name)
        is_custom = kind != FUNCTION
        arguments = item.optional_text(key) or ("" if is_custom else "{}")
        return ToolCall(call_id, item.text("name"), arguments, is_custom, block, self.name)

    def _parse_result(self, result: Fields) -> Message:
        kind, name = result.raw["type"], None
        has_own = responses_items.has_call_id_as_id(result.raw)
        call_id = result.filled_text("id" if has_own else "call_id")
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
                has_output = result.get("output") is not None
                parts = self._parse_content(result, "output") if has_output else ()
        fields = result.beside(self.name, "id", "call_id", "output", "tools", *LOG_FIELDS)
        block = fields.get("block", {})
        if not block and kind == OUTPUTS[FUNCTION]:
            return Message(Role.TOOL, parts, call_id, name)
        own = {"type": kind, **block}
        return Message(Role.TOOL, parts, call_id, name, block=own, format=self.name)

    def _parse_content(self, item: Fields, key: str) -> tuple[Part, ...]:
        return self._parse_parts(item, key, self._parse_part)

    def _parse_part(self, part: Fields) -> Part:
        if (of_mcp := media.read_mcp(part)) is not None:
            return of_mcp
        match part.filled_text("type"):
            case "input_audio":
                return self._parse_audio(part)
            case "input_text":
                return Text(part.text("text"))
            case "input_image" if part.get("file_id") is None:
                url, detail = part.filled_text("image_url"), part.optional_text("detail")
                explicit = detail if detail != "auto" else None
                image = media.image_from_url(url, f"{part.at}/image_url", explicit)
                return replace(image, **part.beside(self.name, "image_url", "file_id", "detail"))
            case "input_file":
                file = self._parse_file(part)
                known = ("file_data", "file_url", "file_id", "filename")
                return replace(file, **part.beside(self.name, *known))
        return self._opaque(part)

    def _adapt_call(self, call: ToolCall, ids: Mapping[str, str]) -> ToolCall:
        """Take the arguments from the object that is sent, whose escaped characters changed."""
        call = super()._adapt_call(call, ids)
        if "\\u" not in call.arguments:
            return call
        arguments = built_in_arguments(self.beside(call))
        return call if arguments is None else replace(call, arguments=arguments)

    def _adapt_file_source(self, file: File) -> File | Text:
        if self.is_uploaded(file):  # an uploaded file has its own name
            return replace(file, name=None) if file.name else file
        return file if media.is_web_url(file.url) else labels.label_for(file)

    def _function(self, tool: ToolDefinition) -> dict[str, Any]:
        """Render a function, whose `strict` is true by default, and requires every argument."""
        return {"type": "function", **wire_fields(tool, "parameters", strict=bool(tool.strict))}

    def sent_parts(
        self, message: Message, accepts: Collection[str], *, replays: bool
    ) -> list[Part]:
        """Leave out reasoning, and what refers to it (rule 4)."""
        parts: list[Part] = []
        is_unbound = False
        for part in message.parts:
            if not isinstance(part, Reasoning):
                parts.append(self._without_id(part) if is_unbound else part)
            elif part.block is not None and part.format is self.name:
                is_unbound = not replays
                parts += [part] if replays else []
        return parts

    def without_foreign(self, message: Message, accepts: Sequence[str]) -> Message:
        """Return a message with labels for items that no provider of these families has."""
        known = responses_items.ITEM_TYPES.get(accepts[0]) if len(accepts) == 1 else None
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
        is_search = block.get("type") in responses_items.TOOL_SEARCH_TYPES
        if isinstance(part, Opaque) and not is_search:
            return labels.label_for(part)
        if isinstance(part, Image | File | Reasoning) or part.format is not self.name:
            return part
        if block.get("type") in _ID_REQUIRED and not isinstance(part, Opaque):
            return replace(part, block=None, format=None)
        bare = {key: item for key, item in block.items() if key != "id"}
        return replace(part, block=bare) if "id" in block else part

    def render(
        self, message: Message, call: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Render a message as items, each a `ResponseInputItemParam` dict.

        The call that a result answers decides about its type (rule 3).
        """
        if message.role is Role.ASSISTANT:
            return [self._item(part) for part in message.parts]
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

    def wire(self, message: Message) -> dict[str, Any]:
        """Return a whole message, of the assistant one with all items."""
        items = self.render(message)
        is_said = message.role is Role.ASSISTANT
        return {"role": "assistant", "output": items} if is_said else items[0]

    def rendered_calls(self, pieces: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """List the types of the client's calls, who made them, and whether others wait for them."""
        return [
            {key: item[key] for key in ("type", "caller", "async") if key in item}
            for item in pieces
            if responses_items.is_call(item)
        ]

    def is_reshaped(self, call: Mapping[str, Any] | None) -> bool:
        """Whether a call is none of a function: outputs of other types have no place for texts."""
        return call is not None and call["type"] != FUNCTION

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
        block = self.beside(call)
        if built_in_arguments(block) is not None:
            return block | {"call_id": call.id}
        kind = "custom_tool_call" if call.custom else FUNCTION
        named = {"call_id": call.id, "name": call.name, CALLS[kind][1]: call.arguments}
        return _with_own_id({"type": kind, **block, **named}, kind)

    def _wire_result(self, message: Message, call: Mapping[str, Any] | None) -> dict[str, Any]:
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
                shown: dict[str, Any] = {"image_url": _NO_SCREENSHOT}
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
                pieces = [self._wire_part(part) for part in message.parts]
                is_text = len(pieces) == 1 and isinstance(message.parts[0], Text)
                return identity | {"output": message.text if is_text else pieces} | fields

    def _wire_part(self, part: Part) -> dict[str, Any]:
        match part:
            case Text():
                return {"type": "input_text", "text": part.text}
            case Image():
                detail = part.detail or "auto"
                image = {"type": "input_image", "image_url": media.url_of(part)}
                return image | {"detail": detail} | self.beside(part)
            case File():
                return {"type": "input_file"} | self._wire_file(part) | self.beside(part)
            case Opaque():
                return dict(part.block)
            case _:
                raise TypeError(f"{type(part).__name__} is not a content part")

    def _wire_file(self, file: File) -> dict[str, Any]:
        if file.data is not None:
            return {"filename": file.name, "file_data": media.url_of(file)}
        if self.is_uploaded(file):
            return {"file_id": file.file_id}
        return {"file_url": file.url} | ({"filename": file.name} if file.name else {})

    def _extra_fields(self, part: Original, block: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of an item, and those of its content."""
        fields = super()._extra_fields(part, block)
        if isinstance(part, ToolCall):
            return without(fields, *responses_items.call_fields(block))
        content = fields.pop("content", None) if isinstance(part, Text) else None
        parts = content if isinstance(content, list) else []
        rest = [without(item, *_TEXT_FIELDS.get(item["type"], ())) for item in parts]
        return fields | ({"content": rest} if any(rest) else {})

    def system(self, prompt: SystemPrompt, marked: Collection[int]) -> System:
        """Return a developer message with a part per section: `instructions` take no breakpoint."""
        parts = [
            self.marked({"type": "input_text", "text": text}, is_marked=index in marked)
            for index, text in enumerate(prompt.sections)
        ]
        contents = [
            *([parts] if parts else []),
            *([{"type": "input_text", "text": text}] for text in prompt.dynamic_texts),
        ]
        return system_messages(
            {"type": "message", "role": "developer", "content": content} for content in contents
        )

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
        found = [{**wire, "defer_loading": True} for wire in self.tools_to_wire(tools)]
        output = {"type": "tool_search_output", "call_id": call_id, "execution": "client"}
        return output | {"status": status, "tools": found}

    def compaction(self, threshold: int, requested: bool | None, *, asks: bool) -> Compaction:
        """Return the threshold at which OpenAI compacts."""
        entry = {"type": "compaction", "compact_threshold": threshold}
        return Compaction({"context_management": [entry]}) if asks else Compaction()

    def call_id_fields(self, raw: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
        """List the items of a message; a result of a local shell may have its call's id as id."""
        held = raw["output"] if is_item_group(raw) else [raw]
        has_own = responses_items.has_call_id_as_id
        return [(item, "id" if has_own(item) else "call_id") for item in held]

    def read_call(self, call: Fields) -> AgentCall:
        """Read a `function_call` item, or a `tool_search_call` for the client."""
        is_search = call.get("type") == "tool_search_call"
        if is_search and call.raw.get("execution", "client") != "client":
            detail = 'must be "client": any other search has been executed already'
            raise call.error("execution", detail)
        if not is_search:
            call.expect_type("function_call")
        return AgentCall(call.filled_text("call_id"), call, "arguments", is_search)


def _with_own_id(item: dict[str, Any], kind: str) -> dict[str, Any]:
    """Drop an id that the provider would refuse (rule 6)."""
    if "id" in item and not str(item["id"]).startswith(_ID_PREFIXES[kind]):
        del item["id"]
    return item


def _read_list(text: str) -> list[Any] | None:
    value = json_text.loads_exact(text) if is_json(text) else None
    is_list = isinstance(value, list) and all(isinstance(item, Mapping) for item in value)
    return value if is_list else None
