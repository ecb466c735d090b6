"""The published OpenAPI description, which equals the app's, and its operations."""

from __future__ import annotations

from typing import Any

from tests.answers import DOCUMENT

OPERATIONS: list[tuple[str, str, dict[str, Any]]] = [
    (method, path, operation)
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
]


def found(node: dict[str, Any]) -> dict[str, Any]:
    """Return what a reference refers to; anything else is itself."""
    while "$ref" in node:
        place: Any = DOCUMENT
        for step in node["$ref"].removeprefix("#/").split("/"):
            place = place[step]
        node = place
    return node


def schema_of(node: dict[str, Any]) -> dict[str, Any]:
    """Return the named schema that a body or an answer refers to."""
    (content,) = (node["content"][kind] for kind in node["content"] if kind != "text/html")
    schema: dict[str, Any] = content["schema"]
    if "contentSchema" in schema:
        schema = schema["contentSchema"]["items"]
    if schema.get("format") == "binary":
        return {"examples": ["raw bytes"]}
    if schema.get("type") == "string":
        return {"examples": [content["example"]]}
    return found(next((item for item in schema.get("anyOf", []) if "$ref" in item), schema))
