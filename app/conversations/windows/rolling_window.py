"""The length of a rolling window, set for a conversation, its agent or the service.

1. The value of a conversation overrides that of its agent, which overrides that of the service.
2. A length of None is no limit. A level that sets nothing has `INHERIT`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

INHERIT: Final = "inherit"
OwnWindow = int | None | Literal["inherit"]
"""The length that one level sets, in seconds."""

DEFAULT_AGENT_WINDOW_SECONDS: Final = 86_400
_STORED_NO_LIMIT: Final = 0


class WindowSource(StrEnum):
    """The level that sets the length of a rolling window."""

    CONVERSATION = "conversation"
    AGENT = "agent"
    SERVICE = "service"


@dataclass(frozen=True, slots=True)
class WindowDefaults:
    """The lengths of the service: for agents, and for conversations without an agent."""

    agents: int | None = DEFAULT_AGENT_WINDOW_SECONDS
    conversations: int | None = None


SERVICE_DEFAULTS: Final = WindowDefaults()


@dataclass(frozen=True, slots=True)
class RollingWindow:
    """An effective length in seconds, and the level that sets it."""

    seconds: int | None
    source: WindowSource

    @property
    def stored(self) -> int | None:
        """The value of a conversation as it is stored: None inherits, 0 is no limit."""
        if self.source is not WindowSource.CONVERSATION:
            return None
        return _STORED_NO_LIMIT if self.seconds is None else self.seconds


NO_LIMIT: Final = RollingWindow(None, WindowSource.SERVICE)


def window_defaults_from(seconds: int | None) -> WindowDefaults:
    """Return the lengths of the service for a setting, of which 0 is no limit."""
    if seconds is None:
        return SERVICE_DEFAULTS
    return WindowDefaults(seconds or None, seconds or None)


def agent_window(own: OwnWindow, defaults: WindowDefaults) -> RollingWindow:
    """Return the rolling window of an agent."""
    if own == INHERIT:
        return RollingWindow(defaults.agents, WindowSource.SERVICE)
    return RollingWindow(own, WindowSource.AGENT)


def conversation_window(
    own: OwnWindow, agent: RollingWindow | None, defaults: WindowDefaults
) -> RollingWindow:
    """Return the rolling window of a conversation of this agent, or of none."""
    if own != INHERIT:
        return RollingWindow(own, WindowSource.CONVERSATION)
    return agent or RollingWindow(defaults.conversations, WindowSource.SERVICE)


def own_from(stored: int | None) -> OwnWindow:
    """Read the value of a conversation back from `RollingWindow.stored`."""
    if stored is None:
        return INHERIT
    return stored or None
