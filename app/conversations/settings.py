"""The stored settings of an agent or a conversation, as JSON text.

1. They are stored as the caller gave them, without defaults. They stay text because most reads only
   compare them with settings that are already parsed.
2. A caller replaces sections and tools as whole lists. Each list is a new version, and earlier
   versions stay readable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from app.common import json_text
from app.common.errors import ValidationError
from app.formats import parse_tool


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


@dataclass(frozen=True, slots=True)
class ListVersion:
    """One version of a list, as JSON text."""

    body: str
    version: int


def list_json(kind: SettingsList, items: Sequence[Mapping[str, Any]]) -> str:
    """Return sections or tools as stored; raises ValidationError for a tool or a repeated name."""
    seen: set[str] = set()
    for index, item in enumerate(items):
        is_tool = kind is SettingsList.TOOLS
        name = parse_tool(item, f"/tools/{index}").name if is_tool else item["name"]
        if name in seen:
            raise ValidationError.at(f"/{kind}/{index}/name", f"The name {name!r} is used twice")
        seen.add(name)
    return json_text.dumps(list(items))
