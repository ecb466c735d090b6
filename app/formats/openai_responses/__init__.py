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
from typing import Any

from app.common.sendable import sendable, sendable_json
from app.formats.base import Original, without
from app.formats.json_fields import Fields
from app.formats.message import FormatName, Message, Role, Text, ToolCall
from app.formats.openai import system_messages
from app.formats.openai_responses import items
from app.formats.openai_responses.rendering import ResponsesRendering
from app.formats.reasoning_families import OPENAI, XAI
from app.formats.requests import (
    REPLACED,
    AgentCall,
    Answer,
    Compaction,
    RequestFields,
    System,
    SystemPrompt,
)
from app.formats.tools import ToolDefinition

_FINISH_REASONS = {"max_output_tokens": "length", "content_filter": "content_filter"}
_NOT_COUNTED = ("type", "id", "role", "status", "phase", "execution", "encrypted_content")
_TEXT_FIELDS = {"output_text": ("type", "text"), "refusal": ("type", "refusal")}


class OpenAIResponses(ResponsesRendering):
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
    usage_shapes = ("responses", "plain")
    compacting_families = ((), (OPENAI,), (XAI,))
    keeps_user_messages = True
    litellm_call = "aresponses"
    litellm_providers = frozenset(("openai", "xai"))
    makes_ids = True

    def group_items(self, raws: Sequence[Any]) -> list[tuple[int, Any]]:
        """Join items of the model that follow each other (rule 1)."""
        return items.group_items(raws)

    def own_fields(self, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the item, of several the fields of the first one too."""
        is_group = items.is_item_group(raw) and raw["output"]
        return {**raw["output"][0], **raw} if is_group else raw

    def enveloped(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Wrap an item of the model: payloads leave out the fields of an envelope."""
        if items.has_call_id_as_id(raw):
            return raw | {"call_id": raw["id"]}
        (parsed,) = self.parse(raw, "")
        if parsed.role is not Role.ASSISTANT:
            return raw
        if not items.is_item_group(raw):
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
                return without(block, *_NOT_COUNTED, *items.call_fields(block))
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
        return [
            _client_search(tool) if tool.name == search else wire
            for tool, wire in zip(remaining, self.tools_to_wire(remaining), strict=True)
        ]

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

    def compaction_call(self, requested: bool | None, instructions: str | None) -> Compaction:
        """Return the call of OpenAI's endpoint for compactions."""
        fields = ("model", "input", "prompt_cache_key")
        return Compaction(method="responses.compact", fields=fields)

    def litellm_arguments(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return arguments whose input the body replaces."""
        return {"input": REPLACED, "extra_body": body}

    def answer(self, response: Any) -> Answer:
        """Read a response."""
        given = response.model_dump()
        output = given["output"]
        said = (item["content"] or () for item in output if item["type"] == "message")
        parts = [part for content in said for part in content]
        reason = str((given.get("incomplete_details") or {}).get("reason"))
        refused = any(part["type"] == "refusal" for part in parts)
        return Answer(
            "".join(part["text"] for part in parts if part["type"] == "output_text"),
            "content_filter" if refused else _FINISH_REASONS.get(reason, "stop"),
            any(item["type"].endswith("_call") for item in output),
            given["usage"],
        )

    def call_id_fields(self, raw: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
        """List the items of a message; a result of a local shell may have its call's id as id."""
        held = raw["output"] if items.is_item_group(raw) else [raw]
        return [(item, "id" if items.has_call_id_as_id(item) else "call_id") for item in held]

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
        match message.role:
            case Role.TOOL:
                return self.result(message.tool_call_id, None, text)
            case Role.ASSISTANT:
                said = {"type": "message", "role": "assistant", "content": text}
                return {"role": "assistant", "output": [said, *map(_emptied_call, message.calls)]}
            case role:
                return {"role": role, "content": text}


def _client_search(tool: ToolDefinition) -> dict[str, Any]:
    return {
        "type": "tool_search",
        "execution": "client",
        "description": sendable(tool.description),
        "parameters": sendable_json(tool.parameters),
    }


def _emptied_call(call: ToolCall) -> dict[str, Any]:
    named = {"call_id": call.id, "name": call.name}
    if call.custom:
        return {"type": "custom_tool_call", **named, "input": ""}
    return {"type": "function_call", **named, "arguments": "{}"}
