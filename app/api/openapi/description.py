"""What the published API manual says beside its operations.

1. Linters are strict with it and clients are made from it: `docs/clients.md` names both.
2. Whatever is under `/v1` asks for a key, and so can answer `401`, `403` and `429`. What is for
   watchers does not; their metrics may have a token of their own.
3. What is the same for many operations is a component, which they refer to.
4. Whatever is under `/v1` refuses parameters that it does not have, and coded bodies where it takes
   one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from app.api.conversations.event_schemas import StreamedEvent
from app.api.http.bodies import EncodedBody, UnknownParameter
from app.api.http.errors import ProblemAnswer, problems_of
from app.api.http.fields import TOOL_FUNCTION, Answered, Asked
from app.api.openapi.links import add_links
from app.domain.common.errors import Forbidden, RateLimited, Unauthenticated

ABOUT = """\
Owns an LLM agent's context window: append every message to a conversation, and before each model
call ask for the exact payload to send. It is always valid for the provider and inside the token
budget, and nothing is ever lost.

- Bodies and answers are JSON (`Content-Type: application/json`), at most 32 MiB unless configured
  otherwise, not compressed, nested at most 100 levels deep. A body that is no JSON is a `400`, one
  that says something impossible a `422`, both with the code `VALIDATION_ERROR`.
- Whole numbers are written without a decimal point: `1.0` is refused.
- Unknown fields and parameters are refused, except inside messages, content parts and tool
  definitions.
- Errors are `application/problem+json`. Programs look at `code`; `errors[]` names the places.
- Lists take `limit` and `cursor`, and answer `{data, next_cursor}`.
- An `Idempotency-Key` makes it safe to send an append or a creation again.
- Every answer has an `X-Request-Id`: yours, if you sent one, or a new one. It is in the logs too.
- Where API keys exist, each request names one: `Authorization: Bearer ctx_…`. What belongs to
  another tenant is a `404`.
"""

SCHEME = "bearer"
WATCHER = "metrics"
_SCHEMES = {
    SCHEME: {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key, `ctx_…`, made by `context-service keys create`. A service"
        " without keys asks for none.",
    },
    WATCHER: {
        "type": "http",
        "scheme": "bearer",
        "description": "The token that reads `/metrics`, where the settings have one.",
    },
}
_ABOUT_IT = {
    "license": {"name": "Apache License 2.0", "identifier": "Apache-2.0"},
    "contact": {"name": "The maintainers of Context Service"},
}
_SERVERS = [{"url": "/", "description": "The service that publishes this description."}]

_REFUSED = {
    name: problems_of(kind)
    for name, kind in (
        ("Unauthenticated", Unauthenticated),
        ("Forbidden", Forbidden),
        ("RateLimited", RateLimited),
    )
}
"""What the guard answers before an operation begins, by the name of its component (rule 2)."""

_UNREAD = {kind.__name__: problems_of(kind) for kind in (UnknownParameter, EncodedBody)}
"""What an operation refuses before it reads a request, likewise (rule 4)."""

_NO_HTTP = {
    "description": "What came is no valid HTTP; the only thing that is refused here.",
    "content": {
        "text/plain": {
            "schema": {"type": "string"},
            "example": "Invalid HTTP request received.",
        }
    },
}
_LOCATION = {"description": "Path of what was made.", "schema": {"type": "string"}}

TAGS = [
    {"name": "messages", "description": "The log of a conversation: append-only, never rewritten."},
    {"name": "context", "description": "Payloads, budgets and events of a conversation."},
    {"name": "blobs", "description": "Full tool outputs: read by line, byte and pattern."},
    {"name": "tools", "description": "The tools an agent reads them with."},
    {"name": "compactions", "description": "Compacting now, receipts, undo, and jobs to poll."},
    {"name": "conversations", "description": "Conversations and their settings."},
    {"name": "agents", "description": "Settings that several conversations share."},
    {"name": "snapshots", "description": "Windows as they were: saved, read, restored."},
    {"name": "stateless", "description": "The same on messages that are sent along."},
    {"name": "models", "description": "Models, strategies and token counts."},
    {"name": "health", "description": "For whoever watches the process."},
]


def describe(app: FastAPI) -> None:
    """Complete the description FastAPI makes by what it cannot know of our errors."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _complete(made())
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to extend it


def _complete(document: dict[str, Any]) -> None:
    components = document["components"]
    schemas = components["schemas"]
    _, made = models_json_schema(
        [(ProblemAnswer, "serialization"), (StreamedEvent, "serialization")],
        ref_template="#/components/schemas/{model}",
    )
    schemas.update(made["$defs"])
    schemas["ToolFunction"] = TOOL_FUNCTION
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    _restore_examples(schemas)
    for path, operations in document["paths"].items():
        for operation in operations.values():
            _drop_fastapi_errors(operation["responses"])
            _name_successes(operation["responses"], schemas)
            _add_refusals(operation, asks_for_key=path.startswith("/v1/"))
    add_links(document["paths"])
    components["schemas"] = dict(sorted(schemas.items()))
    components["responses"] = {
        name: response
        for name, found in (_REFUSED | _UNREAD).items()
        for response in found.values()
    }
    components["securitySchemes"] = _SCHEMES
    document["info"] |= _ABOUT_IT
    document["servers"] = _SERVERS
    document["security"] = [{SCHEME: []}]


def _restore_examples(schemas: dict[str, Any]) -> None:
    """FastAPI drops every null of the document, and so the fields of examples that are null."""
    for model in (*_below(Asked), *_below(Answered)):
        extra = model.model_config.get("json_schema_extra")
        if model.__name__ in schemas and isinstance(extra, dict) and "examples" in extra:
            schemas[model.__name__]["examples"] = extra["examples"]


def _below(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for child in model.__subclasses__():
        yield child
        yield from _below(child)


def _add_refusals(operation: dict[str, Any], *, asks_for_key: bool) -> None:
    """Add what is refused before the operation begins; those that need no key say so."""
    responses = operation["responses"]
    if asks_for_key:
        refused = dict(_REFUSED)
        if "422" not in responses:
            refused[UnknownParameter.__name__] = _UNREAD[UnknownParameter.__name__]
        if "requestBody" in operation:
            refused[EncodedBody.__name__] = _UNREAD[EncodedBody.__name__]
        for name, found in refused.items():
            responses |= {
                str(status): {"$ref": f"#/components/responses/{name}"} for status in found
            }
    else:
        operation["security"] = [{}, {WATCHER: []}] if "401" in responses else []
        if not any(status.startswith("4") for status in responses):
            responses["400"] = _NO_HTTP
    operation["responses"] = dict(sorted(responses.items()))


def _drop_fastapi_errors(responses: dict[str, Any]) -> None:
    """FastAPI adds its own 422 to every operation with a parameter; ours never have that shape."""
    content = responses.get("422", {}).get("content", {})
    found = content.get("application/json", {}).get("schema", {}).get("$ref", "")
    if found.endswith("/HTTPValidationError"):
        del content["application/json"]
        if not content:
            del responses["422"]


def _name_successes(responses: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Describe an answer by its schema instead of the words FastAPI has for all."""
    for status in ("200", "201"):
        content = responses.get(status, {}).get("content", {}).get("application/json", {})
        name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
        if name in schemas:
            responses[status]["description"] = schemas[name]["description"].partition("\n")[0]
    for status in ("201", "202"):
        if status in responses:
            responses[status]["headers"] = {"Location": _LOCATION}
