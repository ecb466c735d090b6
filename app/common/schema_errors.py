"""Pydantic's errors as problems at JSON pointers.

A pointer holds only steps of the value. pydantic adds the name of each member of a union, and one
error for each: the messages of one place are joined.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.common.errors import Problem

NAME_PATTERN = r"^[^\u0000-\u001f\u007f]+$"
AGENT_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:@=+-]*$"
UUID_PATTERN = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
DAY_PATTERN = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
IDEMPOTENCY_KEY_PATTERN = r"^[\x21-\x7e]+$"
MAX_IDEMPOTENCY_KEY_CHARS = 255
PATTERNS = {
    NAME_PATTERN: "must be one line of text, without control characters",
    AGENT_ID_PATTERN: "must be letters, digits and ._:@=+-, with a letter or digit first",
    UUID_PATTERN: "must be a UUID",
    DAY_PATTERN: "must be a day such as 2026-11-23",
    IDEMPOTENCY_KEY_PATTERN: f"must be 1 to {MAX_IDEMPOTENCY_KEY_CHARS} visible ASCII characters",
}
"""The error message of each pattern."""

_MUST = "must be "
_SHOULD = re.compile(r"^\w+ should ")
_MAX_STEP = 100
"""Characters of a name in a pointer."""


def in_body(errors: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return errors at places of a value as errors at places of a request's body."""
    return [{**error, "loc": ("body", *error["loc"])} for error in errors]


def schema_problems(errors: Iterable[Mapping[str, Any]], body: Any) -> tuple[Problem, ...]:
    """Return the errors of a request with this body, one for each place."""
    messages: dict[str, list[str]] = {}
    for error in errors:
        messages.setdefault(pointer_to(_steps(error, body)), []).append(_message(error))
    return tuple(Problem(pointer, _joined(details)) for pointer, details in messages.items())


def pointer_to(steps: Sequence[int | str]) -> str:
    """Return the JSON pointer with these steps, with long names truncated."""
    return "".join(f"/{_shortened(step).replace('~', '~0').replace('/', '~1')}" for step in steps)


def _shortened(step: int | str) -> str:
    text = str(step)
    return f"{text[:_MAX_STEP]}…" if len(text) > _MAX_STEP else text


def _steps(error: Mapping[str, Any], body: Any) -> list[int | str]:
    """Return the steps to the place of an error."""
    source, *location = error["loc"]
    if source != "body":
        return [source, *location]
    steps: list[int | str] = []
    value = body
    for step in location:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            continue  # pydantic's name for a member of a union
        steps.append(step)
    if error["type"] == "missing" and location:
        steps.append(location[-1])
    return steps


def _message(error: Mapping[str, Any]) -> str:
    match error["type"]:
        case "missing":
            return "is required"
        case "extra_forbidden" | "unexpected_keyword_argument":
            return "is an unknown field"
        case "tuple_type":
            return "must be a valid list"
        case "string_pattern_mismatch":
            pattern = error["ctx"]["pattern"]
            return PATTERNS.get(pattern, f"must match {pattern}")
        case "value_error":
            return str(error["ctx"]["error"])
    return _SHOULD.sub("must ", error["msg"])


def _joined(messages: Sequence[str]) -> str:
    """Return the messages for the members of a union as one."""
    first, *others = dict.fromkeys(messages)
    return " or ".join((first, *(other.removeprefix(_MUST) for other in others)))
