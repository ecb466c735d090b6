"""Floor B: bare FastAPI over asyncpg, as an expert would write it by hand."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import asyncpg
import orjson
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel

from benchmarks.floors import APPEND, APPEND_BATCH, CONNECTION, DATABASE, WINDOW

URL_VARIABLE = "FLOOR_DATABASE_URL"


class Append(BaseModel):
    """Messages with the token counts that their sender made."""

    messages: list[dict[str, Any]]
    tokens: list[int]


async def _skip_reset(_connection: object) -> None:
    """Replace the pool's reset of a connection, which costs a round trip."""


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with asyncpg.create_pool(
        os.environ[URL_VARIABLE],
        database=DATABASE,
        min_size=1,
        max_size=10,
        reset=_skip_reset,
        server_settings=CONNECTION,
    ) as pool:
        app.state.pool = pool
        yield


app = FastAPI(lifespan=_lifespan)


@app.get("/readyz")
async def ready() -> Response:
    """Return 200 when the server is ready."""
    return Response()


@app.post("/conversations/{conversation_id}/messages")
async def append(conversation_id: UUID, body: Append, request: Request) -> Response:
    """Store messages and answer with the head."""
    bodies = [orjson.dumps(message).decode() for message in body.messages]
    if len(bodies) == 1:
        arguments: tuple[Any, ...] = (APPEND, conversation_id, body.tokens[0], bodies[0])
    else:
        arguments = (APPEND_BATCH, conversation_id, body.tokens, bodies, sum(body.tokens))
    async with request.app.state.pool.acquire() as connection:
        head = await connection.fetchval(*arguments)
    return Response(b'{"head_seq":%d}' % head, media_type="application/json")


@app.get("/conversations/{conversation_id}/context")
async def context(conversation_id: UUID, tokens: int, request: Request) -> Response:
    """Answer with the newest messages that fit, as one JSON array."""
    async with request.app.state.pool.acquire() as connection:
        rows = await connection.fetch(WINDOW, conversation_id, tokens)
    joined = ",".join([row[0] for row in rows])
    return Response(f"[{joined}]".encode(), media_type="application/json")
