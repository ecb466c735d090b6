"""Bodies in and out: read once within their limit, parsed and written by orjson.

1. A body is refused as soon as its declared or actual size passes the limit.
2. JSON is parsed by `app.domain.jsontext`, which keeps what orjson refuses (decision 3).
3. Only `application/json` is read: a web page cannot send it to a service on the loopback
   without asking the browser first. A compressed body is not unpacked: its size would say nothing
   of what comes out of it.
4. Answers are dicts and dataclasses dumped as they are; no schema is walked for them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from app.domain import jsontext
from app.domain.errors import PayloadTooLarge, ValidationError

MOST_DEPTH = 100
"""How deeply objects and lists of a body may be nested."""
_MOST_CODING = 40
NO_ANSWER = 499
"""The status told of a request whose sender went away first."""


class MalformedJson(ValidationError):
    """The body is not JSON."""


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
            chunks, size = [], 0
            async for chunk in self.stream():
                chunks.append(chunk)
                size += len(chunk)
                if size > most:
                    raise _too_large(most)
            self._body = b"".join(chunks)
        return self._body

    async def json(self) -> Any:
        """Return the parsed body; raises ValidationError when it is no JSON we take."""
        if not hasattr(self, "_json"):
            body = await self.body()
            try:
                self._json = parse(body)
            except MalformedJson:
                require_uncoded(self)  # only now: what is coded is never JSON
                raise
        return self._json


def parse(body: bytes) -> Any:
    """Parse a JSON body; raises MalformedJson, or ValidationError for one nested too deeply."""
    try:
        value = jsontext.loads(body)
    except ValueError as error:
        raise MalformedJson(_no_utf8(body) or f"The body is not JSON: {error}") from error
    # Few brackets cannot nest deeply, so that most bodies are never walked.
    if body.count(b"{") + body.count(b"[") > MOST_DEPTH and is_deeper(value, MOST_DEPTH):
        raise ValidationError(f"The body is nested more than {MOST_DEPTH} levels deep")
    return value


def _no_utf8(body: bytes) -> str | None:
    """Say where a body stops to be UTF-8; None for one that is UTF-8 throughout."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        at = error.start
        return f"The body is not UTF-8: the byte {body[at]:#04x} at offset {at} is of no character"
    return None


def is_deeper(value: Any, most: int) -> bool:
    """Tell whether lists and objects are nested in more than `most` levels."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(most):
        level = [
            item
            for holder in level
            for item in (holder.values() if isinstance(holder, dict) else holder)
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True


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
        detail = f"A body is sent as it is, without Content-Encoding: {coding[:_MOST_CODING]}"
        raise EncodedBody.at("/header/content-encoding", detail)


def _declared_size(request: Request) -> int:
    declared = request.headers.get("content-length", "")
    return int(declared) if declared.isdecimal() and len(declared) < 19 else 0


def _too_large(most: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"A body holds at most {most:,} bytes", {"limit": most})
