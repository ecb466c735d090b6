"""Dataclasses of the domain that routes return: their fields are the schema of the answer.

The docstring below a field is its description in openapi.json, as in the schemas of `app.http`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from typing_extensions import TypeAliasType

AnyObject = TypeAliasType("AnyObject", dict[str, Any])
ANSWERS: list[type] = []
"""The classes that `answer` has marked."""
_Kind = TypeVar("_Kind", bound=type)


def answer(*examples: Any) -> Callable[[_Kind], _Kind]:
    """Mark a dataclass as the schema of an answer with these examples."""

    def mark(kind: _Kind) -> _Kind:
        config: dict[str, Any] = {
            "extra": "forbid",
            "json_schema_serialization_defaults_required": True,
        }
        if examples:
            config["json_schema_extra"] = {"examples": list(examples)}
        kind.__pydantic_config__ = config  # type: ignore[attr-defined]  # which pydantic reads
        ANSWERS.append(kind)
        return kind

    return mark
