"""Parts of INSERT statements that name each column once."""

from __future__ import annotations

import re
from typing import Any


def placeholders(columns: str) -> str:
    """Return a placeholder for each column of a list, named like the column."""
    return re.sub(r'"?(\w+)"?', r":\1", columns)


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass with slots, as values for placeholders of these names."""
    return {name: getattr(value, name) for name in value.__slots__}
