"""Merges summaries of consecutive messages, and removes from older ones what newer ones replace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from app.compaction.summaries.statements.fitting import fit
from app.compaction.summaries.statements.ledger import StatementLedger
from app.compaction.summaries.statements.summary_text import (
    HEADING,
    NO_CLOSING,
    closing_of,
    read_into,
)
from app.formats.message import Message
from app.models.tokens import CountText


class Read(Protocol):
    """A function that takes up the statements of a summary."""

    def __call__(self, ledger: StatementLedger, text: str, *, replaces: bool) -> None:
        """Add them; with `replaces` they may replace statements of the ledger."""
        ...


def merged_ledger(texts: Sequence[str], read: Read = read_into) -> StatementLedger:
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
