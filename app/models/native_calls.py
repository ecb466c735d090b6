"""Sends requests in a provider's own format through LiteLLM, and reads the answers.

1. LiteLLM converts what it is passed as messages and tools, differently for each provider. So
   that a prompt cache recognises it, a request of OpenAI's formats goes in `extra_body`, which
   replaces these fields, and one of Anthropic's through LiteLLM's passthrough. A test compares what
   arrives with what was sent, for each provider below.
2. Other providers are not called so: LiteLLM would convert the request.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.common.errors import ValidationError
from app.formats import PROVIDERS
from app.formats.message import FormatName
from app.models.model_calls import Completion, NativeRequest
from app.models.usage_objects import read_usage

_PLAIN_USAGE = ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens")


def takes_payload(litellm: Any, model: str, format: FormatName) -> bool:
    """Return whether payloads of a format can be sent to a model unchanged."""
    try:
        provider = litellm.get_llm_provider(model)[1]
    except litellm.exceptions.BadRequestError:  # the provider of the model is unknown
        return False
    return provider in PROVIDERS[format].litellm_providers


async def send(litellm: Any, request: NativeRequest, **options: Any) -> Any:
    """Send a request to a model that takes its format; `options` are LiteLLM's."""
    body = {name: value for name, value in request.body.items() if name != "model"}
    provider = PROVIDERS[request.format]
    function = operator.attrgetter(provider.litellm_call)(litellm)
    return await function(**provider.litellm_arguments(body), **options)


def completion_of(response: Any, format: FormatName) -> tuple[Completion, object]:
    """Return what an answer says, and the reason for its end as the provider names it."""
    answer = PROVIDERS[format].answer(response)
    said = Completion(answer.text, answer.finish_reason, 0, 0, answer.has_tool_calls)
    return with_usage(said, answer.usage, format), answer.native_reason


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
