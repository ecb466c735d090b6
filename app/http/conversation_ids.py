"""Ids of conversations in requests and responses: callers know public ids, services know keys.

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
from typing import Any, TypeVar
from urllib.parse import quote

from starlette.requests import Request

from app.common.errors import ContextError, NotFound
from app.common.ids import keys_of, public_id_from
from app.http.dependencies import services, tenant_of

_PARAMETER = "conversation_id"
_UNRESERVED = re.compile(r"[A-Za-z0-9_.~-]+")
"""An id that is its own percent-encoding, as all UUIDs are."""
_Answer = TypeVar("_Answer")


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
    keys = services(request).conversation_keys
    key = keys_of(tenant_id, public_id)[0]
    try:
        while True:
            try:
                return await call(key)
            except NotFound as error:
                if error.facts.get(_PARAMETER) != key:
                    raise
                other = await keys.find_other(tenant_id, public_id, key)
                if other is None:
                    raise
                key = other
    except ContextError as error:
        _show_public_id(error, key, public_id)
        raise


def _show_public_id(error: ContextError, key: str, public_id: str) -> None:
    """Name the public id in an error (rule 3)."""

    def shown(value: Any) -> Any:
        return value.replace(key, public_id) if isinstance(value, str) else value

    error.detail = shown(error.detail)
    error.facts = {name: shown(value) for name, value in error.facts.items()}
    error.problems = tuple(
        replace(problem, detail=shown(problem.detail)) for problem in error.problems
    )


def public_id_of(request: Request) -> str:
    """Return the public id of the conversation in the path."""
    public_id: str = request.scope["public_id"]
    return public_id


def path_of(public_id: str) -> str:
    """Return the path of a conversation, its id percent-encoded."""
    is_encoded = _UNRESERVED.fullmatch(public_id) is not None
    return f"/v1/conversations/{public_id if is_encoded else quote(public_id, safe='')}"
