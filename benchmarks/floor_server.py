"""Floor B: bare FastAPI over asyncpg, as an expert would write it by hand."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import asyncpg
import orjson
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel

from benchmarks.floors import APPEND, APPEND_BATCH, CONNECTION, DATABASE, WINDOW, WINDOW_ROWS

URL_VARIABLE = "FLOOR_DATABASE_URL"


class Append(BaseModel):
    """Messages with the token counts that their sender made."""

    messages: list[dict[str, Any]]
    tokens: list[int]


class Step(BaseModel):
    """One message with its token count, and the window to answer with.

    With `known_seq` the answer has only the messages after it.
    """

    message: dict[str, Any]
    tokens: int
    window_tokens: int
    known_seq: int | None = None


class Window:
    """The newest messages of one conversation, each as JSON with its token count.

    An append returns the seq of its message: if that is the next after the window's last, no other
    process has written, and the window is current.
    """

    def __init__(self, rows: Iterable[tuple[int, int, bytes]]) -> None:
        """Take rows of seq, tokens and body, the oldest first."""
        self._tokens: deque[int] = deque()
        self._bodies: deque[bytes] = deque()
        self._total = 0
        self.last_seq = 0
        for seq, tokens, body in rows:
            self._add(seq, tokens, body)

    def append(self, seq: int, tokens: int, body: bytes) -> bool:
        """Add a message if it is the next one; return whether the window is current."""
        if seq != self.last_seq + 1:
            return False
        self._add(seq, tokens, body)
        return True

    def cut(self, tokens: int) -> None:
        """Remove the oldest messages until the others fit; the newest message always stays."""
        while self._total > tokens and len(self._tokens) > 1:
            self._total -= self._tokens.popleft()
            self._bodies.popleft()

    def after(self, seq: int) -> list[bytes] | None:
        """Return the messages after a seq, or None if the window begins after the next one."""
        count = self.last_seq - seq
        if not 0 <= count <= len(self._bodies):
            return None
        newest = [self._bodies[-place] for place in range(1, count + 1)]
        return newest[::-1]

    def all(self) -> Iterable[bytes]:
        """Return all messages, the oldest first."""
        return self._bodies

    def _add(self, seq: int, tokens: int, body: bytes) -> None:
        self.last_seq = seq
        self._total += tokens
        self._tokens.append(tokens)
        self._bodies.append(body)


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
        app.state.windows = {}
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


@app.post("/conversations/{conversation_id}/step")
async def step(conversation_id: UUID, body: Step, request: Request) -> Response:
    """Store a message and answer with the window, or with what is new in it.

    The window is read from the database only if the cached one is not current.
    """
    windows: dict[UUID, Window] = request.app.state.windows
    stored = orjson.dumps(body.message)
    async with request.app.state.pool.acquire() as connection:
        seq = await connection.fetchval(APPEND, conversation_id, body.tokens, stored.decode())
        window = windows.get(conversation_id)
        if window is None or not window.append(seq, body.tokens, stored):
            rows = await connection.fetch(WINDOW_ROWS, conversation_id, body.window_tokens)
            window = Window((row[0], row[1], row[2].encode()) for row in rows)
            windows[conversation_id] = window
    window.cut(body.window_tokens)
    new = None if body.known_seq is None else window.after(body.known_seq)
    kind = b"false" if new is None else b"true"
    joined = b",".join(window.all() if new is None else new)
    answer = b'{"seq":%d,"delta":%b,"messages":[%b]}' % (seq, kind, joined)
    return Response(answer, media_type="application/json")
