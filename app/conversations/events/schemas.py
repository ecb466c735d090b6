"""Events on the wire."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import Header, Query
from pydantic import ConfigDict

from app.conversations.events.events import CURSOR_PATTERN, EventType
from app.http.fields import ResponseSchema

_ID = "0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b"


class StreamedEvent(ResponseSchema):
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

    type: EventType
    """The type; equal to the `event` field."""
    conversation_id: str
    """The conversation of the event."""
    created_at: datetime
    """Time of the event."""


LastEventId = Annotated[
    str | None,
    Header(
        alias="Last-Event-ID",
        pattern=CURSOR_PATTERN,
        description="Id of the last event received; browsers send it when they reconnect.",
        examples=["12.3"],
    ),
]
FirstEventId = Annotated[
    str | None,
    Query(
        alias="last_event_id",
        pattern=CURSOR_PATTERN,
        description="The same for clients that cannot set headers; the header has precedence."
        " `0.0` is the start.",
        examples=["0.0"],
    ),
]
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


# OpenAPI 3.1 describes a stream as text whose content has a schema.
STREAM: dict[str, Any] = {
    "description": "The events.",
    "content": {
        "text/event-stream": {
            "schema": {
                "type": "string",
                "contentMediaType": "text/event-stream",
                "contentSchema": {
                    "description": "The `data` of the events, each a JSON object.",
                    "type": "array",
                    "items": {"$ref": "#/components/schemas/StreamedEvent"},
                },
            },
            "example": _EXAMPLE,
        }
    },
}
