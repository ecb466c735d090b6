"""What the published API manual says beside its operations."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

from app.api.schemas.problems import ProblemAnswer

ABOUT = """\
Owns an LLM agent's context window: append every message to a conversation, and before each model
call ask for the exact payload to send. It is always valid for the provider and inside the token
budget, and nothing is ever lost.

- Bodies and answers are JSON (`Content-Type: application/json`), at most 32 MiB unless configured
  otherwise, nested at most 100 levels deep. A body that is no JSON is a `400`, one that says
  something impossible a `422`, both with the code `VALIDATION_ERROR`.
- Unknown fields are refused, except inside messages, content parts and tool definitions.
- Errors are `application/problem+json`. Programs look at `code`; `errors[]` names the places.
- Lists take `limit` and `cursor`, and answer `{data, next_cursor}`.
- An `Idempotency-Key` makes it safe to send an append or a creation again.
"""

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
    schemas = document["components"]["schemas"]
    _, made = models_json_schema(
        [(ProblemAnswer, "serialization")], ref_template="#/components/schemas/{model}"
    )
    schemas.update(made["$defs"])
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    for operations in document["paths"].values():
        for operation in operations.values():
            _drop_fastapi_errors(operation["responses"])
            _name_successes(operation["responses"], schemas)
    document["components"]["schemas"] = dict(sorted(schemas.items()))


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
