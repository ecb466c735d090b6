"""Every answer that a test gets over HTTP is one that openapi.json describes. [api.documented]

The status is declared for the operation unless it is 500, and the body is valid by its schema.
Streams, and what is no JSON, are not read.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import jsonschema_rs

JSON = ("application/json", "application/problem+json")
_SURROGATE = re.compile(r"((?<!\\)(?:\\\\)*)\\u[dD][89a-fA-F]\w\w")
TIMES = 20
"""How often each status of an operation is validated, as the first times find nearly all."""

PUBLISHED = Path(__file__).parents[1] / "openapi" / "openapi.json"
_validated: Counter[tuple[int, int]] = Counter()
DOCUMENT: dict[str, Any] = json.loads(PUBLISHED.read_text("utf-8"))
OPERATIONS = [
    (re.compile(f"{method.upper()} " + re.sub(r"{\w+}", "[^/]+", path)), operation)
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
]


@cache
def _validator(index: int, status: int) -> Any:
    answer = OPERATIONS[index][1]["responses"][str(status)]
    components = DOCUMENT["components"]
    if "$ref" in answer:
        answer = components["responses"][answer["$ref"].rpartition("/")[2]]
    (content,) = answer["content"].values()
    whole = content["schema"] | {"components": components}
    return jsonschema_rs.Draft202012Validator(whole, validate_formats=True)


def require_described(answer: httpx.Response) -> None:
    """Assert that an answer is one that its operation describes, if it has one."""
    path = answer.request.url.raw_path.decode().partition("?")[0]
    called = f"{answer.request.method} {path}"
    for index, (pattern, _) in enumerate(OPERATIONS):
        if pattern.fullmatch(called) and answer.is_closed and answer.status_code != 500:
            place = (index, answer.status_code)
            _validated[place] += 1
            if _validated[place] <= TIMES and answer.headers.get("content-type") in JSON:
                whole = _SURROGATE.sub(r"\1?", answer.text)  # which the validator cannot take
                _validator(*place).validate(json.loads(whole))
            return


@contextmanager
def described() -> Iterator[None]:
    """Require it of every answer meanwhile."""
    send, send_async = httpx.Client.send, httpx.AsyncClient.send

    def sent(*given: Any, **options: Any) -> httpx.Response:
        answer = send(*given, **options)
        require_described(answer)
        return answer

    async def sent_async(*given: Any, **options: Any) -> httpx.Response:
        answer = await send_async(*given, **options)
        require_described(answer)
        return answer

    patched = mock.patch.object
    with patched(httpx.Client, "send", sent), patched(httpx.AsyncClient, "send", sent_async):
        yield
