"""The state of the work, read from calls and their results alone. [summary.state-from-calls]

1. A command is known by its runner: with other flags, paths or pipes it is the same command. Its
   last outcome is kept, so that a later success ends a failure.
2. Commands and tools that only read leave no outcome; of the others those that write are kept the
   longest.
3. Every entry is in the order of its last mention.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile, takewhile
from typing import Any, TypeVar

from app.common import json_text
from app.common.json_text import MESSAGE_LIMITS
from app.compaction.summaries.sentences import is_code, one_line
from app.formats.message import Message, ToolCall

MAX_ARGUMENT_CHARS = 65_536
MAX_TASKS, MAX_PATHS, MIN_ROOTED = 60, 8, 4
MAX_FILES, MAX_ENTRIES, MAX_FAILURES = 150, 30, 4
MAX_SINCE_FAILURE = 12
"""After so many further commands a failure is history."""
MAX_CALL_CHARS, MAX_RESULT_CHARS, MAX_LINE_CHARS = 110, 100, 200

_SHELL = re.compile(r"bash|shell|terminal|powershell|exec|run|cmd|command", re.IGNORECASE)
_COMMAND_KEYS = ("command", "cmd", "script", "commands")
_TASK_NAME = re.compile(r"todo|plan|task", re.IGNORECASE)
_TASK_KEYS = ("todos", "plan", "tasks", "task_list", "todo_list", "items", "steps", "task_progress")
_TASK_TEXTS = ("content", "step", "title", "subject", "description", "task", "text", "name")
_CREATES_TASK = re.compile(r"task_?create|create_?task$", re.IGNORECASE)
_UPDATES_TASK = re.compile(r"task_?update|update_?task$", re.IGNORECASE)
_CHECKBOX = re.compile(r"^\s*[-*]\s*\[([ xX~-])\]\s+(.{1,300})$", re.MULTILINE)
_DONE = frozenset({"completed", "complete", "done", "finished", "closed", "x", "X"})
_RUNNING = frozenset({"in_progress", "in progress", "active", "doing", "started", "~", "-"})
_PATH_KEYS = (
    *("file_path", "path", "filename", "filepath", "file", "target_file", "notebook_path"),
    *("absolute_path", "relative_path", "file_name", "paths", "files", "file_paths"),
)
_EDITS = re.compile(r"edit|write|create|replace|patch|insert|delete|apply|update|rename|move", re.I)
_READS = re.compile(
    r"(?:^|__|\.|-)(?:get|list|search|find|read|fetch|query|look_?up|show|check|view|calculate|think"
    r"|describe|grep|glob|ls|open|cat|load|count|browse|navigate|route|web|task_?output)(?![a-z])"
    r"|^(?:Read|Grep|Glob|LS|View|Skill|ToolSearch|Web\w+|Task\w*|Agent)$|search|lookup|think",
    re.IGNORECASE,
)
_SUBCOMMANDS = frozenset({"create", "str_replace", "insert", "undo_edit", "write", "append"})
_PATCHED = re.compile(r"^\*\*\* (?:Add|Update|Delete) File: (.{1,300})$", re.MULTILINE)
_FILE = re.compile(r"[^\s:*?\"<>|]{0,250}\.[A-Za-z0-9]\w{0,11}$|(?:^|[/\\])[\w.-]*[A-Z]\w*file$")
_SILENT = re.compile(r"^(?:skill|think|tool_?search)$", re.IGNORECASE)
_OPENED = re.compile(r"^\[File: (\S{1,300}) \(\d+ lines total\)\]", re.MULTILINE)
_REFERENCE = re.compile(r"\bref(?:_id)?=\\?[\"']?([\w:.-]{4,80})")
_CREATED = re.compile(r"#(\d{1,6})\b")
_STRING_PAIR = re.compile(r"\"(\w{1,40})\"\s*:\s*\"((?:[^\"\\]|\\.){0,400})\"")
_TASK_LINE = re.compile(r"^\[([ x~])\] (?:#(\S{1,40}) )?(.*)$", re.DOTALL)
_ANSWER = re.compile(r"\"([^\"\n]{1,300})\"=\"([^\"]{1,1000})\"")
_ASKS = re.compile(r"ask|question|clarif|confirm", re.IGNORECASE)
GAVE = " → "
_Value = TypeVar("_Value")


def arguments_of(call: ToolCall) -> Mapping[str, Any]:
    """Return the arguments of a call, empty where they are no JSON object."""
    if len(call.arguments) > MAX_ARGUMENT_CHARS:
        return dict(_STRING_PAIR.findall(call.arguments[:4096]))
    try:
        arguments = json_text.loads_within(call.arguments, MESSAGE_LIMITS)
    except ValueError:
        return {}
    return arguments if isinstance(arguments, Mapping) else {}


def _command_of(call: ToolCall, arguments: Mapping[str, Any]) -> str | None:
    if _SHELL.search(call.name) is None:
        return None
    for key in _COMMAND_KEYS:
        value = arguments.get(key)
        if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
            value = value[2] if len(value) == 3 and value[1] in ("-c", "-lc") else " ".join(value)
        if isinstance(value, str) and value.strip():
            return value.strip()
    return None


def _paths_of(call: ToolCall, arguments: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield the files that a call reads or edits, and whether it edits them."""
    strings = (value for value in arguments.values() if isinstance(value, str))
    patch = next((value for value in strings if "*** " in value[:400]), None)
    if patch is None and "*** Begin Patch" in call.arguments[:400]:
        patch = call.arguments[:MAX_ARGUMENT_CHARS]
    if patch is not None:
        yield from ((path.strip(), True) for path in _PATCHED.findall(patch)[:MAX_PATHS])
        return
    is_edit = _EDITS.search(call.name) is not None
    subcommand = arguments.get("command")
    if isinstance(subcommand, str) and subcommand in _SUBCOMMANDS | {"view"}:
        is_edit = subcommand != "view"
    elif not is_edit and _READS.search(call.name) is None:
        return
    for value in map(arguments.get, _PATH_KEYS):
        for path in value[:MAX_PATHS] if isinstance(value, list) else (value,):
            if isinstance(path, str) and "\n" not in path and _FILE.search(path.strip()):
                yield path.strip().replace("\\", "/"), is_edit


def _tasks_of(call: ToolCall, arguments: Mapping[str, Any]) -> list[tuple[str, str, str]] | None:
    """Return the whole list of tasks that a call sets: id, state and text of each; None without."""
    if _TASK_NAME.search(call.name) is None:
        return None
    for value in map(arguments.get, _TASK_KEYS):
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
    text = _task_text(item) if isinstance(item, Mapping) else None
    status = item.get("status") if isinstance(item, Mapping) else None
    if text is None or not isinstance(status, str | None):
        return None
    is_done = item.get("done") is True or item.get("completed") is True
    identity = item.get("id")
    known = str(identity) if isinstance(identity, str | int) else ""
    return known, "x" if is_done else _state(status or ""), text


def _task_text(item: Mapping[str, Any]) -> str | None:
    texts = map(item.get, _TASK_TEXTS)
    return next((text for text in texts if isinstance(text, str) and text.strip()), None)


def _state(status: str) -> str:
    return "x" if status in _DONE else "~" if status in _RUNNING else " "


# --- commands and their outcomes --------------------------------------------------------------

_EXIT = re.compile(
    r"exit(?:ed)?(?:[ _]with)?(?:[ _-]?(?:code|status))?[\"']?\s*[:=]?\s*(-?\d{1,3})\b"
    r"|return(?:ed|[ _]?code)[\"']?\s*[:=>]\s*(-?\d{1,3})\b",
    re.IGNORECASE,
)
_ERROR = re.compile(
    r"^(?:E\s+)?(?:[\w.]*(?:Error|Exception)\b[:(]|(?:FAILED|FAIL|ERROR|FATAL)\b|(?:fatal|error"
    r"|panic)(?:\[\w+\])?:|npm ERR!|Traceback \(most recent|.{0,120}: command not found"
    r"|.{0,160}: No such file or directory|.{0,160}: Permission denied|make: \*\*\*"
    r"|.{0,120}: error(?: \w+)?: |- [EF]\d{3} )"
)
_SAYS_ERROR = re.compile(
    r"\s{0,8}(?:\{\s*\"error\"|(?:error|exception|traceback)\b)", re.IGNORECASE
)
_RAISED = re.compile(r"^[\w.]+(?:Error|Exception|Warning|Exit|Interrupt)\b(?:: |$)")
_ERROR_LIST = re.compile(r"^- [EF]\d{3} ", re.MULTILINE)
_TEST_LINE = re.compile(
    r"\b\d+ (?:passed|failed|errors?|passing|failing|skipped|pass|fail)\b|^test result:|^Tests?:"
    r"|^OK\b(?: \(|$)|^FAILED\b|^FAIL\b|^ok\s+\S+\s+[\d.(]|^BUILD (?:SUCCESS|FAIL)|tests? passed"
    r"|^Ran \d+ tests?|^Test Suites:|^PASS\b|^\[[\w./-]+(?: \([\w-]+\))? [0-9a-f]{7,12}\] ",
    re.IGNORECASE,
)
_REJECTED = re.compile(r"doesn't want to|was rejected|user denied|interrupted by", re.IGNORECASE)
_TRIVIAL = frozenset(
    re.findall(
        r"\S+",
        "cd echo export set source mkdir ls cat head tail grep rg egrep find sleep pwd true false"
        " test sed awk wc sort uniq cut tr xargs which type printf touch less more nl tee jq open"
        " goto scroll_down scroll_up search_dir search_file find_file if then else fi for do done"
        " while diff file stat du df ps env date tree fd kill rm cp mv chmod exit apt-cache",
    )
)
"""Programs that look, move files or belong to a shell."""
_MANY = frozenset(
    re.findall(
        r"\S+",
        "git npm pnpm yarn bun go cargo docker docker-compose kubectl make mvn gradle gradlew"
        " dotnet mix gh pip pip3 apt apt-get terraform helm swift flutter composer bundle deno"
        " rails aws gcloud az brew systemctl turbo nx cmake conda bazel alembic pre-commit",
    )
)
"""Programs whose first words say what they do."""
_WRAPPERS = frozenset(
    re.findall(
        r"\S+",
        "sudo time timeout nice env nohup npx bunx uv uvx poetry pipenv pnpx exec command then do"
        " run pdm hatch rye xvfb-run stdbuf winpty",
    )
)
_SCRIPTED = re.compile(r"^(?:python\d?(?:\.\d+)?|node|bash|sh|ruby|perl|php|deno|tsx|java|pwsh)$")
_PROGRAM = re.compile(r"^[A-Za-z][\w.+-]{0,40}$")
_VERB = re.compile(r"^[a-z][a-z:_-]{1,24}$")
_QUERIES = frozenset({"status", "log", "diff", "show", "branch", "view", "list", "version"})
_QUOTED = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'[^']*'")
_SPLIT = re.compile(r"&&|\|\||[;|\n]")
_ASSIGNS = re.compile(r"^\w+=|^-|^\d+$")
_TAGS = re.compile(r"</?\w[\w-]{0,40}>")


def runner_of(command: str) -> str | None:
    """Return what a command runs first, without flags and paths; None where it only looks."""
    return next(runners_of(command), None)


def _is_wrapper(word: str) -> bool:
    return word in _WRAPPERS or _ASSIGNS.match(word) is not None


def runners_of(command: str) -> Iterator[str]:
    """Yield what a command runs."""
    for part in _SPLIT.split(_QUOTED.sub("quoted", command[:2000]))[:12]:
        words = [word.strip("\"'()") for word in part.split()[:12]]
        words = words[words.index("exec") + 1 :] if "exec" in words[1:6] else words
        words = list(dropwhile(_is_wrapper, words))
        program = words[0].replace("\\", "/").rpartition("/")[2] if words else ""
        if program in _TRIVIAL or not _PROGRAM.match(program):
            continue
        rest = [word for word in words[1:] if not word.startswith("-")]
        if _SCRIPTED.match(program):
            script = words[1:3] if words[1:2] == ["-m"] else rest[:1]
            script = words[1:2] if words[1:2] in (["-c"], ["-e"], ["-"]) else script
            yield " ".join((program, *script))[:80]
            continue
        verbs = list(takewhile(_VERB.match, rest[:2])) if program in _MANY else []
        if not verbs or _QUERIES.isdisjoint(verbs):
            yield " ".join((program, *verbs))


def _exit_code(result: str) -> int | None:
    for text in (result[-400:], result[:200]):
        if codes := _EXIT.findall(text):
            return int(codes[-1][0] or codes[-1][1])
    return None


def _failure(result: str, is_error: bool, is_command: bool) -> str | None:
    """Return the line that says why a call failed, None where it did not."""
    ends = result if len(result) <= 4096 else f"{result[:1024]}\n{result[-3072:]}"
    lines = [line.strip() for line in ends.splitlines() if line.strip()]
    code = _exit_code(result) if is_command else None
    if _REJECTED.search(ends[:1024]) or (code == 0 and not is_error):
        return None
    errors = [line for line in lines if _ERROR.search(line[:400])] if is_command else []
    if not (is_error or code or errors):
        return None
    if errors and errors[-1].startswith("Traceback"):
        errors = [line for line in lines if _RAISED.match(line)]
    cleaned = [line for line in (_TAGS.sub("", line).strip() for line in lines) if line]
    first = " ".join(cleaned[: 1 + cleaned[0].endswith(":")]) if cleaned else ""
    line = errors[-1] if errors else cleaned[-1] if is_command and cleaned else first
    return one_line(line, MAX_LINE_CHARS) or f"exit code {code}"


def _outcome(result: str) -> str:
    """Return the line in which a run sums itself up."""
    lines = [line.strip() for line in result[-3072:].splitlines()]
    found = [line for line in lines if _TEST_LINE.search(line[:300])]
    return one_line(found[-1].strip("=- _"), MAX_LINE_CHARS) if found else "ok"


def _short_command(command: str) -> str:
    text = re.sub(r"^\s*#[^\n]*\n", "", command[:2048])
    text = re.sub(r"^(?:cd\s+[^\s;&]+\s*(?:&&|;)\s*)+", "", " ".join(text.split()))
    return one_line(text, 100).replace(GAVE, " ")


def _short_result(text: str) -> str:
    """Return the first scalar fields of a JSON object, or the first line of a text."""
    if text.lstrip()[:1] == "{":
        try:
            parsed = json_text.loads_within(text[:MAX_ARGUMENT_CHARS], MESSAGE_LIMITS)
        except ValueError:
            parsed = None
        if isinstance(parsed, Mapping):
            plain = {key: each for key, each in parsed.items() if not is_code(str(each)[:200])}
            return _fields(plain, MAX_RESULT_CHARS) or "ok"
    line = one_line(next(iter(text.strip().splitlines()), ""), MAX_RESULT_CHARS)
    line = "" if line.startswith("meta=") else line
    return "ok" if not line or is_code(line) else line


def _fields(values: Mapping[str, Any], max_chars: int) -> str:
    def scalars(inside: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
        for key, value in inside.items():
            if isinstance(value, str | int | float) and value != "":
                yield f"{prefix}{key}={one_line(str(value), 60)}"
            elif isinstance(value, Mapping) and not prefix:
                yield from scalars(value, f"{key}.")
            elif isinstance(value, list) and value and not isinstance(value[0], Mapping | list):
                yield f"{prefix}{key}={one_line(', '.join(map(str, value[:6])), 60)}"
            elif isinstance(value, list) and value and isinstance(value[0], Mapping):
                yield from scalars(value[0], f"{key}.")

    found, size = list[str](), 0
    for each in scalars(values):
        size += len(each) + 2
        if size > max_chars and found:
            break
        found.append(each)
    return ", ".join(found)


# --- the state --------------------------------------------------------------------------------


@dataclass(slots=True)
class WorkState:
    """What calls did so far, every entry in the order of its last mention.

    `tasks` are state and text by id or text. `files` says of each path whether it was edited.
    `commands` and `failures` are lines by what they are about, `done` and `looked` the results of
    other tools by call.
    """

    tasks: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    files: dict[str, bool] = field(default_factory=dict)
    root: str = ""
    commands: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    done: dict[str, str] = field(default_factory=dict)
    looked: dict[str, str] = field(default_factory=dict)
    references: dict[str, None] = field(default_factory=dict)
    pending: dict[str, ToolCall] = field(default_factory=dict)
    open_before: list[str] = field(default_factory=list)
    runs: int = 0
    failed_at: dict[str, int] = field(default_factory=dict)

    def add_call(self, call: ToolCall) -> None:
        """Read a call; its result comes later."""
        self.pending[call.id] = call
        arguments = arguments_of(call) if _TASK_NAME.search(call.name) else {}
        tasks = _tasks_of(call, arguments)
        if tasks is not None:
            if not arguments.get("merge"):
                self.tasks.clear()
            for task in tasks:
                self._set_task(*task)
        elif _UPDATES_TASK.search(call.name):
            keys = ("taskId", "task_id", "id")
            found = next((str(arguments[key]) for key in keys if arguments.get(key)), "")
            if found in self.tasks and arguments.get("status") == "deleted":
                del self.tasks[found]
            elif found in self.tasks:
                _, state, text = self.tasks[found]
                status, subject = arguments.get("status"), arguments.get("subject")
                state = _state(status) if isinstance(status, str) else state
                self._set_task(found, state, subject if isinstance(subject, str) else text)

    def _set_task(self, identity: str, state: str, text: str) -> None:
        line = one_line(text, MAX_LINE_CHARS)
        self.tasks[identity or line] = (identity, state, line)

    def add_result(self, message: Message) -> str | None:
        """Read a result; return what a user answered in it to questions of the assistant."""
        text = message.text
        ends = text[:4096] + text[-1024:]
        for reference in _REFERENCE.findall(ends)[:3] if "ref" in ends else ():
            _put(self.references, reference.rstrip("."), None)
        call = self.pending.pop(message.tool_call_id or "", None)
        if call is None:
            return None
        arguments = arguments_of(call)
        if _ASKS.search(call.name) and ("questions" in arguments or "question" in arguments):
            found = _ANSWER.findall(text[:4000])
            answers = (f"{answer} (asked: {question})" for question, answer in found)
            return "" if message.is_error else "\n".join(answers) or text
        command = _command_of(call, arguments)
        if command is not None:
            self.add_command(command, text, message.is_error)
        else:
            self._add_other(call, arguments, text, message.is_error)
        return None

    def add_command(self, command: str, result: str, is_error: bool = False) -> None:
        """Read a command with its output (rules 1 and 2)."""
        if opened := _OPENED.search(result):
            is_edit = command.startswith(("edit", "create")) and not _ERROR_LIST.search(result)
            _put(self.files, opened[1], is_edit or self.files.get(opened[1], False), MAX_FILES)
            return
        runners = list(runners_of(command))
        if not runners:
            return
        failure = _failure(result, is_error, is_command=True)
        for line in [line for line in self.commands if runner_of(line) == runners[0]]:
            del self.commands[line]
        ended = runners[:1] if failure is not None else runners
        for line in [line for line in self.failures if not set(ended).isdisjoint(runners_of(line))]:
            del self.failures[line]
        self.runs += 1
        short = _short_command(command)
        if failure is not None:
            _put(self.failures, short, failure, MAX_FAILURES)
            self.failed_at[short] = self.runs
        else:
            _put(self.commands, short, _outcome(result))
        for line in [each for each in self.failures if self._is_over(each)]:
            del self.failures[line]

    def _is_over(self, line: str) -> bool:
        """Whether so much was run since a failure that the work went another way."""
        return self.runs - self.failed_at.get(line, self.runs) > MAX_SINCE_FAILURE

    def _add_other(
        self, call: ToolCall, arguments: Mapping[str, Any], text: str, is_error: bool
    ) -> None:
        paths = list(_paths_of(call, arguments))
        subject = arguments.get("subject")
        name = one_line(call.name, 80) or "a tool"
        about = f"{name} {paths[0][0]}" if paths else name
        is_error = is_error or _SAYS_ERROR.match(text) is not None
        failure = _failure(text, is_error, is_command=False)
        if failure is not None:
            if not _READS.search(call.name):
                _put(self.failures, about, failure, MAX_FAILURES)
            return
        self.failures.pop(about, None)
        if _CREATES_TASK.search(call.name) and isinstance(subject, str):
            created = _CREATED.search(text[:400])
            self._set_task(created[1] if created else str(len(self.tasks) + 1), " ", subject)
        for path, edits in paths:
            _put(self.files, path, edits or self.files.get(path, False), MAX_FILES)
        if paths or _TASK_NAME.search(call.name) or _SILENT.match(call.name):
            return
        asked = f"{name}({_fields(arguments, MAX_CALL_CHARS)})".replace(GAVE, " ")
        reads = _READS.search(call.name)
        _put(self.looked if reads else self.done, asked, _short_result(text))

    def end_turn(self) -> None:
        """A user asks for something else: failures of single calls are history."""
        shell = {line: why for line, why in self.failures.items() if runner_of(line) is not None}
        self.failures.clear()
        self.failures.update(shell)

    # --- as lines -------------------------------------------------------------------------

    def task_lines(self) -> Iterator[str]:
        """Yield the list of tasks."""
        for identity, state, text in self.tasks.values():
            yield f"[{state}] #{identity} {text}" if identity else f"[{state}] {text}"

    def open_lines(self) -> list[str]:
        """Return the calls without a result, those of an earlier summary if nothing followed."""
        lines = (f"{call.name} {one_line(call.arguments, 160)}" for call in self.pending.values())
        return list(dict.fromkeys((*self.open_before, *lines)))[-3:]

    def file_lines(self, *, edited: bool) -> list[str]:
        """Return the names of the files that were edited, or of those only read, newest last."""
        self.root = self.root or _root_of(self.files)
        short: dict[str, bool] = {}
        for path, edits in self.files.items():
            name = path.removeprefix(f"{self.root}/") if self.root else path
            name = name.removeprefix("./")
            short[name] = short.pop(name, False) or edits
        self.files = short
        return [path for path, edits in short.items() if edits is edited]

    def restore_task(self, line: str) -> None:
        """Take up a task of an earlier summary."""
        if task := _TASK_LINE.match(line):
            self._set_task(task[2] or "", task[1], task[3])

    def restore_files(self, line: str, *, edited: bool) -> None:
        """Take up files of an earlier summary, or the folder that they are in."""
        if line.startswith("in "):
            self.root = self.root or line[3:]
            return
        for path in line.split(", "):
            _put(self.files, path, edited or self.files.get(path, False), MAX_FILES)


def _root_of(paths: Mapping[str, bool]) -> str:
    """Return the folder that holds most of the absolute paths, empty without any."""
    absolute = [path.split("/")[:-1] for path in paths if re.match(r"/|~|[A-Za-z]:/", path)]
    counts: dict[str, int] = {}
    for folders in absolute:
        for depth in range(3, len(folders) + 1):
            folder = "/".join(folders[:depth])
            counts[folder] = counts.get(folder, 0) + 1
    if len(absolute) < MIN_ROOTED:
        return ""
    roots = [folder for folder, found in counts.items() if found >= 0.8 * len(absolute)]
    return max(roots, key=len, default="")


def restore_pair(entries: dict[str, str], line: str) -> None:
    """Take up a line of an earlier summary about a command or a call."""
    name, found, outcome = line.partition(GAVE)
    if found:
        _put(entries, name, outcome)


def _put(entries: dict[str, _Value], key: str, value: _Value, limit: int = MAX_ENTRIES) -> None:
    """Put an entry last; beyond the limit the oldest is dropped."""
    entries.pop(key, None)
    entries[key] = value
    if len(entries) > limit:
        del entries[next(iter(entries))]


def lines_of(entries: Mapping[str, str]) -> Sequence[str]:
    """Return entries as lines."""
    return [f"{name}{GAVE}{outcome}" for name, outcome in entries.items()]
