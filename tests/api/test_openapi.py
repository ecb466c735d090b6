"""The published description (M): equal to the app, and complete for every operation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from app.api.schemas.policies import ABOUT
from app.domain.policy import DEFAULTS, Policy
from app.main import ROUTERS, create_app
from app.settings import Settings

PUBLISHED = Path(__file__).resolve().parents[2] / "openapi" / "openapi.json"
DOCUMENT: dict[str, Any] = create_app(Settings()).openapi()
OPERATIONS: list[tuple[str, str, dict[str, Any]]] = [
    (method, path, operation)
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
]
WITHOUT_DATABASE = {
    "/healthz",
    "/v1/strategies",
    "/v1/tokens/count",
    "/v1/tool-definitions",
    "/v1/context/needs-compression",
}
NAMES = [operation["operationId"] for _, _, operation in OPERATIONS]


def schema_of(node: dict[str, Any]) -> dict[str, Any]:
    """Return the named schema that a body or an answer refers to."""
    (content,) = node["content"].values()
    if "itemSchema" in content:
        data: dict[str, Any] = content["itemSchema"]["properties"]["data"]["contentSchema"]
        return data
    schema: dict[str, Any] = content["schema"]
    if schema.get("format") == "binary":
        return {"examples": ["raw bytes"]}
    schema = next((item for item in schema.get("anyOf", []) if "$ref" in item), schema)
    named: dict[str, Any] = DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return named


def test_the_file_equals_the_app() -> None:
    """M: openapi/openapi.json is what the app says of itself; `make openapi` writes it."""
    assert PUBLISHED.read_text(encoding="utf-8") == json.dumps(DOCUMENT, indent=2) + "\n"


def test_every_route_is_published() -> None:
    """M: no route stays out of the description, and no operation id occurs twice."""
    routes = [route for router in ROUTERS for route in router.routes]
    ids = [operation["operationId"] for _, _, operation in OPERATIONS]
    assert len(ids) == len(set(ids)) == len(routes)
    assert all(name.isidentifier() and len(name) <= 32 for name in ids)


@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS, ids=NAMES)
def test_every_operation_is_documented(method: str, path: str, operation: dict[str, Any]) -> None:
    """M: summary, description, tag, examples of body and answer, and every error it can end in."""
    assert operation["summary"] and operation["description"] and operation["tags"]
    success = next(answer for status, answer in operation["responses"].items() if status < "300")
    assert schema_of(success)["examples"]
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
        if status >= "400":
            content = answer["content"]
            assert list(content) == ["application/problem+json"]
            for example in content["application/problem+json"]["examples"].values():
                assert example["value"]["status"] == int(status)


def answer_schemas() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the schemas that only answers use."""
    asked = json.dumps([operation.get("requestBody") for _, _, operation in OPERATIONS])
    schemas: dict[str, Any] = DOCUMENT["components"]["schemas"]
    seen: set[str] = set()
    names = {name for name in schemas if f'/{name}"' in asked}
    while names - seen:
        seen |= names
        text = json.dumps([schemas[name] for name in seen])
        names = {name for name in schemas if f'/{name}"' in text}
    yield from ((name, schema) for name, schema in schemas.items() if name not in seen)


def test_answers_have_no_defaults() -> None:
    """M: an answer has all its fields, so none has a default, and each says what it is."""
    found = dict(answer_schemas())
    assert len(found) > 20
    for name, schema in found.items():
        for field, node in schema.get("properties", {}).items():
            assert "default" not in node, (name, field)
            assert field in schema["required"], (name, field)
            assert node.get("description") or "$ref" in node, (name, field)


def paths_of(kind: Any, prefix: str = "") -> Iterator[str]:
    """Yield the path of every setting of a policy."""
    for entry in fields(kind):
        path = f"{prefix}{entry.name}"
        yield path
        hint = get_type_hints(kind)[entry.name]
        if is_dataclass(hint):
            yield from paths_of(hint, f"{path}.")


def test_every_policy_setting_is_described() -> None:
    """Decision 22: the description names each setting of the domain's policy, and no other."""
    assert set(ABOUT) == set(paths_of(Policy))
    shown = DOCUMENT["components"]["schemas"]["Policy"]["properties"]
    assert shown.keys() == DEFAULTS.keys()
