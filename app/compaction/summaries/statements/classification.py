"""Says what kind of statement each unit of a message is."""

# ruff: noqa: RUF001 - characters of several scripts are meant

from __future__ import annotations

import re
from collections.abc import Iterator

from app.compaction.summaries.statements.languages.marker import Marker
from app.compaction.summaries.statements.noise import is_output, is_resumption
from app.compaction.summaries.statements.segments import (
    MAX_SENTENCE_CHARS,
    Form,
    Segment,
    is_code,
    scanned,
    segments,
    with_reasons,
)
from app.compaction.summaries.statements.statement import Author, Kind, Statement
from app.compaction.summaries.statements.subjects import may_have_value, subject_of
from app.compaction.summaries.statements.words import Sentence, is_acknowledgement, read_sentence

USER_CHARS = (32_768, 8_192)
ASSISTANT_CHARS = (6_144, 2_048)
"""Of each text so many characters of the beginning and the end are read."""
MAX_BLOCK_CHARS = 700
MAX_HABIT_WORDS = 30
MIN_WORDS = 3
MAX_VALUE_WORDS = 24
_STATES = re.compile(
    r"\b(?:is|are|was|were|equals|ist|sind|lautet|beträgt|est|sont|es|son|é|são|это)\b|=|は|是"
    r"|为|為|[은는]\s",
    re.IGNORECASE,
)

_QUESTION = re.compile(r"[?？]\s*[\"'”’)*]*$|(?:ですか|ますか|かな|吗|呢)[。.]?$")
_VALUE = re.compile(  # begins with all characters that matter: others are skipped
    r"[\d`\"“”«»「」@._/\\A-Z-](?:(?<=[\d`\"“”«»「」])|(?<=https://)|(?<=http://)"
    r"|(?<=[\w-]@)(?=[\w-])|(?<=\w[._/\\-])(?=\w)|(?<=[a-z][A-Z])|(?<=\b[A-Z])[A-Z]+\b)"
)
_NAME = re.compile(r"[A-ZÀ-ÖØ-ÞА-Я](?<=[\w,;:)] .)[\w-]+")
_LEADING_BOLD = re.compile(r"^\*\*([^*]+)\*\*")
_LABEL_END = (":", "：")
_TRIM = " \t\r\n-*#>•"


def classify_user(text: str) -> Iterator[Statement]:
    """Yield the statements of a user's text, which is free of noise."""
    if is_output(text):
        return
    if is_resumption(text):
        for segment in segments(scanned(text, *USER_CHARS)):
            line = _one_line(segment.text)
            if segment.form in (Form.BLOCK, Form.HEADING) or line.endswith(_LABEL_END):
                continue
            if line and len(line) <= MAX_SENTENCE_CHARS:
                yield Statement(Kind.EARLIER, line)
        return
    has_request = False
    for segment in with_reasons(segments(scanned(text, *USER_CHARS))):
        statement = _user_statement(segment, is_lead=not has_request)
        if statement is not None:
            has_request = has_request or statement.kind is Kind.REQUEST
            yield statement


def classify_assistant(text: str) -> Iterator[Statement]:
    """Yield the decisions, findings and open items of an assistant's text."""
    for segment in with_reasons(segments(scanned(text, *ASSISTANT_CHARS))):
        if segment.form in (Form.BLOCK, Form.HEADING) or not _is_statement(segment.text):
            continue
        sentence = read_sentence(_one_line(segment.text))
        if len(sentence.words) < MIN_WORDS + 1 and not sentence.is_unspaced:
            continue
        if sentence.has(Marker.PROCESS) or is_question(sentence.text):
            continue
        kind = _assistant_kind(sentence)
        if kind is not None:
            yield _statement(kind, sentence, Author.ASSISTANT)


def is_question(text: str) -> bool:
    """Whether a sentence asks something."""
    return ("?" in text or not text.isascii()) and _QUESTION.search(text) is not None


def _assistant_kind(sentence: Sentence) -> Kind | None:
    if _states_value(sentence):
        return Kind.FACT
    if sentence.has(Marker.DECISION):
        return Kind.DECISION
    if sentence.has(Marker.FINDING):
        return Kind.FINDING
    if sentence.has(Marker.OPEN):
        return Kind.OPEN
    return Kind.REMARK if _is_salient(sentence) else None


def _states_value(sentence: Sentence) -> bool:
    """Whether a short sentence says of something what its value is."""
    if len(sentence.words) > MAX_VALUE_WORDS and not sentence.is_unspaced:
        return False
    return may_have_value(sentence) and bool(
        _STATES.search(sentence.text) and subject_of(sentence).exact
    )


def _user_statement(segment: Segment, *, is_lead: bool) -> Statement | None:
    if segment.form is Form.HEADING:
        return None
    if segment.form is Form.BLOCK:
        if len(segment.text) <= MAX_BLOCK_CHARS:
            return Statement(Kind.REMARK, segment.text.strip("\n"), is_salient=True)
        return None
    if len(segment.text) > 2 * MAX_SENTENCE_CHARS or is_code(segment.text):
        return None
    sentence = read_sentence(_one_line(segment.text))
    if is_acknowledgement(sentence.text, sentence.words):
        return None
    return _statement(_user_kind(sentence, is_lead=is_lead), sentence, Author.USER)


def _user_kind(sentence: Sentence, *, is_lead: bool) -> Kind:
    if _is_standing(sentence):
        return Kind.STANDING
    if is_question(sentence.text):
        return Kind.REQUEST if is_lead else Kind.REMARK
    for marker, kind in (
        (Marker.CONSTRAINT, Kind.CONSTRAINT),
        (Marker.PREFERENCE, Kind.PREFERENCE),
        (Marker.DECISION, Kind.DECISION),
        (Marker.GOAL, Kind.GOAL),
        (Marker.OPEN, Kind.OPEN),
    ):
        if sentence.has(marker):
            return kind
    is_salient = _is_salient(sentence)
    states = sentence.copula is not None or sentence.has(Marker.UPDATE, Marker.FINDING)
    if sentence.has(Marker.FACT) or (is_salient and states):
        return Kind.FACT
    if is_lead:
        return Kind.REQUEST
    return Kind.FACT if is_salient else Kind.REMARK


def _is_standing(sentence: Sentence) -> bool:
    if is_question(sentence.text):
        return False
    if sentence.has(Marker.STANDING):
        return True
    is_short = len(sentence.words) <= MAX_HABIT_WORDS
    return is_short and sentence.has(Marker.HABIT) and sentence.has(Marker.FORM)


def _is_salient(sentence: Sentence) -> bool:
    return _VALUE.search(sentence.text) is not None or _NAME.search(sentence.text) is not None


def _is_statement(text: str) -> bool:
    return (
        len(text) <= MAX_SENTENCE_CHARS
        and not is_code(text)
        and not text.endswith((*_LABEL_END, "{"))
    )


def _statement(kind: Kind, sentence: Sentence, author: Author) -> Statement:
    return Statement(
        kind,
        sentence.text,
        author,
        updates=sentence.has(Marker.UPDATE),
        is_salient=_is_salient(sentence),
    )


def _one_line(text: str) -> str:
    return _LEADING_BOLD.sub(r"\1", " ".join(text.split())).strip(_TRIM)
