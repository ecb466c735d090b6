"""Types of content parts and the formats that have them, to find parts of a wrong format.

A type that is not listed is accepted: providers add types, and a part is replayed to its own
provider unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from app.common.errors import Problem, ValidationError
from app.formats.mcp_parts import is_mcp
from app.formats.message import FormatName
from app.formats.registry import PROVIDERS

_CONTENT_FIELDS = ("content", "parts", "output")
_ITEMS = ("message", "function_call", "function_call_output", "reasoning")
"""Types of OpenAI Responses items, each a message by itself."""


def owners_of(kind: object, format: FormatName) -> tuple[FormatName, ...]:
    """Return the formats that have parts of this type; none if `format` may have them."""
    owners = tuple(item.name for item in PROVIDERS.values() if kind in item.part_types)
    return () if format in owners else owners


def require_own(raw: Mapping[str, Any], format: FormatName, pointer: str) -> None:
    """Raise ValidationError at a part of another format, which no payload could have."""
    for part_pointer, part in _parts(raw, pointer):
        kind = part.get("type") if not is_mcp(part) else None
        if owners := owners_of(kind, format):
            named = " or ".join(owners)
            detail = f"{kind} is a part of {named}, not of {format}: is `format` right?"
            raise ValidationError.at(f"{part_pointer}/type", detail)


def with_format_hint(
    error: ValidationError, raw: Mapping[str, Any], format: FormatName
) -> ValidationError:
    """Return an error with a hint at the format where the message looks like another one's."""
    shape = _shape_of(raw)
    if shape is None or shape is format:
        return error
    hint = f"; this has the shape of {shape}, not of {format}: is `format` right?"
    problems = tuple(Problem(item.pointer, item.detail + hint) for item in error.problems)
    return ValidationError(error.detail + hint, error.facts, problems)


def _shape_of(raw: Mapping[str, Any]) -> FormatName | None:
    if raw.get("type") in _ITEMS:
        return FormatName.OPENAI_RESPONSES
    return FormatName.GEMINI if "parts" in raw and "content" not in raw else None


def _parts(raw: Mapping[str, Any], pointer: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield an object and the parts inside it, each with its JSON pointer."""
    yield pointer, raw
    for key in _CONTENT_FIELDS:
        items = raw.get(key)
        for index, part in enumerate(items if isinstance(items, list) else ()):
            if isinstance(part, Mapping):
                yield from _parts(part, f"{pointer}/{key}/{index}")
