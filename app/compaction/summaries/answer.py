"""Which answers of a summariser are accepted. [summary.accepted-answers]"""

from __future__ import annotations

import re
from dataclasses import dataclass

from app.common.sendable import sendable
from app.conversations.view import SectionCount
from app.models.model_calls import Completion

_THINKING = re.compile(r"^\s*<think(?:ing)?>.*?</think(?:ing)?>", re.IGNORECASE | re.DOTALL)
_CUT_OFF = frozenset({"length", "max_tokens"})


@dataclass(frozen=True, slots=True)
class SummaryResult:
    """A summary; `retain` is None when no retain section was requested, or it is empty.

    `sections` says what became of the statements of each section, in a summary without a model;
    `unlisted` has those without room that the next summary may list.
    """

    text: str
    retain: str | None = None
    sections: tuple[SectionCount, ...] = ()
    unlisted: str = ""


def parse_answer(
    completion: Completion, wants_retain: bool, source_size: int
) -> SummaryResult | str:
    """Return the summary in an answer, or the reason why it is rejected.

    `source_size` is the length of the summarised text, in characters.
    """
    if completion.has_tool_calls:
        return "tool_calls"
    if completion.finish_reason in _CUT_OFF:
        return "cut_off"
    text = _THINKING.sub("", completion.text, count=1)
    retain = ""
    if wants_retain:
        element = _element(text, "retain")
        if element is None:
            return "retain_tag_missing"
        start, end = element
        retain = _content(text[start:end])
        text = text[:start] + text[end:]
    element = _element(text, "summary")
    if element is None:
        return "summary_tag_missing"
    start, end = element
    summary = _content(text[start:end])
    if not summary:
        return "empty"
    if len(summary) + len(retain) > source_size:
        return "longer_than_source"
    return SummaryResult(sendable(summary), sendable(retain) if retain else None)


def _element(text: str, tag: str) -> tuple[int, int] | None:
    """Return where an element starts and ends, from its first opening to its last closing tag."""
    opening = re.search(rf"<{tag}\s*+>", text, re.IGNORECASE)
    if opening is None:
        return None
    closings = list(re.finditer(rf"</{tag}\s*+>", text[opening.end() :], re.IGNORECASE))
    return (opening.start(), opening.end() + closings[-1].end()) if closings else None


def _content(element: str) -> str:
    return element[element.index(">") + 1 : element.rindex("<")].strip()
