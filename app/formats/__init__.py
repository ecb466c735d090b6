"""The providers and their wire formats: a module or folder for each, and what they share.

`base` says what a provider is, `registry` finds one by the name of its format.
"""

from __future__ import annotations

from app.formats.registry import PROVIDERS, with_request_pointers
from app.formats.tools import ToolCategory, ToolDefinition, parse_tool, tool_from, tools_of

__all__ = [
    "PROVIDERS",
    "ToolCategory",
    "ToolDefinition",
    "parse_tool",
    "tool_from",
    "tools_of",
    "with_request_pointers",
]
