"""Request schemas accept what openapi.json says. [api.unknown-fields]"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from app import main
from app.http.fields import RequestSchema
from app.settings import Settings


def _schemas(of: type[RequestSchema] = RequestSchema) -> Iterator[type[RequestSchema]]:
    for schema in of.__subclasses__():
        yield schema
        yield from _schemas(schema)


def _values(types: dict[str, dict[str, Any]]) -> Iterator[tuple[Any, Any]]:
    """Yield values of a property in another spelling, with one in the usual spelling."""
    if "null" in types:
        yield None, None
    if "integer" in types:
        least = max(1, types["integer"].get("minimum", 1))
        yield float(least), least
    if types.get("array", {}).get("items", {}).get("type") == "integer":
        yield [5.0, 20.0], [5, 20]


def _refuses(schema: type[RequestSchema], body: dict[str, Any], name: str) -> bool:
    """Return whether a property is refused, whatever else is missing."""
    try:
        schema.model_validate(body)
    except ValidationError as error:
        return any(each["loc"][0] == name for each in error.errors() if each["loc"])
    return False


def test_a_schema_accepts_what_is_published(settings: Settings) -> None:
    """Null where it may be null, and integers such as `25.0`, as well as `25`."""
    published = main.create_app(settings).openapi()["components"]["schemas"]

    def resolved(schema: dict[str, Any]) -> dict[str, Any]:
        while "$ref" in schema:
            schema = published[schema["$ref"].rpartition("/")[2]]
        return schema

    tried = 0
    for schema in _schemas():
        shown = published.get(schema.__name__, {})
        example = (shown.get("examples") or [{}])[0]
        for name, each in shown.get("properties", {}).items():
            given = resolved(each)
            types = {
                str(one.get("type")): one for one in map(resolved, given.get("anyOf", [given]))
            }
            for value, usual in _values(types):
                place = f"{schema.__name__}.{name}: {value}"
                assert not _refuses(schema, {**example, name: value}, name), place
                assert not _refuses(schema, {**example, name: usual}, name), place
                tried += 1
    assert tried > 100


@pytest.mark.parametrize("value", [25.5, "25", True])
def test_no_other_value_is_an_integer(value: object) -> None:
    """A fraction, a text or a truth value is refused."""
    from app.conversations.messages.schemas import MessagesAppend

    with pytest.raises(ValidationError):
        MessagesAppend.model_validate({"messages": [{}], "expected_seq": value})
