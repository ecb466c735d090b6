"""Costs, savings and ranges of days. [usage.cost, usage.saved, usage.totals]"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import astuple
from datetime import date, timedelta
from fractions import Fraction
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.common.errors import ValidationError
from app.models.budget import ModelInfo
from app.models.usage import Purpose, TokenUsage, UsageEntry, day_range, usage_entry

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


def exact_cost(info: ModelInfo | None, call: tuple[int, int, int, int]) -> Fraction | None:
    """Return the exact price of a call: input, output, written and read tokens."""
    if info is None or info.input_price is None or info.output_price is None:
        return None
    written = info.input_price if info.cache_write_price is None else info.cache_write_price
    read = info.input_price if info.cache_read_price is None else info.cache_read_price
    prices = (info.input_price, info.output_price, written, read)
    return sum(
        (count * Fraction(price) for count, price in zip(call, prices, strict=True)), Fraction()
    )


@given(INFO | st.none(), st.lists(CALL, min_size=1, max_size=5), TOKENS)
def test_a_bill_is_the_exact_sum_of_its_calls(
    info: ModelInfo | None, calls: list[tuple[int, int, int, int]], log_tokens: int
) -> None:
    """Each token costs its own price once; a call without a price is counted as such.

    What a call saved is what it did not send, never negative, at the price of input.
    """
    entries = [
        usage_entry("m", Purpose.REPORTED, info, TokenUsage(*call), log_tokens) for call in calls
    ]
    total = reduce(UsageEntry.plus, entries)
    costs = [exact_cost(info, call) for call in calls]
    saved = [max(0, log_tokens - call[0] - call[2] - call[3]) for call in calls]
    assert astuple(total)[2:7] == (len(calls), *map(sum, zip(*calls, strict=True)))
    assert (total.unpriced_calls, total.saved_tokens) == (costs.count(None), sum(saved))
    assert total.cost_usd == pytest.approx(float(sum(filter(None, costs), Fraction())))
    saved_usd = exact_cost(info, (sum(saved), 0, 0, 0)) or 0
    assert total.saved_usd == pytest.approx(float(saved_usd))


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
    assert 0 <= (found[1] - found[0]).days < 366
    assert found[1] == (last or today)
    assert found[0] == (first or found[1] - timedelta(days=29))
