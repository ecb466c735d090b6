"""`/v1/caller`: what the key of a request may do."""

from __future__ import annotations

from fastapi import APIRouter, Request

from app.http.dependencies import caller_of
from app.http.routing import WireRoute
from app.tenancy.api_keys import Caller

router = APIRouter(route_class=WireRoute, tags=["health"])


@router.get("/v1/caller", summary="Read about the key")
async def get_caller(request: Request) -> Caller:
    """Return the tenant of the request's key, and whether it may only read."""
    return caller_of(request)
