"""Items of providers that stand for more than themselves: compactions, and calls that they run.

1. OpenAI Responses and xAI have encrypted items of the type `compaction`, Anthropic has blocks of
   that type with a readable summary. Both are parsed as reasoning: only their provider reads them.
2. A compaction without content failed. It stands for nothing.
3. A compaction stands for everything before it, in its own message as well. Calls of that message
   stay: their results come later.
4. The result of a call that the provider runs may be in a later answer: the provider paused, or the
   call waits for tools of the client. A request for an approval is such a call as well, which the
   client answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from app.formats.json_fields import object_in, text_in
from app.formats.message import FormatName, Message, Opaque, Part, Reasoning, ToolCall

COMPACTION: Final = "compaction"
"""The type of these items and blocks."""
CONTENT_KEYS: Final = {
    FormatName.OPENAI_RESPONSES: "encrypted_content",
    FormatName.ANTHROPIC: "content",
}
"""The formats that have them, and the field without which one stands for nothing (rule 2)."""


def is_compaction(part: Part) -> bool:
    """Whether a part is a provider's compaction, failed ones included."""
    return isinstance(part, Reasoning) and (part.block or {}).get("type") == COMPACTION


def last_compaction(message: Message) -> Reasoning | None:
    """Return the last part that stands for something, None without any."""
    for part in reversed(message.parts):
        if isinstance(part, Reasoning) and _content(part):
            return part
    return None


def readable_summary(part: Reasoning) -> str:
    """Return the readable text of a compaction, empty for an encrypted one."""
    return _content(part) if part.format is FormatName.ANTHROPIC else ""


def encrypted_bytes(part: Reasoning) -> int:
    """Return the size of an encrypted compaction, which is sent as base64; 0 for a readable one."""
    return len(_content(part)) * 3 // 4 if not readable_summary(part) else 0


def is_requested(part: Reasoning) -> bool:
    """Whether a compaction came of a request for it: Anthropic signs those."""
    return bool((part.block or {}).get("signature"))


def without_compactions(message: Message) -> Message | None:
    """Return a clean message without its compactions, None where nothing else is in it."""
    parts = [part for part in message.parts if not is_compaction(part)]
    return message.with_parts(parts) if parts else None


def after_compaction(message: Message) -> Message | None:
    """Return what its last compaction does not stand for, None where that is nothing (rule 3)."""
    last = last_compaction(message)
    if last is None:
        return without_compactions(message)
    index = next(index for index, part in enumerate(message.parts) if part is last)
    calls = [part for part in message.parts[:index] if isinstance(part, ToolCall)]
    after = [part for part in message.parts[index + 1 :] if not is_compaction(part)]
    return message.with_parts([*calls, *after]) if calls or after else None


def _content(part: Reasoning) -> str:
    """Return the content of a compaction, empty for a failed one and for other parts."""
    if part.block is None or part.format not in CONTENT_KEYS or not is_compaction(part):
        return ""
    content = part.block.get(CONTENT_KEYS[part.format])
    return content if isinstance(content, str) else ""


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
