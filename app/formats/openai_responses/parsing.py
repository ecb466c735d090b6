"""Reads OpenAI Responses items as neutral messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.formats import json_fields, labels, media_parts, tool_calls
from app.formats.json_fields import Fields
from app.formats.message import Message, Opaque, Part, Reasoning, Role, Text, ToolCall
from app.formats.reasoning_families import OPENAI, XAI
from app.formats.shared import OpenAIProvider

FUNCTION = "function_call"
OUTPUT_TYPES = {
    FUNCTION: "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "tool_search_call": "tool_search_output",
    "computer_call": "computer_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
}
"""Calls that the client runs, and the type of their output."""
BUILT_IN_CALLS = {
    "tool_search_call": ("tool_search", "arguments"),
    "computer_call": ("computer", "action"),
    "local_shell_call": ("local_shell", "action"),
    "shell_call": ("shell", "action"),
    "apply_patch_call": ("apply_patch", "operation"),
}
"""Calls of tools that OpenAI defines: the tool's name, and the field of the arguments."""
CALLS = {kind: call for call, kind in OUTPUT_TYPES.items()}
"""The same by the type of the output."""
TOOL_SEARCH_TYPES = ("tool_search_call", "tool_search_output")
_SHARED_TYPES = frozenset(
    {
        *("message", "reasoning", "compaction", *OUTPUT_TYPES, *OUTPUT_TYPES.values()),
        *("web_search_call", "file_search_call", "code_interpreter_call", "mcp_call"),
    }
)
_OPENAI_TYPES = frozenset(
    {
        *("image_generation_call", "mcp_list_tools", "mcp_approval_request"),
        *("mcp_approval_response", "additional_tools", "configuration_update"),
        *("program", "program_output"),
    }
)
ITEM_TYPES = {
    OPENAI: _SHARED_TYPES | _OPENAI_TYPES,
    XAI: _SHARED_TYPES | {"x_search_call", "view_image_call", "view_x_video_call"},
}
"""The types of items that a family of models takes; others are taken to take any."""
REQUIRED_NULLS = {
    "code_interpreter_call": ("code", "outputs"),
    "image_generation_call": ("result",),
    "tool_search_call": ("call_id",),
    "tool_search_output": ("call_id",),
}
"""Fields that are sent even where they are null."""
CONFIGURATION = "configuration_update"
"""Changes settings for all later responses, so that every payload has to have it."""
REFUSED_TYPES = {
    "item_reference": "is not stored: send the item, not a reference to it",
    "compaction_trigger": "belongs to a request, not to the log",
}
_ASKING = {"user": Role.USER, "system": Role.SYSTEM, "developer": Role.SYSTEM}
_LOG_FIELDS = (
    *("timestamp", "seq", "turn", "token_count", "format", "created_at", "redacted_at"),
    *("conversation_id", "agent_id", "output_ref", "content_truncated", "content_collected"),
    *("visibility", "pinned", "restored_at", "restored_from", "given"),
)
"""Fields that the service adds to an item when the log is read: clients may send them back."""


class ResponsesParsing(OpenAIProvider):
    """Reads items."""

    def parse(self, raw: Mapping[str, Any], pointer: str) -> tuple[Message, ...]:
        """Read one item, or several that `group_items` joined.

        Raises `ValidationError` at the field below `pointer` that is wrong.
        """
        item = Fields(raw, pointer)
        if is_item_group(item.raw):
            return (Message(Role.ASSISTANT, self._parse_output(item)),)
        kind = item_type(item.raw)
        if kind == "message" and (role := _ASKING.get(str(item.get("role")))) is not None:
            beside = item.beside(self.name, "id", "role", "content", *_LOG_FIELDS)
            return (Message(role, self._parse_content(item, "content"), **beside),)
        if kind == "mcp_approval_response":
            return (Message(Role.USER, (self._opaque(item),)),)
        if kind in CALLS and not is_hosted(item.raw):
            return (self._parse_result(item),)
        return (Message(Role.ASSISTANT, (self._parse_item(item),)),)

    def results(self, raw: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
        """List the item itself where it is a tool's result."""
        return [("", raw)] if item_type(raw) in CALLS and not is_hosted(raw) else []

    def _parse_output(self, group: Fields) -> tuple[Part, ...]:
        items = list(group.objects("output"))
        for item in items:
            is_output = not is_model_made(item.raw) and item_type(item.raw) in CALLS
            if is_item_group(item.raw) or is_output:
                raise item.error("type", "only items that the model made are allowed here")
        return tool_calls.with_own_ids(map(self._parse_item, items))

    def _parse_item(self, item: Fields) -> Part:
        """Read an item that the model made."""
        kind, role = item_type(item.raw), item.get("role")
        if kind == "additional_tools" or (kind == "message" and role != "assistant"):
            json_fields.refuse_role(role, item.at, "user, assistant, system, developer")
        if not kind:
            raise item.error("type", "must name the type of the item")
        if kind in REFUSED_TYPES:
            raise item.error("type", REFUSED_TYPES[kind])
        if kind == "message":
            return self._parse_message(item)
        if kind == "compaction":
            item.text("encrypted_content")
            return Reasoning("", _original(item), self.name)
        if kind == "reasoning":
            texts: list[str] = []
            for key in ("summary", "content"):
                if key == "summary" or item.get(key) is not None:
                    of_key = [part.text("text") for part in item.objects(key)]
                    texts = texts or of_key
            return Reasoning("\n".join(texts), _original(item), self.name)
        if kind in OUTPUT_TYPES and not is_hosted(item.raw):
            return self._parse_call(item, kind)
        return self._opaque(item)

    def _opaque(self, item: Fields) -> Opaque:
        """Keep an item as it is, but for cache breakpoints, which each payload places itself."""
        return Opaque(_original(item, "prompt_cache_breakpoint"), self.name)

    def _parse_message(self, message: Fields) -> Text | Opaque:
        block = _original(message)
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

    def _parse_call(self, item: Fields, kind: str) -> ToolCall:
        call_id = item.filled_text("call_id")
        block = _original(item)
        if kind in BUILT_IN_CALLS:
            name, arguments = BUILT_IN_CALLS[kind][0], built_in_arguments(block, kind)
            return ToolCall(call_id, name, arguments, block=block, format=self.name)
        is_custom = kind != FUNCTION
        given = item.optional_text("input" if is_custom else "arguments")
        arguments = given or ("" if is_custom else "{}")
        return ToolCall(call_id, item.text("name"), arguments, is_custom, block, self.name)

    def _parse_result(self, result: Fields) -> Message:
        kind = result.raw["type"]
        call_id = result.filled_text("id" if has_call_id_as_id(result.raw) else "call_id")
        name = None
        parts: Sequence[Part]
        match kind:
            case "tool_search_output":
                parts = (_parse_list(result, "tools"),)
            case "shell_call_output":
                parts = (_parse_list(result, "output"),)
            case "computer_call_output":
                output = result.object("output")
                if url := output.optional_text("image_url"):
                    parts = (media_parts.image_from_url(url, f"{output.at}/image_url"),)
                else:
                    shown = {"file_id": output.filled_text("file_id"), "detail": "auto"}
                    parts = (Opaque({"type": "input_image", **shown}, self.name),)
            case _:
                name = result.optional_text("name")
                parts = self._parse_content(result, "output")
        known = ("id", "call_id", "output", "tools", *_LOG_FIELDS)
        fields = result.beside(self.name, *known).get("block", {})
        message = Message(Role.TOOL, tuple(parts), call_id, name)
        if not fields and kind == OUTPUT_TYPES[FUNCTION]:
            return message
        return replace(message, block={"type": kind} | fields, format=self.name)

    def _parse_content(self, item: Fields, key: str) -> tuple[Part, ...]:
        content = item.get(key)
        if content is None and key == self.result_key:
            return ()
        return self._parse_parts(item, key, self._parse_part)

    def _parse_part(self, part: Fields) -> Part:
        if (of_mcp := media_parts.read_mcp(part)) is not None:
            return of_mcp
        match part.filled_text("type"):
            case "input_audio":
                return self._parse_audio(part)
            case "input_text":
                return Text(part.text("text"))
            case "input_image" if part.get("file_id") is None:
                url, detail = part.filled_text("image_url"), part.optional_text("detail")
                explicit = detail if detail != "auto" else None
                image = media_parts.image_from_url(url, f"{part.at}/image_url", explicit)
                return replace(image, **part.beside(self.name, "image_url", "file_id", "detail"))
            case "input_file":
                file = self._parse_file(part)
                known = ("file_data", "file_url", "file_id", "filename")
                return replace(file, **part.beside(self.name, *known))
        return self._opaque(part)


def group_items(raws: Sequence[Any]) -> list[tuple[int, Any]]:
    """Join consecutive items that the model made, each with the index of its first item (rule 1).

    An item without such neighbours is returned as it is.
    """
    groups: list[tuple[int, Any]] = []
    run: list[Any] = []
    for index, raw in enumerate(raws):
        if not is_model_made(raw):
            run = []
            groups.append((index, raw))
            continue
        run.append(raw)
        if len(run) == 1:
            groups.append((index, raw))
        else:
            groups[-1] = (index + 1 - len(run), {"role": "assistant", "output": list(run)})
    return groups


def is_item_group(raw: Mapping[str, Any]) -> bool:
    """Return whether a message is several items of the model, in its `output`."""
    is_bare = raw.get("type") is None and raw.get("role") == "assistant"
    return is_bare and isinstance(raw.get("output"), list)


def call_types(items: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the type of each call among rendered items, by call id."""
    calls = (item for item in items if item.get("type") in OUTPUT_TYPES and not is_hosted(item))
    return {item["call_id"]: item["type"] for item in calls}


def call_fields(block: Mapping[str, Any]) -> tuple[str, ...]:
    """List the fields of a call's item that hold its id, its name and its arguments."""
    kind = block.get("type")
    if isinstance(kind, str) and kind in BUILT_IN_CALLS:
        _, key = BUILT_IN_CALLS[kind]
        return ("call_id", key, f"{key}s")
    return ("call_id", "name", "arguments" if kind == FUNCTION else "input")


def built_in_arguments(block: Mapping[str, Any], kind: str) -> str:
    """Return the arguments of a call of a built-in tool as JSON."""
    _, key = BUILT_IN_CALLS[kind]
    return json_fields.compact(block.get(key, block.get(f"{key}s", {})))


def item_type(raw: Mapping[str, Any]) -> str:
    """Return the type of an item, `message` by default, empty where it is malformed."""
    kind = raw.get("type")
    if kind is None and "role" in raw:
        return "message"
    return kind if isinstance(kind, str) else ""


def is_hosted(raw: Mapping[str, Any]) -> bool:
    """Return whether a tool search ran at the provider, which holds its result."""
    if item_type(raw) not in TOOL_SEARCH_TYPES:
        return False
    return raw.get("execution") == "server" or raw.get("call_id") is None


def is_configuration(message: Message) -> bool:
    """Return whether a message is a change of settings and nothing else."""
    return all(
        isinstance(part, Opaque) and part.block.get("type") == CONFIGURATION
        for part in message.parts
    )


def is_model_made(raw: Any) -> bool:
    """Return whether the model made an item."""
    if not isinstance(raw, Mapping) or is_item_group(raw):
        return False
    kind = item_type(raw)
    if kind == "message":
        return raw.get("role") == "assistant"
    is_client_output = kind in CALLS and not is_hosted(raw)
    others = ("", *REFUSED_TYPES, "additional_tools", "mcp_approval_response", CONFIGURATION)
    is_other = kind in others
    return not (is_client_output or is_other)


def has_call_id_as_id(item: Mapping[str, Any]) -> bool:
    """Return whether a result has the id of its call as its own."""
    return item.get("type") == "local_shell_call_output" and "call_id" not in item


def _original(item: Fields, *excluded: str) -> dict[str, Any]:
    """Return an item as it is sent back: as the model made it, whichever way an SDK wrote nulls."""
    kind = item_type(item.raw)
    role = () if kind == "message" else ("role",)
    original = item.json(*_LOG_FIELDS, *role, *excluded)
    sent = json_fields.without_nulls(original, REQUIRED_NULLS.get(kind, ()))
    if kind == "message" and isinstance(content := sent.get("content"), list):
        parts = (part for part in content if isinstance(part, Mapping))
        sent["content"] = [json_fields.without_nulls(part) for part in parts]
    if kind == "web_search_call" and isinstance(action := sent.get("action"), Mapping):
        sent["action"] = json_fields.without_nulls(action)
    return sent


def _parse_list(result: Fields, key: str) -> Text:
    items = [item for item, _ in result.items(key)]
    return Text(json_fields.compact(json_fields.json_at(items, result.at)))
