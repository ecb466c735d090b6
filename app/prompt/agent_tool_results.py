"""Native messages that answer calls of agent tools.

1. A call's id is returned unchanged; only the text of a result is made sendable.
2. The result of a tool search is text, except where the provider has a type for it: Anthropic takes
   references to known tools, and an output of OpenAI's tool search takes definitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from app.blobs.blobs import encode
from app.blobs.result_content import result_in
from app.common.sendable import sendable
from app.formats import PROVIDERS, ToolDefinition, json_fields
from app.formats.message import FormatName
from app.prompt.agent_tool_calls import Call
from app.prompt.agent_tools import MAX_BYTES

NO_TOOL: Final = "[No tool matches.]"


def result_message(
    call: Call, format: FormatName, text: str, *, is_error: bool = False
) -> dict[str, Any]:
    """Return the native message that answers a call.

    OpenAI's formats have no error flag: there the text begins with "Error:". The output of OpenAI's
    tool search takes no text; an error is an empty list with the status `incomplete`.
    """
    if call.is_search_item:
        status = "incomplete" if is_error else "completed"
        return PROVIDERS[format].search_output(call.id, (), status)
    return PROVIDERS[format].result(call.id, call.name, sendable(text), is_error=is_error)


def search_result_message(
    call: Call, format: FormatName, tools: Sequence[ToolDefinition], *, native: bool
) -> dict[str, Any]:
    """Return the native message with the tools that a search found.

    `native` is true if the caller's payloads defer tools with the provider's own mechanism.
    """
    provider = PROVIDERS[format]
    if call.is_search_item:
        return provider.search_output(call.id, tools, "completed")
    message = result_message(call, format, _definitions_text(tools))
    if native and (references := provider.tool_references(tools)):
        result_in(message, format)[provider.result_key] = references
    return message


def _definitions_text(tools: Sequence[ToolDefinition]) -> str:
    """Return one definition a line; beyond MAX_BYTES only names."""
    if not tools:
        return NO_TOOL
    lines: list[str] = []
    remaining_bytes = MAX_BYTES
    for tool in tools:
        definition = {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
        }
        line = json_fields.compact(definition)
        remaining_bytes -= len(encode(line)) + 1
        if remaining_bytes < 0 and lines:
            break
        lines.append(line)
    others = ", ".join(tool.name for tool in tools[len(lines) :])
    return "\n".join([*lines, f"[Found as well: {others}.]"] if others else lines)
