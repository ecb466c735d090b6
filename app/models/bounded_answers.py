"""Limits of what LiteLLM reads of a model server's answer.

1. LiteLLM parses answers, and searches the texts of errors by regular expressions, on the event
   loop. So no more than a limit is read: the rest of a longer answer is cut off, which makes a
   successful one unreadable.
2. No content coding is asked for, and none is accepted: its size does not bound the content.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx

MAX_ANSWER_BYTES = 4 * 2**20
MAX_ERROR_BYTES = 16 * 2**10
_FIRST_ERROR = 400


class _Bounded(httpx.AsyncByteStream):
    """The first bytes of a stream."""

    def __init__(self, stream: httpx.AsyncByteStream, max_bytes: int) -> None:
        self._stream = stream
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._max_bytes
        async for chunk in self._stream:
            yield chunk[:left]
            left -= len(chunk)
            if left <= 0:
                return

    async def aclose(self) -> None:
        """Close the stream, with the connection where bytes are left."""
        await self._stream.aclose()


def bound(client: httpx.AsyncClient) -> httpx.AsyncClient:
    """Limit the answers that a client reads; return it."""
    client.headers["Accept-Encoding"] = "identity"
    client.event_hooks["response"].append(_bound_answer)
    return client


def bounding(make: Callable[..., httpx.AsyncClient]) -> Any:
    """Return a function that makes clients as this one does, with the limits."""

    def made(*arguments: Any, **options: Any) -> httpx.AsyncClient:
        return bound(make(*arguments, **options))

    return made


async def _bound_answer(response: httpx.Response) -> None:
    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx.DecodingError("The answer has a content coding", request=response.request)
    is_error = response.status_code >= _FIRST_ERROR
    assert isinstance(response.stream, httpx.AsyncByteStream)
    response.stream = _Bounded(response.stream, MAX_ERROR_BYTES if is_error else MAX_ANSWER_BYTES)
