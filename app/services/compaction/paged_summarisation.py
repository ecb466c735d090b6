"""Summarises spans of the log page by page, so that memory does not grow with their length."""

from __future__ import annotations

from collections.abc import Sequence

from app.domain.compaction.summaries.prompt import SummaryRequest
from app.domain.conversations.view import Span
from app.services.compaction.summariser import Summariser
from app.services.compaction.summariser_run import SummariserRun, SummaryResult
from app.services.ports import Database

PAGE_MESSAGES = 500


async def summarise_paged(
    database: Database,
    summariser: Summariser,
    conversation_id: str,
    spans: Sequence[Span],
    previous: str | None,
    request: SummaryRequest,
    model: str | None,
    max_tokens: int,
    run: SummariserRun,
    *,
    kept_seqs: frozenset[int] = frozenset(),
    retained: str | None = None,
) -> SummaryResult:
    """Return one summary of `previous` and the messages in `spans`.

    `kept_seqs` are those of messages that stay verbatim beside it, `retained` is the retain
    section of `previous`. No session is open during a model call. Raises as `summarise` does.
    """
    result: SummaryResult | None = None
    pages = [
        Span(start, min(start + PAGE_MESSAGES, span.end))
        for span in spans
        for start in range(span.start, span.end, PAGE_MESSAGES)
    ]
    for page in pages:
        async with database.session() as session:
            rows = await session.contexts.rows(conversation_id, page.start, page.end, as_chat=False)
        kept = frozenset(index for index, row in enumerate(rows) if row.seq in kept_seqs)
        if len(kept) == len(rows):
            continue
        result = await summariser.summarise(
            [row.message() for row in rows],
            result.text if result is not None else previous,
            request,
            model,
            max_tokens,
            run,
            is_end=page is pages[-1],
            kept=kept,
            retained=(result.retain if result is not None else None) or retained,
        )
    if result is None:
        return await summariser.summarise(
            (), previous, request, model, max_tokens, run, retained=retained
        )
    return result
