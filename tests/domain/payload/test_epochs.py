"""An epoch's start survives storage."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from app.conversations.epoch import EpochStart
from app.conversations.from_rows import epoch_start_from
from app.prompt.resolved_settings import STUB_TOOL, PayloadTools
from tests.domain.conversations.generated import views

OFFERS = st.builds(
    PayloadTools,
    st.sampled_from([(), (STUB_TOOL.name,), ("read_result",)]),
    st.lists(st.sampled_from(["a", "b"])).map(tuple),
    st.booleans(),
)


@given(
    st.builds(
        EpochStart,
        views(),
        st.integers(1, 2**62),
        st.integers(1, 2**40),
        OFFERS,
        st.lists(st.sampled_from(["a", "b"])).map(tuple),
        st.floats(0.25, 4),
        st.sampled_from(["", "d"]),
    )
)
@settings(deadline=None)
def test_a_start_is_read_as_it_was_stored(start: EpochStart) -> None:
    """A stored start reads back as it was, odd texts included.

    [payload.start-recorded]
    """
    text = start.as_json()
    assert epoch_start_from(text) == start
    assert "\x00" not in text
    text.encode()
