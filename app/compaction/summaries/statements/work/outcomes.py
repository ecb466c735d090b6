"""Reads the results of tool calls: whether a command failed, and what a test run says."""

from __future__ import annotations

import re

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
