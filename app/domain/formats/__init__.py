"""The wire formats: one package for each, with the same modules, and what they share.

`parsing` reads wire messages as neutral ones, `adapting` returns a neutral message as the format
can carry it, and `rendering` writes it. `registry` finds a format by its name. To add a provider,
add a package with these three modules, and enter it there.
"""

from __future__ import annotations

from app.domain.formats.registry import FORMATS, group_items, with_request_pointers
from app.domain.formats.tools import ToolCategory, ToolDefinition, parse_tool

__all__ = [
    "FORMATS",
    "ToolCategory",
    "ToolDefinition",
    "group_items",
    "parse_tool",
    "with_request_pointers",
]
