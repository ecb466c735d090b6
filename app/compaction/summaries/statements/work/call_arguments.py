"""Reads the arguments of tool calls: commands, paths and lists of tasks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.common import json_text
from app.common.json_structure import MESSAGE_LIMITS
from app.formats.message import ToolCall

MAX_ARGUMENT_CHARS = 65_536
MAX_TASKS = 60
MAX_PATHS = 8

_SHELL_NAME = re.compile(r"bash|shell|terminal|powershell|exec|run|cmd|command", re.IGNORECASE)
_COMMAND_KEYS = ("command", "cmd", "script", "commands")
_TASK_NAME = re.compile(r"todo|plan|task", re.IGNORECASE)
_TASK_KEYS = ("todos", "plan", "tasks", "task_list", "todo_list", "items", "steps", "task_progress")
_TASK_TEXT_KEYS = ("content", "step", "title", "subject", "description", "task", "text", "name")
_PATH_KEYS = (
    *("file_path", "path", "filename", "filepath", "file", "target_file", "notebook_path"),
    *("absolute_path", "relative_path", "file_name", "paths", "files", "file_paths"),
)
_EDIT_NAME = re.compile(
    r"edit|write|create|replace|patch|insert|delete|apply|update|rename|move|remove", re.IGNORECASE
)
_READ_NAME = re.compile(r"read|view|open|cat|get|show|load|fetch", re.IGNORECASE)
_EDIT_COMMANDS = frozenset({"create", "str_replace", "insert", "undo_edit", "write", "append"})
_PATCHED = re.compile(r"^\*\*\* (?:Add|Update|Delete) File: (.{1,300})$", re.MULTILINE)
_CHECKBOX = re.compile(r"^\s*[-*]\s*\[([ xX~-])\]\s+(.{1,300})$", re.MULTILINE)
_DONE = frozenset({"completed", "complete", "done", "finished", "closed", "x", "X"})
_RUNNING = frozenset({"in_progress", "in progress", "active", "doing", "started", "~", "-"})
_FILE = re.compile(
    r"[\w@+~.-][^\s:*?\"<>|]{0,250}\.[A-Za-z0-9]\w{0,11}$|(?:^|[/\\])[\w.-]*[A-Z]\w*file$"
)


def arguments_of(call: ToolCall) -> Mapping[str, Any]:
    """Return the arguments of a call, empty where they are no JSON object."""
    if len(call.arguments) > MAX_ARGUMENT_CHARS:
        return _head_of(call.arguments)
    try:
        arguments = json_text.loads_within(call.arguments, MESSAGE_LIMITS)
    except ValueError:
        return {}
    return arguments if isinstance(arguments, Mapping) else {}


_STRING_PAIR = re.compile(r"\"(\w{1,40})\"\s*:\s*\"((?:[^\"\\]|\\.){0,400})\"")


def _head_of(text: str) -> Mapping[str, Any]:
    """Return the short strings at the beginning of large arguments."""
    return dict(_STRING_PAIR.findall(text[:4096]))


def command_of(call: ToolCall, arguments: Mapping[str, Any]) -> str | None:
    """Return the shell command of a call, None for another tool."""
    if _SHELL_NAME.search(call.name) is None:
        return None
    for key in _COMMAND_KEYS:
        value = arguments.get(key)
        if isinstance(value, str) and value.strip():
            return value.strip()
        if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
            is_wrapped = len(value) == 3 and value[1] in ("-c", "-lc")
            return value[2] if is_wrapped else " ".join(value)
    return None


def paths_of(call: ToolCall, arguments: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield the files that a call reads or edits, and whether it edits them."""
    patch = next((v for v in arguments.values() if isinstance(v, str) and "*** " in v[:400]), None)
    if patch is None and "*** Begin Patch" in call.arguments[:400]:
        patch = call.arguments[:MAX_ARGUMENT_CHARS]
    if patch is not None:
        for path in _PATCHED.findall(patch)[:MAX_PATHS]:
            yield path.strip(), True
        return
    is_edit = _EDIT_NAME.search(call.name) is not None
    subcommand = arguments.get("command")
    if isinstance(subcommand, str) and subcommand in _EDIT_COMMANDS | {"view"}:
        is_edit = subcommand != "view"
    elif not is_edit and _READ_NAME.search(call.name) is None:
        return
    for key in _PATH_KEYS:
        value = arguments.get(key)
        for path in value[:MAX_PATHS] if isinstance(value, list) else (value,):
            if isinstance(path, str) and "\n" not in path and _FILE.search(path.strip()):
                yield path.strip(), is_edit


def tasks_of(call: ToolCall, arguments: Mapping[str, Any]) -> list[tuple[str, str, str]] | None:
    """Return the whole list of tasks that a call sets: id, state and text of each; None without."""
    if _TASK_NAME.search(call.name) is None:
        return None
    for key in _TASK_KEYS:
        value = arguments.get(key)
        if isinstance(value, str) and (found := _CHECKBOX.findall(value)):
            return [("", _state(mark), text.strip()) for mark, text in found[:MAX_TASKS]]
        if isinstance(value, list):
            tasks = [task for item in value[:MAX_TASKS] if (task := _task(item)) is not None]
            if tasks or not value:
                return tasks
    return None


def _task(item: Any) -> tuple[str, str, str] | None:
    if isinstance(item, str):
        return "", " ", item
    if not isinstance(item, Mapping):
        return None
    text = text_of_task(item)
    status = item.get("status")
    if text is None or not isinstance(status, str | None):
        return None
    done = item.get("done") or item.get("completed")
    identity = item.get("id")
    return (
        str(identity) if isinstance(identity, str | int) else "",
        "x" if done is True else _state(status or ""),
        text,
    )


def text_of_task(item: Mapping[str, Any]) -> str | None:
    """Return the text of a task, None without one."""
    texts = (item.get(key) for key in _TASK_TEXT_KEYS)
    return next((text for text in texts if isinstance(text, str) and text.strip()), None)


def state_of_task(item: Mapping[str, Any]) -> str | None:
    """Return the state of a task as the mark of a checkbox, None without one."""
    status = item.get("status") or item.get("state")
    return _state(status) if isinstance(status, str) else None


def _state(status: str) -> str:
    if status in _DONE:
        return "x"
    return "~" if status in _RUNNING else " "


def first_strings(values: Sequence[Any]) -> str | None:
    """Return the first string of some values, None without one."""
    return next((str(value) for value in values if isinstance(value, str | int)), None)
