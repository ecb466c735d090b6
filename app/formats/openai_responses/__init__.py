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

from collections.abc import Mapping, Sequence
from typing import Any

from app.formats.base import AgentCall, Original, without
from app.formats.json_fields import Fields
from app.formats.message import FormatName, Message, Role, Text, ToolCall
from app.formats.openai_responses import items
from app.formats.openai_responses.rendering import ResponsesRendering

_NOT_COUNTED = ("type", "id", "role", "status", "phase", "execution", "encrypted_content")
_TEXT_FIELDS = {"output_text": ("type", "text"), "refusal": ("type", "refusal")}


class OpenAIResponses(ResponsesRendering):
    """OpenAI Responses, which xAI has as well."""

    name = FormatName.OPENAI_RESPONSES
    result_key = "output"
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

    def extra_fields(self, part: Original) -> dict[str, Any]:
        """Return the fields of an item, and those of its content."""
        block = part.block
        if block is None or part.format is not self.name:
            return {}
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


def _emptied_call(call: ToolCall) -> dict[str, Any]:
    named = {"call_id": call.id, "name": call.name}
    if call.custom:
        return {"type": "custom_tool_call", **named, "input": ""}
    return {"type": "function_call", **named, "arguments": "{}"}
