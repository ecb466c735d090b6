"""Request validation errors: pydantic's messages at JSON pointers into the request.

An answer names at most a hundred places. pydantic creates objects for all errors or for none: of a
body with very many errors only their number is told.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter
from pydantic import ValidationError as PydanticError
from starlette.requests import Request

from app.common.errors import Problem, ValidationError
from app.common.schema_errors import in_body, pointer_to, problems_of
from app.http.bodies import UnknownParameter

_KEY = re.compile(r"\[.*\]\Z", re.DOTALL)
_MAX_PLACES = 100
_MAX_ERRORS = 1_000
"""The number of errors whose objects pydantic creates within milliseconds."""


def validated(schema: TypeAdapter[Any], value: Any) -> Any:
    """Return a parsed body as an instance of the schema; raises ValidationError."""
    try:
        return schema.validate_python(value)
    except PydanticError as error:
        count = error.error_count()
        is_few = count <= _MAX_ERRORS
        errors = error.errors(include_url=False, include_input=False) if is_few else []
        raise validation_error(in_body(errors), value, count) from error


def validation_error(
    errors: Sequence[Mapping[str, Any]], body: Any, count: int | None = None
) -> ValidationError:
    """Return pydantic's errors as one error; `body` is the parsed body that has them.

    `count` is the number of errors where `errors` holds only some of them.
    """
    problems = problems_of(errors[:_MAX_PLACES], body)
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


def _summary(problems: Sequence[Problem], count: int) -> str:
    if not problems:
        return f"The request is wrong in {count:,} places"
    first = problems[0].sentence
    if len(problems) == 1 and count <= _MAX_PLACES:
        return first
    places = len(problems) if count <= _MAX_PLACES else count
    return f"The request is wrong in {places:,} places; the first: {first}"
