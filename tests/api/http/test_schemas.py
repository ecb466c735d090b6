"""The published schemas refuse what the service refuses, as far as a schema can tell.

[api.contract]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin, get_type_hints

import httpx
import jsonschema_rs
import pytest

from app.common.errors import ValidationError
from app.policy.policy import Policy, effective
from app.prompt.policy_schemas import BOUNDS
from tests.api.http.openapi_document import DOCUMENT, OPERATIONS
from tests.api.talk import new_conversation

BODIES = {
    operation["operationId"]: operation["requestBody"]["content"]
    for _, _, operation in OPERATIONS
    if "requestBody" in operation
}
ROUTES = {operation["operationId"]: (method, path) for method, path, operation in OPERATIONS}
MESSAGES = [{"role": "user", "content": "Hello"}]


def is_valid(operation_id: str, body: Any) -> bool:
    """Return whether a body is valid by openapi.json."""
    (content,) = BODIES[operation_id].values()
    schema = content["schema"] | {"components": DOCUMENT["components"]}
    return bool(jsonschema_rs.Draft202012Validator(schema).is_valid(body))


def policy(path: str, value: Any) -> dict[str, Any]:
    """Return a policy with one leaf, and what has to follow it."""
    nested: Any = value
    for name in reversed(path.split(".")):
        nested = {name: nested}
    if path == "budget.hard_block":
        nested["budget"]["compact_trigger"] = value
    return dict(nested)


def values_at(bounds: Mapping[str, Any]) -> Iterator[tuple[Any, bool]]:
    """Yield values at the edges of a range, and whether they are in it."""
    whole = isinstance(bounds.get("minimum"), int) and "exclusiveMaximum" not in bounds
    step = 1 if whole else 1e-6
    for name, sign in (("minimum", -1), ("maximum", 1)):
        if name in bounds:
            yield bounds[name], True
            yield bounds[name] + sign * step, False
    for name, sign in (("exclusiveMinimum", 1), ("exclusiveMaximum", -1)):
        if name in bounds:
            yield bounds[name] + sign * step, True
            yield bounds[name], False


EDGES = [
    (path, value, inside) for path, bounds in BOUNDS.items() for value, inside in values_at(bounds)
]


@pytest.mark.parametrize(("path", "value", "inside"), EDGES)
def test_the_bounds_of_a_setting_are_those_of_the_domain(
    path: str, value: Any, inside: bool
) -> None:
    """The schema takes a setting's value where the domain does, and nowhere else."""
    given = policy(path, value)
    try:
        effective(given)
        wrong: set[str] = set()
    except ValidationError as error:
        wrong = {problem.pointer for problem in error.problems}
    assert (f"/{path.replace('.', '/')}" not in wrong) is inside
    assert is_valid("create_agent", {"name": "A", "policy": given}) is inside


def numbers(kind: Any, prefix: str = "") -> Iterator[str]:
    """Yield the paths of the settings that are numbers."""
    for name, hint in get_type_hints(kind).items():
        if hasattr(hint, "__dataclass_fields__"):
            yield from numbers(hint, f"{prefix}{name}.")
        elif {int, float} & {hint, *get_args(hint)} and get_origin(hint) is not tuple:
            yield f"{prefix}{name}"


def test_every_number_of_a_policy_has_bounds() -> None:
    """No number can be sent that only the service finds out to be impossible."""
    assert set(numbers(Policy)) <= set(BOUNDS)


def tool(name: Any = "get_weather", **more: Any) -> dict[str, Any]:
    """Return a tool in the form of OpenAI."""
    return {"type": "function", "function": {"name": name} | more}


ASKED: list[tuple[str, Any, bool]] = [
    ("set_agent_tools", {"tools": [tool()]}, True),
    ("set_agent_tools", {"tools": [{"name": "a", "input_schema": {"type": "object"}}]}, True),
    ("set_agent_tools", {"tools": [{"name": "a", "category": "mcp", "type": None}]}, True),
    ("set_agent_tools", {"tools": [{"name": "a", "inputSchema": {"type": "object"}}]}, True),
    ("set_agent_tools", {"tools": [tool(description=None, strict=None)]}, True),
    ("set_agent_tools", {"tools": [tool() | {"name": 5}]}, True),
    ("set_agent_tools", {"tools": [{}]}, False),
    ("set_agent_tools", {"tools": [{"type": "function", "function": {}}]}, False),
    ("set_agent_tools", {"tools": [tool("a b")]}, False),
    ("set_agent_tools", {"tools": [tool("a" * 65)]}, False),
    ("set_agent_tools", {"tools": [tool(strict="yes")]}, False),
    ("set_agent_tools", {"tools": [tool(description=7)]}, False),
    ("set_agent_tools", {"tools": [{"name": "a", "category": "other"}]}, False),
    ("set_agent_tools", {"tools": [{"type": "web_search"}, {"google_search": {}}]}, True),
    ("set_agent_tools", {"tools": [{"type": "web_search_20260209", "name": "a"}]}, True),
    ("set_agent_tools", {"tools": [{"name": "a", "retrieval": {}}]}, True),
    ("set_agent_tools", {"tools": [{"type": "web_find", "name": "a"}]}, False),
    ("set_agent_tools", {"tools": [{"google_find": {}}]}, False),
    ("set_agent_tools", {"tools": [{"type": "custom", "custom": {"name": "a"}}]}, False),
    ("set_agent_tools", {"tools": [tool(), tool()]}, False),
    ("set_agent_sections", {"sections": [{"name": "a", "content": ""}] * 2}, False),
    ("change_agent", {"policy": {"tool_deferral_threshold": 0.0}}, False),
    ("change_agent", {"policy": {"chain": ["truncate", "truncate"]}}, False),
    ("change_agent", {"policy": {"agent_tools": ["none_of_ours"]}}, False),
    ("change_agent", {"policy": {"agent_tools": ["recall"]}}, True),
    ("set_model", {}, False),
    ("set_model", {"context_window": None}, False),
    ("set_model", {"context_window": 9_000, "exact": None}, True),
    ("needs_compression", {"messages": [], "max_context_tokens": 9_000}, False),
    ("build_stateless_context", {"messages": [], "max_context_tokens": 9_000}, False),
    ("compress", {"messages": []}, False),
    ("needs_compression", {"messages": MESSAGES, "max_context_tokens": 0}, False),
    ("needs_compression", {"messages": MESSAGES, "max_context_tokens": -1}, False),
    ("needs_compression", {"messages": MESSAGES, "max_context_tokens": 1}, True),
]


@pytest.mark.parametrize(("operation_id", "body", "taken"), ASKED)
async def test_a_schema_accepts_what_the_service_accepts(
    client: httpx.AsyncClient, operation_id: str, body: Any, taken: bool
) -> None:
    """Clients made from the description learn before they send, and not by a 422."""
    await client.post("/v1/agents", json={"agent_id": "a", "name": "A"})
    method, path = ROUTES[operation_id]
    url = path.format(agent_id="a", model="m")
    answer = await client.request(method.upper(), url, json=body)
    assert (answer.status_code == 200) is taken, answer.text
    assert is_valid(operation_id, body) is taken


@pytest.mark.parametrize(("call_id", "taken"), [("call_1", True), ("", True), ("a\0b", False)])
async def test_the_call_of_an_upload(client: httpx.AsyncClient, call_id: str, taken: bool) -> None:
    """What no database text can hold is refused by the schema of the parameter too."""
    path = await new_conversation(client)
    parameters = next(item for _, _, item in OPERATIONS if item["operationId"] == "upload_blob")
    (found,) = [item for item in parameters["parameters"] if item["name"] == "tool_call_id"]
    answer = await client.post(f"{path}/blobs", content=b"x", params={"tool_call_id": call_id})
    assert (answer.status_code == 201) is taken, answer.text
    assert jsonschema_rs.Draft202012Validator(found["schema"]).is_valid(call_id) is taken
