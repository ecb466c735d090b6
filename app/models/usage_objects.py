"""Reads the usage objects of providers.

1. OpenAI and Gemini count cached tokens in their input, Anthropic and Bedrock beside it. An object
   is read by its own shape, whatever the format of the call.
2. Where a provider ran several steps, the last one counts: it has the context that the next call
   starts from. The bill is that of all steps. Anthropic's own fields are their sum, except for the
   steps in which it compacted the context. Such a step says nothing about the context of the next
   call: an object that has no other one calibrates nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
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
_CACHE_READ_NAMES = ("cache_read_input_tokens", "prompt_cache_hit_tokens")


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


_INPUT_NAMES = {
    "prompt_token_count": UsageShape.GEMINI,
    "promptTokenCount": UsageShape.GEMINI,
    "prompt_tokens": UsageShape.CHAT,
    "inputTokens": UsageShape.CONVERSE,
    "input_tokens": UsageShape.PLAIN,
}
"""The input field of each shape; of several, the first one counts."""


def usage_shape(raw: Mapping[str, Any], format: FormatName | None = None) -> UsageShape:
    """Return the shape of a usage object by its fields, those that are null last.

    The format decides only between Anthropic and OpenAI. Raises ValidationError for an object of
    no known provider.
    """
    non_null = [name for name, value in raw.items() if value is not None]
    shapes = (
        shape for names in (non_null, raw) for name, shape in _INPUT_NAMES.items() if name in names
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
        # The reader's error names the missing field.
        shape = UsageShape(PROVIDERS[format].usage_shapes[0])
    return _READERS[shape](raw)


def _chat(raw: Mapping[str, Any]) -> CallUsage:
    sent = _tokens(raw, "prompt_tokens", required=True)
    details = _object(raw, "prompt_tokens_details")
    pointer = "/usage/prompt_tokens_details"
    read = [_tokens(details, "cached_tokens", at=pointer)]
    read += [_tokens(raw, name) for name in _CACHE_READ_NAMES]
    written = [_tokens(details, "cache_write_tokens", "cache_creation_tokens", at=pointer)]
    written.append(_tokens(raw, "cache_creation_input_tokens"))
    usage = _split(sent, max(read), max(written), _tokens(raw, "completion_tokens"), pointer)
    return _last_step(raw, usage)


def _responses(raw: Mapping[str, Any]) -> CallUsage:
    details, pointer = _object(raw, "input_tokens_details"), "/usage/input_tokens_details"
    usage = _split(
        _tokens(raw, "input_tokens", required=True),
        _tokens(details, "cached_tokens", at=pointer),
        _tokens(details, "cache_write_tokens", at=pointer),
        _tokens(raw, "output_tokens"),
        pointer,
    )
    return CallUsage(usage)


def _split(sent: int, read: int, written: int, output: int, pointer: str) -> TokenUsage:
    """Split an input that includes cached tokens; tokens both read and written count as read."""
    if max(read, written) > sent:
        raise ValidationError.at(pointer, f"More cached tokens than the {sent} of the input")
    written = min(written, sent - read)
    return TokenUsage(sent - read - written, output, written, read)


def _anthropic(raw: Mapping[str, Any]) -> CallUsage:
    return _last_step(raw, _anthropic_step(raw, "/usage"))


def _last_step(raw: Mapping[str, Any], whole: TokenUsage) -> CallUsage:
    """Return the last of Anthropic's steps, else the whole (rule 2)."""
    steps = raw.get("iterations")
    steps = () if steps is None else steps
    if not isinstance(steps, Sequence) or isinstance(steps, str):
        raise ValidationError.at("/usage/iterations", "A list is required")
    usages = []
    billed = whole
    has_compacted = False
    for index, step in enumerate(steps):
        pointer = f"/usage/iterations/{index}"
        if not isinstance(step, Mapping):
            raise ValidationError.at(pointer, "An object is required")
        if step.get("type") in _STEP_TYPES:
            usages.append(_anthropic_step(step, pointer))
        elif step.get("type") == _COMPACTION_STEP_TYPE:
            billed = billed.plus(_anthropic_step(step, pointer))
            has_compacted = True
    last = usages[-1] if usages else whole
    has_steps = len(steps) > 1 or has_compacted or _ran_own_tools(raw)
    return CallUsage(last, has_steps, None if billed == last else billed)


def _anthropic_step(raw: Mapping[str, Any], at: str) -> TokenUsage:
    written = _tokens(raw, "cache_creation_input_tokens", at=at)
    by_lifetime = _object(raw, "cache_creation", at=at)
    split = sum(
        _tokens(by_lifetime, name, at=f"{at}/cache_creation")
        for name in ("ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens")
    )
    return TokenUsage(
        input_tokens=_tokens(raw, "input_tokens", at=at, required=True),
        output_tokens=_tokens(raw, "output_tokens", at=at),
        cache_creation_tokens=max(written, split),
        cache_read_tokens=_tokens(raw, "cache_read_input_tokens", at=at),
    )


def _gemini(raw: Mapping[str, Any]) -> CallUsage:
    sent = _tokens(raw, "prompt_token_count", "promptTokenCount", required=True)
    read = _tokens(raw, "cached_content_token_count", "cachedContentTokenCount")
    answer = _tokens(raw, "candidates_token_count", "candidatesTokenCount")
    answer += _tokens(raw, "thoughts_token_count", "thoughtsTokenCount")
    tool_use = _tokens(raw, "tool_use_prompt_token_count", "toolUsePromptTokenCount")
    usage = _split(sent, read, 0, answer, "/usage/cached_content_token_count")
    whole = TokenUsage(usage.input_tokens + tool_use, answer, 0, read)
    return CallUsage(whole, has_steps=tool_use > 0)


def _converse(raw: Mapping[str, Any]) -> CallUsage:
    """Read Bedrock's object, whose input leaves out the cached tokens."""
    usage = TokenUsage(
        input_tokens=_tokens(raw, "inputTokens", required=True),
        output_tokens=_tokens(raw, "outputTokens"),
        cache_creation_tokens=_tokens(raw, "cacheWriteInputTokens"),
        cache_read_tokens=_tokens(raw, "cacheReadInputTokens"),
    )
    return CallUsage(usage)


def _ran_own_tools(raw: Mapping[str, Any]) -> bool:
    """Whether the provider ran its own tools, whose results it added to the input."""
    requests = raw.get("server_tool_use")
    return isinstance(requests, Mapping) and any(
        isinstance(count, int) and count > 0 for count in requests.values()
    )


def _object(raw: Mapping[str, Any], name: str, at: str = "/usage") -> Mapping[str, Any]:
    value = raw.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValidationError.at(f"{at}/{name}", "An object is required")
    return value


def _tokens(raw: Mapping[str, Any], *names: str, at: str = "/usage", required: bool = False) -> int:
    """Return the first of these numbers, 0 without any."""
    for name in names:
        value = raw.get(name)
        if value is None:
            continue
        if type(value) is not int or not 0 <= value <= MAX_REPORTED_TOKENS:
            raise ValidationError.at(
                f"{at}/{name}", f"A whole number from 0 to {MAX_REPORTED_TOKENS}"
            )
        return value
    if required:
        raise ValidationError.at(f"{at}/{names[0]}", "The tokens of the input are required")
    return 0


_READERS: Mapping[UsageShape, Callable[[Mapping[str, Any]], CallUsage]] = {
    UsageShape.CHAT: _chat,
    UsageShape.RESPONSES: _responses,
    UsageShape.ANTHROPIC: _anthropic,
    UsageShape.PLAIN: _anthropic,
    UsageShape.GEMINI: _gemini,
    UsageShape.CONVERSE: _converse,
}


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
