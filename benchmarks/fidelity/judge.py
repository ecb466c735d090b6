"""What a payload states, judged by its text alone.

1. A statement survives where all that is needed of it stands within `REACH` characters.
2. Text that was appended stands as it was; all other text of a payload was written by the service.
3. An earlier value is stale where text of the service states it without a word of history, and
   anywhere, if the value that replaced it is absent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.fidelity.planted.wording import Plant
from tests.payload_tokens import payload_texts

REACH = 240
LONG_LINE = 300
"""A longer line is no single item: the newest value somewhere in it excuses nothing."""
CORE_CHARS, MIN_CORE_CHARS = 80, 12
"""So much of an item is looked for in the results of tools."""
_SHELL = re.compile(r"bash|shell|exec|terminal|run", re.IGNORECASE)
_READING = re.compile(r"read|view|grep|glob|search|find|open|list|fetch|get", re.IGNORECASE)
_READING_COMMAND = re.compile(
    r'"(?:command|cmd)":\s*"(?:cd [^&;]+&& )?'
    r"(?:cat|grep|rg|sed -n|head|tail|less|find|ls|git (?:show|log|diff))\b"
)
_SPACE = re.compile(r"\s+")
_SENTENCE = re.compile(r"(?<=[.!?;])\s+(?!\()")
_HISTORY = re.compile(
    r"\b(?:was|were|formerly|former|previous|previously|earlier|before|old|older|superseded"
    r"|replaced|replaces|supersedes|obsolete|outdated|history|no longer|not any more|anymore|until"
    r"|instead of|changed from|moved from|used to|initially|originally|past|overridden"
    r"|revoked|withdrawn)\b"
    r"|→|->|⇒|~~"
)
_HEADING = re.compile(r"^\s*(?:#{1,6}\s+\S.*|\*\*[^*]+\*\*:?|<[a-z_]+>|[A-Z][\w ,/()-]{2,60}:)\s*$")
_ENDS = ".!?:;|\n\u3002\uff01\uff1f"
_QUOTES = " -*#>\"'`()"
_LIST_MARK = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+")
_LABEL = r"(?:\[[^\]]{1,20}\]|\([^)]{1,20}\))"
_LABELS = re.compile(rf"^\s*{_LABEL}\s*|\s*{_LABEL}$")
_PATH = re.compile(r"(?<![\w:/.])(?:\.{0,2}/)?(?:[\w.@+-]+/)+[\w.@+-]*\.[A-Za-z]\w{0,7}\b")
_NOTE = re.compile(r"\([^()]*\)")
"""An item such as `(5 earlier not listed)` says something of the list itself."""


def flat(text: str) -> str:
    """Return the text for comparisons: lower case, one space between words."""
    return _SPACE.sub(" ", text.casefold()).replace("\u2019", "'")


def survives(plant: Plant, text: str) -> bool:
    """Whether flat text states what was planted (rule 1)."""
    first, *others = [need.casefold().split("|") for need in plant.needed]
    return any(
        all(any(other in near for other in options) for options in others)
        for word in first
        for near in _around(word, text)
    )


def _around(word: str, text: str) -> Iterator[str]:
    at = text.find(word)
    while at >= 0:
        yield text[max(0, at - REACH) : at + len(word) + REACH]
        at = text.find(word, at + 1)


def lined(text: str) -> str:
    """Return the text flat line by line."""
    return "\n".join(map(flat, text.splitlines()))


def payload_text(payload: Mapping[str, Any]) -> str:
    """Return all that a model reads of a payload, flat."""
    return flat("\n".join(payload_texts(payload)))


def written_text(payload: Mapping[str, Any], appended: set[str]) -> str:
    """Return the text of the messages that were not appended (rule 2)."""
    texts = []
    for message in payload["messages"]:
        if message["role"] != "tool":
            texts += [text for text in content_texts(message) if text not in appended]
    return "\n".join(texts)


def content_texts(message: Mapping[str, Any]) -> list[str]:
    """Return the texts of an OpenAI Chat message."""
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content or () if part.get("text")]


def stale_values(plant: Plant, payload: str, written: str) -> list[str]:
    """Return the earlier values that are still stated as current (rule 3); `payload` is flat."""
    is_newest_known = survives(plant, payload)
    newest = plant.needed[0].casefold()
    return [
        value
        for value in plant.old
        if value.casefold() in payload
        and (not is_newest_known or _is_current(value.casefold(), newest, written))
    ]


def _is_current(old: str, newest: str, written: str) -> bool:
    """Whether a sentence states the old value, and no word of history beside it."""
    in_history = False
    for line in written.splitlines():
        if _HEADING.match(line):
            in_history = bool(_HISTORY.search(line.casefold()))
        plain = flat(line)
        if old not in plain or in_history:
            continue
        if newest in plain and len(plain) <= LONG_LINE:
            continue
        if any(old in unit and not _HISTORY.search(unit) for unit in _SENTENCE.split(plain)):
            return True
    return False


def lines_under(text: str, *words: str) -> list[str]:
    """Return the items of a text below headings with one of the words, without list marks."""
    found, inside = [], False
    for line in text.splitlines():
        if _HEADING.match(line):
            inside = any(word in line.casefold() for word in words)
        elif inside and (item := _LIST_MARK.sub("", line).strip()) and not _NOTE.fullmatch(item):
            found.append(item)
    return found


def listed_paths(text: str) -> set[str]:
    """Return the paths that lists of files name."""
    listed = lines_under(text, "file", "path")
    return {match[0].removeprefix("./") for line in listed for match in _PATH.finditer(line)}


def duplicate_paths(text: str) -> list[str]:
    """Return the listed paths that are the end of another listed one."""
    paths = listed_paths(text)
    relative = sorted(path for path in paths if not path.startswith(("/", "..")))
    return [path for path in relative if any(other.endswith(f"/{path}") for other in paths)]


def only_read(items: Sequence[str], messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the items whose text comes only from results of calls that read files or search."""
    results: list[tuple[str, bool]] = []
    reads: dict[str, bool] = {}
    for message in messages:
        for call in message.get("tool_calls") or ():
            reads[call["id"]] = _is_reading(call["function"])
        if message["role"] == "tool":
            text = flat("\n".join(content_texts(message)))
            results.append((text, reads.get(message["tool_call_id"], False)))
    return [item for item in items if _is_only_read(flat(item), results)]


def _is_only_read(item: str, results: Sequence[tuple[str, bool]]) -> bool:
    _, _, rest = item.partition(": ")
    for text in (item, rest):
        core = text.strip(" .…`\"'")[:CORE_CHARS]
        if len(core) >= MIN_CORE_CHARS and (
            found := [is_read for result, is_read in results if core in result]
        ):
            return all(found)
    return False


def _is_reading(function: Mapping[str, Any]) -> bool:
    if _SHELL.search(function["name"]):
        return bool(_READING_COMMAND.search(function["arguments"]))
    return bool(_READING.search(function["name"]))


def found_in(texts: Iterable[str], where: str) -> int:
    """Return how many of the texts stand in flat text."""
    return sum(bool(text) and flat(text) in where for text in texts)


def prose_and_code(messages: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Return what was said, line by line: the prose of each message, and the code in fences."""
    prose: list[str] = []
    code: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            continue
        for text in content_texts(message):
            parts = text.split("```")
            prose.append(lined("\n".join(parts[::2])))
            code += map(lined, parts[1::2])
    return prose, code


def is_cut(item: str, prose: Sequence[str], code: Sequence[str] = ()) -> bool:
    """Whether an item of a list is no whole sentence: part of one that was said, or of code.

    It is whole where prose has it from the start of a sentence or line to the end of one, or where
    nothing that was said has it. Labels in brackets around it do not count.
    """
    core = flat(_LABELS.sub("", item)).strip(" .…\"'")
    if item.rstrip().endswith(("…", ":")) or not core:
        return True
    found = [source for source in prose if core in source]
    if not found:
        return any(core in source for source in code)
    return not any(_is_whole(core, source) for source in found)


def _is_whole(core: str, source: str) -> bool:
    at = source.find(core)
    while at >= 0:
        before = source[:at].rstrip(_QUOTES)
        after = source[at + len(core) :].lstrip(_QUOTES)
        starts_word = not source[:at] or source[at - 1] in f"{_QUOTES}\n"
        if starts_word and (not before or before[-1] in _ENDS) and after[:1] in _ENDS:
            return True
        at = source.find(core, at + 1)
    return False
