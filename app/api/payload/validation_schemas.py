"""Schemas of payload validation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from app.api.http.fields import (
    MAX_TOKENS,
    Format,
    ModelName,
    PayloadObject,
    RequestSchema,
    ResponseSchema,
    examples,
)
from app.domain.common.messages import FormatName
from app.domain.payload.validation.rules import MAX_VIOLATIONS, NOT_JUDGED

_PAYLOAD: dict[str, Any] = {
    "model": "claude-3-5-sonnet",
    "max_tokens": 1024,
    "messages": [
        {"role": "user", "content": "What is the weather in Bergen?"},
        {
            "role": "assistant",
            "content": [
                {
                    "type": "tool_use",
                    "id": "toolu_1",
                    "name": "get_weather",
                    "input": {"city": "Bergen"},
                }
            ],
        },
        {"role": "user", "content": "Never mind."},
    ],
    "tools": [{"name": "get_weather", "input_schema": {"type": "object"}}],
}
_VIOLATION: dict[str, Any] = {
    "rule": "A2",
    "severity": "error",
    "pointer": "/messages/1/content/0",
    "message": "the call has no result in the next message",
}


class PayloadCheck(RequestSchema):
    """A payload to validate; rules that need a fact that is left out are not judged."""

    model_config = examples({"format": "anthropic", "payload": _PAYLOAD})

    format: Format = FormatName.OPENAI_CHAT
    payload: PayloadObject = Field(description="A payload in `format`, as it goes to the provider.")
    model: ModelName | None = Field(
        default=None, description="Model whose limits count (rules N7, A8, A16 and A19)."
    )
    max_context_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = Field(
        default=None,
        description="Context window of the call in tokens, where it is below the model's.",
    )
    previous: PayloadObject | None = Field(
        default=None,
        description="Payload of the build before; of the same model (rule N9).",
    )
    previous_stable_items: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = Field(
        default=None,
        description="Its build's `stable_items`: how many of its items have to stay;"
        " all of them by default.",
    )
    betas: list[Annotated[str, Field(max_length=256)]] | None = Field(
        default=None, max_length=64, description="Anthropic beta headers that go with the call."
    )
    prefill: bool = Field(
        default=False, description="Whether the model continues an assistant message (rule A1)."
    )


class RuleViolation(ResponseSchema):
    """A rule that the payload breaks, and where."""

    model_config = examples(_VIOLATION)

    rule: str = Field(description="Id of the rule.")
    severity: Literal["error", "warning"] = Field(
        description="An `error` is refused by the provider; a `warning` costs cache or quality."
    )
    pointer: str = Field(description="JSON pointer into the payload.")
    message: str = Field(description="What is wrong there.")


class PayloadVerdict(ResponseSchema):
    """The violations of a payload."""

    model_config = examples(
        {"valid": False, "violations": [_VIOLATION], "tokens": None, "capacity": None}
    )

    valid: bool = Field(description="Whether no violation is an error.")
    violations: list[RuleViolation] = Field(
        description=f"The violations, {MAX_VIOLATIONS:,} at most."
        f" Never among them: {', '.join(NOT_JUDGED)}."
    )
    tokens: int | None = Field(
        description="Estimated input tokens that N7 compared; null when it was not judged."
    )
    capacity: int | None = Field(
        description="The limit of input tokens, without output limit and margin."
    )
