"""Events on the wire."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Header, Query
from pydantic import BaseModel, ConfigDict, Field

from app.domain.conversations.events import CURSOR_PATTERN, EventType
from app.domain.conversations.tenant_events import TENANT_CURSOR_PATTERN, TENANT_EVENT_TYPES

_ID = "0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b"


class StreamedEvent(BaseModel):
    """The data of one event; further fields depend on its type."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {
                    "type": "appended",
                    "conversation_id": _ID,
                    "created_at": "2026-01-05T09:30:00.123456+00:00",
                    "first_seq": 11,
                    "last_seq": 12,
                    "messages": 2,
                    "head_seq": 12,
                }
            ]
        },
    )

    type: EventType = Field(description="The type; equal to the `event` field.")
    conversation_id: str = Field(description="The conversation of the event.")
    created_at: datetime = Field(description="Time of the event.")


def _last_event_id(pattern: str, example: str) -> Any:
    return Header(
        alias="Last-Event-ID",
        pattern=pattern,
        description="Id of the last event received; browsers send it when they reconnect.",
        examples=[example],
    )


def _first_event_id(pattern: str, start: str) -> Any:
    return Query(
        alias="last_event_id",
        pattern=pattern,
        description="The same for clients that cannot set headers; the header has precedence."
        f" `{start}` is the start.",
        examples=[start],
    )


LastEventId = Annotated[str | None, _last_event_id(CURSOR_PATTERN, "12.3")]
FirstEventId = Annotated[str | None, _first_event_id(CURSOR_PATTERN, "0.0")]
Follow = Annotated[
    bool, Query(description="`false`: end with the newest event instead of waiting for more.")
]

_EXAMPLE = f"""\
id: 10.3
event: ready
data: {{"type":"ready","conversation_id":"{_ID}","created_at":"2026-01-05T09:29:58.004512+00:00"}}

id: 12.3
event: appended
data: {{"type":"appended","conversation_id":"{_ID}",\
"created_at":"2026-01-05T09:30:00.123456+00:00",\
"first_seq":11,"last_seq":12,"messages":2,"head_seq":12}}

"""


def _stream_of(event: type[BaseModel], example: str) -> dict[str, Any]:
    """Return a response: OpenAPI 3.1 describes a stream as text whose content has a schema."""
    return {
        "description": "The events.",
        "content": {
            "text/event-stream": {
                "schema": {
                    "type": "string",
                    "contentMediaType": "text/event-stream",
                    "contentSchema": {
                        "description": "The `data` of the events, each a JSON object.",
                        "type": "array",
                        "items": {"$ref": f"#/components/schemas/{event.__name__}"},
                    },
                },
                "example": example,
            }
        },
    }


STREAM = _stream_of(StreamedEvent, _EXAMPLE)


class TenantEvent(BaseModel):
    """The data of one event of a tenant; further fields depend on its type."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {
                    "type": "created",
                    "conversation_id": _ID,
                    "agent_id": "support-bot",
                    "created_at": "2026-01-05T09:30:00.123456+00:00",
                }
            ]
        },
    )

    type: EventType = Field(description="The type; equal to the `event` field.")
    conversation_id: str | None = Field(
        description="The conversation of the event; null for `ready`."
    )
    agent_id: str | None = Field(
        description="The agent of the conversation at that time; null without one."
    )
    created_at: datetime = Field(description="Time of the event.")


LastTenantEventId = Annotated[str | None, _last_event_id(TENANT_CURSOR_PATTERN, "0.0.0")]
FirstTenantEventId = Annotated[str | None, _first_event_id(TENANT_CURSOR_PATTERN, "0.0.0")]
EventTypes = Annotated[
    list[Literal[TENANT_EVENT_TYPES]] | None,  # type: ignore[valid-type]
    Query(
        max_length=len(TENANT_EVENT_TYPES),
        description="Only events of these types; repeat the parameter for several.",
        examples=[["compacted", "failed"]],
    ),
]
_TENANT_EXAMPLE = f"""\
id: 7590000000000000001.81233.40
event: ready
data: {{"type":"ready","conversation_id":null,"agent_id":null,\
"created_at":"2026-01-05T09:29:58.004512+00:00"}}

id: 7590000000000000001.81240.41
event: created
data: {{"type":"created","conversation_id":"{_ID}","agent_id":"support-bot",\
"created_at":"2026-01-05T09:30:00.123456+00:00"}}

"""
TENANT_STREAM = _stream_of(TenantEvent, _TENANT_EXAMPLE)
