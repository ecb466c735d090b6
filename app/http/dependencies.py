"""Dependencies of the routers: the services, the caller, and ids of paths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import Header, Path, Query, Request

from app.common.errors import NotFound
from app.common.ids import MAX_CHARS, PATTERN
from app.common.pages import Bound
from app.common.schema_errors import IDEMPOTENCY_KEY_PATTERN, MAX_IDEMPOTENCY_KEY_CHARS
from app.common.texts import is_sendable
from app.http.fields import AGENT_ID
from app.tenancy.api_keys import Caller

if TYPE_CHECKING:  # which imports the features
    from app.composition import Services

_MAX_NAME = 256


def caller_of(request: Request) -> Caller:
    """Return the caller that `app.http.authentication` has authenticated."""
    caller: Caller = request.scope["caller"]
    return caller


def tenant_of(request: Request) -> str:
    """Return the tenant of the request's API key."""
    return caller_of(request).tenant_id


def by_caller(request: Request, **data: object) -> dict[str, object]:
    """Return the data of a log line of the audit: who has sent the request, and what was done."""
    caller = caller_of(request)
    return {"tenant_id": caller.tenant_id, "key_id": caller.key_id, **data}


def page_bound(request: Request) -> Bound:
    """Return the maximum bytes of a page."""
    return Bound(request.app.state.page_bytes)


def services(request: Request) -> Services:
    """Return the services of the app."""
    app_services: Services = request.app.state.services
    return app_services


ConversationPath = Annotated[
    str,
    Path(
        description="Id of the conversation, percent-encoded.",
        examples=["0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b", "customer-42:ticket-7"],
        json_schema_extra={"pattern": PATTERN, "minLength": 1, "maxLength": MAX_CHARS},
    ),
]
AgentPath = Annotated[str, Path(description="Id of the agent.", examples=["support-bot"])]
ModelPath = Annotated[
    str, Path(description="Name of the model; slashes need no escape.", examples=["gpt-4o"])
]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=IDEMPOTENCY_KEY_PATTERN,
        max_length=MAX_IDEMPOTENCY_KEY_CHARS,
        description="A repeated key with the same body returns the first response, for 24 h.",
        examples=["0d2f7c1e"],
    ),
]
Limit = Annotated[int, Query(ge=1, le=1000, description="Maximum number of items on a page.")]
Cursor = Annotated[
    str | None,
    Query(max_length=1024, description="`next_cursor` of the previous page."),
]


def agent_id_from(text: str) -> str:
    """Return the agent id of a path; raises NotFound for text that is not an agent id."""
    if len(text) > _MAX_NAME or not AGENT_ID.fullmatch(text):
        raise NotFound.agent(text)
    return text


def model_from(text: str) -> str:
    """Return the model of a path; raises NotFound for text that is not a model name."""
    if not 0 < len(text) <= _MAX_NAME or not is_sendable(text) or not text.isprintable():
        raise NotFound(f"The model {text!r} is unknown", {"model": text})
    return text
