"""Calls that the provider runs, by the ids of their blocks.

The result of such a call may be in a later answer: the provider paused, or the call waits for tools
of the client. A request for an approval is such a call as well, which the client answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from app.formats.json_fields import object_in, text_in
from app.formats.message import Message, Opaque

_CALLS: Final = {
    "server_tool_use": "id",
    "mcp_tool_use": "id",
    "program": "call_id",
    "mcp_approval_request": "id",
}
"""The types of calls, and the field of their ids."""
_RESULTS: Final = {"program_output": "call_id", "mcp_approval_response": "approval_request_id"}


def call_of(block: Mapping[str, Any]) -> str:
    """Return the id of the call that a block is, empty for any other block."""
    if (key := _CALLS.get(text_in(block, "type"))) is not None:
        return text_in(block, key)
    return text_in(object_in(block, "toolCall"), "id") or text_in(
        object_in(block, "tool_call"), "id"
    )


def result_of(block: Mapping[str, Any]) -> str:
    """Return the id of the call that a block is the result of, empty for any other block."""
    kind = text_in(block, "type")
    if kind.endswith("_tool_result"):
        return text_in(block, "tool_use_id")
    if (key := _RESULTS.get(kind)) is not None:
        return text_in(block, key)
    return text_in(object_in(block, "toolResponse"), "id") or text_in(
        object_in(block, "tool_response"), "id"
    )


def waiting_calls(message: Message) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the calls without a result in a message, and those from before that it has one for."""
    waiting: dict[str, None] = {}
    resolved: list[str] = []
    for part in message.parts:
        block = part.block if isinstance(part, Opaque) else {}
        if call := call_of(block):
            waiting[call] = None
        elif (result := result_of(block)) in waiting:
            del waiting[result]
        elif result:
            resolved.append(result)
    return tuple(waiting), tuple(resolved)
