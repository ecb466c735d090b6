"""The built-in summariser: what matters in a conversation, picked out without any model.

1. The same messages and the same earlier digest give the same text; no network, no clock.
2. Every message is looked at, but only its first and last 2 KB of text.
3. A digest is sections of one-line items and can be read back: a later digest takes up an
   earlier one, newest items last. What must go, goes from the oldest, and is counted.
4. The text never exceeds `max_chars`. Each section has a share; what one leaves over goes to
   the sections above it in the list, so requests and decisions gain first.
5. An earlier summary that is no digest is kept as quoted lines, within its share.
6. A recap is two to four sentences instead: what there is, was asked, was answered, is open (I1).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from app.domain.common.messages import File, Message, Role, Text, ToolCall
from app.domain.compaction.summaries import call_names

SCAN_CHARS = 2048
ITEM_CHARS = 300
LATEST_CHARS = 1200
RECAP_CHARS = 160
_MAX_ITEMS = 400

HEADING = "Digest of the earlier conversation, picked out without a model."

REQUESTS = "User requests"
REQUIREMENTS = "Requirements and preferences"
DECISIONS = "Decisions and findings"
LATEST = "Last assistant message"
OPEN = "Open items"
ERRORS = "Errors"
FILES = "Files"
IDENTIFIERS = "Identifiers and links"
TOOLS = "Tools used"
EARLIER = "Earlier summary"

SHARES: dict[str, float] = {
    REQUESTS: 0.20,
    REQUIREMENTS: 0.10,
    DECISIONS: 0.18,
    LATEST: 0.12,
    OPEN: 0.10,
    ERRORS: 0.08,
    FILES: 0.08,
    IDENTIFIERS: 0.06,
    TOOLS: 0.03,
    EARLIER: 0.05,
}
"""The sections in order, each with the share of the text it may take when all are full."""

_SPACE = re.compile(r"\s+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n+")  # noqa: RUF001 - CJK stops
_DECISION = re.compile(
    r"\b(?:decided|decision|decide to|chose|chosen|going with|will use|instead of|agreed"
    r"|conclu\w+|root cause|turns out|because|fixed|solved|confirmed|found that|the (?:problem"
    r"|issue|bug|reason|cause) (?:is|was))\b|決定|結論|原因|解決|결정|원인|해결|决定|结论",
    re.IGNORECASE,
)
_REQUIREMENT = re.compile(
    r"\b(?:must(?: not)?|never|always|do not|don't|prefer|required?|only use|make sure|at most"
    r"|at least|no more than|avoid|should(?: not|n't)?)\b|必ず|してください|禁止|必须|반드시",
    re.IGNORECASE,
)
_TODO = re.compile(
    r"^\s{0,8}(?:[-*]\s{1,4}\[ \]|TODO\b|FIXME\b|next step|remaining|still to do|open question)",
    re.IGNORECASE | re.MULTILINE,
)
_ERROR = re.compile(
    r"(?:[Ee]rror|ERROR|[Ee]xception)\b\s?[:(]|\b(?:FAILED|fatal|panic)\b"
    r"|exit (?:code|status):? [1-9]|command not found|No such file|[Pp]ermission denied"
    r"|エラー|失敗"
)
_ERROR_MARKS = (
    "rror",
    "ERROR",
    "xception",
    "FAILED",
    "fatal",
    "panic",
    "exit ",
    "not found",
    "No such",
    "denied",
    "エラー",
    "失敗",
)
"""One of these is in every text `_ERROR` matches; looking for them first is far cheaper."""
_PATH = re.compile(
    r"(?<![\w/.~@-])(?:~?/|\.{1,2}/)?(?:[\w.@+-]{1,80}+/){1,20}+[\w@+-][\w.@+-]{0,80}"
)
_FILE_NAME = re.compile(r"\w\.[A-Za-z]\w{0,7}$")
_URL = re.compile(r"https?://[^\s<>\"'`)\]}\\]{3,200}")
_REFERENCE = re.compile(r"\bref(?:_id)?=\\?[\"']?[\w:.-]{4,80}")
_IDENTIFIERS: Sequence[tuple[str, re.Pattern[str]]] = (
    ("`", re.compile(r"`[\w.:$@-]{3,60}`")),
    ("-", re.compile(r"\b[A-Z][A-Z0-9]{1,9}-\d{1,7}\b")),
    ("#", re.compile(r"(?<![\w&])#\d{1,7}\b")),
    ("-", re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b")),
)
"""What counts as an identifier, each with a character it cannot do without."""
_FOLDED = re.compile(r"^\((\d+) (?:earlier|more) not listed\)$")
_TOOL_LINE = re.compile(r"^(.+) ×(\d+)(?:, (\d+) failed)?$")  # noqa: RUF001 - as written below


@dataclass(slots=True)
class Digest:
    """What was picked out so far; each section in the order of last mention."""

    items: dict[str, dict[str, None]] = field(default_factory=lambda: {s: {} for s in SHARES})
    folded: dict[str, int] = field(default_factory=dict)
    tools: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, section: str, item: str, most_chars: int = ITEM_CHARS) -> None:
        """Put an item last in its section; the oldest beyond the bound is only counted."""
        line = one_line(item, most_chars)
        if not line:
            return
        known = self.items[section]
        known.pop(line, None)
        known[line] = None
        if len(known) > _MAX_ITEMS:
            del known[next(iter(known))]
            self.folded[section] = self.folded.get(section, 0) + 1

    def count_tool(self, name: str, calls: int, failures: int) -> None:
        """Add calls and failures of a tool."""
        known_calls, known_failures = self.tools.get(name, (0, 0))
        self.tools[name] = (known_calls + calls, known_failures + failures)


def extract(messages: Sequence[Message], previous: str | None, max_chars: int) -> str:
    """Return a digest of the messages, at most `max_chars` characters long (E5).

    `previous` is what came before: an earlier digest is merged, other text is quoted.
    """
    digest = read_digest(previous) if previous else Digest()
    names = call_names(messages)
    for message in messages:
        _pick(digest, message, names)
    _pick_state(digest, messages)
    return _render(digest, max_chars)


def recap(
    message_count: int, conversation_count: int, first: Sequence[Message], last: Sequence[Message]
) -> str:
    """Return a few sentences about so many messages (rule 6).

    `first` are some of the beginning, `last` some of the end.
    """
    held = f"{_counted(message_count, 'message')} of {_counted(conversation_count, 'conversation')}"
    asked = [said for said in map(_asked, first) if said]
    latest = [said for said in map(_asked, last) if said] or asked
    sentences = [f"A window of {held}."]
    if not asked:
        sentences.append("Nothing was asked in it.")
    elif asked[0] == latest[-1]:
        sentences.append(f"Asked was “{asked[0]}”.")
    else:
        sentences.append(f"First asked was “{asked[0]}”, last “{latest[-1]}”.")
    answers = [message.text for message in last if message.role is Role.ASSISTANT]
    answered = next((text for text in reversed(answers) if text.strip()), None)
    if answered is not None:
        sentences.append(f"The last answer began “{_first_sentence(answered)}”.")
    if left := _left_open(last):
        sentences.append(left)
    return " ".join(sentences)


def _asked(message: Message) -> str:
    return _first_sentence(_opening(message)) if message.role is Role.USER else ""


def _first_sentence(text: str) -> str:
    found = (part for part in _SENTENCE_END.split(text[:SCAN_CHARS].strip()) if part.strip())
    return one_line(next(found, ""), RECAP_CHARS).rstrip(".。")


def _left_open(messages: Sequence[Message]) -> str | None:
    calls = [_tool_name(call.name) for call in _unanswered(messages)]
    if calls:
        more = f" and {len(calls) - 3} more" if len(calls) > 3 else ""
        return f"Open is the result of {', '.join(calls[:3])}{more}."
    if messages and messages[-1].role is Role.USER:
        return "The last request is not answered yet."
    return None


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def one_line(text: str, most_chars: int) -> str:
    """Return the text on one line, cut with an ellipsis."""
    line = _SPACE.sub(" ", text[: 2 * most_chars + 200]).strip()
    cut = len(line) > most_chars
    return f"{line[: most_chars - 1].rstrip()}…" if cut else line


# --- picking --------------------------------------------------------------------------------


def _pick(digest: Digest, message: Message, names: dict[str, str]) -> None:
    for text in _windows(message):
        match message.role:
            case Role.USER:
                _pick_sentences(digest, text, REQUIREMENTS, _REQUIREMENT)
                _pick_names(digest, text)
            case Role.ASSISTANT:
                _pick_sentences(digest, text, DECISIONS, _DECISION)
                _pick_names(digest, text)
            case Role.TOOL:
                _pick_references(digest, text)
    if message.role is Role.USER:
        digest.add(REQUESTS, _opening(message))
    if message.role is Role.TOOL:
        _pick_result(digest, message, names)
    for call in message.calls:
        digest.count_tool(_tool_name(call.name), 1, 0)
        _pick_names(digest, call.arguments[:SCAN_CHARS])


def _windows(message: Message) -> Iterator[str]:
    """Yield the ends of each text of the message (rule 2)."""
    for part in message.parts:
        text = part.text if isinstance(part, Text | File) else None
        if not text:
            continue
        if len(text) <= 2 * SCAN_CHARS:
            yield text
        else:
            yield text[:SCAN_CHARS]
            yield text[-SCAN_CHARS:]


def _opening(message: Message) -> str:
    """Return the first lines of what the user wrote, or a word on what else was sent."""
    for part in message.parts:
        if isinstance(part, Text) and (text := part.text[:SCAN_CHARS].strip()):
            return text
    kinds = sorted({type(part).__name__.lower() for part in message.parts})
    return f"[{', '.join(kinds)}]" if kinds else ""


def _pick_sentences(digest: Digest, text: str, section: str, words: re.Pattern[str]) -> None:
    if words.search(text) is None:
        return
    for sentence in _SENTENCE_END.split(text):
        if sentence and words.search(sentence) and not sentence.isspace():
            digest.add(section, sentence.strip(" \t-*#>"))


def _pick_names(digest: Digest, text: str) -> None:
    if "/" in text:
        for match in _PATH.finditer(text):
            path = match[0].strip("@").rstrip(".")
            if _FILE_NAME.search(path) and "://" not in text[match.start() - 3 : match.start() + 3]:
                digest.add(FILES, path)
        if "://" in text:
            for match in _URL.finditer(text):
                digest.add(IDENTIFIERS, match[0].rstrip(".,;:"))
    for mark, pattern in _IDENTIFIERS:
        if mark in text:
            for match in pattern.finditer(text):
                digest.add(IDENTIFIERS, match[0].strip("`"))
    _pick_references(digest, text)


def _pick_references(digest: Digest, text: str) -> None:
    """Take up references to stored tool output, which can still be read (F1)."""
    if "ref" in text:
        for match in _REFERENCE.finditer(text):
            digest.add(IDENTIFIERS, match[0].replace("\\", "").replace('"', "").rstrip("."))


def _pick_result(digest: Digest, message: Message, names: dict[str, str]) -> None:
    name = _tool_name(message.name or names.get(message.tool_call_id or ""))
    if message.is_error:
        digest.count_tool(name, 0, 1)
    lines = [line for text in _windows(message) for line in _error_lines(text)]
    if not lines and message.is_error:
        lines = [message.text[:SCAN_CHARS]]
    for line in dict.fromkeys((*lines[:1], *lines[-1:])):
        digest.add(ERRORS, f"{name}: {line.strip()}")


def _tool_name(name: str | None) -> str:
    return one_line(name or "", 80) or "a tool"


def _error_lines(text: str) -> list[str]:
    """Return the lines that speak of errors, each from a little before that word on."""
    lines: list[str] = []
    if not any(mark in text for mark in _ERROR_MARKS):
        return lines
    for match in _ERROR.finditer(text):
        start = max(text.rfind("\n", 0, match.start() + 1) + 1, match.start() - 80)
        end = text.find("\n", match.end())
        lines.append(text[start : end if end >= 0 else len(text)])
    return lines


def _pick_state(digest: Digest, messages: Sequence[Message]) -> None:
    """Replace what is true only of the end: the last words, and what is still open."""
    if not messages:
        return
    digest.items[LATEST].clear()
    digest.items[OPEN].clear()
    for message in reversed(messages):
        if message.role is Role.ASSISTANT and message.text.strip():
            digest.add(LATEST, message.text, LATEST_CHARS)
            _pick_todos(digest, message)
            break
    requests = digest.items[REQUESTS]
    if (requests and messages[-1].role is not Role.ASSISTANT) or _unanswered(messages):
        last = next(reversed(requests), None)
        if last is not None:
            digest.add(OPEN, f"Last request, not yet answered: {last}")
    for call in _unanswered(messages):
        digest.add(OPEN, f"Call without a result: {call.name} {call.arguments[:ITEM_CHARS]}")


def _pick_todos(digest: Digest, message: Message) -> None:
    for text in _windows(message):
        for match in _TODO.finditer(text):
            end = text.find("\n", match.end())
            digest.add(OPEN, text[match.start() : end if end >= 0 else len(text)].strip(" -*"))


def _unanswered(messages: Sequence[Message]) -> list[ToolCall]:
    answered: set[str | None] = set()
    for message in reversed(messages):
        if message.role is Role.TOOL:
            answered.add(message.tool_call_id)
        else:
            return [call for call in message.calls if call.id not in answered]
    return []


# --- reading back ---------------------------------------------------------------------------


def read_digest(text: str) -> Digest:
    """Read an earlier digest back; any other text becomes its earlier summary (rule 5)."""
    digest = Digest()
    if not text.startswith(HEADING):
        _quote(digest, text.splitlines())
        return digest
    section: str | None = None
    for line in text.splitlines()[1:]:
        if line.startswith("## "):
            section = line[3:] if line[3:] in SHARES else None
        elif section is not None and line.startswith("- "):
            _read_item(digest, section, line[2:])
    return digest


def _quote(digest: Digest, lines: Iterable[str]) -> None:
    for line in lines:
        digest.add(EARLIER, line, LATEST_CHARS)


def _read_item(digest: Digest, section: str, item: str) -> None:
    if folded := _FOLDED.match(item):
        digest.folded[section] = digest.folded.get(section, 0) + int(folded[1])
    elif section == TOOLS:
        if counted := _TOOL_LINE.match(item):
            digest.count_tool(counted[1], int(counted[2]), int(counted[3] or 0))
    else:
        digest.add(section, item, LATEST_CHARS)


# --- writing --------------------------------------------------------------------------------


def _render(digest: Digest, max_chars: int) -> str:
    digest.items[TOOLS] = dict.fromkeys(_tool_lines(digest.tools))
    filled = [section for section in SHARES if digest.items[section] or section in digest.folded]
    rooms = _rooms(digest, filled, max_chars - len(HEADING))
    parts = [HEADING]
    for section in filled:
        lines = _fitting(digest, section, rooms[section])
        if lines:
            parts.append("\n".join((f"\n## {section}", *lines)))
    return "\n".join(parts)[: max(max_chars, 0)]


def _tool_lines(tools: dict[str, tuple[int, int]]) -> Iterator[str]:
    """Yield the tools, the most used last, because the first are given up first."""
    for name, (calls, failures) in sorted(tools.items(), key=lambda tool: (tool[1], tool[0])):
        failed = f", {failures} failed" if failures else ""
        yield f"{name} ×{calls}{failed}"  # noqa: RUF001 - a multiplication sign is meant


def _rooms(digest: Digest, filled: Sequence[str], room: int) -> dict[str, int]:
    """Share the room out: to each what it needs within its share, the rest from the top."""
    total = sum(SHARES[section] for section in filled) or 1.0
    needs = {section: _cost(digest, section) for section in filled}
    rooms = {
        section: min(needs[section], int(room * SHARES[section] / total)) for section in filled
    }
    left = room - sum(rooms.values())
    for section in filled:
        more = min(left, needs[section] - rooms[section])
        rooms[section] += more
        left -= more
    return rooms


def _cost(digest: Digest, section: str) -> int:
    lines = sum(len(item) + 3 for item in digest.items[section])
    return lines + len(section) + 6 + (40 if section in digest.folded else 0)


def _fitting(digest: Digest, section: str, room: int) -> list[str]:
    """Return the newest items that fit, oldest first, and a count of those that do not."""
    items = list(digest.items[section])
    folded = digest.folded.get(section, 0)
    left = room - len(section) - 6
    if folded or sum(len(item) + 3 for item in items) > left:
        left -= 40
    kept: list[str] = []
    while items and len(items[-1]) + 3 <= left:
        kept.append(f"- {items.pop()}")
        left -= len(kept[-1]) + 1
    folded += len(items)
    if items and not kept and left > 40:
        kept.append(f"- {one_line(items[-1], left - 3)}")
        folded -= 1
    if folded and left + 40 >= 0:
        word = "more" if section == TOOLS else "earlier"
        kept.append(f"- ({folded} {word} not listed)")
    return kept[::-1]
