"""Bodies in and out: read once within their limit, parsed and written by orjson.

1. A body is refused as soon as its declared or actual size passes the limit.
2. JSON is parsed by `app.domain.common.json_text`, which keeps what orjson refuses (decision 3).
3. Only `application/json` is read: a web page cannot send it to a service on the loopback
   without asking the browser first. A compressed body is not unpacked: its size would say nothing
   of what comes out of it.
4. Answers are dicts and dataclasses dumped as they are; no schema is walked for them.
5. A body with more values, keys or levels than the settings allow is refused before it is parsed:
   objects take many times the memory of their text. Long bodies are counted and parsed in a thread.
"""

from __future__ import annotations

import asyncio
import json
from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import Any, ParamSpec, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response

from app.domain.common import json_text
from app.domain.common.errors import ContextError, PayloadTooLarge, Problem, ValidationError
from app.domain.common.json_structure import (
    ExceededLimit,
    StructureLimits,
    exceeded_limit,
    has_more_values,
)

THREAD_BYTES = 256 * 1024
"""The length of a body from which it is counted, parsed and checked in a thread.

Below it a change of threads costs more than the work: 100 messages of 1 KB are parsed in 0.3 ms.
"""
_SLICE = 1 << 20
_BYTES_OF_VALUE = 2  # with its comma
_Asked = ParamSpec("_Asked")
_Answer = TypeVar("_Answer")
_SETTINGS = {"values": "CONTEXT_MAX_JSON_VALUES", "keys": "CONTEXT_MAX_JSON_KEYS"}
_MAX_CODING = 40
NO_ANSWER = 499
"""The status told of a request whose sender went away first."""


class MalformedJson(ValidationError):
    """The body is not JSON."""


class MalformedRequest(ValidationError):
    """The request is no HTTP request that has one meaning."""


class EncodedBody(ValidationError):
    """The body is compressed, or coded in another way that is not read here."""


class UnknownParameter(ValidationError):
    """The query has a parameter that the operation does not have."""


class Json(Response):
    """An answer dumped by orjson; what it cannot take goes through the standard library."""

    media_type = "application/json"

    def __init__(
        self,
        content: Any,
        status_code: int = 200,
        *,
        headers: Mapping[str, str] | None = None,
        media_type: str | None = None,
    ) -> None:
        super().__init__(dump(content), status_code, headers, media_type)


class WireRequest(Request):
    """A request whose body is bounded and parsed the service's way."""

    async def body(self) -> bytes:
        """Return the body; raises PayloadTooLarge as soon as it is over the limit (rule 1)."""
        if not hasattr(self, "_body"):
            most = self.app.state.max_body_bytes
            if _declared_size(self) > most:
                raise _too_large(most)
            body = bytearray()  # a list of tiny pieces would take many times as much
            async for chunk in self.stream():
                body += chunk
                if len(body) > most:
                    raise _too_large(most)
            self._body = bytes(body)
        return self._body

    async def json(self) -> Any:
        """Return the parsed body; raises ValidationError when it is no JSON we take (rule 5)."""
        if not hasattr(self, "_json"):
            body = await self.body()
            limits = self.app.state.json_limits
            try:
                self._json = await beside(body, parse, body, limits)
            except ContextError:
                require_uncoded(self)  # only now: what is coded is never JSON
                raise
        return self._json


async def beside(
    body: bytes, work: Callable[_Asked, _Answer], *args: _Asked.args, **options: _Asked.kwargs
) -> _Answer:
    """Return what some work on a body gives; a long one is worked on in a thread (rule 5)."""
    if len(body) < THREAD_BYTES:
        return work(*args, **options)
    return await asyncio.to_thread(work, *args, **options)


def parse(body: bytes, limits: StructureLimits) -> Any:
    """Parse a JSON body.

    Raises MalformedJson; PayloadTooLarge for too many values or keys, ValidationError for one
    nested too deeply.
    """
    require_structure(body, limits)
    try:
        return json_text.loads(body)
    except ValueError as error:
        raise MalformedJson(_no_utf8(body) or f"The body is not JSON: {error}") from error


def require_structure(body: bytes, limits: StructureLimits) -> None:
    """Raise PayloadTooLarge or ValidationError for a body over one of the limits (rule 5)."""
    excess = exceeded_limit(body, limits)
    if excess is not None:
        raise _structure_error(excess)


async def require_small_messages(request: Request, messages: Sequence[Any]) -> None:
    """Raise PayloadTooLarge for a message of more values than the settings allow.

    What is stored is read again and again, so that a message may have fewer than a body.
    """
    most = request.app.state.max_message_values
    if len(await request.body()) <= most * _BYTES_OF_VALUE:
        return
    for index, message in enumerate(messages):
        if has_more_values(message, most):
            detail = f"has more than {most:,} JSON values"
            raise PayloadTooLarge(
                f"A message has more than {most:,} JSON values; nothing was stored",
                {"limit": most, "setting": "CONTEXT_MAX_MESSAGE_VALUES"},
                (Problem(f"/messages/{index}", detail),),
            )


def _structure_error(excess: ExceededLimit) -> ContextError:
    facts = {"limit": excess.limit, "found": excess.found}
    if excess.what == "depth":
        return ValidationError(f"The body is nested more than {excess.limit} levels deep", facts)
    return PayloadTooLarge(
        f"The body has more than {excess.limit:,} JSON {excess.what}: {excess.found:,} were counted"
        " before the end",
        facts | {"setting": _SETTINGS[excess.what]},
    )


def _no_utf8(body: bytes) -> str | None:
    """Say where a body stops to be UTF-8; None for one that is UTF-8 throughout."""
    decoder = getincrementaldecoder("utf-8")()
    for start in range(0, len(body), _SLICE):
        held = len(decoder.getstate()[0])
        try:
            decoder.decode(body[start : start + _SLICE], start + _SLICE >= len(body))
        except UnicodeDecodeError as error:
            at = start - held + error.start
            found = f"the byte {body[at]:#04x} at offset {at} is of no character"
            return f"The body is not UTF-8: {found}"
    return None


def dump(content: Any) -> bytes:
    """Write an answer; lone surrogates are escaped, so that they come back as they went in."""
    try:
        return orjson.dumps(content)
    except TypeError:
        return json.dumps(content, default=_plain, separators=(",", ":"), allow_nan=False).encode()


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} is not JSON")


def require_json(request: Request) -> None:
    """Raise ValidationError unless the body is said to be JSON (rule 3)."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (
        kind.startswith("application/") and kind.endswith("+json")
    ):
        raise ValidationError.at(
            "/header/content-type", "A body is sent with Content-Type: application/json"
        )


def require_uncoded(request: Request) -> None:
    """Raise EncodedBody where the body is said to be coded, which nothing here undoes (rule 3)."""
    coding = request.headers.get("content-encoding", "").strip()
    if coding.lower() not in ("", "identity"):
        detail = f"A body is sent as it is, without Content-Encoding: {coding[:_MAX_CODING]}"
        raise EncodedBody.at("/header/content-encoding", detail)


def _declared_size(request: Request) -> int:
    declared = request.headers.get("content-length", "")
    return int(declared) if declared.isdecimal() and len(declared) < 19 else 0


def _too_large(most: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"A body holds at most {most:,} bytes", {"limit": most})
