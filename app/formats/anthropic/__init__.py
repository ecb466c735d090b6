"""Anthropic Messages.

1. A wire user message with k tool results is k tool messages and one user message with the rest.
   The results must come first. `split` cuts the raw message in the same way and loses nothing.
2. `render` returns the wire role and blocks, since one wire message may hold several neutral ones.
3. Thinking is replayed verbatim, at its place among the blocks, or is left out.
"""

from __future__ import annotations

from typing import Any

from app.formats.anthropic.rendering import AnthropicRendering
from app.formats.base import AgentCall, Original, without
from app.formats.json_fields import Fields
from app.formats.message import FormatName, Message, Role
from app.formats.reasoning_families import ANTHROPIC

_PAIRING = ("caller", "toolset_name")
"""Fields of calls that belong to the pair of call and result."""


class Anthropic(AnthropicRendering):
    """Anthropic Messages."""

    name = FormatName.ANTHROPIC
    family = ANTHROPIC
    blocks_key = "content"

    def extra_fields(self, part: Original) -> dict[str, Any]:
        """Return the fields of a block, such as citations."""
        if part.block is None or part.format is not self.name:
            return {}
        return without(part.block, "type", "text", "cache_control")

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
