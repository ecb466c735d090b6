"""What a request is refused for before anything is done, in words of our own (M).

1. What pydantic finds is said of its place: `is required`, `must be a list`. Only what is rare is
   left in its words.
2. A pointer names what was sent. Where a field takes one of several kinds pydantic adds the kind
   to the place, once for each: these are one problem.
3. A name that nothing has is compared with those that could stand there.
4. A body can be wrong in a hundred thousand places; the first hundred of them are told. pydantic
   makes objects of all errors or of none: where there are many, those of the beginnings of the
   body's objects and lists are made.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter
from pydantic import ValidationError as PydanticError
from starlette.requests import Request
from typing_extensions import TypeAliasType

from app.api.http.bodies import UnknownParameter
from app.api.http.fields import PATTERNS
from app.domain.common.errors import Problem, ValidationError

_WORDS: Mapping[str, str] = {
    "missing": "is required",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "dict_type": "must be an object",
    "list_type": "must be a list",
    "string_type": "must be a string",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a smaller number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "enum": "must be {expected}",
    "literal_error": "must be {expected}",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "string_too_short": "must have {min_length} or more characters",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must have {min_length} or more items",
    "too_long": "must have at most {max_length} items",
    "value_error": "{error}",
}
_Place = tuple[int | str, ...]
_UNKNOWN = "extra_forbidden"
_MUST_BE = "must be "
_MAX_PLACES = 100
_MAX_ERRORS = 1_000
"""Errors of which objects are made in some milliseconds."""
_MAX_SAMPLED = 10_000
"""Values that a body's beginnings have at most."""
_MAX_STEP = 100
"""Characters of a name that a pointer shows."""
_MAX_GUESSES = 10
"""Comparing takes longer than all else."""


def checked(schema: TypeAdapter[Any], value: Any, body: Any) -> Any:
    """Return a parsed body as `schema` has it; raises ValidationError with its mistakes (rule 4).

    `body` is the type of the schema.
    """
    try:
        return schema.validate_python(value)
    except PydanticError as error:
        count = error.error_count()
        found = _errors_of(error) if count <= _MAX_ERRORS else _sampled_errors(schema, value)
        # As FastAPI gives them: from the request, not from its body.
        whole = [{**each, "loc": ("body", *each["loc"])} for each in found]
        raise invalid(whole, body, count) from error


def _errors_of(error: PydanticError) -> list[Any]:
    return error.errors(include_url=False, include_input=False)


def _sampled_errors(schema: TypeAdapter[Any], value: Any) -> list[Any]:
    """Return errors of the beginnings of a body, none if the beginnings have none (rule 4)."""
    try:
        schema.validate_python(_beginnings(value, [_MAX_SAMPLED]))
    except PydanticError as error:
        # What seems to be missing may be what was cut off.
        return [each for each in _errors_of(error) if each["type"] != "missing"]
    return []


def _beginnings(value: Any, left: list[int]) -> Any:
    """Return a value with the first hundred items of each object and list in it."""
    left[0] -= 1
    if left[0] <= 0:
        return value if not isinstance(value, dict | list) else type(value)()
    if isinstance(value, dict):
        return {key: _beginnings(value[key], left) for key in islice(value, _MAX_PLACES)}
    if isinstance(value, list):
        return [_beginnings(item, left) for item in value[:_MAX_PLACES]]
    return value


def invalid(
    errors: Sequence[Mapping[str, Any]], body: Any, count: int | None = None
) -> ValidationError:
    """Return what pydantic found as one error; `body` is the type that the body should have.

    `count` is how many errors there are, where not all of them are given.
    """
    found: dict[str, list[str]] = {}
    places = _Places(body)
    guesses = 0
    for error in errors[:_MAX_PLACES]:
        place = tuple(error["loc"])
        if error["type"] == _UNKNOWN:
            steps, names = places.unknown(place)
            words = "is no field here" + _guess(place[-1], names if guesses < _MAX_GUESSES else ())
            guesses += 1
        else:
            steps, words = places.known(place), _in_words(error)
        found.setdefault(pointer_to(steps), []).append(words)
    problems = tuple(Problem(pointer, _joined(words)) for pointer, words in found.items())
    return ValidationError(_summed_up(problems, count or len(errors)), problems=problems)


def refuse_unknown_query(request: Request, known: frozenset[str]) -> None:
    """Raise UnknownParameter for the parameters of a query that an operation does not have."""
    unknown = [name for name in request.query_params if name not in known]
    problems = tuple(
        Problem(
            pointer_to(("query", name)),
            "is no parameter here" + _guess(name, known if place < _MAX_GUESSES else ()),
        )
        for place, name in enumerate(unknown[:_MAX_PLACES])
    )
    if problems:
        raise UnknownParameter(_summed_up(problems, len(unknown)), problems=problems)


def pointer_to(place: Sequence[int | str]) -> str:
    """Return the JSON pointer of a place."""
    return "".join(f"/{_shown(step).replace('~', '~0').replace('/', '~1')}" for step in place)


def _shown(step: int | str) -> str:
    """Return a step of a pointer, without the end of a long name."""
    text = str(step)
    return f"{text[:_MAX_STEP]}…" if len(text) > _MAX_STEP else text


def _summed_up(problems: Sequence[Problem], count: int) -> str:
    if not problems:
        return f"The request is wrong in {count:,} places"
    first = problems[0].sentence
    if len(problems) == 1 and count <= _MAX_PLACES:
        return first
    places = len(problems) if count <= _MAX_PLACES else count
    return f"The request is wrong in {places:,} places; the first: {first}"


def _in_words(error: Mapping[str, Any]) -> str:
    """Return what is wrong at a place (rule 1)."""
    context = error.get("ctx", {})
    if error["type"] == "string_pattern_mismatch":
        pattern = context["pattern"]
        return PATTERNS.get(pattern, f"must match {pattern}")
    words = _WORDS.get(error["type"])
    return words.format_map(context) if words is not None else str(error["msg"])


def _joined(words: Sequence[str]) -> str:
    """Return what is said of the kinds that a field may have as one (rule 2)."""
    if len(words) == 1:
        return words[0]
    first, *others = dict.fromkeys(words)
    return " or ".join((first, *(other.removeprefix(_MUST_BE) for other in others)))


def _guess(name: int | str, names: Collection[str]) -> str:
    """Return a question for the name that was meant, or nothing (rule 3)."""
    near = get_close_matches(str(name), names, n=1) if names and len(str(name)) < _MAX_STEP else ()
    return f"; did you mean `{near[0]}`?" if near else ""


class _Places:
    """The places of a request as pointers name them (rule 2); each is followed but once."""

    def __init__(self, body: Any) -> None:
        self._followed: dict[_Place, tuple[_Place, list[type[BaseModel]]]] = {
            ("body",): ((), list(_models_in(body)))
        }

    def known(self, place: _Place) -> _Place:
        """Return the steps to what is sent."""
        return self._follow(place)[0] if place[:1] == ("body",) else place

    def unknown(self, place: _Place) -> tuple[_Place, list[str]]:
        """Return the steps to a field of the body that nothing has, and those it could be."""
        steps, models = self._follow(place[:-1])
        return (*steps, place[-1]), [name for model in models for name in model.model_fields]

    def _follow(self, place: _Place) -> tuple[_Place, list[type[BaseModel]]]:
        """Return the steps to a place without those that pydantic added, and its schemas."""
        found = self._followed.get(place)
        if found is None:
            steps, models = self._follow(place[:-1])
            step = place[-1]
            holders = [model for model in models if step in model.model_fields]
            if holders:
                kinds = [model.model_fields[str(step)].annotation for model in holders]
                models = [model for kind in kinds for model in _models_in(kind)]
            kept = (*steps, step) if holders or isinstance(step, int) else steps
            found = self._followed[place] = kept, models
        return found


def _models_in(kind: Any) -> Iterator[type[BaseModel]]:
    """Yield the schemas that a field of this type may hold, or a list of them."""
    if isinstance(kind, TypeAliasType):
        kind = kind.__value__
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for part in get_args(kind):
        yield from _models_in(part)
