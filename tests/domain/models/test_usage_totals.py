"""Costs, savings and ranges of days. [usage.cost, usage.saved, usage.totals]"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import astuple
from datetime import date, timedelta
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.common.errors import ValidationError
from app.models.limits import ModelInfo
from app.models.usage_totals import CallTotals, Purpose, call_totals, day_range, reported_entry

TOKENS = st.integers(0, 10**9)
PRICE = st.none() | st.floats(0, 1)
CALL = st.tuples(TOKENS, TOKENS, TOKENS, TOKENS)
INFO = st.builds(
    ModelInfo,
    st.just("m"),
    context_window=st.none() | st.integers(1, 10**7),
    max_input_tokens=st.none() | st.integers(1, 10**7),
    input_price=PRICE,
    output_price=PRICE,
    cache_read_price=PRICE,
    cache_write_price=PRICE,
)


def exact_cost(info: ModelInfo, call: tuple[int, int, int, int]) -> Fraction | None:
    """Return the exact price of a call: input, output, written and read tokens."""
    if info.input_price is None or info.output_price is None:
        return None
    written = info.input_price if info.cache_write_price is None else info.cache_write_price
    read = info.input_price if info.cache_read_price is None else info.cache_read_price
    prices = (info.input_price, info.output_price, written, read)
    return sum(
        (count * Fraction(price) for count, price in zip(call, prices, strict=True)), Fraction()
    )


@given(INFO, st.lists(CALL, min_size=1, max_size=5))
def test_a_bill_is_the_exact_sum_of_its_calls(
    info: ModelInfo, calls: list[tuple[int, int, int, int]]
) -> None:
    """Each token costs its own price once; a call without a price is counted as such."""
    totals = CallTotals()
    for call in calls:
        totals = totals.plus(call_totals(info, *call))
    assert totals.calls == len(calls)
    assert astuple(totals)[1:5] == tuple(map(sum, zip(*calls, strict=True)))
    costs = [exact_cost(info, call) for call in calls]
    assert totals.unpriced_calls == costs.count(None)
    assert totals.cost_usd == pytest.approx(float(sum(filter(None, costs), Fraction())))


def test_an_unknown_model_has_no_price() -> None:
    """Its tokens count all the same."""
    assert call_totals(None, 1, 2, 3, 4) == CallTotals(1, 1, 2, 3, 4, 0.0, 1)


@given(INFO | st.none(), CALL, TOKENS)
def test_a_saving_is_what_was_not_sent(
    info: ModelInfo | None, tokens: tuple[int, int, int, int], log_tokens: int
) -> None:
    """It is never negative, and has the price of input."""
    calls = call_totals(info, *tokens)
    entry = reported_entry("m", info, calls, log_tokens)
    assert (entry.model, entry.purpose, entry.calls) == ("m", Purpose.REPORTED, calls)
    sent = calls.input_tokens + calls.cache_creation_tokens + calls.cache_read_tokens
    assert entry.saved_tokens == max(0, log_tokens - sent)
    expected = exact_cost(info, (entry.saved_tokens, 0, 0, 0)) if info is not None else None
    assert entry.saved_usd == pytest.approx(float(expected or 0))


DAY = st.dates(date(1, 1, 1), date(9999, 12, 31))


@given(st.none() | DAY, st.none() | DAY | st.integers(-5, 400), DAY)
def test_a_range_of_days_is_short_or_refused(
    first: date | None, last: date | int | None, today: date
) -> None:
    """Days that are named are kept; a range is never empty, nor longer than a leap year."""
    if isinstance(last, int):
        with suppress(OverflowError):
            last = (first or today) + timedelta(days=last)
    if isinstance(last, int):
        last = None
    try:
        found = day_range(first, last, today)
    except ValidationError:
        end = last or today
        assert first is None or not first <= end <= first + timedelta(days=365)
        assert first is not None or end < date(1, 1, 30)
        return
    assert found.first <= found.last
    assert (found.last - found.first).days < 366
    assert found.last == (last or today)
    assert found.first == (first or found.last - timedelta(days=29))
