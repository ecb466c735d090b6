"""Todo lists as agents keep them: one call with the whole list, or a call for each task."""

from __future__ import annotations

from typing import Any

LIST_TOOLS = {"TodoWrite": ("todos", "content"), "update_plan": ("plan", "step")}
"""The tools that take a whole list: the names of its argument and of an item's text."""
CREATE, UPDATE = "TaskCreate", "TaskUpdate"
TOOLS = (*LIST_TOOLS, CREATE)

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
