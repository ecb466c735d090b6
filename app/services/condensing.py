"""Condensing a span of the log, a page at a time, so that memory does not grow with it (E5)."""

from __future__ import annotations

from collections.abc import Sequence

from app.domain.strategies import Span
from app.domain.summaries import SummaryAsk
from app.services.ports import Database
from app.services.summariser import Summariser, SummaryResult

PAGE_MESSAGES = 500


async def condense(
    database: Database,
    summariser: Summariser,
    conversation_id: str,
    spans: Sequence[Span],
    previous: str | None,
    ask: SummaryAsk,
    model: str | None,
    max_tokens: int,
) -> SummaryResult:
    """Return one summary of `previous` and the messages in `spans`.

    No session is open while a model is called. Raises ServiceUnavailable as `summarise` does.
    """
    result: SummaryResult | None = None
    pages = _pages(spans)
    for page in pages:
        async with database.session() as records:
            rows = await records.contexts.rows(conversation_id, page.start, page.end, as_chat=False)
        messages = [row.message() for row in rows]
        if not messages:
            continue
        carried = result.text if result is not None else previous
        latest = await summariser.summarise(
            messages, carried, ask, model, max_tokens, is_end=page is pages[-1]
        )
        result = _added(result, latest)
    if result is None:
        return await summariser.summarise((), previous, ask, model, max_tokens)
    return result


def _pages(spans: Sequence[Span]) -> list[Span]:
    return [
        Span(start, min(start + PAGE_MESSAGES, span.end))
        for span in spans
        for start in range(span.start, span.end, PAGE_MESSAGES)
    ]


def _added(before: SummaryResult | None, latest: SummaryResult) -> SummaryResult:
    if before is None:
        return latest
    cost = None
    if before.cost_usd is not None and latest.cost_usd is not None:
        cost = before.cost_usd + latest.cost_usd
    return SummaryResult(
        text=latest.text,
        retain=latest.retain,
        model=latest.model,
        input_tokens=before.input_tokens + latest.input_tokens,
        output_tokens=before.output_tokens + latest.output_tokens,
        calls=before.calls + latest.calls,
        prompt_hash=latest.prompt_hash,
        cost_usd=cost,
    )
