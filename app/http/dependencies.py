"""What routes depend on: the services, the caller, and the ids in paths.

Callers know public ids of conversations, services know keys (`app.common.ids`).

1. Before an endpoint runs, its route replaces the public id in the path by the key. An endpoint
   needs the public id only for its answer, from `public_id_of`.
2. If the likeliest key is not found, the conversation may have another one, because another tenant
   has this UUID: then the endpoint runs again with that key. So only a `404` costs a lookup, and it
   is the same whether another tenant has the id or no tenant has it.
3. Errors name the public id.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import quote

from fastapi import Header, Path, Query, Request
from pydantic import AfterValidator

from app.common.errors import ContextError, NotFound
from app.common.ids import MAX_CHARS, PATTERN, keys_of, public_id_from
from app.common.pages import Bound
from app.common.schema_errors import IDEMPOTENCY_KEY_PATTERN, MAX_IDEMPOTENCY_KEY_CHARS
from app.common.texts import is_sendable
from app.http.fields import AGENT_ID
from app.tenancy.api_keys import Caller

if TYPE_CHECKING:  # which imports the features
    from app.composition import Services

_MAX_NAME = 256
_PARAMETER = "conversation_id"
_UNRESERVED = re.compile(r"[A-Za-z0-9_.~-]+")
"""An id that is its own percent-encoding, as all UUIDs are."""
_Answer = TypeVar("_Answer")

ConversationPath = Annotated[
    str,
    Path(
        description="Id of the conversation, percent-encoded.",
        examples=["0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b", "customer-42:ticket-7"],
        json_schema_extra={"pattern": PATTERN, "minLength": 1, "maxLength": MAX_CHARS},
    ),
]


def _agent_id(text: str) -> str:
    if len(text) > _MAX_NAME or not AGENT_ID.fullmatch(text):
        raise NotFound.agent(text)
    return text


AgentPath = Annotated[
    str,
    Path(description="Id of the agent.", examples=["support-bot"]),
    AfterValidator(_agent_id),  # what is no id is unknown
]
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


def model_from(text: str) -> str:
    """Return the model of a path; raises NotFound for text that is not a model name."""
    if not 0 < len(text) <= _MAX_NAME or not is_sendable(text) or not text.isprintable():
        raise NotFound(f"The model {text!r} is unknown", {"model": text})
    return text


async def with_key(request: Request, handle: Callable[[Request], Awaitable[_Answer]]) -> _Answer:
    """Handle a request with the key of the conversation in its path, if it has one (rule 1)."""
    named = request.path_params.get(_PARAMETER)
    if named is None:
        return await handle(request)

    async def handle_with(key: str) -> _Answer:
        request.path_params[_PARAMETER] = key
        return await handle(request)

    return await call_with_key(request, named, handle_with)


async def call_with_key(
    request: Request, named: str, call: Callable[[str], Awaitable[_Answer]]
) -> _Answer:
    """Call a function with the key of the conversation that a caller named (rules 2 and 3).

    Raises NotFound for what is no id, and what the function raises.
    """
    public_id = public_id_from(named)
    if public_id is None:
        raise NotFound.conversation(named)
    request.scope["public_id"] = public_id
    tenant_id = tenant_of(request)
    key = keys_of(tenant_id, public_id)[0]
    try:
        while True:
            try:
                return await call(key)
            except NotFound as error:
                if error.facts.get(_PARAMETER) != key:
                    raise
                keys = services(request).conversation_keys
                other = await keys.find_other(tenant_id, public_id, key)
                if other is None:
                    raise
                key = other
    except ContextError as error:

        def shown(value: Any) -> Any:
            return value.replace(key, public_id) if isinstance(value, str) else value

        error.detail = shown(error.detail)
        error.facts = {name: shown(value) for name, value in error.facts.items()}
        error.problems = tuple(
            replace(problem, detail=shown(problem.detail)) for problem in error.problems
        )
        raise


def public_id_of(request: Request) -> str:
    """Return the public id of the conversation in the path."""
    public_id: str = request.scope["public_id"]
    return public_id


def path_of(public_id: str) -> str:
    """Return the path of a conversation, its id percent-encoded."""
    is_encoded = _UNRESERVED.fullmatch(public_id) is not None
    return f"/v1/conversations/{public_id if is_encoded else quote(public_id, safe='')}"
