"""The filters of `GET /v1/conversations`, and cursors that belong to them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Depends, Query, Request
from pydantic import BeforeValidator

from app.common.errors import Problem, ValidationError
from app.common.pages import Place
from app.common.schema_errors import pointer_to
from app.common.texts import is_sendable
from app.conversations.listing_repository import (
    MAX_LABEL_KEY_CHARS,
    MAX_LABEL_VALUE_CHARS,
    MAX_LABELS,
    ConversationFilter,
    TimeRange,
)
from app.http import cursors
from app.http.fields import AgentId, ModelName
from app.http.fields import Time as FieldTime

METADATA_FILTER: dict[str, Any] = {
    "type": "object",
    "title": "MetadataFilter",
    "description": "Values of metadata by key: strings, or numbers and booleans as JSON writes"
    " them.",
    "maxProperties": MAX_LABELS,
    "propertyNames": {"minLength": 1, "maxLength": MAX_LABEL_KEY_CHARS, "pattern": "^[^\\[\\]]+$"},
    "additionalProperties": {"type": "string", "maxLength": MAX_LABEL_VALUE_CHARS},
    "examples": [{"customer": "42"}],
}
"""The schema of the metadata filter, a component of openapi.json."""
METADATA_PARAMETER: dict[str, Any] = {
    "parameters": [
        {
            "name": "metadata",
            "in": "query",
            "required": False,
            "style": "deepObject",
            "explode": True,
            "description": "Only conversations whose metadata has these values, such as"
            f" `metadata[customer]=42`: up to {MAX_LABELS}, all of which must match. Top-level"
            " strings, numbers and booleans can be filtered by.",
            "schema": {"$ref": "#/components/schemas/MetadataFilter"},
            "example": {"customer": "42"},
        }
    ]
}
"""What FastAPI cannot generate: a parameter for each key of an object."""

_METADATA = re.compile(r"metadata\[(.*)\]", re.DOTALL)

Time = Annotated[FieldTime, BeforeValidator(lambda text: str(text).replace(" ", "+"))]
"""A time whose offset may have an unescaped `+`, which is a space in a query."""
Include = Annotated[
    Literal["usage"] | None,
    Query(
        description="`usage` adds to each conversation the budget of its next build, its cost and"
        " its last compaction, in one answer instead of three requests for each."
    ),
]


def _conversation_filter(
    request: Request,
    agent_id: Annotated[AgentId | None, Query(description="Only this agent's.")] = None,
    model: Annotated[
        ModelName | None,
        Query(description="Only those with this model of their own, not an inherited one."),
    ] = None,
    created_after: Annotated[Time | None, Query(description="Only those created later.")] = None,
    created_before: Annotated[Time | None, Query(description="Only those created earlier.")] = None,
    active_after: Annotated[
        Time | None,
        Query(description="Only those appended to later; without messages, created later."),
    ] = None,
    active_before: Annotated[
        Time | None,
        Query(description="Only those not appended to since; without messages, created earlier."),
    ] = None,
) -> ConversationFilter:
    return ConversationFilter(
        labels=_labels(request),
        agent_id=agent_id,
        model=model,
        created=_range("created", created_after, created_before),
        active=_range("active", active_after, active_before),
    )


Filter = Annotated[ConversationFilter, Depends(_conversation_filter)]


def _range(name: str, after: datetime | None, before: datetime | None) -> TimeRange:
    if after is not None and before is not None and after >= before:
        detail = f"must be later than `{name}_after`"
        raise ValidationError.at(f"/query/{name}_before", detail)
    return TimeRange(after, before)


def _labels(request: Request) -> Mapping[str, str]:
    """Return the metadata filter of a request; raises ValidationError."""
    found: dict[str, str] = {}
    problems: list[Problem] = []
    for name, value in request.query_params.multi_items():
        match = _METADATA.fullmatch(name)
        if match is None:
            continue
        key = match[1]
        if detail := _problem_of(key, value, found):
            problems.append(Problem(pointer_to(("query", name)), detail))
        found[key] = value
        if len(found) > MAX_LABELS:
            raise ValidationError.at("/query/metadata", f"must have at most {MAX_LABELS} keys")
    if problems:
        raise ValidationError(problems[0].sentence, problems=tuple(problems))
    return found


def _problem_of(key: str, value: str, found: Mapping[str, str]) -> str | None:
    if not 1 <= len(key) <= MAX_LABEL_KEY_CHARS:
        return f"must have a key of 1 to {MAX_LABEL_KEY_CHARS} characters"
    if "[" in key or "]" in key:
        return "must have one key: only top-level values of metadata can be filtered by"
    if not is_sendable(key + value):
        return "must not have NUL or lone surrogates"
    if len(value) > MAX_LABEL_VALUE_CHARS:
        return f"must have at most {MAX_LABEL_VALUE_CHARS} characters"
    if key in found:
        return "must be given once"
    return None


def place_from(cursor: str, wanted: ConversationFilter) -> Place:
    """Return the place of a cursor; raises ValidationError for one of another list."""
    return cursors.decode_place(cursor, "conversations", _digest(wanted))


def cursor_at(place: Place, wanted: ConversationFilter) -> str:
    """Return the cursor that continues a list after a place."""
    at, conversation_id = place
    return cursors.encode("conversations", _digest(wanted), at.isoformat(), conversation_id)


def _digest(wanted: ConversationFilter) -> str:
    """Return a hash of filters, which a cursor belongs to."""
    times = (wanted.created.after, wanted.created.before, wanted.active.after, wanted.active.before)
    labels = sorted(wanted.labels.items())
    return cursors.digest_of(labels, wanted.agent_id, wanted.model, times)
