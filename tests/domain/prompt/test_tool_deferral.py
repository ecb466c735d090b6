"""Which tools are deferred, and how in each format.

[tools.deferral, tools.search, tools.native-deferral]
"""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.formats import ToolDefinition
from app.formats.message import FormatName
from app.prompt.agent_tools import deferred_note, plan_deferral

CHAT, RESPONSES, ANTHROPIC, *_ = FormatName
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


def tool(name: str, category: Any = "mcp") -> ToolDefinition:
    """Return a tool of that name and category."""
    return ToolDefinition(name, f"Does {name}.", SCHEMA, category)


def held(
    tools: list[ToolDefinition],
    allowed: int,
    used: dict[str, int] | None = None,
    promoted: tuple[str, ...] = (),
    most: int | None = None,
) -> tuple[str, ...]:
    """Plan for tools that cost 10 each."""
    return plan_deferral(tools, [10] * len(tools), allowed, most, used or {}, promoted)


def test_tools_of_the_service_itself_stay() -> None:
    """A caller who lists them as mcp keeps the search, and what reads cut results."""
    own = [tool(name, "mcp") for name in ("tool_search", "read_result", "other")]
    assert plan_deferral(own, [10] * 3, 0, 0, {}, ()) == ("other",)


def test_promoted_tools_stay_within_the_providers_maximum() -> None:
    """Those promoted last stay the longest; the allowed tokens do not bind them."""
    tools = [tool("b", "builtin"), *(tool(name) for name in "klmn")]
    promoted = ("m", "k", "l")
    assert held(tools, 0, promoted=promoted) == ("n",)
    assert held(tools, 0, promoted=promoted, most=3) == ("m", "n")
    assert held(tools, 0, promoted=promoted, most=0) == ("k", "l", "m", "n")


PLANS = st.lists(
    st.tuples(
        st.sampled_from(["builtin", "mcp", "skill"]),
        st.integers(0, 300),
        st.none() | st.integers(1, 50),
        st.booleans(),
    ),
    max_size=12,
)


def case(rows: list[Any]) -> tuple[list[ToolDefinition], list[int], dict[str, int], list[str]]:
    """Return tools, costs, last uses and promoted names of generated rows."""
    tools = [tool(f"t{place}", row[0]) for place, row in enumerate(rows)]
    costs = [row[1] for row in rows]
    used = {f"t{place}": row[2] for place, row in enumerate(rows) if row[2] is not None}
    promoted = [f"t{place}" for place, row in enumerate(rows) if row[3] and row[0] == "mcp"]
    return tools, costs, used, promoted


def first_to_go(tool: ToolDefinition, used: dict[str, int], place: int) -> Any:
    """Return the sort key of deferral."""
    return tool.category != "mcp", used.get(tool.name, 0), -place


@given(PLANS, st.integers(0, 2000), st.none() | st.integers(0, 12))
def test_a_plan_defers_no_more_tools_than_needed(
    rows: list[Any], allowed: int, most: int | None
) -> None:
    """The rest fits, or every deferrable tool is deferred; one tool more would not fit."""
    tools, costs, used, promoted = case(rows)
    stay = {tool.name for tool in tools if tool.category == "builtin"}.union(promoted)
    if most is not None:  # below that, promoted tools are deferred as well
        most = max(most, len(stay))
    plan = plan_deferral(tools, costs, allowed, most, used, promoted)
    cost = {tool.name: cost for tool, cost in zip(tools, costs, strict=True)}
    by_name = {tool.name: (tool, place) for place, tool in enumerate(tools)}
    limit = len(tools) if most is None else most

    def fits(names: set[str]) -> bool:
        return sum(cost[name] for name in names) <= allowed and len(names) <= limit

    may_go = set(by_name) - stay
    assert list(plan) == [tool.name for tool in tools if tool.name in set(plan)]
    assert set(plan) <= may_go
    left = set(by_name) - set(plan)
    assert fits(left) or set(plan) == may_go
    if plan:
        last = max(plan, key=lambda name: first_to_go(by_name[name][0], used, by_name[name][1]))
        assert not fits(left | {last})
        stays = left & may_go
        assert all(
            first_to_go(by_name[last][0], used, by_name[last][1])
            < first_to_go(by_name[name][0], used, by_name[name][1])
            for name in stays
        )


def test_the_note_has_the_exact_words() -> None:
    """The note has the number of deferred tools. [tools.search]"""
    assert deferred_note(1234) == (
        "[1234 tools deferred to save context. Use tool_search to find them.]"
    )
