"""Validates payloads of any origin by the rules of their providers.

`validate` is pure and takes any JSON: a value that cannot be read violates the nearest rule. It
reads a payload a fixed number of times, so that its time is linear in the size of the payload.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, Final

from app.domain.common.errors import ContextError
from app.domain.common.messages import FormatName
from app.domain.models.limits import INEXACT_MARGIN, ModelInfo, resolve_context_window
from app.domain.payload.validation import anthropic, gemini, neutral, openai_chat, openai_responses
from app.domain.payload.validation.neutral import Dialect
from app.domain.payload.validation.rules import NO_CONTEXT, Check, Context, Violation
from app.domain.payload.validation.shapes import Shape, read

DIALECTS: Final[Mapping[FormatName, Dialect]] = MappingProxyType(
    {
        FormatName.OPENAI_CHAT: openai_chat.DIALECT,
        FormatName.OPENAI_RESPONSES: openai_responses.DIALECT,
        FormatName.ANTHROPIC: anthropic.DIALECT,
        FormatName.GEMINI: gemini.DIALECT,
    }
)


def validate(
    payload: Mapping[str, Any], format: FormatName, context: Context = NO_CONTEXT
) -> list[Violation]:
    """Return the violations of a payload, in no particular order.

    Raises ValidationError for a payload, or a previous one, that has no list of items.
    """
    shape = read(payload, format)
    previous = read(context.previous, format) if context.previous is not None else None
    parts = {part.name: getattr(shape, part.name) for part in fields(shape)}
    check = Check(**parts, previous=previous, context=context)
    dialect = DIALECTS[format]
    dialect.judge(check)
    neutral.judge(dialect, check)
    return check.violations


def capacity_of(shape: Shape, requested: int | None, info: ModelInfo | None) -> int | None:
    """Return the limit of input tokens of this payload, None for an unknown context window.

    `requested` is a smaller window than the model's. The payload's output limit is reserved.
    """
    reserve = shape.max_output_tokens
    if reserve is not None and reserve <= 0:
        reserve = None
    margin = info.margin if info is not None else INEXACT_MARGIN
    try:
        window = resolve_context_window(requested, None, info, None, reserve or 1, derive=False)
    except ContextError as error:
        return 0 if "total" in error.facts else None
    effective = window.effective if reserve is not None else window.total
    return math.floor(effective / (1 + margin))
