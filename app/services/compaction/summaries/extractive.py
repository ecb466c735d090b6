"""Summaries without a model, within a number of tokens. [summary.extractive]"""

from __future__ import annotations

from collections.abc import Sequence

from app.domain.common.messages import Message
from app.domain.compaction.summaries.answer import SummaryResult
from app.domain.compaction.summaries.digest import DECISIONS, EARLIER, IDENTIFIERS, read_digest
from app.domain.compaction.summaries.extraction import extract
from app.services.ports import Tokenizer

CHARS_PER_TOKEN = 3
"""Characters of a digest per allowed token; prose has about four, identifiers fewer."""
RETAIN_SHARE = 0.25
"""The share of the summary that its retain section may take."""


def extract_summary(
    messages: Sequence[Message],
    previous: str | None,
    retained: str | None,
    wants_retain: bool,
    max_tokens: int,
    tokenizer: Tokenizer,
) -> SummaryResult:
    """Return a digest of messages, and of an earlier summary and its retain section."""
    if not wants_retain:
        earlier = "\n\n".join(filter(None, (previous, _as_section(retained))))
        return SummaryResult(extract_text(messages, earlier, max_tokens, tokenizer), None)
    retain_tokens = int(max_tokens * RETAIN_SHARE)
    text = extract_text(messages, previous, max_tokens - retain_tokens, tokenizer)
    return SummaryResult(text, _retain_section(text, retained, retain_tokens * CHARS_PER_TOKEN))


def extract_text(
    messages: Sequence[Message], previous: str | None, max_tokens: int, tokenizer: Tokenizer
) -> str:
    """Return a digest that has at most `max_tokens`."""
    max_chars = max_tokens * CHARS_PER_TOKEN
    while True:
        text = extract(messages, previous, max_chars)
        tokens = tokenizer.count(text)
        if tokens <= max_tokens:
            return text
        max_chars = int(min(max_chars, len(text)) * max_tokens / tokens * 0.95)


def _as_section(retained: str | None) -> str:
    """Return an earlier retain section as a section of a digest, which `extract` can merge."""
    if not retained:
        return ""
    items = "\n".join(f"- {line.removeprefix('- ')}" for line in retained.splitlines())
    return f"## {EARLIER}\n{items}"


def _retain_section(digest: str, retained: str | None, max_chars: int) -> str | None:
    """Return what was retained with the decisions and identifiers of a digest, newest last."""
    sections = read_digest(digest).items
    items = [f"- {item}" for name in (DECISIONS, IDENTIFIERS) for item in sections[name]]
    lines = list(dict.fromkeys((*(retained or "").splitlines(), *items)))
    while lines and sum(len(line) + 1 for line in lines) > max_chars:
        del lines[0]
    return "\n".join(lines) or None
