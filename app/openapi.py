"""The parts of openapi.json that FastAPI does not generate.

1. openapi.json passes strict linters and generates clients; see `docs/clients.md`.
2. Operations under `/v1` require a key and may return `401`, `403` and `429`. Health and metrics do
   not; metrics may have a token of their own.
3. Responses of many operations are components.
4. Operations under `/v1` refuse unknown parameters, and bodies with a content coding.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from app.common.answer_schemas import ANSWERS
from app.common.errors import Forbidden, RateLimited, Unauthenticated
from app.conversations.event_routes import StreamedEvent
from app.conversations.listing import METADATA_FILTER
from app.http.bodies import EncodedBody, UnknownParameter
from app.http.errors import ProblemAnswer, error_answers
from app.http.fields import RequestSchema, ResponseSchema

DESCRIPTION = """\
Owns an LLM agent's context window: append every message to a conversation, and before each model
call ask for the exact payload to send. It is always valid for the provider and inside the token
budget, and nothing is ever lost.

- Bodies and answers are JSON (`Content-Type: application/json`), at most 32 MiB unless configured
  otherwise, not compressed, nested at most 100 levels deep. A body that is not JSON is a `400`, one
  with invalid values a `422`, both with the code `VALIDATION_ERROR`.
- Integers in bodies are written without a decimal point: `1.0` is refused.
- Unknown fields and parameters are refused, except inside messages, content parts and tool
  definitions.
- Errors are `application/problem+json` with a stable `code`; `errors[]` names the places.
- Lists accept `limit` and `cursor`, and return `{data, next_cursor}`.
- An `Idempotency-Key` makes appends safe to retry, an id of your own creations.
- Responses have an `X-Request-Id`: the one of the request, or a new one. Logs have it too. Only
  invalid HTTP and a `503` beyond the maximum of connections have neither this nor a `code`.
- If API keys exist, each request needs one: `Authorization: Bearer ctx_…`. Resources of another
  tenant are a `404`.
"""

API_KEY_SCHEME = "bearer"
METRICS_SCHEME = "metrics"
_SCHEMES = {
    API_KEY_SCHEME: {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key, `ctx_…`, created by `context-service keys create`. A service"
        " without keys requires none.",
    },
    METRICS_SCHEME: {
        "type": "http",
        "scheme": "bearer",
        "description": "The token for `/metrics`, if the settings have one.",
    },
}
_INFO = {
    "license": {"name": "Apache License 2.0", "identifier": "Apache-2.0"},
    "contact": {"name": "The maintainers of Context Service"},
}
_SERVERS = [{"url": "/", "description": "The service that publishes this description."}]

_AUTHENTICATION_REFUSALS = {
    name: error_answers(kind)
    for name, kind in (
        ("Unauthenticated", Unauthenticated),
        ("Forbidden", Forbidden),
        ("RateLimited", RateLimited),
    )
}
"""The error responses of the authentication middleware, by component (rule 2)."""

_UNREAD_REFUSALS = {kind.__name__: error_answers(kind) for kind in (UnknownParameter, EncodedBody)}
"""The errors of requests that are refused before their body is read, by component (rule 4)."""

_INVALID_HTTP = {
    "description": "The request is not valid HTTP.",
    "content": {
        "text/plain": {"schema": {"type": "string"}, "example": "Invalid HTTP request received."}
    },
}
_LOCATION = {"description": "Path of the created resource.", "schema": {"type": "string"}}

TAGS = [
    {"name": "messages", "description": "The append-only log; `redact` alone removes content."},
    {"name": "context", "description": "Payloads and budgets; `overflow` cuts what was refused."},
    {"name": "blobs", "description": "Full tool outputs; collecting deletes those not in use."},
    {"name": "tools", "description": "The tools that an agent reads outputs with."},
    {"name": "compactions", "description": "`compact` shows a summary instead; receipts and undo."},
    {"name": "conversations", "description": "Settings of one; `clear` begins an empty window."},
    {"name": "agents", "description": "Settings that several conversations share."},
    {"name": "snapshots", "description": "Saved active windows: read, export, restore."},
    {"name": "stateless", "description": "Builds and `compress` of messages in the request."},
    {"name": "models", "description": "Models, strategies and token counts."},
    {"name": "usage", "description": "Usage and cost by day and model."},
    {"name": "health", "description": "Health and metrics of the process."},
]


def describe(app: FastAPI) -> None:
    """Complete the OpenAPI document of an app."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _complete(generate())
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented extension


def _complete(document: dict[str, Any]) -> None:
    components = document["components"]
    schemas = components["schemas"]
    _, definitions = models_json_schema(
        [(ProblemAnswer, "serialization"), (StreamedEvent, "serialization")],
        ref_template="#/components/schemas/{model}",
    )
    schemas.update(definitions["$defs"])
    schemas["MetadataFilter"] = METADATA_FILTER
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    _complete_schemas(schemas)
    for path, operations in document["paths"].items():
        for operation in operations.values():
            _drop_fastapi_errors(operation["responses"])
            _name_successes(operation["responses"], schemas)
            _add_refusals(operation, needs_key=path.startswith("/v1/"))
    _name_items_of_pairs(schemas)
    components["schemas"] = dict(sorted(schemas.items()))
    components["responses"] = {
        name: response
        for name, responses in (_AUTHENTICATION_REFUSALS | _UNREAD_REFUSALS).items()
        for response in responses.values()
    }
    components["securitySchemes"] = _SCHEMES
    document["info"] |= _INFO
    document["servers"] = _SERVERS
    document["security"] = [{API_KEY_SCHEME: []}]


def _complete_schemas(schemas: dict[str, Any]) -> None:
    """Add the descriptions of fields, and examples: FastAPI drops all nulls of the document."""
    schemas["AnyObject"]["description"] = "An object with fields of any kind."
    schemas["Sources"]["description"] = "The source of each number, by field."
    documented = cache(_docs_by_class)
    for model in (*_subclasses_of(RequestSchema), *_subclasses_of(ResponseSchema), *ANSWERS):
        if (schema := schemas.get(model.__name__)) is None:
            continue
        if examples := _examples_of(model):
            schema["examples"] = examples
        if model in ANSWERS:
            for field in schema["properties"].values():
                field.pop("default", None)
        for kind in reversed(model.__mro__):
            for name, text in documented(kind.__module__).get(kind.__name__, {}).items():
                if field := schema.get("properties", {}).get(name.rstrip("_")):
                    field["description"] = text


def _name_items_of_pairs(node: Any) -> None:
    """Describe pairs by one type of items: few generators of clients know `prefixItems`."""
    if isinstance(node, dict):
        if "prefixItems" in node:
            node["items"], *others = node.pop("prefixItems")
            assert all(other == node["items"] for other in others)
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            _name_items_of_pairs(child)


def _examples_of(model: type) -> list[Any]:
    config = getattr(model, "model_config", None) or vars(model).get("__pydantic_config__", {})
    examples: list[Any] = config.get("json_schema_extra", {}).get("examples", [])
    return examples


def _docs_by_class(module: str) -> dict[str, dict[str, str]]:
    """Return the docstrings below the fields of the classes of a module of the service."""
    if not module.startswith("app."):
        return {}
    classes = ast.parse(inspect.getsource(sys.modules[module])).body
    return {
        each.name: {
            field.target.id: " ".join(below.value.value.split())
            for field, below in pairwise(each.body)
            if isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        }
        for each in classes
        if isinstance(each, ast.ClassDef)
    }


def _subclasses_of(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for child in model.__subclasses__():
        yield child
        yield from _subclasses_of(child)


def _add_refusals(operation: dict[str, Any], *, needs_key: bool) -> None:
    """Add refusals before the operation; mark operations without a key."""
    responses = operation["responses"]
    if needs_key:
        refused = dict(_AUTHENTICATION_REFUSALS)
        if "422" not in responses:
            refused[UnknownParameter.__name__] = _UNREAD_REFUSALS[UnknownParameter.__name__]
        if "requestBody" in operation:
            refused[EncodedBody.__name__] = _UNREAD_REFUSALS[EncodedBody.__name__]
        for name, statuses in refused.items():
            responses |= {
                str(status): {"$ref": f"#/components/responses/{name}"} for status in statuses
            }
    else:
        operation["security"] = [{}, {METRICS_SCHEME: []}] if "401" in responses else []
        if not any(status.startswith("4") for status in responses):
            responses["400"] = _INVALID_HTTP
    operation["responses"] = dict(sorted(responses.items()))


def _drop_fastapi_errors(responses: dict[str, Any]) -> None:
    """Drop the 422 that FastAPI adds to every operation with a parameter."""
    content = responses.get("422", {}).get("content", {})
    reference = content.get("application/json", {}).get("schema", {}).get("$ref", "")
    if reference.endswith("/HTTPValidationError"):
        del content["application/json"]
        if not content:
            del responses["422"]


def _name_successes(responses: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Describe responses by their schema, not by FastAPI's default text."""
    for status in ("200", "201"):
        content = responses.get(status, {}).get("content", {}).get("application/json", {})
        name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
        if name in schemas:
            responses[status]["description"] = schemas[name]["description"].partition("\n")[0]
    for status in ("201", "202"):
        if status in responses:
            responses[status]["headers"] = {"Location": _LOCATION}
