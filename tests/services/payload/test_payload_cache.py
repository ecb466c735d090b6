"""The payload cache of a process: bounded, by stream, the least recently used evicted first.

[payload.build-log-independent]
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.context.state import CachedPayload, PayloadCache
from app.conversations.messages.row import LogRow
from app.conversations.turns import entry
from app.conversations.view import ENDLESS, Span, View
from app.formats.message import FormatName, Role
from app.payload.format_assemblers import assembler_of

VIEW = View(spans=(Span(1, ENDLESS),))


def window(name: str, size: int = 0) -> CachedPayload:
    """Return a window of one message with so much text."""
    assembler = assembler_of(FormatName.OPENAI_CHAT)(VIEW, len)
    text = b'{"role":"user","content":"%s"}' % (b"x" * size)
    assembler.add(LogRow("m", 1, Role.USER, 1, 0, (), False, FormatName.OPENAI_CHAT, text))
    return CachedPayload(VIEW, assembler, name, "{}", [entry(1, Role.USER, 1)])


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
