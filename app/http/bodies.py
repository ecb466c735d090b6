"""Request bodies, read and parsed within limits, JSON responses, and the slots for heavy requests.

1. A body is refused as soon as its declared or actual size exceeds the limit.
2. JSON is parsed by `app.common.json_text`, which accepts more than orjson
   [log.identical-strings].
3. Only `application/json` is accepted: a web page cannot send it to a service on the loopback
   without a CORS preflight. Compressed bodies are refused: their size does not bound their content.
4. Responses are models, dataclasses and dicts, serialised without another validation.
5. A body with more values, keys or levels than the limits is refused before it is parsed: objects
   take many times the memory of their text. Long bodies are counted and parsed in a thread.
6. Heavy requests share the slots of a process: uploads, downloads, searches of outputs, lists, and
   bodies of more than 64 KiB. One takes a slot, and one more for each 4 MiB of its JSON body or of
   a page. Forks, exports, imports, snapshots that are read or restored, and lists with full
   contents are large: they keep the database or the event loop busy. They take as many slots as
   leave half of the connections to other requests.
7. A request holds its slots until its answer is sent: until the client has received all but what
   the connection buffers.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, is_dataclass
from datetime import datetime
from io import BytesIO
from types import MappingProxyType
from typing import Any

import orjson
from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Scope, Send

from app.common import json_text
from app.common.concurrency import THREAD_BYTES, in_thread_if
from app.common.errors import PayloadTooLarge, Problem, ValidationError
from app.common.json_text import MAX_MESSAGE_VALUES, StructureLimits, has_more_values

CLIENT_CLOSED_REQUEST = 499
"""The status in logs and metrics of a request whose client disconnected before the response."""
LIGHT_BYTES = 64 * 1024
"""The length of a body up to which a request needs no slot."""
SLOT_BYTES = 4 * 2**20
HELD_SLOTS = "held_slots"
"""The slots that a request holds, as pairs of tenant and number; the application releases them."""
_BODY_SIZE = "body_size"
_MAX_CODING = 40
_JSON = (b"content-type", b"application/json")


class MalformedJson(ValidationError, status=400):
    """The body is not JSON."""


class MalformedRequest(ValidationError, status=400):
    """The HTTP request is ambiguous."""


class EncodedBody(ValidationError, status=415):
    """The body has a content coding."""


class UnknownParameter(ValidationError):
    """The query has a parameter that the operation does not accept."""


class Json(Response):
    """A JSON response."""

    media_type = "application/json"

    def __init__(
        self,
        content: Any,
        status_code: int = 200,
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        # What the superclass does for this case, without the other ones.
        self.status_code = status_code
        self.background = None
        self.body = dump(content)
        self.raw_headers = [
            *((name.lower().encode(), text.encode("latin-1")) for name, text in headers.items()),
            (b"content-length", b"%d" % len(self.body)),
            _JSON,
        ]


class WireRequest(Request):
    """A request with a bounded body and JSON limits."""

    async def body(self) -> bytes:
        """Return the body; raises PayloadTooLarge (rule 1)."""
        if not hasattr(self, "_body"):
            self._body = await self.read_body(self.app.state.max_body_bytes)
        return self._body

    async def read_body(self, max_bytes: int) -> bytes:
        """Read a body that has a limit of its own; raises PayloadTooLarge and ClientDisconnect."""
        expected = body_bytes_of(self.scope)
        body, has_more = BytesIO(), True  # which gives its bytes without a copy
        while True:
            if max(expected or 0, body.tell()) > max_bytes:
                detail = f"A body has at most {max_bytes:,} bytes"
                raise PayloadTooLarge(detail, {"limit": max_bytes})
            if not has_more:
                return body.getvalue()
            if body.tell() and (expected or body.tell()) > LIGHT_BYTES:
                await take_slots(self.scope, expected)
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            body.write(message.get("body", b""))
            has_more = message.get("more_body", False)

    async def json(self) -> Any:
        """Return the parsed body, whose bytes are let go; raises as `parse` (rule 5)."""
        if not hasattr(self, "_json"):
            body = await self.body()
            limits = self.app.state.json_limits
            self._json = await in_thread_if(len(body) > THREAD_BYTES, parse, body, limits)
            self.scope[_BODY_SIZE] = len(body)
            self._body = body[:1]
        return self._json


def size_of_body(request: Request) -> int:
    """Return the length of a body that was parsed, 0 without one."""
    size: int = request.scope.get(_BODY_SIZE, 0)
    return size


async def long_json(content: Any, size: int) -> Json:
    """Return a JSON response of about this size, which a thread writes if it is long."""
    return await in_thread_if(size > THREAD_BYTES, Json, content)


def parse(body: bytes, limits: StructureLimits) -> Any:
    """Parse a JSON body; raises MalformedJson, and as `require_structure` does."""
    require_structure(body, limits)
    try:
        return json_text.loads(body)
    except ValueError as error:
        raise MalformedJson(f"The body is not JSON: {error}") from error


def require_structure(body: bytes, limits: StructureLimits) -> None:
    """Raise PayloadTooLarge for too many values or keys, ValidationError for too many levels."""
    try:
        json_text.require_within(body, limits)
    except json_text.ExceedsLimits as excess:
        limit, facts = excess.limit, {"limit": excess.limit, "found": excess.count}
        if excess.what == "depth":
            detail = f"The body is nested more than {limit} levels deep"
            raise ValidationError(detail, facts) from None
        detail = f"The body has more than {limit:,} JSON {excess.what}"
        raise PayloadTooLarge(detail, facts) from None


async def require_small_messages(
    request: Request, messages: Sequence[Any], pointer: str = "/messages"
) -> None:
    """Raise PayloadTooLarge for a message with more than `MAX_MESSAGE_VALUES`.

    `pointer` is where the messages are in the body.
    """
    if size_of_body(request) <= MAX_MESSAGE_VALUES * 2:  # a value has a comma beside it
        return
    for index, message in enumerate(messages):
        if has_more_values(message, MAX_MESSAGE_VALUES):
            detail = f"has more than {MAX_MESSAGE_VALUES:,} JSON values"
            raise PayloadTooLarge(
                f"A message {detail}; nothing was stored",
                {"limit": MAX_MESSAGE_VALUES},
                (Problem(f"{pointer}/{index}", detail),),
            )


def dump(content: Any) -> bytes:
    """Serialise a response; lone surrogates, which orjson refuses, are escaped."""
    try:
        return orjson.dumps(content, default=_plain)
    except TypeError:
        return json.dumps(content, default=_plain, separators=(",", ":"), allow_nan=False).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        if value.model_config.get("serialize_by_alias"):
            return value.model_dump()
        return value.__dict__ | (value.__pydantic_extra__ or {})
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} is not JSON")


async def begun(pieces: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
    """Return a body whose first piece is read before the response starts: it may be an error."""
    first = await anext(pieces, b"")

    async def all_pieces() -> AsyncIterator[bytes]:
        async with aclosing(pieces):
            yield first
            async for piece in pieces:
                yield piece

    return all_pieces()


def require_json(request: Request) -> None:
    """Raise EncodedBody for a content coding, ValidationError for another media type (rule 3)."""
    require_uncoded(request)
    given = header_of(request.scope, b"content-type") or ""
    kind = given.partition(";")[0].strip().lower()
    if kind != "application/json" and not (
        kind.startswith("application/") and kind.endswith("+json")
    ):
        raise ValidationError.at("/header/content-type", "must be application/json")


def require_uncoded(request: Request) -> None:
    """Raise EncodedBody for a content coding (rule 3)."""
    coding = (header_of(request.scope, b"content-encoding") or "").strip()[:_MAX_CODING]
    if coding.lower() not in ("", "identity"):
        detail = f"must be identity: a body with Content-Encoding {coding} is not decoded"
        raise EncodedBody.at("/header/content-encoding", detail)


def header_of(scope: Scope, name: bytes) -> str | None:
    """Return the first header of this name, in lower case, without an index of all headers."""
    for each, value in scope["headers"]:
        if each == name:
            text: str = value.decode("latin-1")
            return text
    return None


def body_bytes_of(scope: Scope) -> int | None:
    """Return the length of a body as its headers say, None if they do not."""
    declared = header_of(scope, b"content-length") or ""
    if declared.isdecimal() and len(declared) < 19:
        return int(declared)
    return None if header_of(scope, b"transfer-encoding") else 0


def large_slots(heavy_requests: int, pool_max_size: int) -> int:
    """Return the slots of a large request (rule 6)."""
    return 1 + heavy_requests // (1 + max(1, pool_max_size // 2))


async def take_slots(scope: Scope, body_bytes: int | None, slots: int = 0) -> None:
    """Take the slots of a request once, at least these; raises RateLimited or ServiceUnavailable.

    A body of unknown length counts as the longest.
    """
    if not scope[HELD_SLOTS]:
        state, tenant_id = scope["app"].state, scope["caller"].tenant_id
        length = state.max_body_bytes if body_bytes is None else body_bytes
        taken = await state.heavy.acquire(tenant_id, max(slots, 1 + length // SLOT_BYTES))
        scope[HELD_SLOTS].append((tenant_id, taken))


def drained(send: Send) -> Send:
    """Return a `send` that waits until a large body is sent (rule 7)."""

    async def send_drained(message: Message) -> None:
        if len(message.get("body", b"")) <= LIGHT_BYTES or message.get("more_body", False):
            await send(message)
            return
        await send({**message, "more_body": True})
        await send({"type": "http.response.body"})  # which the server sends when it has room

    return send_drained
