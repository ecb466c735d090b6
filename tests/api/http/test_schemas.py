"""The published schemas refuse what the service refuses, as far as a schema can tell.

[api.contract]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import jsonschema_rs
import pytest

from app.policy.policy import Policy
from tests.answers import DOCUMENT
from tests.api.http.openapi_document import OPERATIONS

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


BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}


def numbers(
    schema: Mapping[str, Any], schemas: Mapping[str, Any], path: str = ""
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the path and the bounds of every number in a schema of the policy."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    for kind in schema.get("anyOf", ()):
        yield from numbers(kind, schemas, path)
    for name, setting in schema.get("properties", {}).items():
        yield from numbers(setting, schemas, f"{path}/{name}")
    if schema.get("type") in ("integer", "number"):
        yield path, {name: schema[name] for name in BOUNDS & schema.keys()}


def test_requests_and_answers_have_the_bounds_of_the_policy() -> None:
    """Every number has two bounds, and the same ones wherever it is published."""
    own = Policy.model_json_schema()
    wanted = dict(numbers(own, own["$defs"]))
    assert all(len(bounds) == 2 for bounds in wanted.values())
    schemas = DOCUMENT["components"]["schemas"]
    for name in ("Policy", "PolicyPatch"):
        assert dict(numbers(schemas[name], schemas)) == wanted


def tool(name: Any = "get_weather", **more: Any) -> dict[str, Any]:
    """Return a tool in the form of OpenAI."""
    return {"type": "function", "function": {"name": name} | more}


ASKED: list[tuple[str, Any, bool]] = [
    ("change_agent", {"tools": [tool()]}, True),
    ("change_agent", {"tools": [{"name": "a", "input_schema": {"type": "object"}}]}, True),
    ("change_agent", {"tools": [{"name": "a", "category": "mcp", "type": None}]}, True),
    ("change_agent", {"tools": [{"name": "a", "inputSchema": {"type": "object"}}]}, True),
    ("change_agent", {"tools": [tool(description=None, strict=None)]}, True),
    ("change_agent", {"tools": [tool() | {"name": 5}]}, True),
    ("change_agent", {"tools": [{"name": "a", "category": "other"}]}, False),
    ("change_agent", {"tools": [{"type": "web_search"}, {"google_search": {}}]}, True),
    ("change_agent", {"tools": [{"type": "web_search_20260209", "name": "a"}]}, True),
    ("change_agent", {"tools": [{"name": "a", "retrieval": {}}]}, True),
    ("change_agent", {"tools": [{"type": "web_find", "name": "a"}]}, False),
    ("change_agent", {"tools": [tool(), tool()]}, False),
    ("change_agent", {"sections": [{"name": "a", "content": ""}] * 2}, False),
    ("change_agent", {"policy": {"tool_deferral_threshold": 0.0}}, False),
    ("change_agent", {"policy": {"agent_tools": ["none_of_ours"]}}, False),
    ("change_agent", {"policy": {"agent_tools": ["recall"]}}, True),
    ("set_model", {"context_window": 9_000, "exact": None}, True),
    ("needs_compression", {"messages": MESSAGES, "context_window": 1}, True),
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
