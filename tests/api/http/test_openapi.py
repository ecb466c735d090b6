"""The published description: equal to the app, and complete for every operation.

[api.documented]
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from app.main import ROUTERS, create_app
from app.settings import Settings
from tests.answers import DOCUMENT, PUBLISHED
from tests.api.http.openapi_document import OPERATIONS, found, schema_of

WITHOUT_DATABASE = {
    "/",
    "/healthz",
    "/metrics",
    "/v1/strategies",
    "/v1/tokens/count",
    "/v1/tool-definitions",
    "/v1/context/needs-compression",
}
BY_THE_SERVER = {("400", "/"), ("400", "/healthz"), ("400", "/readyz")}
"""Where the answer to what is no HTTP is the only refusal, which the HTTP server gives."""
NAMES = [operation["operationId"] for _, _, operation in OPERATIONS]


OF_TENANTS = [operation for operation in OPERATIONS if operation[1].startswith("/v1/")]


def test_the_file_equals_the_app() -> None:
    """openapi/openapi.json equals the document of the app; `make openapi` writes it."""
    document = create_app(Settings()).openapi()
    assert PUBLISHED.read_text(encoding="utf-8") == json.dumps(document, indent=2) + "\n"


def test_every_route_is_published() -> None:
    """No route stays out of the description, and no operation id occurs twice; they are few."""
    routes = [route for router in ROUTERS for route in router.routes]
    ids = [operation["operationId"] for _, _, operation in OPERATIONS]
    assert len(ids) == len(set(ids)) == len(routes) <= 75
    assert all(name.isidentifier() and len(name) <= 32 for name in ids)


@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS, ids=NAMES)
def test_every_operation_is_documented(method: str, path: str, operation: dict[str, Any]) -> None:
    """Summary, description, tag, examples of the body, and every error it can end in."""
    assert operation["summary"] and operation["description"] and operation["tags"]
    success = next(answer for status, answer in operation["responses"].items() if status < "300")
    assert success["description"] != "Successful Response"
    statuses = set(operation["responses"])
    if "requestBody" in operation:
        assert schema_of(operation["requestBody"])["examples"]
        is_json = "application/json" in operation["requestBody"]["content"]
        assert ({"400", "413", "422"} if is_json else {"413", "422"}) <= statuses
    if "{" in path:
        assert "404" in statuses
    if path not in WITHOUT_DATABASE:
        assert "503" in statuses
    for parameter in operation.get("parameters", []):
        assert parameter["description"]
    for status, answer in operation["responses"].items():
        if status >= "400" and (status, path) not in BY_THE_SERVER:
            content = found(answer)["content"]
            assert list(content) == ["application/problem+json"]


@pytest.mark.parametrize("operation", [operation for _, _, operation in OF_TENANTS])
def test_every_tenant_operation_requires_a_key(operation: dict[str, Any]) -> None:
    """What is under /v1 needs a key, and can answer 401 and 429."""
    assert "security" not in operation, "that of the whole document counts"
    refused, limited = (found(operation["responses"][status]) for status in ("401", "429"))
    assert (refused["description"], limited["description"]) == (
        "`UNAUTHENTICATED`",
        "`RATE_LIMITED`",
    )


@pytest.mark.parametrize("operation", [operation for _, _, operation in OF_TENANTS])
def test_every_operation_documents_its_refusals(operation: dict[str, Any]) -> None:
    """Unknown parameters are a declared 422, and coded bodies 415 where there is a body."""
    assert "422" in operation["responses"]
    assert ("415" in operation["responses"]) is ("requestBody" in operation)


@pytest.mark.parametrize("name", sorted(DOCUMENT["components"]["schemas"]))
def test_examples_are_valid(name: str) -> None:
    """Each example is valid by its schema, with its nulls."""
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    validator = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
    for example in DOCUMENT["components"]["schemas"][name].get("examples", []):
        validator.validate(example)


def unnamed(node: Any, place: str) -> Iterator[str]:
    """Yield the places of objects in a schema that have no schema of their own."""
    if isinstance(node, list):
        for index, item in enumerate(node):
            yield from unnamed(item, f"{place}/{index}")
    elif isinstance(node, dict):
        if node.get("type") == "object":
            yield place
        for key, item in node.items():
            if key not in {"examples", "example", "default"}:
                yield from unnamed(item, f"{place}/{key}")


def test_fields_of_a_patch_have_no_defaults() -> None:
    """No field of a change has a default, which a client might send. [api.unknown-fields]"""
    for name in ("AgentPatch", "ConversationPatch"):
        for field in DOCUMENT["components"]["schemas"][name]["properties"].values():
            assert "default" not in field
