"""The app that a comparison runs in, driven over its HTTP interface without a socket."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

import click
import httpx

from app.comparison.conversation import Appended, Export, Recorded
from app.comparison.steps import by_format
from app.domain.common import json_text
from app.domain.common.errors import ContextOverflow
from app.domain.common.messages import FormatName
from app.main import create_app
from app.settings import Settings

PAGE = 1000
MAX_BATCH = 400
MAX_NAMED = 3
"""How many errors of a problem are named."""
_MESSAGE = re.compile(r"^/messages/(\d+)")
_OF_THE_SERVICE = frozenset(
    {
        *("id", "seq", "turn", "token_count", "format", "created_at", "redacted_at", "given"),
        *("conversation_id", "agent_id", "output_ref", "content_truncated", "content_collected"),
        *("pinned", "visibility"),
    }
)
"""The fields that the service adds to a message in its transcript."""
_OWN = {
    "blob_store_url": None,
    "otlp_endpoint": None,
    "rolling_window_seconds": None,
    "requests_per_minute": None,
    "bytes_per_day": None,
    "storage_bytes": None,
    "worker": False,
    "access_log": False,
    "log_level": "error",
}
"""Settings of a service that others use, which a comparison does not."""


class Refused(click.ClickException):
    """The service refused a request; `code` is that of its problem."""

    def __init__(self, what: str, status: int, problem: Mapping[str, Any]) -> None:
        self.status, self._problem = status, problem
        self.code = str(problem.get("code", status))
        super().__init__(f"{what}: {self.code}: {self.reason}")

    @property
    def reason(self) -> str:
        """The reason in a sentence, with the places of its first errors."""
        errors = self._problem.get("errors") or ()
        places = [f"{error['pointer']}: {error['detail']}" for error in errors[:MAX_NAMED]]
        return "; ".join(places) or str(self._problem.get("detail", ""))

    def about_messages(self, before: int) -> Refused:
        """Return the error for a batch that comes after so many messages of the conversation."""

        def moved(error: Mapping[str, Any]) -> Mapping[str, Any]:
            pointer = _MESSAGE.sub(
                lambda found: f"message {int(found[1]) + before + 1}", error["pointer"]
            )
            return {**error, "pointer": pointer}

        errors = [moved(error) for error in self._problem.get("errors") or ()]
        return Refused("The conversation", self.status, {**self._problem, "errors": errors})


class Client:
    """A JSON client of the app."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        """Return the answer to a request; raises Refused unless it is a success."""
        text = None if body is None else json_text.dumps(body).encode()
        return await self._send(method, path, text, "application/json")

    async def import_(self, export: Export) -> Recorded:
        """Return the conversation of an export, as an import reads it; raises Refused."""
        shown = await self._send(
            "POST", "/v1/conversations/import", export.data, "application/x-ndjson"
        )
        path = f"/v1/conversations/{shown['conversation_id']}"
        messages: list[Appended] = []
        has_more = True
        while has_more:
            query = f"limit={PAGE}&after_seq={len(messages)}&content=full"
            page = await self.ask("GET", f"{path}/messages?{query}")
            messages += map(_appended, page["data"])
            has_more = page["next_cursor"] is not None
        if not messages:
            raise click.ClickException(f"{export.name} holds no messages.")
        return Recorded(
            shown["conversation_id"],
            messages[-1].format,
            messages,
            shown["sections"],
            shown["tools"],
            shown["policy_overrides"],
        )

    async def _send(self, method: str, path: str, content: bytes | None, kind: str) -> Any:
        headers = {"Content-Type": kind} if content is not None else {}
        response = await self._http.request(method, path, content=content, headers=headers)
        body = json_text.loads(response.content) if response.content else None
        if not response.is_success:
            what = path.partition("?")[0].rpartition("/")[2]
            problem = body if isinstance(body, dict) else {}
            raise Refused(f"{method} {what}", response.status_code, problem)
        return body


class Conversation:
    """A conversation of the app, to which a recorded one is appended."""

    def __init__(self, client: Client, recorded: Recorded, path: str) -> None:
        self._client = client
        self._recorded = recorded
        self._path = path
        self._appended = 0

    @classmethod
    async def create(
        cls, client: Client, recorded: Recorded, model: str, policy: Mapping[str, Any]
    ) -> Self:
        """Create one with the recorded sections and tools; `policy` overrides the recorded one."""
        created = await client.ask(
            "POST",
            "/v1/conversations",
            {
                "model": model,
                "sections": recorded.sections,
                "tools": recorded.tools,
                "policy": _merged(recorded.policy, policy),
            },
        )
        return cls(client, recorded, f"/v1/conversations/{created['conversation_id']}")

    async def ask(self, method: str, what: str, body: object = None) -> Any:
        """Return the answer to a request about it; raises Refused unless it is a success."""
        return await self._client.ask(method, self._path + what, body)

    async def append(self, messages: Sequence[Appended]) -> list[dict[str, Any]]:
        """Append the next messages and return what the service answers about each."""
        stored: list[dict[str, Any]] = []
        for format, raws in by_format(messages):
            for start in range(0, len(raws), MAX_BATCH):
                batch = raws[start : start + MAX_BATCH]
                try:
                    answer = await self.ask(
                        "POST", "/messages", {"messages": batch, "format": format}
                    )
                except Refused as exc:
                    raise exc.about_messages(self._appended) from exc
                stored += answer["messages"]
                self._appended += len(batch)
        return stored

    async def build(self) -> Any:
        """Return the build of the next call, None where no payload fits."""
        try:
            return await self.ask("POST", "/context", {"format": self._recorded.format})
        except Refused as exc:
            if exc.code != ContextOverflow.code:
                raise
            return None


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[Client]:
    """Run an app on the database of the settings during the block, and yield its client."""
    app = create_app(settings.model_copy(update=_OWN))
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=None) as http,
    ):
        yield Client(http)


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        known = merged.get(key)
        if isinstance(value, Mapping) and isinstance(known, Mapping):
            merged[key] = _merged(known, value)
        else:
            merged[key] = value
    return merged


def _appended(shown: dict[str, Any]) -> Appended:
    raw = {key: value for key, value in shown.items() if key not in _OF_THE_SERVICE}
    raw |= shown["given"] or {}
    return Appended(FormatName(shown["format"]), raw, shown["pinned"])
