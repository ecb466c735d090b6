"""Recorded sessions of coding agents, compacted once to 4 000 tokens.

1. A request is there where all of it is; one of more than a quarter of the target, where its first
   and last `EDGE` characters are. One is lost where no piece of it is there.
2. An error is fixed where the same runner fails, and later does not. It is shown where the
   summary has the error's line without a word that it is over.
3. A line is copied where it stands in the output of a tool or command, or in a fence of the
   assistant's. The first line of a command that ran is no copy, nor is code in a request: both are
   what a summary has to state.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from app.cli.demo import Client
from benchmarks.fidelity.chat import Chat
from benchmarks.fidelity.matching import flat
from benchmarks.fidelity.sessions import Session, content_text
from tests.payload_tokens import text_tokens

TARGET = 4_000
MIN_TOKENS = 6_000
EDGE = 80
PIECE, STEP, PIECES = 32, 8, 60
SHORTEST_LINE = 12
"""Shorter lines, such as a bracket, are in every output."""
_FAILURE = re.compile(
    r"^Exit code [1-9]|Traceback \(most recent call last\)|^(?:E\s+)?\S*(?:error|exception)\b.*:"
    r"|\b[1-9]\d* (?:failed|errors?)\b|\bFAILED\b|<returncode>[1-9]",
    re.IGNORECASE | re.MULTILINE,
)
_ERROR_LINE = re.compile(r"error|exception|failed|exit code", re.IGNORECASE)
_OVER = re.compile(r"\b(?:fixed|later|passed|passes|resolved|succeeded|now ok|then ok)\b")
_BEFORE = re.compile(r"^(?:\s*(?:cd\s+\S+|export\s+\S+|source\s+\S+)\s*(?:&&|;)|\s*\w+=\S+)\s*")
_MARK = re.compile(r"^\s*(?:[-*>]|\d+[.:]|#\d+)?\s*(?:#\d+)?\s*")


def run(client: Client, session: Session) -> tuple[Counter[str], Chat]:
    """Drive one session, and return what its payload has with the conversation."""
    chat = Chat(client, session.tokens)
    chat.append(session.messages)
    chat.compact(TARGET)
    text, written, requests = chat.text, chat.written, session.requests()
    seen = Counter(sessions=1, requests=len(requests))
    if requests:
        seen["first"] = is_there(requests[0], text)
        seen["newest"] = is_there(requests[-1], text)
    source = flat("\n".join(map(content_text, session.messages)))
    seen["lost"] = sum(is_lost(request, text, source) for request in requests)
    fixed = set(fixed_errors(session))
    seen["fixed"] = len(fixed)
    seen["shown"] = sum(is_shown(error, written) for error in fixed)
    copied = set(_outputs(session))
    lines = [_MARK.sub("", flat(line)) for line in written.splitlines()]
    lines = [line for line in lines if len(line) >= SHORTEST_LINE]
    seen["lines"] = len(lines)
    seen["copied"] = sum(line in copied for line in lines)
    return seen, chat


def is_there(request: str, text: str) -> bool:
    """Whether flat text has a request (rule 1)."""
    whole = flat(request).strip()
    if text_tokens(request) * 4 <= TARGET:
        return whole in text
    return whole[:EDGE] in text and whole[-EDGE:] in text


def is_lost(request: str, text: str, source: str) -> bool:
    """Whether flat text has no piece of a request but such as its source has several times."""
    whole = flat(request).strip()
    starts = range(0, max(1, len(whole) - PIECE), max(STEP, len(whole) // PIECES))
    pieces = {whole[start : start + PIECE] for start in starts}
    alone = {piece for piece in pieces if source.count(piece) == 1}
    return not any(piece in text for piece in alone or pieces)


def fixed_errors(session: Session) -> Iterator[str]:
    """Yield the line of each error that a later run of its runner no longer had (rule 2)."""
    open_errors: dict[str, list[str]] = {}
    for command, output in session.runs():
        runner = _runner(command)
        if not runner:
            continue
        if _FAILURE.search(output):
            lines = [line for line in output.splitlines() if _ERROR_LINE.search(line)]
            if lines and len(flat(lines[-1]).strip()) >= SHORTEST_LINE:
                open_errors.setdefault(runner, []).append(flat(lines[-1]).strip())
        else:
            yield from open_errors.pop(runner, ())


def _runner(command: str) -> str:
    """Return the two words that name what runs; of other work than commands nothing."""
    while match := _BEFORE.match(command):
        command = command[match.end() :]
    words = command.split()
    return " ".join(words[:2]) if len(words) > 1 else ""


def is_shown(error: str, written: str) -> bool:
    """Whether text of the service has an error that is over as if it were not."""
    lines = map(flat, written.splitlines())
    return any(error[:EDGE] in line and not _OVER.search(line) for line in lines)


def _outputs(session: Session) -> Iterator[str]:
    """Yield the lines of all output and fences, flat (rule 3)."""
    needed = {flat(line).strip() for text in session.requests() for line in text.splitlines()}
    for command, output in session.runs():
        needed.update(flat(line).strip() for line in command.splitlines()[:1])
        yield from (flat(line).strip() for line in output.splitlines())
    for message in session.messages:
        if message["role"] == "assistant":
            for fenced in content_text(message).split("```")[1::2]:
                lines = (flat(line).strip() for line in fenced.splitlines()[1:])
                yield from (line for line in lines if line not in needed)
