"""The items of OpenAI Responses: what their types say, and which of them are one message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.formats import json_fields
from app.formats.json_fields import Fields, without_nulls
from app.formats.message import Message, Opaque
from app.formats.reasoning import OPENAI, XAI

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
CALLS_BY_OUTPUT = {output: call for call, output in OUTPUTS.items()}
TOOL_SEARCH_TYPES = ("tool_search_call", "tool_search_output")
_SHARED_TYPES = (
    *("message", "reasoning", "compaction", *OUTPUTS, *OUTPUTS.values()),
    *("web_search_call", "file_search_call", "code_interpreter_call", "mcp_call"),
)
ITEM_TYPES = {
    OPENAI: frozenset(
        (
            *_SHARED_TYPES,
            *("image_generation_call", "mcp_list_tools", "mcp_approval_request"),
            *("mcp_approval_response", "additional_tools", "configuration_update"),
            *("program", "program_output"),
        )
    ),
    XAI: frozenset((*_SHARED_TYPES, "x_search_call", "view_image_call", "view_x_video_call")),
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
LOG_FIELDS = (
    *("timestamp", "seq", "turn", "token_count", "format", "created_at", "redacted_at"),
    *("conversation_id", "agent_id", "output_ref", "content_truncated", "content_collected"),
    *("visibility", "pinned", "restored_at", "restored_from", "given"),
)
"""Fields that the service adds to an item when the log is read: clients may send them back."""


def item_type(raw: Mapping[str, Any]) -> str:
    """Return the type of an item, `message` by default, empty where it is malformed."""
    kind = raw.get("type")
    if kind is None and "role" in raw:
        return "message"
    return kind if isinstance(kind, str) else ""


def is_item_group(raw: Mapping[str, Any]) -> bool:
    """Return whether a message is several items of the model, in its `output`."""
    is_bare = raw.get("type") is None and raw.get("role") == "assistant"
    return is_bare and isinstance(raw.get("output"), list)


def is_output(raw: Mapping[str, Any]) -> bool:
    """Return whether an item is the result of a call that the client ran."""
    return item_type(raw) in CALLS_BY_OUTPUT and not _is_hosted(raw)


def is_call(raw: Mapping[str, Any]) -> bool:
    """Return whether an item is a call that the client runs."""
    return item_type(raw) in CALLS and not _is_hosted(raw)


def _is_hosted(raw: Mapping[str, Any]) -> bool:
    """Return whether a tool search ran at the provider, which holds its result."""
    if item_type(raw) not in TOOL_SEARCH_TYPES:
        return False
    return raw.get("execution") == "server" or raw.get("call_id") is None


def is_model_made(raw: Any) -> bool:
    """Return whether the model made an item."""
    if not isinstance(raw, Mapping) or is_item_group(raw) or is_output(raw):
        return False
    kind = item_type(raw)
    if kind == "message":
        return raw.get("role") == "assistant"
    others = ("", *REFUSED_TYPES, "additional_tools", "mcp_approval_response", CONFIGURATION)
    return kind not in others


def group_items(raws: Sequence[Any]) -> list[tuple[int, Any]]:
    """Join consecutive items that the model made, each with the index of its first item.

    An item without such neighbours is returned as it is.
    """
    groups: list[tuple[int, Any]] = []
    run: list[Any] = []
    for index, raw in enumerate(raws):
        run = [*run, raw] if is_model_made(raw) else []
        if len(run) > 1:
            groups[-1] = (index + 1 - len(run), {"role": "assistant", "output": run})
        else:
            groups.append((index, raw))
    return groups


def is_configuration(message: Message) -> bool:
    """Return whether a message is a change of settings and nothing else."""
    return all(
        isinstance(part, Opaque) and part.block.get("type") == CONFIGURATION
        for part in message.parts
    )


def call_fields(block: Mapping[str, Any]) -> tuple[str, ...]:
    """List the fields of a call's item that hold its id, its name and its arguments."""
    _, key = CALLS.get(item_type(block), CALLS[FUNCTION])
    return "call_id", "name", key, f"{key}s"


def built_in_arguments(block: Mapping[str, Any]) -> str | None:
    """Return the arguments of a call of OpenAI's own tool as JSON, None for any other call."""
    name, key = CALLS.get(item_type(block), ("", ""))
    return json_fields.compact(block.get(key, block.get(f"{key}s", {}))) if name else None


def has_call_id_as_id(item: Mapping[str, Any]) -> bool:
    """Return whether a result has the id of its call as its own."""
    return item.get("type") == "local_shell_call_output" and "call_id" not in item


def original(item: Fields, *excluded: str) -> dict[str, Any]:
    """Return an item as it is sent back: as the model made it, whichever way an SDK wrote nulls."""
    kind = item_type(item.raw)
    role = () if kind == "message" else ("role",)
    given = item.json(*LOG_FIELDS, *role, *excluded)
    sent = without_nulls(given, REQUIRED_NULLS.get(kind, ()))
    if kind == "message" and isinstance(content := sent.get("content"), list):
        sent["content"] = [without_nulls(part) for part in content if isinstance(part, Mapping)]
    if kind == "web_search_call" and isinstance(action := sent.get("action"), Mapping):
        sent["action"] = without_nulls(action)
    return sent
