"""Request validation errors: pydantic's messages at JSON pointers into the request.

1. A pointer holds only steps of the request. pydantic adds the name of each member of a union, and
   one error for each: the messages of one place are joined.
2. An answer names at most a hundred places. pydantic creates objects for all errors or for none:
   a body with very many errors is validated again by the first items of its objects and lists.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from pydantic import TypeAdapter
from pydantic import ValidationError as PydanticError
from starlette.requests import Request

from app.common.errors import Problem, ValidationError
from app.http.bodies import UnknownParameter
from app.http.fields import PATTERNS

_KEY = re.compile(r"\[.*\]\Z", re.DOTALL)
_MUST = "must be "
_SHOULD = re.compile(r"^\w+ should ")
_MAX_PLACES = 100
_MAX_ERRORS = 1_000
"""The number of errors whose objects pydantic creates within milliseconds."""
_MAX_SAMPLED = 10_000
"""The number of values of a body that are validated again."""
_MAX_STEP = 100
"""Characters of a name in a pointer."""


def validated(schema: TypeAdapter[Any], value: Any) -> Any:
    """Return a parsed body as an instance of the schema; raises ValidationError."""
    try:
        return schema.validate_python(value)
    except PydanticError as error:
        count = error.error_count()
        errors = _errors_of(error) if count <= _MAX_ERRORS else _sampled_errors(schema, value)
        in_body = [{**each, "loc": ("body", *each["loc"])} for each in errors]
        raise validation_error(in_body, value, count) from error


def _errors_of(error: PydanticError) -> list[Any]:
    return error.errors(include_url=False, include_input=False)


def _sampled_errors(schema: TypeAdapter[Any], value: Any) -> list[Any]:
    try:
        schema.validate_python(_sample(value, [_MAX_SAMPLED]))
    except PydanticError as error:
        # A field may be missing only because the sample leaves it out.
        return [each for each in _errors_of(error) if each["type"] != "missing"]
    return []


def _sample(value: Any, remaining: list[int]) -> Any:
    """Return a value with the first hundred items of each object and list in it."""
    remaining[0] -= 1
    if remaining[0] <= 0:
        return value if not isinstance(value, dict | list) else type(value)()
    if isinstance(value, dict):
        return {key: _sample(value[key], remaining) for key in islice(value, _MAX_PLACES)}
    if isinstance(value, list):
        return [_sample(item, remaining) for item in value[:_MAX_PLACES]]
    return value


def validation_error(
    errors: Sequence[Mapping[str, Any]], body: Any, count: int | None = None
) -> ValidationError:
    """Return pydantic's errors as one error; `body` is the parsed body that has them.

    `count` is the number of errors where `errors` holds only some of them.
    """
    messages: dict[str, list[str]] = {}
    for error in errors[:_MAX_PLACES]:
        messages.setdefault(pointer_to(_steps(error, body)), []).append(_message(error))
    problems = tuple(Problem(pointer, _joined(details)) for pointer, details in messages.items())
    return ValidationError(_summary(problems, count or len(errors)), problems=problems)


def refuse_unknown_query(request: Request, accepted: frozenset[str]) -> None:
    """Raise UnknownParameter for query parameters that an operation does not accept.

    `name[]` in `accepted` stands for all parameters `name[key]`.
    """
    unknown = [
        name
        for name in request.query_params
        if (_KEY.sub("[]", name) if name.endswith("]") else name) not in accepted
    ]
    detail = "is not a parameter of this operation"
    if accepted:
        detail += f", which accepts {', '.join(sorted(accepted))}"
    problems = tuple(Problem(pointer_to(("query", name)), detail) for name in unknown[:_MAX_PLACES])
    if problems:
        raise UnknownParameter(_summary(problems, len(unknown)), problems=problems)


def pointer_to(steps: Sequence[int | str]) -> str:
    """Return the JSON pointer with these steps, with long names truncated."""
    return "".join(f"/{_shortened(step).replace('~', '~0').replace('/', '~1')}" for step in steps)


def _shortened(step: int | str) -> str:
    text = str(step)
    return f"{text[:_MAX_STEP]}…" if len(text) > _MAX_STEP else text


def _steps(error: Mapping[str, Any], body: Any) -> list[int | str]:
    """Return the steps to the place of an error (rule 1)."""
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
        case "extra_forbidden":
            return "is an unknown field"
        case "string_pattern_mismatch":
            pattern = error["ctx"]["pattern"]
            return PATTERNS.get(pattern, f"must match {pattern}")
        case "value_error":
            return str(error["ctx"]["error"])
    return _SHOULD.sub("must ", error["msg"])


def _joined(messages: Sequence[str]) -> str:
    """Return the messages for the members of a union as one (rule 1)."""
    first, *others = dict.fromkeys(messages)
    return " or ".join((first, *(other.removeprefix(_MUST) for other in others)))


def _summary(problems: Sequence[Problem], count: int) -> str:
    if not problems:
        return f"The request is wrong in {count:,} places"
    first = problems[0].sentence
    if len(problems) == 1 and count <= _MAX_PLACES:
        return first
    places = len(problems) if count <= _MAX_PLACES else count
    return f"The request is wrong in {places:,} places; the first: {first}"
