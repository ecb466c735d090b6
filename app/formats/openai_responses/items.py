"""Types of items, which of them the model made, and joining these to messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.formats import json_fields
from app.formats.message import Message, Opaque
from app.formats.reasoning_families import OPENAI, XAI

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
