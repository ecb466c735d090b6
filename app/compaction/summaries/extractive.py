"""Summaries without a model, within a number of tokens. [summary.extractive]"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.compaction.summaries.checklist import read_summary
from app.compaction.summaries.prompt import SummaryResult
from app.compaction.summaries.statements.fitting import RETAINED, fit
from app.compaction.summaries.statements.ledger import StatementLedger
from app.compaction.summaries.statements.statement import Kind
from app.compaction.summaries.statements.summary_text import (
    HEADING,
    NO_CLOSING,
    Closing,
    closing_of,
    read_into,
)
from app.conversations.view import Span
from app.formats.message import Message
from app.models.tokens import CountText

RETAIN_SHARE = 0.25
"""The share of the summary that its retain section may take."""
MIN_SOURCE_TOKENS = 128
"""A shorter source counts as so long: half of it would not hold a sentence."""
SOURCE_SHARE = 0.5
"""The share of its source that a summary may take."""


@dataclass(frozen=True, slots=True)
class SummaryScope:
    """What a summary stands for, besides the messages that it is made from.

    `earlier_tokens` is the size of the messages that the earlier summary stands for, and
    `earlier_start` the seq of their first. `first_seq` is that of the first message that the
    conversation shows: the first request is there, or after it. `shown_after` are newer messages
    that stay shown: their values replace older ones. `unlisted` are statements without room in the
    earlier summary, `newly_unlisted` those without room in the newest of several to merge.
    `kept_tokens` is the room for the
    statements that a model must not lose, None for half of the summary.
    """

    count: CountText
    closing: Closing = NO_CLOSING
    earlier_tokens: int = 0
    earlier_start: int = 0
    first_seq: int = 1
    shown_after: tuple[Span, ...] = ()
    unlisted: str = ""
    newly_unlisted: str = ""
    kept_tokens: int | None = None


def write_summary(
    ledger: StatementLedger,
    wants_retain: bool,
    max_tokens: int,
    source_tokens: int,
    scope: SummaryScope,
) -> SummaryResult:
    """Return the summary of a ledger, at most half as long as its source."""
    limit = min(max_tokens, int(source_tokens * SOURCE_SHARE))
    if not wants_retain:
        fitted = fit(ledger, limit, scope.count, scope.closing)
        return SummaryResult(fitted.text, None, fitted.sections, fitted.unlisted)
    retain_tokens = int(limit * RETAIN_SHARE)
    retained = fit(ledger, retain_tokens, scope.count, NO_CLOSING, RETAINED)
    others = frozenset(Kind) - RETAINED
    fitted = fit(ledger, limit - retain_tokens, scope.count, scope.closing, others)
    sections = (*retained.sections, *fitted.sections)
    unlisted = "\n\n".join(text for text in (retained.unlisted, fitted.unlisted) if text)
    return SummaryResult(fitted.text, retained.text or None, sections, unlisted)


def ledger_of(messages: Sequence[Message], *, opens: bool = False) -> StatementLedger:
    """Return the statements of messages, with `opens` those that a conversation begins with."""
    ledger = StatementLedger()
    if opens:
        ledger.expect_first_request()
    for message in messages:
        ledger.add_message(message)
    return ledger


def extract_summary(
    messages: Sequence[Message], max_tokens: int, count: CountText, *, opens: bool
) -> SummaryResult:
    """Return a summary of messages alone."""
    tokens = sum(
        count(message.text) + sum(count(call.name + call.arguments) for call in message.calls)
        for message in messages
    )
    ledger, scope = ledger_of(messages, opens=opens), SummaryScope(count)
    return write_summary(ledger, False, max_tokens, max(tokens, MIN_SOURCE_TOKENS), scope)


def merge_summaries(texts: Sequence[str], max_tokens: int, scope: SummaryScope) -> SummaryResult:
    """Return one summary of several, oldest first, in which newer statements replace older."""
    ledger = merged_ledger((scope.unlisted, *texts, scope.newly_unlisted), read_summary)
    fitted = fit(ledger, max_tokens, scope.count, scope.closing)
    return SummaryResult(fitted.text, unlisted=fitted.unlisted)


# --- several summaries ------------------------------------------------------------------------


def merged_ledger(texts: Sequence[str], read: Callable[..., None] = read_into) -> StatementLedger:
    """Return the statements of several summaries, oldest first; newer ones replace older ones."""
    ledger = StatementLedger()
    for place, text in enumerate(filter(None, texts)):
        read(ledger, text, replaces=place > 0)
    return ledger


def merged_unlisted(texts: Sequence[str], count: CountText) -> str:
    """Return in one text what several summaries, oldest first, had no room for."""
    return fit(merged_ledger(texts), 0, count, NO_CLOSING).unlisted


def without_replaced(
    texts: Sequence[str], count: CountText, shown: Sequence[Message] = ()
) -> list[str]:
    """Return the summaries without what a later one of them, or a message shown after, replaces.

    What one of these may change is marked. A summary without such a statement, or that a model
    wrote, is returned as it is.
    """
    held = merged_ledger(texts)
    for message in shown:
        held.replace_by(message)
    kept: list[str] = []
    for text in texts:
        own = StatementLedger()
        if text.startswith(HEADING):
            read_into(own, text)
        changed = own.keep_only(held)
        kept.append(fit(own, 2 * count(text), count, closing_of(text)).text if changed else text)
    return kept
