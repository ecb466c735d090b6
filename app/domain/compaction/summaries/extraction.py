"""The built-in summariser: picks what matters out of a conversation without a model.

1. It is deterministic: the same messages and the same earlier digest give the same text, without
   network or clock. [summary.extractive]
2. Every message is read, but only the first and last 2 KB of each text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from app.domain.common.messages import File, Message, Role, Text, ToolCall
from app.domain.compaction.summaries.digest import (
    DECISIONS,
    ERRORS,
    FILES,
    IDENTIFIERS,
    ITEM_CHARS,
    LATEST,
    LATEST_CHARS,
    OPEN,
    REQUESTS,
    REQUIREMENTS,
    Digest,
    one_line,
    read_digest,
    render_digest,
)
from app.domain.compaction.summaries.transcript_text import call_names

SCAN_CHARS = 2048

SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n+")  # noqa: RUF001 - CJK stops
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
_ERROR_SUBSTRINGS = (
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
"""Every text that `_ERROR` matches contains one of these. Looking for them first is cheaper."""
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
"""Patterns of identifiers, each with a character that every match contains."""


def extract(messages: Sequence[Message], previous: str | None, max_chars: int) -> str:
    """Return a digest of the messages, at most `max_chars` characters long.

    `previous` is the earlier summary: a digest is merged, other text is quoted.
    """
    digest = read_digest(previous) if previous else Digest()
    names = call_names(messages)
    for message in messages:
        _add_message(digest, message, names)
    _add_state(digest, messages)
    return render_digest(digest, max_chars)


def _add_message(digest: Digest, message: Message, names: dict[str, str]) -> None:
    for text in _scanned_texts(message):
        match message.role:
            case Role.USER:
                _add_sentences(digest, text, REQUIREMENTS, _REQUIREMENT)
                _add_names(digest, text)
            case Role.ASSISTANT:
                _add_sentences(digest, text, DECISIONS, _DECISION)
                _add_names(digest, text)
            case Role.TOOL:
                _add_references(digest, text)
    if message.role is Role.USER:
        digest.add(REQUESTS, opening_text(message))
    if message.role is Role.TOOL:
        _add_result(digest, message, names)
    for call in message.calls:
        digest.count_tool(tool_name(call.name), 1, 0)
        _add_names(digest, call.arguments[:SCAN_CHARS])


def _scanned_texts(message: Message) -> Iterator[str]:
    """Yield each text of the message, of a long one its beginning and its end."""
    for part in message.parts:
        text = part.text if isinstance(part, Text | File) else None
        if not text:
            continue
        if len(text) <= 2 * SCAN_CHARS:
            yield text
        else:
            yield text[:SCAN_CHARS]
            yield text[-SCAN_CHARS:]


def opening_text(message: Message) -> str:
    """Return the beginning of a user's text, or the kinds of the parts where there is no text."""
    for part in message.parts:
        if isinstance(part, Text) and (text := part.text[:SCAN_CHARS].strip()):
            return text
    kinds = sorted({type(part).__name__.lower() for part in message.parts})
    return f"[{', '.join(kinds)}]" if kinds else ""


def _add_sentences(digest: Digest, text: str, section: str, pattern: re.Pattern[str]) -> None:
    if pattern.search(text) is None:
        return
    for sentence in SENTENCE_END.split(text):
        if sentence and pattern.search(sentence) and not sentence.isspace():
            digest.add(section, sentence.strip(" \t-*#>"))


def _add_names(digest: Digest, text: str) -> None:
    if "/" in text:
        for match in _PATH.finditer(text):
            path = match[0].strip("@").rstrip(".")
            if _FILE_NAME.search(path) and "://" not in text[match.start() - 3 : match.start() + 3]:
                digest.add(FILES, path)
        if "://" in text:
            for match in _URL.finditer(text):
                digest.add(IDENTIFIERS, match[0].rstrip(".,;:"))
    for character, pattern in _IDENTIFIERS:
        if character in text:
            for match in pattern.finditer(text):
                digest.add(IDENTIFIERS, match[0].strip("`"))
    _add_references(digest, text)


def _add_references(digest: Digest, text: str) -> None:
    """Add references to stored tool output, which can still be read."""
    if "ref" in text:
        for match in _REFERENCE.finditer(text):
            digest.add(IDENTIFIERS, match[0].replace("\\", "").replace('"', "").rstrip("."))


def _add_result(digest: Digest, message: Message, names: dict[str, str]) -> None:
    name = tool_name(message.name or names.get(message.tool_call_id or ""))
    if message.is_error:
        digest.count_tool(name, 0, 1)
    lines = [line for text in _scanned_texts(message) for line in _error_lines(text)]
    if not lines and message.is_error:
        lines = [message.text[:SCAN_CHARS]]
    for line in dict.fromkeys((*lines[:1], *lines[-1:])):
        digest.add(ERRORS, f"{name}: {line.strip()}")


def tool_name(name: str | None) -> str:
    """Return a tool's name on one line."""
    return one_line(name or "", 80) or "a tool"


def _error_lines(text: str) -> list[str]:
    """Return the lines with an error, each from at most 80 characters before the match on."""
    lines: list[str] = []
    if not any(item in text for item in _ERROR_SUBSTRINGS):
        return lines
    for match in _ERROR.finditer(text):
        start = max(text.rfind("\n", 0, match.start() + 1) + 1, match.start() - 80)
        end = text.find("\n", match.end())
        lines.append(text[start : end if end >= 0 else len(text)])
    return lines


def _add_state(digest: Digest, messages: Sequence[Message]) -> None:
    """Replace what holds for the end alone: the last assistant message and the open items."""
    if not messages:
        return
    digest.items[LATEST].clear()
    digest.items[OPEN].clear()
    for message in reversed(messages):
        if message.role is Role.ASSISTANT and message.text.strip():
            digest.add(LATEST, message.text, LATEST_CHARS)
            _add_todos(digest, message)
            break
    requests = digest.items[REQUESTS]
    if (requests and messages[-1].role is not Role.ASSISTANT) or unanswered_calls(messages):
        last = next(reversed(requests), None)
        if last is not None:
            digest.add(OPEN, f"Last request, not yet answered: {last}")
    for call in unanswered_calls(messages):
        digest.add(OPEN, f"Call without a result: {call.name} {call.arguments[:ITEM_CHARS]}")


def _add_todos(digest: Digest, message: Message) -> None:
    for text in _scanned_texts(message):
        for match in _TODO.finditer(text):
            end = text.find("\n", match.end())
            digest.add(OPEN, text[match.start() : end if end >= 0 else len(text)].strip(" -*"))


def unanswered_calls(messages: Sequence[Message]) -> list[ToolCall]:
    """Return the calls of the last call group that have no result yet."""
    answered: set[str | None] = set()
    for message in reversed(messages):
        if message.role is Role.TOOL:
            answered.add(message.tool_call_id)
        else:
            return [call for call in message.calls if call.id not in answered]
    return []
