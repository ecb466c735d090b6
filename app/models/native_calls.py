"""Sends requests in a provider's own format through LiteLLM, and reads the answers.

1. LiteLLM converts what it is passed as messages and tools, differently for each provider. So
   that a prompt cache recognises it, a request of OpenAI's formats goes in `extra_body`, which
   replaces these fields, and one of Anthropic's through LiteLLM's passthrough. A test compares what
   arrives with what was sent, for each provider below.
2. Other providers are not called so: LiteLLM would convert the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, assert_never

from app.common.errors import ValidationError
from app.formats.message import FormatName
from app.models.model_calls import Completion, NativeRequest
from app.models.usage_objects import read_usage

NATIVE_PROVIDERS: Mapping[FormatName, frozenset[str]] = {
    FormatName.OPENAI_CHAT: frozenset(
        (
            *("openai", "custom_openai", "openrouter", "deepseek", "xai", "mistral"),
            *("together_ai", "fireworks_ai", "hosted_vllm", "moonshot", "zai", "dashscope"),
            *("cerebras", "litellm_proxy"),
        )
    ),
    FormatName.OPENAI_RESPONSES: frozenset(("openai", "xai")),
    FormatName.ANTHROPIC: frozenset(("anthropic",)),
    FormatName.GEMINI: frozenset(),
}
"""LiteLLM's names of the providers that are sent a format unchanged."""

_PLAIN_USAGE = ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens")
_REPLACED = "-"
"""Stands where `extra_body` has the messages."""
_STOP_REASONS = {
    "max_tokens": "length",
    "refusal": "content_filter",
    "max_output_tokens": "length",
    "content_filter": "content_filter",
}
"""OpenAI's finish reasons for those of Anthropic and of OpenAI Responses."""


def takes_payload(litellm: Any, model: str, format: FormatName) -> bool:
    """Return whether payloads of a format can be sent to a model unchanged."""
    try:
        provider = litellm.get_llm_provider(model)[1]
    except litellm.exceptions.BadRequestError:  # the provider of the model is unknown
        return False
    return provider in NATIVE_PROVIDERS[format]


async def send(litellm: Any, request: NativeRequest, **options: Any) -> Any:
    """Send a request to a model that takes its format; `options` are LiteLLM's."""
    body = {name: value for name, value in request.body.items() if name != "model"}
    match request.format:
        case FormatName.OPENAI_CHAT:
            messages = [{"role": "user", "content": _REPLACED}]
            return await litellm.acompletion(messages=messages, extra_body=body, **options)
        case FormatName.OPENAI_RESPONSES:
            return await litellm.aresponses(input=_REPLACED, extra_body=body, **options)
        case FormatName.ANTHROPIC:
            return await litellm.anthropic.messages.acreate(**body, **options)
        case FormatName.GEMINI:
            raise ValueError("LiteLLM converts requests in Gemini's format")
        case _:
            assert_never(request.format)


def anthropic_completion(response: Mapping[str, Any]) -> Completion:
    """Return what a message of Anthropic says; raises KeyError or TypeError for anything else."""
    blocks = response["content"]
    reason = str(response["stop_reason"])
    return with_usage(
        Completion(
            "".join(block["text"] for block in blocks if block["type"] == "text"),
            _STOP_REASONS.get(reason, "stop"),
            0,
            0,
            has_tool_calls=any(block["type"].endswith("tool_use") for block in blocks),
        ),
        response["usage"],
        FormatName.ANTHROPIC,
    )


def responses_completion(response: Mapping[str, Any]) -> Completion:
    """Return what an answer of OpenAI Responses says; raises as `anthropic_completion` does."""
    items = response["output"]
    parts = [part for item in items if item["type"] == "message" for part in item["content"] or ()]
    refused = any(part["type"] == "refusal" for part in parts)
    reason = (response.get("incomplete_details") or {}).get("reason")
    return with_usage(
        Completion(
            "".join(part["text"] for part in parts if part["type"] == "output_text"),
            "content_filter" if refused else _STOP_REASONS.get(str(reason), "stop"),
            0,
            0,
            has_tool_calls=any(item["type"].endswith("_call") for item in items),
        ),
        response["usage"],
        FormatName.OPENAI_RESPONSES,
    )


def with_usage(
    completion: Completion, usage: Mapping[str, Any] | None, format: FormatName
) -> Completion:
    """Return a completion with the tokens of a provider's usage object, 0 without one.

    Of an object with impossible cached tokens, all of its input counts as not cached.
    """
    if usage is None:
        return completion
    try:
        billed = read_usage(usage, format).billed
    except ValidationError:
        billed = read_usage({name: usage.get(name) for name in _PLAIN_USAGE}, format).billed
    return replace(
        completion,
        input_tokens=billed.sent_tokens,
        output_tokens=billed.output_tokens,
        cached_tokens=billed.cache_read_tokens,
        cache_write_tokens=billed.cache_creation_tokens,
    )
