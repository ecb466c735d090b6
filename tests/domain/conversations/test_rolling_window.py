"""The length of a rolling window through the levels. [window.inherited, window.no-limit]"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.conversations.windows.active_window import (
    INHERIT,
    OwnWindow,
    RollingWindow,
    WindowDefaults,
    WindowSource,
    agent_window,
    conversation_window,
    own_from,
    window_defaults_from,
)

LENGTHS = st.none() | st.integers(1, 10**9)
OWN = LENGTHS | st.just("inherit")


@given(own=OWN, agent=OWN, has_agent=st.booleans(), agents=LENGTHS, others=LENGTHS)
def test_the_first_level_that_sets_one_wins(
    own: OwnWindow, agent: OwnWindow, has_agent: bool, agents: int | None, others: int | None
) -> None:
    """The value is that of the first level with one; a conversation's is stored without loss."""
    defaults = WindowDefaults(agents, others)
    of_agent = agent_window(agent, defaults) if has_agent else None
    found = conversation_window(own, of_agent, defaults)
    levels: list[tuple[OwnWindow, str]] = [(own, "conversation")]
    if has_agent:
        levels.append((agent, "agent"))
    levels.append((agents if has_agent else others, "service"))
    seconds, source = next(level for level in levels if level[0] != "inherit")
    assert (found.seconds, found.source) == (seconds, source)
    assert own_from(found.stored) == own


def test_the_setting_of_the_service() -> None:
    """Unset is a day for agents only, 0 is no limit for all, a number holds for all."""
    assert window_defaults_from(None) == WindowDefaults(86_400, None)
    assert window_defaults_from(0) == WindowDefaults(None, None)
    assert window_defaults_from(60) == WindowDefaults(60, 60)
    inherited = RollingWindow(None, WindowSource.SERVICE)
    assert conversation_window(INHERIT, None, WindowDefaults()) == inherited
