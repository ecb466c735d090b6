"""Long parameters arrive as they were sent, and stop the event loop for a moment only.

[performance.no-stall]
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.adapters.postgres.common import sliced_parameters
from app.adapters.postgres.common.connections import Session, Statement, Store
from app.adapters.postgres.common.sliced_parameters import long_items, text_slices

ECHO = Statement(
    "SELECT CAST(:tag AS text) AS tag, CAST(:first AS bytea[]) AS first,"
    " CAST(:second AS bytea[]) AS second, CAST(:more AS integer) AS more",
    sliced=("first", "second"),
)
ALONE = Statement(
    "SELECT count(*) AS found FROM unnest(CAST(:items AS bytea[]))", sliced=("items",)
)


@given(st.text(max_size=60), st.integers(4, 9))
def test_slices_join_to_the_item_and_are_texts(text: str, size: int) -> None:
    """No slice is longer than the limit, and none ends within a character."""
    item = text.encode("utf-8", "replace")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sliced_parameters, "SLICE_BYTES", size)
        slices = list(text_slices(item))
    assert "".join(slices).encode() == item
    assert all(0 < len(each.encode()) <= size for each in slices)


def test_only_long_items_are_sliced(monkeypatch: pytest.MonkeyPatch) -> None:
    """An item has to be there and as long as the limit."""
    monkeypatch.setattr(sliced_parameters, "LONG_BYTES", 3)
    assert long_items([None, b"", b"ab", b"abc", None, b"abcd"]) == [3, 5]
    assert long_items(None) == []


@pytest.mark.parametrize("seed", range(12))
async def test_items_arrive_as_they_were_sent(
    seed: int, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In their order, with the null and short ones between them; also inside a transaction."""
    monkeypatch.setattr(sliced_parameters, "LONG_BYTES", 20)
    monkeypatch.setattr(sliced_parameters, "SLICE_BYTES", 8)
    rng = Random(seed)

    def items() -> list[bytes | None]:
        texts = ["".join(rng.choices("aé中😀\\\n'", k=rng.randrange(40))) for _ in range(6)]
        return [rng.choice([text.encode(), text.encode(), None]) for text in texts]

    async def echoed(session: Session) -> None:
        first, second = items(), items()
        row = await session.first(ECHO, tag="x", first=first, second=second, more=7)
        assert row is not None
        assert (row["tag"], row["first"], row["second"], row["more"]) == ("x", first, second, 7)

    store = Store(database_url, min_size=0, max_size=1)
    try:
        async with store.session() as session:
            await echoed(session)
            await echoed(session)
        async with store.transaction() as session:
            await echoed(session)
    finally:
        await store.close()


async def test_slices_are_gone_after_the_statement(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection keeps none of the text."""
    monkeypatch.setattr(sliced_parameters, "LONG_BYTES", 1)
    left = Statement("SELECT current_setting('context.slice_0', true) AS found")
    store = Store(database_url, min_size=0, max_size=1)
    try:
        async with store.session() as session:
            row = await session.first(ALONE, items=[b"text", None])
            assert row is not None and row["found"] == 2
            row = await session.first(left)
            assert row is not None and not row["found"]
    finally:
        await store.close()
