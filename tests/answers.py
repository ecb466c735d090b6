"""Every answer that a test gets over HTTP is one that openapi.json describes. [api.documented]

The status is declared for the operation, and the body is valid by its schema, without fields that
the schema does not name. Streams, and what is no JSON, are not read.
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

TIMES = 20
"""How often each status of an operation is validated, as the first times find nearly all."""

PUBLISHED = Path(__file__).parents[1] / "openapi" / "openapi.json"
_validated: Counter[tuple[int, int]] = Counter()


def _closed(node: Any) -> Any:
    """Return a schema in which objects with named fields have no others."""
    if isinstance(node, list):
        return [_closed(item) for item in node]
    if not isinstance(node, dict):
        return node
    closed = {key: _closed(item) for key, item in node.items() if key != "examples"}
    return {"additionalProperties": False} | closed if "properties" in node else closed


@cache
def _document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(PUBLISHED.read_text("utf-8"))
    return document | {"components": _closed(document["components"])}


@cache
def _operations() -> list[tuple[re.Pattern[str], dict[str, Any]]]:
    return [
        (re.compile(f"{method.upper()} " + re.sub(r"{\w+}", "[^/]+", path)), operation)
        for path, operations in _document()["paths"].items()
        for method, operation in operations.items()
    ]


@cache
def _validator(index: int, status: int) -> Any:
    answers = _operations()[index][1]["responses"]
    answer = answers[str(status)]
    components = _document()["components"]
    if "$ref" in answer:
        answer = components["responses"][answer["$ref"].rpartition("/")[2]]
    (content,) = answer["content"].values()
    whole = content["schema"] | {"components": components}
    return jsonschema_rs.Draft202012Validator(whole, validate_formats=True)


def require_described(answer: httpx.Response) -> None:
    """Assert that an answer is one that its operation describes, if it has one."""
    path = answer.request.url.raw_path.decode().partition("?")[0]
    called = f"{answer.request.method} {path}"
    for index, (pattern, _) in enumerate(_operations()):
        if pattern.fullmatch(called) and answer.is_closed:
            place = (index, answer.status_code)
            _validated[place] += 1
            if _validated[place] <= TIMES and "json" in answer.headers["content-type"]:
                whole = re.sub(r"\\ud[89a-f]\w\w", "?", answer.text)  # without lone surrogates
                _validator(*place).validate(json.loads(whole))
            return


@contextmanager
def described() -> Iterator[None]:
    """Require it of every answer meanwhile."""
    send, send_async = httpx.Client.send, httpx.AsyncClient.send

    def sent(self: httpx.Client, *given: Any, **options: Any) -> httpx.Response:
        answer = send(self, *given, **options)
        require_described(answer)
        return answer

    async def sent_async(self: httpx.AsyncClient, *given: Any, **options: Any) -> httpx.Response:
        answer = await send_async(self, *given, **options)
        require_described(answer)
        return answer

    with (
        mock.patch.object(httpx.Client, "send", sent),
        mock.patch.object(httpx.AsyncClient, "send", sent_async),
    ):
        yield
