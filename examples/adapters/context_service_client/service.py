"""The service over HTTP, for code that blocks and for code that does not.

1. What is asked is a generator of steps, which both clients run: a `Call` of the service, seconds
   to wait, or what only the adapter knows how to do, such as a call of the model.
2. `429` and `503` are asked again, and after a lost answer whatever may be asked twice: reads, the
   creation of a conversation, and what has an `Idempotency-Key`.
3. Everything else that is no success raises `ContextServiceError`.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, TypedDict

import httpx

BASE_URL = "http://127.0.0.1:8080"
MAX_TRIES = 4
KEYED = ("/messages", "/context", "/usage")
"""Ends of the paths that take an `Idempotency-Key`."""

Steps = Generator[Any, Any, Any]


class Built(TypedDict):
    """The answer of a build, as openapi.json has it; `diagnostics` is for people."""

    payload: dict[str, Any]
    betas: list[str]
    epoch: int
    through_seq: int
    tail: list[dict[str, Any]]
    tokens_used: int
    pressure: str
    defers_natively: bool
    degraded: list[str]
    cache_break_reason: str | None
    build_id: str
    delta: bool
    base_items: int
    appended: dict[str, Any] | None
    reported: dict[str, Any] | None
    diagnostics: dict[str, Any]


class ContextServiceError(Exception):
    """A refusal of the service; `code` is that of its problem document, `problem` all of it."""

    def __init__(self, answer: httpx.Response) -> None:
        is_json = "json" in answer.headers.get("Content-Type", "")
        self.problem: dict[str, Any] = answer.json() if is_json else {"detail": answer.text}
        self.status = answer.status_code
        self.code = str(self.problem.get("code", self.status))
        super().__init__(f"{self.code}: {self.problem.get('detail')}")


@dataclass(frozen=True)
class Call:
    """One request of the service."""

    method: str
    path: str
    body: Any
    headers: dict[str, str]


def asked(method: str, path: str, body: Any = None) -> Steps:
    """Return the answer of the service (rules 2 and 3)."""
    is_keyed = method == "POST" and path.endswith(KEYED)
    may_repeat = is_keyed or method == "GET" or path == "/conversations"
    headers = {"Idempotency-Key": str(uuid.uuid4())} if is_keyed else {}
    for tries in range(1, MAX_TRIES + 1):
        pause = 0.2
        try:
            answer = yield Call(method, path, body, headers)
            if answer.is_success:
                return answer.json()
            if answer.status_code not in (429, 503) or tries == MAX_TRIES:
                raise ContextServiceError(answer)
            pause = float(answer.headers.get("Retry-After", 1))
        except httpx.TransportError:
            if not may_repeat or tries == MAX_TRIES:
                raise
        yield pause


def opened(conversation: str, settings: dict[str, Any]) -> Steps:
    """Create a conversation where there is none, and return its path."""
    conversation_id = uuid_of(conversation)
    try:
        yield from asked("POST", "/conversations", {"conversation_id": conversation_id, **settings})
    except ContextServiceError as error:
        if error.code != "CONFLICT":
            raise
    return f"/conversations/{conversation_id}"


def cut(path: str, ask: dict[str, Any], error: Exception) -> Steps:
    """Return a build that fits after "too long"; another error of the provider is raised."""
    told = {**ask, "error": getattr(error, "body", None) or str(error)}
    told["error_status"] = getattr(error, "status_code", None)
    try:
        return (yield from asked("POST", f"{path}/overflow", told))["context"]
    except ContextServiceError as refused:
        raise (error if refused.code == "VALIDATION_ERROR" else refused) from None


def uuid_of(name: str) -> str:
    """Return the id that the service knows a conversation by."""
    try:
        return str(uuid.UUID(name))
    except ValueError:
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"context-service:{name}"))


class ContextClient(httpx.Client):
    """The service for code that blocks: one client for a process, closed at its end."""

    def __init__(self, base_url: str = BASE_URL, api_key: str | None = None, **more: Any) -> None:
        super().__init__(**_connection(base_url, api_key, more))

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Return the answer to one request."""
        return self.run(asked(method, path, body))

    def run(self, steps: Steps, act: Callable[[Any], Any] | None = None) -> Any:
        """Run steps; `act` does those that only the adapter knows."""
        answer: Any = None
        failure: Exception | None = None
        while True:
            try:
                step = steps.throw(failure) if failure else steps.send(answer)
            except StopIteration as done:
                return done.value
            answer = failure = None
            try:
                answer = self.perform(step, act)
            except Exception as error:
                failure = error

    def perform(self, step: Any, act: Callable[[Any], Any] | None = None) -> Any:
        """Do one step, and return its answer."""
        if isinstance(step, Call):
            asked = {"json": step.body, "headers": step.headers}
            return self.request(step.method, step.path, **asked)
        if isinstance(step, float):
            return time.sleep(step)
        return act(step) if act else None


class AsyncContextClient(httpx.AsyncClient):
    """The same for code that does not block."""

    def __init__(self, base_url: str = BASE_URL, api_key: str | None = None, **more: Any) -> None:
        super().__init__(**_connection(base_url, api_key, more))

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Return the answer to one request."""
        return await self.run(asked(method, path, body))

    async def run(self, steps: Steps, act: Callable[[Any], Awaitable[Any]] | None = None) -> Any:
        """Run steps; `act` does those that only the adapter knows."""
        answer: Any = None
        failure: Exception | None = None
        while True:
            try:
                step = steps.throw(failure) if failure else steps.send(answer)
            except StopIteration as done:
                return done.value
            answer = failure = None
            try:
                answer = await self.perform(step, act)
            except Exception as error:
                failure = error

    async def perform(self, step: Any, act: Callable[[Any], Awaitable[Any]] | None = None) -> Any:
        """Do one step, and return its answer."""
        if isinstance(step, Call):
            asked = {"json": step.body, "headers": step.headers}
            return await self.request(step.method, step.path, **asked)
        if isinstance(step, float):
            return await asyncio.sleep(step)
        return await act(step) if act else None


def _connection(base_url: str, api_key: str | None, more: dict[str, Any]) -> dict[str, Any]:
    key = api_key or os.environ.get("CONTEXT_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return {"base_url": f"{base_url}/v1", "headers": headers, "timeout": 60, **more}
