"""Cuts a text into units: sentences, and blocks of code or rows that stay whole.

Own code instead of a library: `pysbd` backtracks on long lines and had its last release in 2021,
`blingfire` and `syntok` are not maintained either, and none knows code blocks and tables.
"""

# ruff: noqa: RUF001 - characters of several scripts are meant

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from app.compaction.summaries.statements.words import is_common

MAX_SENTENCE_CHARS = 600
"""A longer sentence of prose is left out: it would have to be cut."""

_FENCE = re.compile(r"^\s{0,8}(?:```|~~~)")
_BULLET = re.compile(r"^\s{0,24}(?:[-*+•▪–]|\d{1,3}[.)]|[a-zA-Z][.)])\s+(?:\[[ xX~-]\]\s*)?")
_HEADING = re.compile(r"^\s{0,3}#{1,6}\s+|^\s{0,3}\*\*[^*]{1,80}\*\*:?\s*$")
_CJK_END = re.compile(r"[。！？]+[」』”’)\]）]*")
_END = re.compile(r"[.!?…](?<![.!?…].)[.!?…]*[\"'”’»)\]*_]*(?=\s)")
_ABBREVIATION = re.compile(
    r"(?:^|(?<!\d)[\s(])(?:[^\W\d_]|(?:e\.g|i\.e|etc|vs|cf|no|nr|dr|mr|mrs|ms|prof|sr|sra|st|approx"
    r"|fig|min"
    r"|max|inc|ltd|co|dept|est|p|pp|vol|ca|ggf|bzw|usw|evtl|z\.b|d\.h|u\.a|o\.ä|s\.o|p\.ex|p\.e|ej"
    r"|p\.ej|núm|mme|mlle|av|т\.е|т\.д|т\.п|т\.к|др|г|ул|руб|см|рис|стр))\.$",
    re.IGNORECASE,
)
_REASON = re.compile(
    r"(?:the|my|our|main|one) reasons?\b|reasons?:|rationale|because\b|(?:this|that)(?: is"
    r"|'s) because"
    r"|der grund|grund:|weil\b|denn\b|la raison|parce que|car\b|la razón|porque\b|a razão"
    r"|o motivo|el motivo"
    r"|причина|потому что|так как|理由|なぜなら|原因|因为|因為|이유|왜냐",
    re.IGNORECASE,
)
_TOPIC = re.compile(
    r"(?:(?:the|der|die|das|le|la|el|o)\s)?((?:[^\W\d_][\w-]*\s){0,4}[^\W\d_][\w-]*)\?$",
    re.IGNORECASE,
)
_CODE_START = re.compile(
    r"^\s*(?:def |class |import |from \S+ import|const |let |var |function |return\b|if \("
    r"|for \(|while \("
    r"|#include|#!|//|/\*|\$ |>>> |@@ |diff --git|[+-]{3} |public |private |package |func |fn "
    r"|<\?|</?\w+[ >]"
    r"|SELECT |INSERT |UPDATE |DELETE |CREATE |\{|\}|\[\{)"
)
_BACKTICKED = re.compile(r"`[^`\n]{1,200}`")
_SYMBOLS = "{}[]()<>;=|&$\\_^~@#*+"
_NO_SYMBOLS = str.maketrans("", "", _SYMBOLS)
_NO_LETTERS = bytes(code for code in range(128) if not chr(code).isalpha())
MAX_SYMBOL_SHARE = 0.12


class Form(StrEnum):
    """The form of a unit."""

    SENTENCE = "sentence"
    ITEM = "item"
    HEADING = "heading"
    BLOCK = "block"


@dataclass(frozen=True, slots=True)
class Segment:
    """A unit of a text."""

    text: str
    form: Form


def segments(text: str) -> Iterator[Segment]:
    """Yield the units of a text in order."""
    paragraph: list[str] = []
    block: list[str] = []
    in_fence = False
    for line in text.splitlines():
        if _FENCE.match(line):
            if not in_fence:
                yield from _flushed(paragraph)
                if block:
                    yield Segment("\n".join(block), Form.BLOCK)
                    block = []
            block.append(line)
            if in_fence:
                yield Segment("\n".join(block), Form.BLOCK)
                block = []
            in_fence = not in_fence
            continue
        if in_fence:
            block.append(line)
            continue
        is_row = line.count("|") >= 2 and line.lstrip().startswith("|")
        if block and not is_row:
            yield Segment("\n".join(block), Form.BLOCK)
            block = []
        if is_row:
            yield from _flushed(paragraph)
            block.append(line)
        elif not line.strip():
            yield from _flushed(paragraph)
        elif _HEADING.match(line):
            yield from _flushed(paragraph)
            yield Segment(line.strip(" #*\t"), Form.HEADING)
        elif bullet := _BULLET.match(line):
            yield from _flushed(paragraph)
            yield from _sentences(line[bullet.end() :], Form.ITEM)
        elif paragraph and _continues(paragraph[-1], line):
            paragraph.append(line)
        else:
            yield from _flushed(paragraph)
            paragraph.append(line)
    if block:
        yield Segment("\n".join(block), Form.BLOCK)
    yield from _flushed(paragraph)


def _flushed(paragraph: list[str]) -> Iterator[Segment]:
    if paragraph:
        text = " ".join(line.strip() for line in paragraph)
        paragraph.clear()
        yield from _sentences(text, Form.SENTENCE)


def _continues(before: str, line: str) -> bool:
    """Whether a line goes on with the sentence of the line before: hard-wrapped prose."""
    start = line.lstrip()[:1]
    return before.rstrip()[-1:] not in ".!?:;。！？…" and (
        start.islower() or (len(before) >= 60 and not start.isupper())
    )


def _sentences(text: str, form: Form) -> Iterator[Segment]:
    """Cut a paragraph between sentences."""
    start = 0
    ends = [match.end() for match in _END.finditer(text)]
    if not text.isascii():
        ends = sorted({*ends, *(match.end() for match in _CJK_END.finditer(text))})
    for end in ends:
        if _is_abbreviated(text, start, end):
            continue
        if sentence := text[start:end].strip():
            yield Segment(sentence, form)
        start = end
    if rest := text[start:].strip():
        yield Segment(rest, form)


def _is_abbreviated(text: str, start: int, end: int) -> bool:
    """Whether a full stop ends an abbreviation, or the next word goes on in lower case."""
    if text[end - 1] != ".":
        return False
    following = text[end : end + 8].lstrip()[:1]
    return following.islower() or _ABBREVIATION.search(text, max(start, end - 12), end) is not None


def with_reasons(units: Iterable[Segment]) -> Iterator[Segment]:
    """Yield units, a sentence that gives a reason together with the sentence before it.

    What follows a question of a few words, as in `The port? That is 8080 now.`, belongs to it.
    """
    last: Segment | None = None
    for unit in units:
        if (
            last is not None
            and unit.form is last.form is Form.SENTENCE
            and (_REASON.match(unit.text) or _names_topic(last.text))
            and len(last.text) + len(unit.text) < MAX_SENTENCE_CHARS
        ):
            last = Segment(f"{last.text} {unit.text}", last.form)
            continue
        if last is not None:
            yield last
        last = unit
    if last is not None:
        yield last


def _names_topic(text: str) -> bool:
    """Whether a question names something and asks nothing of it."""
    match = _TOPIC.match(text)
    return match is not None and not any(map(is_common, match[1].lower().split()))


def is_code(text: str) -> bool:
    """Whether a unit is code, output or markup rather than prose."""
    if _CODE_START.match(text):
        return True
    plain = _BACKTICKED.sub("", text).replace("**", "")
    if not plain.strip():
        return False
    symbols = len(plain) - len(plain.translate(_NO_SYMBOLS))
    return symbols > MAX_SYMBOL_SHARE * len(plain) or letters_in(plain) < 0.4 * len(plain)


def letters_in(text: str) -> int:
    """Return how many letters a text has."""
    if text.isascii():
        return len(text.encode().translate(None, _NO_LETTERS))
    return sum(map(str.isalpha, text))


def scanned(text: str, head_chars: int, tail_chars: int) -> str:
    """Return a text, of a long one its beginning and its end, cut between lines or sentences."""
    if len(text) <= head_chars + tail_chars:
        return text
    head, tail = text[:head_chars], text[-tail_chars:] if tail_chars else ""
    head = head[: max(head.rfind("\n"), head.rfind(". ") + 1, head.rfind("。") + 1, 0)]
    starts = [at for at in (tail.find("\n"), tail.find(". "), tail.find("。")) if at >= 0]
    tail = tail[min(starts) + 1 :] if starts else ""
    return f"{head}\n\n{tail}"
