"""The time from which a conversation is answered as unknown. [log.expiry]"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.common.errors import ValidationError
from app.conversations.expiry import MAX_TTL_SECONDS, NO_EXPIRY, Expiry

NOW = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)


@given(st.integers(1, MAX_TTL_SECONDS))
def test_seconds_count_from_now(seconds: int) -> None:
    """A number of seconds and the time that it leads to are the same expiry."""
    expires_at = NOW + timedelta(seconds=seconds)
    assert Expiry(ttl_seconds=seconds).at(NOW) == Expiry(expires_at).at(NOW) == expires_at
    assert NO_EXPIRY.at(NOW) is None
    for past in (NOW, NOW - timedelta(seconds=seconds)):
        with pytest.raises(ValidationError, match="future"):
            Expiry(past).at(NOW)
    with pytest.raises(ValidationError, match="not both"):
        Expiry(expires_at, seconds).at(NOW)
