"""Todo lists as agents keep them: one call with the whole list, or a call for each task."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

LIST_TOOLS = {"TodoWrite": ("todos", "content"), "update_plan": ("plan", "step")}
"""The tools that take a whole list: the names of its argument and of an item's text."""
CREATE, UPDATE = "TaskCreate", "TaskUpdate"
TOOLS = (*LIST_TOOLS, CREATE)
DONE = ("completed", "deleted")
_NUMBER = re.compile(r"#(\d+)")

Items = list[tuple[str, str]]
Calls = list[tuple[str, dict[str, Any], str]]


def calls_for(tool: str, before: Items, now: Items) -> Calls:
    """Return the calls that change a list: the names, arguments and results.

    A list for each task only ever grows, so the texts of `before` are the first of `now`.
    """
    if tool in LIST_TOOLS:
        argument, text_key = LIST_TOOLS[tool]
        items = [{text_key: text, "status": state} for text, state in now]
        return [(tool, {argument: items}, "The list was updated.")]
    calls: Calls = []
    for number, (text, state) in enumerate(now, 1):
        old = before[number - 1][1] if number <= len(before) else "pending"
        if number > len(before):
            given = {"subject": text, "description": text}
            calls.append((CREATE, given, f"Task #{number} created successfully: {text}"))
        if state != old:
            given = {"taskId": str(number), "status": state}
            calls.append((UPDATE, given, f"Updated task #{number} status"))
    return calls


def open_todos(messages: Sequence[dict[str, Any]]) -> list[str]:
    """Return the items that the calls of a conversation leave open."""
    listed: Items = []
    tasks: dict[str, list[str]] = {}
    created: dict[str, str] = {}
    for message in messages:
        for call in message.get("tool_calls") or ():
            name, given = call["function"]["name"], _arguments(call["function"]["arguments"])
            if name in LIST_TOOLS:
                argument, text_key = LIST_TOOLS[name]
                items = (item for item in given.get(argument) or () if isinstance(item, dict))
                listed = [(str(item.get(text_key)), str(item.get("status"))) for item in items]
            elif name == CREATE:
                created[call["id"]] = str(given.get("subject"))
            elif name == UPDATE and (task := tasks.get(str(given.get("taskId")))):
                task[1] = str(given.get("status") or task[1])
        subject = created.pop(message.get("tool_call_id", ""), None)
        if subject is not None and (number := _NUMBER.search(str(message.get("content")))):
            tasks[number[1]] = [subject, "pending"]
    states = [*listed, *((text, state) for text, state in tasks.values())]
    return [text for text, state in states if state not in DONE]


def _arguments(text: str) -> dict[str, Any]:
    try:
        given = json.loads(text)
    except ValueError:
        return {}
    return given if isinstance(given, dict) else {}
