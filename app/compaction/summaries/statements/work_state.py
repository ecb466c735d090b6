"""The state of the work, read from calls and their results: tasks, files, commands, failures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from app.compaction.summaries.statements.calls import (
    arguments_of,
    command_of,
    failure_of,
    first_strings,
    paths_of,
    relative_paths,
    short_command,
    shortened,
    state_of_task,
    tasks_of,
    test_outcome,
    text_of_task,
)
from app.compaction.summaries.statements.statement import Author, Kind, Statement
from app.formats.message import Message, Role, ToolCall

_Value = TypeVar("_Value")

MAX_FILES = 200
MAX_ENTRIES = 50
MAX_TASK_CHARS = 200
MAX_PENDING = 3
MAX_CALL_CHARS, MAX_RESULT_CHARS = 120, 160
_GAVE = " → "
_CREATES_TASK = re.compile(r"task_?create|create_?task$", re.IGNORECASE)
_UPDATES_TASK = re.compile(r"task_?update|update_?task$", re.IGNORECASE)
_CREATED = re.compile(r"#(\d{1,6})\b")
_REFERENCE = re.compile(r"\bref(?:_id)?=\\?[\"']?([\w:.-]{4,80})")
_TASK_LINE = re.compile(r"^\[([ x~])\] (?:#(\S{1,40}) )?(.*)$", re.DOTALL)
_ROOT_LINE = re.compile(r"^in (\S.*)$")


@dataclass(slots=True)
class WorkState:
    """What calls did so far; every entry is in the order of its last mention.

    `tasks` are state and text by id or text. `files` says of each path whether it was edited.
    `failures` and `checks` are lines by the command or tool that they are about, `calls` the
    beginnings of results by the calls that none of the others tells of.
    """

    tasks: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    files: dict[str, bool] = field(default_factory=dict)
    root: str | None = None
    failures: dict[str, str] = field(default_factory=dict)
    checks: dict[str, str] = field(default_factory=dict)
    references: dict[str, None] = field(default_factory=dict)
    calls: dict[str, str] = field(default_factory=dict)
    _pending: dict[str, ToolCall] = field(default_factory=dict)

    def add(self, message: Message) -> None:
        """Read the calls of a message, or the result that it is."""
        for call in message.calls:
            self._pending[call.id] = call
            self._read_call(call)
        if message.role is Role.TOOL:
            self._read_result(message)

    def _read_call(self, call: ToolCall) -> None:
        arguments = arguments_of(call)
        tasks = tasks_of(call, arguments)
        if tasks is not None:
            if not arguments.get("merge"):
                self.tasks.clear()
            for identity, state, text in tasks:
                self._set_task(identity, state, text)
        elif _UPDATES_TASK.search(call.name):
            self._update_task(arguments)

    def _update_task(self, arguments: Mapping[str, Any]) -> None:
        found = first_strings([arguments.get(key) for key in ("taskId", "task_id", "id")])
        old = self.tasks.get(found or "")
        if found is None or old is None:
            return
        if arguments.get("status") == "deleted":
            del self.tasks[found]
            return
        text = arguments.get("subject")
        state = state_of_task(arguments) or old[1]
        self.tasks[found] = (found, state, text if isinstance(text, str) else old[2])

    def _set_task(self, identity: str, state: str, text: str) -> None:
        line = shortened(text, MAX_TASK_CHARS)
        self.tasks[identity or line] = (identity, state, line)

    def _read_result(self, message: Message) -> None:
        call = self._pending.pop(message.tool_call_id or "", None)
        text = message.text
        ends = text[:4096] + text[-1024:]
        has_reference = "ref=" in ends or "ref_id=" in ends
        for reference in _REFERENCE.findall(ends)[:3] if has_reference else ():
            _put(self.references, reference.rstrip("."), None, MAX_ENTRIES)
        if call is None:
            return
        arguments = arguments_of(call)
        if _CREATES_TASK.search(call.name):
            subject = text_of_task({"subject": arguments.get("subject"), **arguments})
            created = _CREATED.search(text[:400])
            if subject is not None and "subject" in arguments:
                self._set_task(created[1] if created else str(len(self.tasks) + 1), " ", subject)
        command = command_of(call, arguments)
        failure = failure_of(text, message.is_error, command)
        paths = list(paths_of(call, arguments)) if failure is None else []
        for path, edits in paths:
            _put(self.files, path, edits or self.files.get(path, False), MAX_FILES)
        name = _label(call, command)
        if failure is not None:
            _put(self.failures, name, failure, MAX_ENTRIES)
        else:
            self.failures.pop(name, None)
        outcome = test_outcome(command, text) if command else None
        if outcome is not None:
            _put(self.checks, name, outcome, MAX_ENTRIES)
        elif failure is None and not paths and tasks_of(call, arguments) is None:
            asked = shortened(f"{call.name} {call.arguments}", MAX_CALL_CHARS).replace(_GAVE, " ")
            _put(self.calls, asked, shortened(text, MAX_RESULT_CHARS), MAX_ENTRIES)

    # --- as statements --------------------------------------------------------------------

    def statements(self) -> Iterator[Statement]:
        """Yield the state as statements, each section's oldest first."""
        for identity, state, text in self.tasks.values():
            numbered = f"#{identity} {text}" if identity else text
            yield _of(Kind.TODO, f"[{state}] {numbered}")
        pending = dict.fromkeys(map(_pending_line, self._pending.values()))
        for line in list(pending)[-MAX_PENDING:]:
            yield _of(Kind.OPEN, line)
        for name, failure in self.failures.items():
            yield _of(Kind.ERROR, f"{name} failed: {failure}")
        for name, outcome in self.checks.items():
            yield _of(Kind.CHECK, f"{name} → {outcome}")
        self.root, files = relative_paths(self.files, self.root)
        self.files = files
        for kind, wanted in ((Kind.EDITED, True), (Kind.READ, False)):
            for path, edits in files.items():
                if edits is wanted:
                    yield _of(kind, path)
        for reference in self.references:
            yield _of(Kind.REFERENCE, f"ref_id={reference}")
        for asked, given in self.calls.items():
            yield _of(Kind.CALL, f"{asked}{_GAVE}{given}")

    def restore(self, kind: Kind, text: str) -> None:
        """Take up a statement of an earlier summary."""
        match kind:
            case Kind.TODO:
                if task := _TASK_LINE.match(text):
                    self._set_task(task[2] or "", task[1], task[3])
            case Kind.ERROR:
                name, separator, failure = text.partition(" failed: ")
                if separator:
                    _put(self.failures, name, failure, MAX_ENTRIES)
            case Kind.CHECK:
                name, separator, outcome = text.rpartition(" → ")
                if separator:
                    _put(self.checks, name, outcome, MAX_ENTRIES)
            case Kind.EDITED | Kind.READ:
                if root := _ROOT_LINE.match(text):
                    self.root = self.root or root[1]
                else:
                    for path in text.split(", "):
                        edits = kind is Kind.EDITED or self.files.get(path, False)
                        _put(self.files, path, edits, MAX_FILES)
            case Kind.REFERENCE:
                _put(self.references, text.removeprefix("ref_id="), None, MAX_ENTRIES)
            case Kind.CALL:
                asked, separator, given = text.partition(_GAVE)
                if separator:
                    _put(self.calls, asked, given, MAX_ENTRIES)
            case _:
                raise AssertionError(kind)


def _pending_line(call: ToolCall) -> str:
    line = shortened(f"{call.name} {call.arguments[:MAX_TASK_CHARS]}", MAX_TASK_CHARS)
    return f"Call without a result: {line}"


def _label(call: ToolCall, command: str | None) -> str:
    if command is not None:
        return f"`{short_command(command)}`"
    return shortened(call.name, 80) or "a tool"


def _put(entries: dict[str, _Value], key: str, value: _Value, limit: int) -> None:
    """Put an entry last; beyond the limit the oldest is dropped."""
    entries.pop(key, None)
    entries[key] = value
    if len(entries) > limit:
        del entries[next(iter(entries))]


def _of(kind: Kind, text: str) -> Statement:
    return Statement(kind, text, Author.TOOL)
