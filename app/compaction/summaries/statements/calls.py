"""Reads tool calls and their results: commands, paths, lists of tasks, failures and tests."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from app.common import json_text
from app.common.json_text import MESSAGE_LIMITS
from app.formats.message import ToolCall

# --- arguments ------------------------------------------------------------------------------

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


# --- results: whether a command failed, and what a test run says ----------------------------

MAX_LINE_CHARS = 240
MAX_COMMAND_CHARS = 120
_HEAD, _TAIL = 1024, 3072

_EXIT = re.compile(
    r"exit(?:ed)?(?:[ _]with)?(?:[ _-]?(?:code|status))?[\"']?\s*[:=]?\s*(-?\d{1,3})\b"
    r"|return(?:ed|[ _]?code)[\"']?\s*[:=]\s*(-?\d{1,3})\b",
    re.IGNORECASE,
)
_ERROR_LINE = re.compile(
    r"^(?:E\s+)?(?:[\w.]*(?:Error|Exception)\b[:(]|(?:FAILED|FAIL|ERROR|FATAL)\b|(?:fatal|error"
    r"|panic)(?:\[\w+\])?:"
    r"|npm ERR!|Traceback \(most recent|.{0,120}: command not found"
    r"|.{0,160}: No such file or directory"
    r"|.{0,160}: Permission denied|ls: cannot access|make: \*\*\*|.{0,120}: error(?: \w+)?: )"
)
_TEST_COMMAND = re.compile(
    r"\b(?:pytest|py\.test|unittest|tox|nox|jest|vitest|mocha|rspec|phpunit|ctest|dotnet test"
    r"|go test"
    r"|cargo test|(?:npm|pnpm|yarn|bun|deno|mix|swift|flutter|bazel)(?: run)? [\w:-]*test[\w:-]*"
    r"|make [\w-]*(?:test|check)[\w-]*|mvn [^\n|;]*(?:test|verify)|gradlew? [^\n|;]*test"
    r"|turbo [^\n|;]*test)"
)
_TEST_LINE = re.compile(
    r"\b\d+ (?:passed|failed|errors?|passing|failing|skipped|pass|fail)\b|^test result:"
    r"|^Tests?:|^OK\b(?: \(|$)"
    r"|^FAILED\b|^FAIL\b|^ok\s+\S+\s+[\d.(]|^BUILD (?:SUCCESS|FAIL)|tests? passed|^Ran \d+ tests?"
    r"|^Test Suites:|^PASS\b",
    re.IGNORECASE,
)
_READS = re.compile(
    r"^(?:cat|sed -n|head|tail|less|more|grep|rg|egrep|find|ls|git (?:show|diff|log|grep|blame)"
    r"|awk|nl|bat|type"
    r"|Get-Content)\b"
)
_CD = re.compile(r"^(?:cd\s+[^\s;&]+\s*(?:&&|;)\s*)+")
_REJECTED = re.compile(
    r"doesn't want to (?:proceed|take)|was rejected|user denied|interrupted by", re.IGNORECASE
)
_TAG = re.compile(r"</?\w[\w-]{0,40}>")
_RULE = re.compile(r"^[=\-_ ]{3,}|[=\-_ ]{3,}$")
_SPACE = re.compile(r"\s+")


def failure_of(result: str, is_error: bool, command: str | None) -> str | None:
    """Return the line that says why a call failed, None where it did not.

    A result fails by its flag, or, of a shell command, by its exit code or the words of a shell.
    What a command prints of a file is no failure.
    """
    head, tail = result[:_HEAD], result[-_TAIL:]
    lines = [line.strip() for line in (head if head == result else f"{head}\n{tail}").splitlines()]
    if command is None:
        return _first_line(lines) if is_error and not _REJECTED.search(head) else None
    code = exit_code(result)
    if _REJECTED.search(head) and is_error:
        return None
    fails = is_error or bool(code)
    if code == 0 and not is_error:
        return None
    if not fails and _READS.match(_CD.sub("", command)):
        return None
    errors = [line for line in lines if line and _ERROR_LINE.search(line[:400])]
    if errors:
        last = errors[-1]
        is_trace = last.startswith("Traceback")
        return shortened(lines[-1] if is_trace and lines[-1] else last, MAX_LINE_CHARS)
    if not fails:
        return None
    return _first_line(lines[::-1]) or (f"exit code {code}" if code else None)


def exit_code(result: str) -> int | None:
    """Return the exit code that a result states at its beginning or end, None without one."""
    for text in (result[-400:], result[:200]):
        codes = _EXIT.findall(text)
        if codes:
            return int(codes[-1][0] or codes[-1][1])
    return None


def test_outcome(command: str, result: str) -> str | None:
    """Return the line in which a test run sums itself up, None for another command."""
    if _TEST_COMMAND.search(command) is None:
        return None
    lines = [line.strip() for line in result[-_TAIL:].splitlines()]
    found = [line for line in lines if _TEST_LINE.search(line[:400])]
    if not found:
        return None
    return shortened(_RULE.sub("", found[-1]).strip(), MAX_LINE_CHARS)


def short_command(command: str) -> str:
    """Return a command on one line, without the changes of directory before it."""
    return shortened(_CD.sub("", _SPACE.sub(" ", command[:2048])).strip(), MAX_COMMAND_CHARS)


def shortened(text: str, max_chars: int) -> str:
    """Return a text on one line, cut between words with an ellipsis."""
    line = _SPACE.sub(" ", text[: 2 * max_chars + 200]).strip()
    if len(line) <= max_chars:
        return line
    cut = line[: max_chars - 1]
    space = cut.rfind(" ")
    return f"{cut[:space] if space > max_chars // 2 else cut}…"


def _first_line(lines: list[str]) -> str | None:
    cleaned = (_TAG.sub("", line).strip() for line in lines)
    line = next((line for line in cleaned if line), None)
    return shortened(line, MAX_LINE_CHARS) if line else None


# --- paths, relative to the folder of the work, and each once -------------------------------

MIN_ROOT_SHARE = 0.9
MIN_ROOT_DEPTH = 2
_ABSOLUTE = re.compile(r"^(?:/|~|[A-Za-z]:/)")


def relative_paths(
    files: Mapping[str, bool], root: str | None
) -> tuple[str | None, dict[str, bool]]:
    """Return the root of most absolute paths, and all paths without it, each once.

    `files` says of each path whether it was edited; a file that was edited under one of its names
    was edited. `root` is the one found before, None without.
    """
    slashed = {path.replace("\\", "/"): edits for path, edits in files.items()}
    absolute = [path for path in slashed if _ABSOLUTE.match(path)]
    root = root or _shared_root(slashed, absolute) or _common_root(absolute)
    known: dict[str, bool] = {}
    for path, edits in slashed.items():
        name = _relative(path, root)
        edited = edits or known.pop(name, False)
        known[name] = edited
    return root, known


def _relative(path: str, root: str | None) -> str:
    if root is not None:
        prefix = root.rstrip("/") + "/"
        if path.lower().startswith(prefix.lower()):
            path = path[len(prefix) :]
    while path.startswith("./"):
        path = path[2:]
    return path


def _shared_root(paths: Iterable[str], absolute: Iterable[str]) -> str | None:
    """Return the folder under which most relative paths are those of absolute ones."""
    names = {path.removeprefix("./") for path in paths if not _ABSOLUTE.match(path)}
    found: Counter[str] = Counter()
    for path in absolute:
        folders = path.split("/")
        for depth in range(2, len(folders)):
            if "/".join(folders[depth:]) in names:
                found["/".join(folders[:depth])] += 1
    return found.most_common(1)[0][0] if found else None


def _common_root(paths: Iterable[str]) -> str | None:
    """Return the deepest folder that holds most of the absolute paths."""
    counts: Counter[str] = Counter()
    total = 0
    for path in paths:
        total += 1
        folders = path.split("/")[:-1]
        counts.update("/".join(folders[:depth]) for depth in range(1, len(folders) + 1))
    wanted = max(1.0, MIN_ROOT_SHARE * total)
    roots = [
        folder
        for folder, count in counts.items()
        if count >= wanted and folder.count("/") >= MIN_ROOT_DEPTH
    ]
    return max(roots, key=lambda folder: folder.count("/"), default=None)
