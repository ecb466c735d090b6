"""Anthropic Messages.

1. A wire user message with k tool results is k tool messages and one user message with the rest.
   The results must come first. `split` cuts the raw message in the same way and loses nothing.
2. `render` returns the wire role and blocks, since one wire message may hold several neutral ones.
3. Thinking is replayed verbatim, at its place among the blocks, or is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from app.common import json_text
from app.formats.anthropic.rendering import AnthropicRendering
from app.formats.base import Original, without
from app.formats.json_fields import Fields
from app.formats.message import FormatName, Message, Role
from app.formats.reasoning_families import ANTHROPIC
from app.formats.requests import AgentCall, Answer, Compaction, RequestFields, System, SystemPrompt
from app.formats.tools import ToolDefinition

_FINISH_REASONS = {"max_tokens": "length", "refusal": "content_filter"}
_THRESHOLD_BETA = "compact-2026-01-12"
_REQUESTED_BETA = "compact-2026-09-04"
MIN_THRESHOLD = 50_000
"""The smallest threshold that Anthropic takes, in tokens of the input."""
_PAIRING = ("caller", "toolset_name")
"""Fields of calls that belong to the pair of call and result."""


class Anthropic(AnthropicRendering):
    """Anthropic Messages."""

    name = FormatName.ANTHROPIC
    part_types = (
        *("text", "image", "document", "tool_use", "tool_result", "server_tool_use"),
        *("thinking", "redacted_thinking", "compaction"),
    )
    family = ANTHROPIC
    blocks_key = "content"
    max_output_key = "max_tokens"
    breakpoint = ("cache_control", {"type": "ephemeral"})
    caches_by_itself = False
    defers_tools = True
    needs_tools = True
    usage_shapes = ("anthropic", "plain")
    compacting_families = ((ANTHROPIC,),)
    litellm_call = "anthropic.messages.acreate"
    litellm_providers = frozenset(("anthropic",))

    def _extra_fields(self, part: Original, block: Mapping[str, Any]) -> dict[str, Any]:
        return without(block, "type", "text", "cache_control")

    def system(self, prompt: SystemPrompt, marked: Collection[int]) -> System:
        """Return a block per section, so that any of them can have a breakpoint."""
        if not prompt.as_blocks:
            joined = "\n\n".join(prompt.texts)
            return System((), joined or None, json_text.dump_payload(joined))
        texts = (*prompt.sections, *prompt.dynamic_texts)
        blocks = [{"type": "text", "text": text} for text in texts]
        value = [
            self.marked(block, is_marked=index in marked) for index, block in enumerate(blocks)
        ]
        return System((), value or None, json_text.dump_payload(blocks))

    def body(self, fields: RequestFields) -> dict[str, Any]:
        """Return limit, system prompt, messages and tools."""
        system = {"system": fields.system} if fields.system is not None else {}
        limit = {self.max_output_key: fields.max_output}
        return {**limit, **system, self.items_key: fields.items, **fields.tools}

    def with_instruction(
        self, body: Mapping[str, Any], instruction: str, max_tokens: int
    ) -> dict[str, Any]:
        """Return a request with an instruction as the last block of the user."""
        *messages, last = body["messages"]
        if last["role"] != "user":
            messages, last = [*messages, last], {"role": "user", "content": []}
        block = {"type": "text", "text": instruction}
        messages.append({**last, "content": [*last["content"], block]})
        return {**body, "messages": messages, self.max_output_key: max_tokens}

    def deferred_to_wire(
        self, tools: Sequence[ToolDefinition], deferred: Collection[str], search: str
    ) -> list[dict[str, Any]]:
        """Render all tools; the deferred ones say so, and at least one must not."""
        return [
            {**wire, "defer_loading": True} if tool.name in deferred else wire
            for tool, wire in zip(tools, self.tools_to_wire(tools), strict=True)
        ]

    def tool_references(self, tools: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
        """Return a block for each tool."""
        return [{"type": "tool_reference", "tool_name": tool.name} for tool in tools]

    def compaction(self, threshold: int, requested: bool | None, *, asks: bool) -> Compaction:
        """Return the edit that compacts at a threshold, which its blocks need as well.

        A requested block is taken only without one [anthropic.compaction-requested]
        [anthropic.compaction-threshold].
        """
        if requested:
            return Compaction(betas=(_REQUESTED_BETA,))
        return (
            _edited(max(MIN_THRESHOLD, threshold)) if asks or requested is False else Compaction()
        )

    def compaction_call(self, requested: bool | None, instructions: str | None) -> Compaction:
        """Return a request for a summary, at a threshold behind a block that one made."""
        asked = {"instructions": instructions} if instructions else {}
        if requested is False:
            made = _edited(MIN_THRESHOLD, pause_after_compaction=True, **asked)
        else:
            made = Compaction({"compaction": {"type": "summarize", **asked}}, (_REQUESTED_BETA,))
        fields = ("model", "max_tokens", "system", "messages", "tools")
        return made._replace(method="beta.messages.create", fields=fields)

    def litellm_arguments(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the request itself."""
        return body

    def answer(self, response: Any) -> Answer:
        """Read a message."""
        blocks, reason = response["content"], response["stop_reason"]
        return Answer(
            "".join(block["text"] for block in blocks if block["type"] == "text"),
            _FINISH_REASONS.get(str(reason), "stop"),
            any(block["type"].endswith("tool_use") for block in blocks),
            response["usage"],
            reason,
        )

    def call_id_fields(self, raw: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
        """List calls and results."""
        content = raw.get("content")
        blocks = content if isinstance(content, list) else []
        keys = {"tool_use": "id", "tool_result": "tool_use_id"}
        return [(block, keys[block["type"]]) for block in blocks if block.get("type") in keys]

    def read_call(self, call: Fields) -> AgentCall:
        """Read a `tool_use` block."""
        call.expect_type("tool_use")
        return AgentCall(call.filled_text("id"), call, "input")

    def result(
        self, call_id: str | None, name: str | None, text: str, *, is_error: bool = False
    ) -> dict[str, Any]:
        """Return a user message with one result, which has a flag for errors."""
        block: dict[str, Any] = {"type": "tool_result", "tool_use_id": call_id, "content": text}
        block |= {"is_error": True} if is_error else {}
        return {"role": "user", "content": [block]}

    def emptied(self, message: Message, text: str) -> dict[str, Any]:
        """Return a message whose calls have no input."""
        if message.role is Role.TOOL:
            return self.result(message.tool_call_id, None, text)
        if not message.calls:
            return {"role": message.role, "content": text}
        calls = (
            {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
            | {key: call.block[key] for key in _PAIRING if call.block and key in call.block}
            for call in message.calls
        )
        return {"role": "assistant", "content": [{"type": "text", "text": text}, *calls]}


def _edited(threshold: int, **fields: Any) -> Compaction:
    trigger = {"type": "input_tokens", "value": threshold}
    edit = {"type": "compact_20260112", "trigger": trigger, **fields}
    return Compaction({"context_management": {"edits": [edit]}}, (_THRESHOLD_BETA,))
