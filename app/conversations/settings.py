"""The stored settings of an agent or a conversation, as JSON text.

They stay text because most reads only compare them with settings that are already parsed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class StoredSettings:
    """The own settings of an agent or a conversation, without those it inherits."""

    model: str | None = None
    policy: str = "{}"
    sections: str = "[]"
    tools: str = "[]"


class SettingsList(StrEnum):
    """The lists of which earlier versions are stored."""

    SECTIONS = "sections"
    TOOLS = "tools"


@dataclass(frozen=True, slots=True)
class ListVersions:
    """The newest version of each list: 1 is the first list that was set, 0 is none."""

    sections: int = 0
    tools: int = 0


NO_VERSIONS = ListVersions()
