"""The wire formats: one package for each, with the same modules, and what they share.

`parsing` reads wire messages as neutral ones. `rendering` adapts a neutral message to what the
format can carry, and writes it. `registry` finds a format by its name. To add a provider, add a
package with these two modules, and enter it there.
"""

from __future__ import annotations

from app.formats.registry import FORMATS, group_items, with_request_pointers
from app.formats.tools import ToolCategory, ToolDefinition, parse_tool, tool_from, tools_of

__all__ = [
    "FORMATS",
    "ToolCategory",
    "ToolDefinition",
    "group_items",
    "parse_tool",
    "tool_from",
    "tools_of",
    "with_request_pointers",
]
