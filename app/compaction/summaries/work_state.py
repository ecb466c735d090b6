"""The state of the work, read from calls and their results alone. [summary.state-from-calls]

1. A command is known by its runner: with other flags, paths or pipes it is the same command. Its
   last outcome is kept, so that a later success ends a failure. The text of a here-document is no
   command, and of a long quoted text the beginning is shown.
2. Commands that only look leave nothing, tools that do what they found, unless that begins like
   what another did. Those that write are kept the longest.
3. Every item is in the order of its last mention.
4. What runs on in the background has its id as outcome, until a result or a notice names that.
5. A result is read without the objects that a client of MCP servers put it in. A call whose result
   is an error is no call that did something: it failed, until the same tool succeeds.
6. Files that a shell command writes, changes in place, moves or copies to are edited as well. A
   path without its folder is the one known file that ends in it.
"""

from __future__ import annotations

import re
from ast import literal_eval
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import dropwhile, islice, takewhile
from typing import Any

from app.common import json_text
from app.common.json_text import MESSAGE_LIMITS
from app.compaction.summaries.sentences import FORMS, any_of, is_code, is_prose, one_line
from app.compaction.summaries.summary_text import ASKED, GAVE, ON_ONE_LINE, Heading
from app.formats.message import Message, ToolCall

MAX_ARGUMENT_CHARS, MAX_ERROR_CHARS = 65_536, 400
MAX_TASKS, MAX_PATHS, MAX_OPEN, MAX_OF_OTHERS, MAX_SHORT_LINES, MAX_VALUES = 60, 8, 3, 100, 3, 30
MAX_ITEMS = {Heading.EDITED: 150, Heading.READ: 150, Heading.FAILED: 6, Heading.TODO: 60}
MAX_CALL_CHARS, MAX_RESULT_CHARS, MAX_LINE_CHARS, MAX_VALUE_CHARS, ALIKE = 110, 240, 200, 120, 40
"""The last one: of look-ups whose outcomes begin alike only the first says something."""

_SHELL = re.compile(r"bash|shell|terminal|powershell|exec|run|cmd|command", re.IGNORECASE)
_TASK = re.compile(r"todo|plan|task", re.IGNORECASE)
_CREATES_TASK = re.compile(r"task_?create|create_?task$", re.IGNORECASE)
_UPDATES_TASK = re.compile(r"task_?update|update_?task$", re.IGNORECASE)
_TASK_LINE = re.compile(r"^\s*[-*]?\s*\[([ x~])\] (?:#(\S{1,40}) )?(.*)$", re.DOTALL)
_CHECKBOX = re.compile(r"^\s*[-*]\s*\[([ xX~-])\]\s+(.{1,300})$", re.MULTILINE)
_STATES = dict.fromkeys(FORMS["done"], "x") | dict.fromkeys(FORMS["begun"], "~")
_NAMES = re.compile(r"(?:id|number|name|title)$", re.IGNORECASE)
_PATH_KEY = re.compile(r"path|file", re.IGNORECASE)
_EDITS = re.compile(r"edit|write|create|replace|patch|insert|delete|apply|update|rename|move", re.I)
_READS = re.compile(any_of("reads"), re.IGNORECASE)
_SILENT = re.compile(r"^(?:skill|think|tool_?search|task\w*)$|todo|plan|update_?task", re.I)
_SUBCOMMAND = re.compile(r"^(?:create|str_replace|insert|undo_edit|write|append|view)$")
_PATCHED = re.compile(r"^\*\*\* (?:Add|Update|Delete) File: (.{1,300})$", re.MULTILINE)
_FILE = re.compile(r"[^\s:*?\"<>|]{0,250}\.[A-Za-z0-9]\w{0,11}$|(?:^|[/\\])[\w.-]*[A-Z]\w*file$")
_OPENED = re.compile(r"^\[File: (\S{1,300}) \(\d+ lines total\)\]", re.MULTILINE)
_WRITES = re.compile(rf"{any_of('writes')}(?P<paths>(?!/tmp/|/dev/|\$)[^;&|<>\n]+)")
_REMOVED = re.compile(r"\brm (?:-\w+ )*([^;&|\n]+)")
_REFERENCE = re.compile(r"(?<![/?&\w])ref_id=\\?[\"']?([\w:.-]{4,80})")
_CREATED = re.compile(r"#(\d{1,6})\b")
_ANSWER = re.compile(r"\"([^\"\n]{1,300})\"=\"([^\"]{1,1000})\"")
RUNS, IDENTITIES = "started, id ", ("taskId", "task_id", "id", "bash_id", "shell_id")
_STARTED = re.compile(any_of("started"))
_TASK_ID = re.compile(r"<task[-_]id>(\w{4,40})<")
_ANSWERED = re.compile(r"<result>\s*(.*?)\s*(?:</|\Z)", re.DOTALL)
_REPORT = re.compile(r"<(?:summary>|(?=exit_code>)|output>|std\w+>)\s*(.*?)\s*(?:</|\Z)", re.DOTALL)
_WRAPPED = re.compile(r"'text', text=('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")")
_ASKS = re.compile(r"ask|question|clarif|confirm", re.IGNORECASE)


def _object(text: str) -> Mapping[str, Any]:
    """Return a JSON object, empty where the text is none."""
    try:
        parsed = json_text.loads_within(text, MESSAGE_LIMITS)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, Mapping) else {}


def _unwrapped(result: str) -> str:
    """Return the texts in a result that a client of MCP servers wrote as an object."""
    if "TextContent(" in result[:200] and (texts := _WRAPPED.findall(result[:MAX_ARGUMENT_CHARS])):
        with suppress(SyntaxError, ValueError):
            result = "\n".join(map(literal_eval, texts))
    blocks = _object(result).get("content") if '"content"' in result[:200] else None
    found = [_first(each, ("text",)) for each in blocks or () if isinstance(each, Mapping)]
    return "\n".join(found) or result


def _first(values: Mapping[str, Any], keys: Iterable[str]) -> str:
    """Return the first of these values that is a text or a number."""
    found = (str(each) for each in map(values.get, keys) if isinstance(each, str | int))
    return next((each for each in found if each.strip()), "")


def _command_of(call: ToolCall, arguments: Mapping[str, Any]) -> str:
    given = next(filter(None, map(arguments.get, FORMS["command_keys"])), "")
    if isinstance(given, list):
        words = [each for each in given if isinstance(each, str)]
        is_inline = len(words) == 3 and words[1] in ("-c", "-lc")
        given = words[2] if is_inline else " ".join(words)
    return given.strip() if isinstance(given, str) and _SHELL.search(call.name) else ""


def _paths_of(call: ToolCall, arguments: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield the files that a call reads or edits, and whether it edits them."""
    strings = (each for each in (*arguments.values(), call.arguments) if isinstance(each, str))
    if patch := next((each for each in strings if "*** " in each[:400]), None):
        yield from ((path[1].strip(), True) for path in islice(_PATCHED.finditer(patch), MAX_PATHS))
        return
    subcommand = _SUBCOMMAND.match(str(arguments.get("command")))
    name = f"{call.name}.{_first(arguments, FORMS['inner_names'])}"
    is_edit = subcommand[0] != "view" if subcommand else bool(_EDITS.search(name))
    if is_edit or subcommand or _READS.search(call.name) or _READS.search(name):
        inner = next((each for each in arguments.values() if isinstance(each, Mapping)), {})
        for value in (b for a, b in {**inner, **arguments}.items() if _PATH_KEY.search(a)):
            for path in value[:MAX_PATHS] if isinstance(value, list) else (value,):
                if isinstance(path, str) and "\n" not in path and _FILE.search(path.strip()):
                    yield path.strip().replace("\\", "/").removeprefix("./"), is_edit


def _tasks_of(arguments: Mapping[str, Any]) -> list[str] | None:
    """Return the whole list of tasks that a call sets; None without."""
    for value in map(arguments.get, FORMS["task_keys"]):
        if isinstance(value, str) and (found := _CHECKBOX.findall(value)):
            return [_task_line(mark, "", text) for mark, text in found[:MAX_TASKS]]
        if isinstance(value, list):
            tasks = [line for item in value[:MAX_TASKS] if (line := _task(item))]
            if tasks or not value:
                return tasks
    return None


def _task(item: Any) -> str:
    item = {"text": item} if isinstance(item, str) else item
    if not isinstance(item, Mapping) or not (text := _first(item, FORMS["task_texts"])):
        return ""
    is_done = True in (item.get("done"), item.get("completed"))
    return _task_line("x" if is_done else item.get("status"), _first(item, ("id",)), text)


def _task_line(status: Any, identity: str, text: str) -> str:
    state = _STATES.get(status, " ") if isinstance(status, str) else " "
    return f"[{state}] {f'#{identity} ' if identity else ''}{one_line(text, MAX_LINE_CHARS)}"


# --- commands and their outcomes --------------------------------------------------------------

_EXIT = re.compile(rf"{any_of('exits')}\s*(-?\d{{1,3}})\b", re.IGNORECASE)
_ERROR = re.compile(rf"^(?:E\s+)?{any_of('errors')}")
_SAYS_ERROR = re.compile(rf"\s{{0,8}}{any_of('says_error')}", re.IGNORECASE)
_IS_ERROR = re.compile(r"is_?error[\"']?\s*[:=]\s*true\b", re.IGNORECASE)
_FAILED_COUNT = re.compile(r"\b[1-9]\d* (?:failed|failing|fail|errors?)\b", re.IGNORECASE)
_COLOUR = re.compile(r"\[\d{1,3}(?:;\d{1,3}){0,4}m")
_TEST_LINE = re.compile(any_of("sums"), re.IGNORECASE)
_PROMPT = re.compile(any_of("prompts"))
_LOOKS, _HAS_VERBS, _WRAPS, _SCRIPTED, _QUERIES = (
    frozenset(FORMS[name]) for name in ("looking", "with_verbs", "wrapping", "scripted", "queries")
)
_PROGRAM = re.compile(r"^[A-Za-z][\w.+-]{0,40}$")
_VERB = re.compile(r"^[a-z][a-z:_-]{1,24}$")
_DOCUMENT = re.compile(r"<<-?[ \t]*['\"]?(\w+)['\"]?([^\n]*)")
_LONG = re.compile(r"(\"|')((?:(?!\1).){18})(?:(?!\1).){20,}\1", re.DOTALL)
_QUOTED = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'[^']*'")
_SPLIT = re.compile(r"&&|\|\||[;\n]")
_CMDLET = re.compile(r"(?:Get|Select|Where|ForEach|Measure|Sort|Format|Out|Write)-\w+$")
_ASSIGNS = re.compile(r"^\w+=|^-|^\d+$")
_MOVES = re.compile(r"^(?:\s*#[^\n]*\n)?(?:\s*cd\s+[^\s;&]+\s*(?:&&|;)\s*)+|^\s*#[^\n]*\n")


def _without_documents(command: str) -> str:
    """Return a command without the texts of its here-documents."""
    while (begun := _DOCUMENT.search(command)) and f"\n{begun[1]}" in command[begun.end() :]:
        end = command.index(f"\n{begun[1]}", begun.end()) + len(begun[1]) + 1
        command = f"{command[: begun.start()]}{begun[2]} {command[end:]}"
    return command


def _words_of(pipe: str) -> list[str]:
    """Return the words of the first program of a pipe that does more than look; none without."""
    for part in pipe.split("|"):
        words = [word.strip("\"'()") for word in part.split()[:12]]
        words = list(dropwhile(lambda word: word in _WRAPS or _ASSIGNS.match(word), words))
        program = words[0].replace("\\", "/").rpartition("/")[2] if words else ""
        if program not in _LOOKS and not _CMDLET.match(program):
            return [program, *words[1:]] if _PROGRAM.match(program) else []
    return []


@lru_cache(1024)
def runners_of(command: str) -> tuple[str, ...]:
    """Return what a command runs, without flags and paths; nothing where it only looks."""
    return tuple(_runners(command))


def _runners(command: str) -> Iterator[str]:
    for pipe in _SPLIT.split(_QUOTED.sub("QUOTED", command[:2000]))[:12]:
        if not (words := _words_of(pipe)):
            continue
        program, rest = words[0], [word for word in words[1:] if not word.startswith("-")]
        if program.rstrip("0123456789.") in _SCRIPTED:
            is_inline = words[1:2] in (["-c"], ["-e"], ["-"])
            script = words[1:3] if words[1:2] == ["-m"] else words[1:2] if is_inline else rest[:1]
            yield " ".join((program, *script))[:80]
            continue
        after = dropwhile(lambda word: not _VERB.match(word), rest if program in _HAS_VERBS else [])
        verbs = list(takewhile(_VERB.match, after))[:2]
        if _QUERIES.isdisjoint(verbs):
            yield " ".join((program, *verbs))


def _edits_of(command: str) -> Iterator[str]:
    """Yield the files that a shell command writes, changes in place, copies or moves to."""
    yield from _PATCHED.findall(command[:MAX_ARGUMENT_CHARS])
    for match in _WRITES.finditer(_QUOTED.sub("QUOTED", _without_documents(command)[:2000])):
        words = match["paths"].split()
        yield from filter(_FILE.fullmatch, words if match["in_place"] else words[:1])


def _outcome(result: str, is_error: bool) -> tuple[bool, str]:
    """Return whether a command failed, and the line that says how it ended, if one does."""
    ends = result if len(result) <= 4096 else f"{result[:1024]}\n{result[-3072:]}"
    lines = [each.strip() for each in ends.splitlines() if not _PROMPT.match(each)]
    errors = [line for line in lines if _ERROR.search(line[:400])]
    counts = [line.strip("=- _") for line in lines if _TEST_LINE.match(line[:300])]
    codes = _EXIT.findall(result[-400:]) or _EXIT.findall(result[:200])
    code = int(codes[-1]) if codes else None
    # The exit code may be that of a pipe's last program, so a count of failures wins.
    has_failed = bool(counts) and _FAILED_COUNT.search(counts[-1]) is not None
    if is_error or code or has_failed or (errors and code is None):
        found = errors or counts[-1:] * has_failed or lines
        return True, one_line(found[-1], MAX_LINE_CHARS) if found else f"exit code {code}"
    if counts or codes:
        return False, one_line(counts[-1], MAX_LINE_CHARS) if counts else "ok"
    # The end of a long output says how a program ended no more than any other line of it.
    last = lines[-1] if 0 < len(lines) <= MAX_SHORT_LINES else ""
    return False, one_line(last, MAX_RESULT_CHARS) if len(lines) == 1 or is_prose(last) else ""


def _short_result(text: str) -> str:
    """Return the first values of JSON, or the first lines of a text, but for its headings."""
    if found := _object(f'{{"":{text[:MAX_ARGUMENT_CHARS]}}}'):
        given = found[""] if isinstance(found[""], Mapping) else found
        plain = {a: b for a, b in given.items() if not (isinstance(b, str) and is_code(b[:200]))}
        return _values(plain, 3 * MAX_LINE_CHARS).removeprefix("=") if found[""] else "nothing"
    lines = [each.strip() for each in text[:2000].splitlines() if each.strip()]
    lines = [
        each for each in lines if not (each.startswith(("# ", "##")) or each.endswith(":"))
    ] or lines
    told = takewhile(lambda a: not (a.startswith(("[", "{", "meta=")) or is_code(a)), lines)
    return one_line("; ".join(told), MAX_RESULT_CHARS)


def _values(values: Mapping[str, Any], max_chars: int) -> str:
    """Return the first values of an object with their names."""
    every = list(islice(_fields(values), MAX_VALUES + 1))
    most = MAX_VALUE_CHARS if len(values) > 1 else max_chars
    shown = [f"{name}={one_line(text, most)}" for name, text in every[:MAX_VALUES]]
    while len(shown) > 1 and len(", ".join(shown)) > max_chars:
        shown.pop()
    return ", ".join((*shown, *["…"] * (len(shown) < len(every))))


def _fields(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the values in an object by name; of a list, the first values or names of objects."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _fields(each, f"{name}.{key}" if name else key)
    elif isinstance(value, list) and len(value) != 1:
        yield from _fields("; ".join(_name_of(a, 4 if len(value) < 5 else 1) for a in value), name)
    elif isinstance(value, list):
        yield from _fields(value[0], name)
    elif value not in ("", None):
        yield name, str(value)


def _name_of(item: Any, width: int) -> str:
    """Return the first values of an object, that by which it is known before the others."""
    if not isinstance(item, Mapping):
        return " + ".join(_name_of(a, 1) for a in item) if isinstance(item, list) else str(item)
    plain = [each for each in item.items() if not isinstance(each[1], list | dict)]
    plain.sort(key=lambda each: not _NAMES.search(each[0]))
    return " ".join(str(each) for _, each in plain[:width]) or str(item)


# --- the state --------------------------------------------------------------------------------


@dataclass(slots=True)
class WorkState:
    """What calls did so far: the items below each heading, by name (rule 3).

    Tasks are lines by their id or text, `pending` calls without a result yet. `has_calls` after the
    first call.
    """

    items: dict[Heading, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    pending: dict[str, ToolCall] = field(default_factory=dict)
    has_calls: bool = False

    def add_call(self, call: ToolCall) -> None:
        """Read a call; its result comes later."""
        self.has_calls = True
        self.pending[call.id] = call
        if _TASK.search(call.name) is None:
            return
        arguments, known = _object(call.arguments), self.items[Heading.TODO]
        tasks = _tasks_of(arguments)
        if tasks is not None and not arguments.get("merge"):
            known.clear()
        for line in tasks or ():
            self.restore(Heading.TODO, line)
        identity = _first(arguments, IDENTITIES)
        task = _TASK_LINE.match(known.get(identity, ""))
        if tasks is None and task and _UPDATES_TASK.search(call.name):
            status = arguments.get("status", task[1])
            subject = _first(arguments, ("subject",)) or task[3]
            known[identity] = _task_line(status, identity, subject)
            if status == "deleted":
                del known[identity]

    def add_result(self, message: Message) -> str | None:
        """Read a result; return what a user answered in it to questions of the assistant."""
        text = _COLOUR.sub("", message.text.replace("\x1b[", "["))
        if begun := _STARTED.search(text[:600]):
            text = f"{RUNS}{begun[begun.lastgroup or 0]}"
        ends = text[:4096] + text[-1024:]
        is_error = message.is_error or _IS_ERROR.search(text[:200] + text[-200:]) is not None
        text = _unwrapped(text)
        for reference in _REFERENCE.findall(ends)[:3] if "ref_id" in ends else ():
            self._put(Heading.REFERENCES, reference.rstrip("."))
        call = self.pending.pop(message.tool_call_id or "", None)
        if call is None:
            return None
        arguments = _object(call.arguments)
        if _ASKS.search(call.name) and ("questions" in arguments or "question" in arguments):
            answers = (f"{b}{ASKED}{a})" for a, b in _ANSWER.findall(text[:4000]))
            is_answer = not is_error and "questions" not in arguments
            return "\n".join(answers) or (text if is_answer else "")
        if self.end_task(text, _first(arguments, IDENTITIES)):
            return None
        if command := _command_of(call, arguments):
            self.add_command(command, text, is_error)
        else:
            self._add_other(call, arguments, text, is_error)
        return None

    def end_task(self, text: str, identity: str = "") -> bool:
        """Read what is said of a task in the background as the result of its call (rule 4)."""
        named = {f"{RUNS}{each}" for each in (identity, *_TASK_ID.findall(text[:1000]))}
        for heading in (Heading.COMMANDS, Heading.DONE, Heading.LOOKED):
            found = [name for name, outcome in self.items[heading].items() if outcome in named]
            if found and "<status>running<" not in text[:1000]:
                reported = "\n".join(_ANSWERED.findall(text) or _REPORT.findall(text)) or text
                if heading is Heading.COMMANDS:
                    self.add_command(found[-1], reported, "<status>failed<" in text[:1000])
                else:
                    self._put(heading, found[-1], one_line(reported, 3 * MAX_LINE_CHARS))
            if found:
                return True
        return False

    def add_command(self, command: str, result: str, is_error: bool = False) -> None:
        """Read a command with its output (rules 1 and 2)."""
        has_failed, outcome = _outcome(result, is_error)
        edited = [] if has_failed else list(islice(_edits_of(command), MAX_PATHS))
        ends = tuple(f"{before}{path}" for path in edited for before in (" ", "/"))
        self._forget(Heading.FAILED, lambda line: line.endswith(ends))
        for path in edited:
            self._put_file(path, is_edit=True)
        command = _without_documents(command).replace(GAVE, " ")
        removed = " ".join(_REMOVED.findall(command[:2048])).split()
        gone = tuple(f"/{path.removeprefix('./')}" for path in removed)
        for heading in (Heading.EDITED, Heading.READ):
            self._forget(heading, lambda path: f"/{path}".endswith(gone))
        if opened := _OPENED.search(result):
            self._put_file(opened[1], command.startswith(("edit", "create")) and not has_failed)
            return
        if not (runners := runners_of(command)):
            return
        self._forget(Heading.COMMANDS, lambda line: runners_of(line)[:1] == runners[:1])
        ended = set(() if outcome.startswith(RUNS) else runners[:1] if has_failed else runners)
        self._forget(Heading.FAILED, lambda line: not ended.isdisjoint(runners_of(line)))
        shown = _LONG.sub(r"\1\2…\1", _MOVES.sub("", command[:2048]))
        starts = (0, *(each.end() for each in _SPLIT.finditer(shown)))
        cuts = (one_line(shown[start:], MAX_CALL_CHARS) for start in starts)
        known = (each for each in cuts if runners_of(each)[:1] == runners[:1])
        # A script whose beginning runs nothing is no known command, unless it failed.
        if short := next(known, one_line(shown, MAX_CALL_CHARS) if has_failed else ""):
            self._put(Heading.FAILED if has_failed else Heading.COMMANDS, short, outcome)

    def _add_other(
        self, call: ToolCall, arguments: Mapping[str, Any], text: str, is_error: bool
    ) -> None:
        opened = [(path, bool(_EDITS.search(call.name))) for path in _OPENED.findall(text)[:1]]
        paths = list(_paths_of(call, arguments)) or opened
        name = one_line(call.name, 80) or "a tool"
        inner = _first(arguments, FORMS["inner_names"])
        asked = f"{name}({_values(arguments, MAX_CALL_CHARS)})".replace(GAVE, " ")
        about = f"{name} {paths[0][0]}" if paths else asked
        is_view = bool(paths) and not paths[0][1]
        is_read = is_view or _READS.search(inner or call.name) is not None
        mark, inner = (f" {paths[0][0]}", "") if paths else (f"{name}(", inner)
        failed = is_error or _SAYS_ERROR.match(text) or _object(text).get("error")
        is_told = len(text) <= MAX_ERROR_CHARS if is_read else re.match(r"[\w.:/-]+$", call.name)
        if failed and (is_view or not is_told):
            return
        if not is_view:  # a look at the file ends no failed edit, whatever edits it does
            self._forget(Heading.FAILED, lambda line: mark in line and inner in line)
        if failed:
            self._put(Heading.FAILED, about, one_line(_short_result(text) or text, MAX_LINE_CHARS))
            return
        if _CREATES_TASK.search(call.name) and (subject := _first(arguments, ("subject",))):
            created = _CREATED.search(text[:400])
            number = created[1] if created else str(len(self.items[Heading.TODO]) + 1)
            self.restore(Heading.TODO, _task_line("", number, subject))
            return
        for path, is_edit in paths:
            self._put_file(path, is_edit)
        if not paths and not _SILENT.search(call.name):
            outcome = _short_result(text)
            alike = (told[:ALIKE] for told in self.items[Heading.LOOKED].values())
            if is_read and (not outcome or (outcome[ALIKE:] and outcome[:ALIKE] in alike)):
                return
            self._put(Heading.LOOKED if is_read else Heading.DONE, asked, outcome)

    def _forget(self, heading: Heading, is_gone: Callable[[str], bool]) -> None:
        items = self.items[heading]
        for name in [name for name in items if is_gone(name)]:
            del items[name]

    def _put(self, heading: Heading, name: str, outcome: str = "") -> None:
        """Put an item last; beyond the limit the oldest is dropped."""
        items = self.items[heading]
        items.pop(name, None)
        items[name] = outcome
        if len(items) > MAX_ITEMS.get(heading, MAX_OF_OTHERS):
            del items[next(iter(items))]

    def _put_file(self, path: str, is_edit: bool) -> None:
        same = [p for at in ON_ONE_LINE for p in self.items[at] if p.endswith(f"/{path}")]
        path = same[0] if len(same) == 1 else path  # it was named by its folder before
        was_edited = path in self.items[Heading.EDITED]
        self.items[Heading.READ].pop(path, None)
        self._put(Heading.EDITED if is_edit or was_edited else Heading.READ, path)

    # --- as lines -------------------------------------------------------------------------

    def lines(self) -> dict[Heading, list[str]]:
        """Return the lines below each heading, the oldest first."""
        calls = (f"{call.name} {one_line(call.arguments, 160)}" for call in self.pending.values())
        known = self.items
        found = {a: [GAVE.join(filter(None, b)) for b in each.items()] for a, each in known.items()}
        found[Heading.TODO] = list(known[Heading.TODO].values())
        found[Heading.OPEN] = list(dict.fromkeys((*known[Heading.OPEN], *calls)))[-MAX_OPEN:]
        return found

    def restore(self, heading: Heading, line: str) -> None:
        """Take up a line of an earlier summary."""
        if heading is Heading.TODO:
            task = _TASK_LINE.match(line)
            self._put(heading, task[2] or task[3] if task else line, line)
        elif heading in ON_ONE_LINE:
            for path in line.split(", "):
                self._put_file(path, heading is Heading.EDITED)
        else:
            name, _, outcome = line.partition(GAVE)
            self._put(heading, name, outcome)
