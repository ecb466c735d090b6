"""Reads the usage objects of providers.

1. OpenAI and Gemini count cached tokens in their input, Anthropic and Bedrock beside it. An object
   is read by its own shape, whatever the format of the call.
2. Where a provider ran several steps, the last one counts: it has the context that the next call
   starts from. The bill is that of all steps. Anthropic's own fields are their sum, except for the
   steps in which it compacted the context. Such a step says nothing about the context of the next
   call: an object that has no other one calibrates nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from app.common.errors import ValidationError
from app.formats import PROVIDERS
from app.formats.message import FormatName

MAX_REPORTED_TOKENS = 10**12
"""The largest number of tokens that is accepted."""
_STEP_TYPES = ("message", "fallback_message")
_COMPACTION_STEP_TYPE = "compaction"
_LIVES = ("5m", "1h")


class UsageShape(StrEnum):
    """The provider whose usage object it is; gateways report one provider's for another's call.

    `PLAIN` has only `input_tokens` and `output_tokens`, which mean the same to Anthropic and to
    OpenAI Responses while nothing is cached.
    """

    CHAT = "chat"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"
    PLAIN = "plain"
    GEMINI = "gemini"
    CONVERSE = "converse"

    @property
    def formats(self) -> tuple[FormatName, ...]:
        """The formats whose provider reports it; Bedrock's Converse serves all of them."""
        own = (name for name, provider in PROVIDERS.items() if self in provider.usage_shapes)
        return tuple(sorted(own)) or tuple(FormatName)


_ANTHROPIC_NAMES = {
    "input": "input_tokens",
    "output": "output_tokens",
    "read": "cache_read_input_tokens",
    "written": "cache_creation_input_tokens",
}
_NAMES: Mapping[UsageShape, Mapping[str, str]] = {
    UsageShape.GEMINI: {
        "input": "prompt_token_count promptTokenCount",
        "beside": "tool_use_prompt_token_count toolUsePromptTokenCount",
        "output": "candidates_token_count candidatesTokenCount",
        "thoughts": "thoughts_token_count thoughtsTokenCount",
        "read": "cached_content_token_count cachedContentTokenCount",
    },
    UsageShape.CHAT: {
        "input": "prompt_tokens",
        "output": "completion_tokens",
        "read": "prompt_tokens_details/cached_tokens cache_read_input_tokens"
        " prompt_cache_hit_tokens",
        "written": "prompt_tokens_details/cache_write_tokens"
        " prompt_tokens_details/cache_creation_tokens cache_creation_input_tokens",
    },
    UsageShape.CONVERSE: {
        "input": "inputTokens",
        "output": "outputTokens",
        "read": "cacheReadInputTokens",
        "written": "cacheWriteInputTokens",
    },
    UsageShape.PLAIN: _ANTHROPIC_NAMES,
    UsageShape.ANTHROPIC: _ANTHROPIC_NAMES,
    UsageShape.RESPONSES: {
        "input": "input_tokens",
        "output": "output_tokens",
        "read": "input_tokens_details/cached_tokens",
        "written": "input_tokens_details/cache_write_tokens",
    },
}
"""The fields of each shape, a number's other names beside the first one.

Of several shapes whose input an object has, the first one counts.
"""
_CACHE_BESIDE = (UsageShape.ANTHROPIC, UsageShape.PLAIN, UsageShape.CONVERSE)
"""Shapes whose input leaves out the cached tokens."""


def usage_shape(raw: Mapping[str, Any], format: FormatName | None = None) -> UsageShape:
    """Return the shape of a usage object by its fields, those that are null last.

    The format decides only between Anthropic and OpenAI. Raises ValidationError for an object of
    no known provider.
    """
    non_null = [name for name, value in raw.items() if value is not None]
    shapes = (
        shape
        for names in (non_null, raw)
        for shape, known in _NAMES.items()
        if any(name in names for name in known["input"].split())
    )
    shape = next(shapes, None)
    if shape is None:
        raise ValidationError.at("/usage", "This is the usage object of no known provider")
    if shape is not UsageShape.PLAIN:
        return shape
    return _with_cache(non_null, format) or _with_cache(raw, format) or shape


def _with_cache(names: Collection[str], format: FormatName | None) -> UsageShape | None:
    """Return the shape of an object with `input_tokens` by its cache fields, None without any.

    OpenAI Responses includes cached tokens in them, Anthropic does not.
    """
    is_openai = "input_tokens_details" in names
    if any(name.startswith("cache_") for name in names) or "iterations" in names:
        own = PROVIDERS[format].usage_shapes if format is not None else ()
        is_both = is_openai and UsageShape.ANTHROPIC not in own
        return UsageShape.RESPONSES if is_both else UsageShape.ANTHROPIC
    return UsageShape.RESPONSES if is_openai or "total_tokens" in names else None


def read_usage(raw: Mapping[str, Any], format: FormatName) -> CallUsage:
    """Read a usage object of any shape, for a call in this format.

    LiteLLM reports OpenAI Chat's shape, with fields of other providers. Unknown fields are
    ignored. Raises ValidationError at an impossible number.
    """
    try:
        shape = usage_shape(raw, format)
    except ValidationError:
        # The error names the missing field.
        shape = UsageShape(PROVIDERS[format].usage_shapes[0])
    whole = _step(raw, shape, "/usage")
    steps = raw.get("iterations") or ()
    if not isinstance(steps, list | tuple):
        raise ValidationError.at("/usage/iterations", "A list is required")
    last, billed = whole, whole
    has_steps = len(steps) > 1 or _ran_own_tools(raw)
    for index, step in enumerate(steps):
        pointer = f"/usage/iterations/{index}"
        if not isinstance(step, Mapping):
            raise ValidationError.at(pointer, "An object is required")
        if step.get("type") in _STEP_TYPES:
            last = _step(step, UsageShape.ANTHROPIC, pointer)
        elif step.get("type") == _COMPACTION_STEP_TYPE:
            billed = billed.plus(_step(step, UsageShape.ANTHROPIC, pointer))
            has_steps = True
    return CallUsage(last, has_steps, None if billed == last else billed)


def _step(raw: Mapping[str, Any], shape: UsageShape, at: str) -> TokenUsage:
    names = _NAMES[shape]
    required = names["input"].split()
    if all(raw.get(name) is None for name in required):
        raise ValidationError.at(f"{at}/{required[0]}", "The tokens of the input are required")
    found = {kind: _tokens(raw, paths, at) for kind, paths in names.items()}
    sent, read, written = found["input"], found["read"], found.get("written", 0)
    output = found["output"] + found.get("thoughts", 0)
    if shape in _CACHE_BESIDE:
        lifetimes = (_tokens(raw, f"cache_creation/ephemeral_{n}_input_tokens", at) for n in _LIVES)
        return TokenUsage(sent, output, max(written, sum(lifetimes)), read)
    if max(read, written) > sent:
        pointer = f"{at}/{re.split('[/ ]', names['read'])[0]}"
        raise ValidationError.at(pointer, f"More cached tokens than the {sent} of the input")
    written = min(written, sent - read)  # tokens both read and written count as read
    return TokenUsage(sent - read - written + found.get("beside", 0), output, written, read)


def _ran_own_tools(raw: Mapping[str, Any]) -> bool:
    """Whether the provider ran its own tools, whose results it added to the input."""
    if _tokens(raw, _NAMES[UsageShape.GEMINI]["beside"], "/usage"):
        return True
    requests = raw.get("server_tool_use")
    return isinstance(requests, Mapping) and any(
        isinstance(count, int) and count > 0 for count in requests.values()
    )


def _tokens(raw: Mapping[str, Any], paths: str, at: str) -> int:
    """Return the largest of these numbers, 0 without any; several are names of one number."""
    found = 0
    for path in paths.split():
        value: Any = raw
        pointer = at
        for name in path.split("/"):
            if not isinstance(value, Mapping):
                raise ValidationError.at(pointer, "An object is required")
            value, pointer = value.get(name), f"{pointer}/{name}"
            if value is None:
                break
        if value is not None:
            if type(value) is not int or not 0 <= value <= MAX_REPORTED_TOKENS:
                detail = f"A whole number from 0 to {MAX_REPORTED_TOKENS}"
                raise ValidationError.at(pointer, detail)
            found = max(found, value)
    return found


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """The tokens of one call; `input_tokens` excludes cached tokens."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_creation_tokens: int = 0
    cache_read_tokens: int = 0

    @property
    def sent_tokens(self) -> int:
        """The tokens of the payload, cached or not."""
        return self.input_tokens + self.cache_creation_tokens + self.cache_read_tokens

    @property
    def total_tokens(self) -> int:
        """All tokens of the call (rule 1)."""
        return self.sent_tokens + self.output_tokens

    def plus(self, other: TokenUsage) -> TokenUsage:
        """Return the tokens of both."""
        return TokenUsage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_creation_tokens + other.cache_creation_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
        )


@dataclass(frozen=True, slots=True)
class CallUsage:
    """The usage of a call; with `has_steps` its input has more than the payload.

    The provider ran tools of its own, and counted their results as input. `usage` is that of the
    last step, whose context the next call starts from. `whole` is the usage of all steps, None
    where that is the same.
    """

    usage: TokenUsage
    has_steps: bool = False
    whole: TokenUsage | None = None

    @property
    def billed(self) -> TokenUsage:
        """The usage that the provider bills."""
        return self.whole or self.usage
