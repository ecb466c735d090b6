"""Condensing a span of the log, a page at a time, so that memory does not grow with it (E5)."""

from __future__ import annotations

from collections.abc import Sequence

from app.domain.compaction.summaries import SummaryRequest
from app.domain.conversations.view import Span
from app.services.compaction.summariser import Summariser, SummariserCalls, SummaryResult
from app.services.ports import Database

PAGE_MESSAGES = 500


async def summarise_paged(
    database: Database,
    summariser: Summariser,
    conversation_id: str,
    spans: Sequence[Span],
    previous: str | None,
    ask: SummaryRequest,
    model: str | None,
    max_tokens: int,
    effort: SummariserCalls,
    *,
    kept_seqs: frozenset[int] = frozenset(),
    retained: str | None = None,
) -> SummaryResult:
    """Return one summary of `previous` and the messages in `spans`.

    `kept_seqs` are those of messages that stay word for word beside it (D8), `retained` is the
    retain of `previous`. No session is open while a model is called. Raises as `summarise` does.
    """
    result: SummaryResult | None = None
    pages = _pages(spans)
    for page in pages:
        async with database.session() as records:
            rows = await records.contexts.rows(conversation_id, page.start, page.end, as_chat=False)
        kept = frozenset(place for place, row in enumerate(rows) if row.seq in kept_seqs)
        if len(kept) == len(rows):
            continue
        result = await summariser.summarise(
            [row.message() for row in rows],
            result.text if result is not None else previous,
            ask,
            model,
            max_tokens,
            effort,
            is_end=page is pages[-1],
            kept=kept,
            retained=(result.retain if result is not None else None) or retained,
        )
    if result is None:
        return await summariser.summarise(
            (), previous, ask, model, max_tokens, effort, retained=retained
        )
    return result


def _pages(spans: Sequence[Span]) -> list[Span]:
    return [
        Span(start, min(start + PAGE_MESSAGES, span.end))
        for span in spans
        for start in range(span.start, span.end, PAGE_MESSAGES)
    ]
