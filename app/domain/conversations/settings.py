"""The stored settings of an agent or a conversation, as JSON text.

They stay text because most reads only compare them with settings that are already parsed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Settings:
    """One layer: an agent's or a conversation's own settings, as JSON text."""

    model: str | None = None
    policy: str = "{}"
    sections: str = "[]"
    tools: str = "[]"


class Versioned(StrEnum):
    """The lists of a layer whose earlier versions are kept (G1)."""

    SECTIONS = "sections"
    TOOLS = "tools"


@dataclass(frozen=True, slots=True)
class Versions:
    """Which version each list of a layer has: 1 is the first that was given, 0 is none."""

    sections: int = 0
    tools: int = 0


NO_VERSIONS = Versions()
