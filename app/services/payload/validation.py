"""Validates payloads by the rules of their providers; nothing is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.domain.common.errors import NotFound, ValidationError
from app.domain.common.messages import FormatName, sendable
from app.domain.common.policy import CounterName
from app.domain.formats import ToolDefinition, json_fields, parse_tool
from app.domain.models.limits import ModelInfo
from app.domain.models.tokens import (
    CountText,
    count_payload_messages,
    count_system,
    estimate_tool_defs_tokens,
)
from app.domain.payload.validation import capacity_of, validate
from app.domain.payload.validation.rules import Context, Violation
from app.domain.payload.validation.shapes import Shape, object_of, read, texts_in
from app.services.models.registry import RegistryService
from app.services.prompt.settings_resolver import SettingsResolver

_DECLARATIONS = ("function_declarations", "functionDeclarations")


@dataclass(frozen=True, slots=True)
class ValidationRequest:
    """A payload and facts beside it; `previous_stable_items` are those of the build before."""

    payload: Mapping[str, Any]
    format: FormatName = FormatName.OPENAI_CHAT
    model: str | None = None
    max_context_tokens: int | None = None
    previous: Mapping[str, Any] | None = None
    previous_stable_items: int | None = None
    betas: Sequence[str] | None = None
    prefill: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """The violations of a payload, which is `valid` when none is an error.

    `tokens` and `capacity` are those that rule N7 compared, None where one is unknown.
    """

    valid: bool
    violations: Sequence[Violation]
    tokens: int | None
    capacity: int | None


class ValidationService:
    """Validates payloads of any origin."""

    def __init__(self, resolver: SettingsResolver, models: RegistryService) -> None:
        self._resolver = resolver
        self._models = models

    async def validate(self, tenant_id: str, request: ValidationRequest) -> Verdict:
        """Return the verdict on a payload.

        Raises ValidationError for a payload without a list of items, and for an unknown model.
        """
        info = await self._model(tenant_id, request.model) if request.model is not None else None
        return await asyncio.to_thread(self._judge, request, info)

    async def _model(self, tenant_id: str, model: str) -> ModelInfo:
        try:
            return await self._models.get(tenant_id, model)
        except NotFound as error:
            detail = "Nothing is known about this model: leave it out, or add it to /v1/models"
            raise ValidationError.at("/model", detail) from error

    def _judge(self, request: ValidationRequest, info: ModelInfo | None) -> Verdict:
        shape = read(request.payload, request.format, "/payload")
        if request.previous is not None:
            read(request.previous, request.format, "/previous")
        capacity = capacity_of(shape, request.max_context_tokens, info)
        tokens = None
        if capacity is not None:
            tokens = _tokens(shape, request.format, self._resolver.counter(CounterName.TOKENIZER))
        context = Context(
            previous=request.previous,
            previous_stable=request.previous_stable_items,
            model=info,
            tokens=tokens,
            capacity=capacity,
            betas=request.betas,
            prefill=request.prefill,
        )
        violations = validate(request.payload, request.format, context)
        valid = all(violation.severity != "error" for violation in violations)
        return Verdict(valid, violations, tokens, capacity)


def _tokens(shape: Shape, format: FormatName, count: CountText) -> int | None:
    """Count a payload as a build does, None where an item cannot be read."""
    if not all(isinstance(item, Mapping) for item in shape.items):
        return None
    try:
        messages = count_payload_messages(format, shape.items, count)
    except ValidationError:
        return None
    system = "\n\n".join(texts_in(shape.system))
    return messages + (count_system(system, count) if system else 0) + _tool_tokens(shape, count)


def _tool_tokens(shape: Shape, count: CountText) -> int:
    """Count the tools; one without a schema is counted as its JSON text."""
    readable: list[ToolDefinition] = []
    unreadable_tokens = 0
    for tool in shape.tools:
        declared = next(
            (object_of(tool)[key] for key in _DECLARATIONS if key in object_of(tool)), None
        )
        for definition in declared if isinstance(declared, list) else [tool]:
            try:
                readable.append(parse_tool(definition, ""))
            except ValidationError:
                unreadable_tokens += count(sendable(json_fields.compact(definition)))
    return unreadable_tokens + (estimate_tool_defs_tokens(readable, count) if readable else 0)
