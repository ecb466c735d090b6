"""The payload cache of a process: bounded, by stream, the least recently used evicted first.

[payload.build-log-independent]
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.domain.common.messages import FormatName, Role
from app.domain.conversations.log.row import LogRow
from app.domain.conversations.turns import entry
from app.domain.conversations.view import ENDLESS, Span, View
from app.domain.payload.assemblers import ASSEMBLERS
from app.services.payload.payload_cache import CachedPayload, PayloadCache

VIEW = View(spans=(Span(1, ENDLESS),))


def window(name: str, size: int = 0) -> CachedPayload:
    """Return a window of one message with so much text."""
    assembler = ASSEMBLERS[FormatName.OPENAI_CHAT](VIEW, len)
    text = b'{"role":"user","content":"%s"}' % (b"x" * size)
    assembler.add(LogRow("m", 1, Role.USER, 1, 0, (), False, FormatName.OPENAI_CHAT, text))
    return CachedPayload(name, "{}", VIEW, assembler, [entry(1, Role.USER, 1)])


def test_a_cached_payload_is_returned_until_dropped() -> None:
    """The cache returns the newest payload of a stream, and none after a drop."""
    windows = PayloadCache(10_000)
    first, second = window("a"), window("b")
    windows.put(("lane",), first)
    assert windows.find(("lane",)) is first
    windows.put(("lane",), second)
    assert windows.find(("lane",)) is second
    assert windows.find(("other",)) is None
    windows.drop(("lane",))
    windows.drop(("lane",))
    assert windows.find(("lane",)) is None


def test_a_cached_payload_counts_the_tool_output_it_shows() -> None:
    """It adds the output of each row, without cleared results, so no build sums over rows."""
    view = View(spans=(Span(1, ENDLESS),), results_cleared_through=4, uncleared_results=(3,))
    folded = CachedPayload("a", "{}", view, ASSEMBLERS[FormatName.OPENAI_CHAT](view, len))
    calls = b'{"role":"assistant","tool_calls":[]}'
    rows = [(Role.ASSISTANT, 9, ("a", "b", "c", "d")), (Role.TOOL, 300, ("a",))]
    rows += [(Role.TOOL, 301, ("b",)), (Role.TOOL, 80, ("c",)), (Role.TOOL, 302, ("d",))]
    for seq, (role, tokens, call_ids) in enumerate(rows, 1):
        text = calls if role is Role.ASSISTANT else b'{"role":"tool","tool_call_id":"a"}'
        folded.add(LogRow("m", seq, role, tokens, 0, call_ids, False, FormatName.OPENAI_CHAT, text))
    assert folded.output_tokens == 301 + 80 + 302
    assert [item.seq for item in folded.entries] == [1, 2, 3, 4, 5]


def test_the_least_recently_used_payload_is_evicted_first() -> None:
    """A full cache evicts the payload that was not read for the longest time."""
    windows = PayloadCache(2_000)
    for name in "abc":
        windows.put((name,), window(name, 100))
    windows.find(("a",))
    windows.put(("d",), window("d", 100))
    assert windows.find(("b",)) is None
    assert windows.find(("a",)) is not None


def test_a_payload_larger_than_the_cache_is_not_cached() -> None:
    """A payload that cannot fit only removes the stream's earlier one."""
    windows = PayloadCache(2_000)
    windows.put(("lane",), window("a"))
    windows.put(("lane",), window("b", 5_000))
    assert windows.find(("lane",)) is None
    windows.put(("lane",), window("c"))
    assert windows.find(("lane",)) is not None


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 900), st.booleans()), max_size=30)
)
def test_the_cache_never_exceeds_its_bound(steps: list[tuple[str, int, bool]]) -> None:
    """After any sequence of additions and drops the size is within the bound."""
    windows, most = PayloadCache(2_500), 2_500
    for name, size, drops in steps:
        if drops:
            windows.drop((name,))
        else:
            windows.put((name,), window(name, size))
        held = [found for key in "abcd" if (found := windows.find((key,))) is not None]
        assert sum(found.size_bytes for found in held) <= most
