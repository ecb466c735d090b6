"""Hosted tools of the providers, by the types of their SDKs. [tools.hosted]"""

from __future__ import annotations

import copy
import typing
from typing import Any, Final

import pytest
from anthropic.types.beta import BetaToolUnionParam
from google.genai import interactions, types
from openai.types.responses import ToolParam

from app.formats import PROVIDERS, ToolDefinition, parse_tool, tool_from, tools_of
from app.formats.json_fields import camel
from app.formats.message import FormatName
from app.formats.tools import GEMINI_KEYS
from app.models.tokens import HOSTED_TOOL_TOKENS, estimate_tool_defs_tokens
from app.prompt.agent_tools import can_defer
from tests.judge import check_model, check_type

ANTHROPIC: Final[list[dict[str, Any]]] = [
    {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
    {"type": "web_fetch_20260309", "name": "web_fetch", "citations": {"enabled": True}},
    {"type": "code_execution_20260120", "name": "code_execution"},
    {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 9000},
    {"type": "bash_20250124", "name": "bash"},
    {"type": "memory_20250818", "name": "memory"},
    {
        "type": "computer_20251124",
        "name": "computer",
        "display_width_px": 1024,
        "display_height_px": 768,
    },
    {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"},
    {"type": "mcp_toolset", "mcp_server_name": "wiki", "default_config": {"defer_loading": True}},
]
RESPONSES: Final[list[dict[str, Any]]] = [
    {"type": "web_search", "search_context_size": "low"},
    {"type": "web_search_preview_2025_03_11"},
    {"type": "file_search", "vector_store_ids": ["vs_1"], "max_num_results": 3},
    {"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["file_1"]}},
    {"type": "image_generation", "quality": "low"},
    {"type": "mcp", "server_label": "wiki", "server_url": "https://mcp.example.org"},
    {"type": "mcp", "server_label": "shop", "connector_id": "connector_gmail"},
    {
        "type": "computer_use_preview",
        "display_width": 1024,
        "display_height": 768,
        "environment": "browser",
    },
    {"type": "local_shell"},
    {"type": "shell"},
    {"type": "apply_patch"},
]
GEMINI: Final[list[dict[str, Any]]] = [
    {"google_search": {}},
    {"codeExecution": {}},
    {"url_context": {}},
    {"google_maps": {}},
    {"fileSearch": {"fileSearchStoreNames": ["stores/a"]}},
]
INTERACTIONS: Final[list[dict[str, Any]]] = [
    {"type": "google_search", "search_types": ["web_search"]},
    {"type": "code_execution"},
    {"type": "file_search", "file_search_store_names": ["stores/a"]},
    {"type": "mcp_server", "name": "wiki", "url": "https://mcp.example.org"},
    {"type": "tool_search", "name": "find_tools", "execution": "client"},
]
HOSTED: Final = {
    FormatName.ANTHROPIC: ANTHROPIC,
    FormatName.OPENAI_RESPONSES: RESPONSES,
    FormatName.GEMINI: GEMINI,
    FormatName.INTERACTIONS: INTERACTIONS,
}
UNIONS: Final[dict[FormatName, Any]] = {
    FormatName.ANTHROPIC: BetaToolUnionParam,
    FormatName.OPENAI_RESPONSES: ToolParam,
    FormatName.INTERACTIONS: interactions.ToolParam,
}
CASES: Final = [(format, raw) for format, tools in HOSTED.items() for raw in tools]
FUNCTION: Final = {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}


def sdk_findings(format: FormatName, tool: dict[str, Any]) -> list[Any]:
    """Return how a tool differs from the types of its provider's SDK."""
    if format is FormatName.GEMINI:
        return check_model(tool, types.Tool)
    return check_type(tool, UNIONS[format])


def function(name: str, category: str = "builtin") -> ToolDefinition:
    """Return a function tool."""
    return parse_tool({**FUNCTION, "name": name, "category": category}, "")


@pytest.mark.parametrize(("format", "raw"), CASES)
def test_passed_through_unchanged(format: FormatName, raw: dict[str, Any]) -> None:
    """A definition that the SDK takes is sent as it is, by its own format alone.

    It also survives the record of an epoch.
    """
    assert sdk_findings(format, raw) == []
    given_tool = copy.deepcopy(raw)
    tool = parse_tool({**raw, "category": "mcp", "cache_control": {"type": "ephemeral"}}, "")
    assert not can_defer(tool)
    assert estimate_tool_defs_tokens([tool], len) > HOSTED_TOOL_TOKENS
    for definition in (tool, tool_from(tool.record())):
        assert PROVIDERS[format].tools_to_wire([definition]) == [given_tool]
        for other in FormatName:
            taken, left_out = tools_of([definition, function("f")], other)
            assert [item.name for item in taken][-1] == "f"
            assert (len(taken), len(left_out)) == ((2, 0) if other is format else (1, 1))


def literals_of(union: Any) -> set[str]:
    """Return the values of `type` that a union of TypedDicts names."""
    found: set[str] = set()
    for member in typing.get_args(getattr(union, "__value__", union)):
        found |= set(typing.get_args(typing.get_type_hints(member).get("type")))
    return {kind for kind in found if isinstance(kind, str)}


def test_every_type_of_the_sdks_is_known() -> None:
    """A hosted tool of any type that an SDK has belongs to that format.

    Functions are no hosted tools, nor are tools with functions of the caller inside. The client's
    tool search is the service's own.
    """
    own = {"function", "custom", "namespace", "tool_search"}
    for format, hint in UNIONS.items():
        shared = {"file_search"} if format is FormatName.INTERACTIONS else set()
        found = literals_of(hint) - own - shared
        assert len(found) >= 7
        for kind in found:
            assert parse_tool({"type": kind}, "").format is format, kind
    assert set(types.Tool.model_fields) - {"function_declarations"} == set(GEMINI_KEYS)
    for key in (*GEMINI_KEYS, *map(camel, GEMINI_KEYS)):
        assert parse_tool({key: {}}, "").format is FormatName.GEMINI
