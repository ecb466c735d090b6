"""Allowances: windows, shares, and that no more is granted than is allowed. [quotas.requests]"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from app.domain.tenancy.quotas import QuotaKind, TenantLimits, granted_of, share_of, window_start


@given(st.integers(1, 10_000), st.lists(st.integers(1, 500), max_size=200))
def test_grants_do_not_exceed_the_limit(limit: int, wishes: list[int]) -> None:
    """Security: whoever takes in whatever order, all grants together are within the limit.

    While something is left, whoever asks gets all he wants or the rest.
    """
    taken = granted = 0
    for wanted in wishes:
        asked = share_of(limit, wanted)
        taken += asked
        got = granted_of(limit, taken, asked)
        assert 0 <= got <= asked
        assert got == min(asked, limit - granted)
        granted += got
    assert granted <= limit


@given(st.datetimes(datetime(1971, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)))
def test_a_rate_window_contains_its_time(now: datetime) -> None:
    """Security: rate windows have one length and the same start in all processes."""
    for kind in QuotaKind:
        start = window_start(now, kind.window_seconds)
        length = timedelta(seconds=kind.window_seconds)
        assert start <= now < start + length
        assert window_start(start, kind.window_seconds) == start
        assert window_start(start + length, kind.window_seconds) == start + length


def test_own_limits_override_the_settings() -> None:
    """Security: the settings apply where a tenant has no limit of its own."""
    defaults = TenantLimits(10, None, 1000)
    assert TenantLimits(None, 5, 0).with_defaults(defaults) == TenantLimits(10, 5, 0)
    assert TenantLimits().with_defaults(defaults) == defaults
    assert (defaults.of(QuotaKind.REQUESTS), defaults.of(QuotaKind.BYTES)) == (10, None)
