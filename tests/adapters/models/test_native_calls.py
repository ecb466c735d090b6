"""Requests in a provider's own format arrive unchanged, and their answers are read.

[summary.prefix, summary.gateway]
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from app.common.errors import ServiceUnavailable
from app.formats import PROVIDERS
from app.formats.message import FormatName
from app.models.litellm_gateway import LiteLLMGateway
from app.models.model_calls import Completion, ModelCall, NativeRequest
from app.models.usage import TokenUsage
from tests import fake_llm as fake
from tests.fake_llm import Behaviour
from tests.fake_providers import FakeProviders

CHAT, RESPONSES = FormatName.OPENAI_CHAT, FormatName.OPENAI_RESPONSES
ANTHROPIC, GEMINI = FormatName.ANTHROPIC, FormatName.GEMINI
CLAUDE = "anthropic/claude-sonnet-4-5"
SCHEMA = {"type": "object", "properties": {"z": {"type": "number"}, "a": {"type": "string"}}}
MARK = {"type": "ephemeral"}
SHELL = {"name": "shell", "arguments": '{"z":1}'}
BREAKPOINT = {"prompt_cache_breakpoint": {"mode": "explicit"}}
SEALED = "c2VhbGVkIHRob3VnaHRz"
OUT = {"type": "text", "text": "out"}
CONDENSE = {"type": "text", "text": "condense"}
BODIES: dict[FormatName, dict[str, Any]] = {
    CHAT: {
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "s", **BREAKPOINT}]},
            {"role": "user", "content": "hi"},
            {
                **{"role": "assistant", "content": "", "reasoning_content": "so"},
                **{"tool_calls": [{"id": "c1", "type": "function", "function": SHELL}]},
            },
            {"role": "tool", "tool_call_id": "c1", "content": [OUT]},
            {"role": "user", "content": "condense"},
        ],
        "tools": [{"type": "function", "function": {"name": "shell", "parameters": SCHEMA}}],
        "max_completion_tokens": 50,
        "prompt_cache_key": "key",
    },
    RESPONSES: {
        "input": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "reasoning", "id": "r1", "summary": [], "encrypted_content": SEALED},
            {"type": "function_call", "call_id": "c1", **SHELL},
            {"type": "function_call_output", "call_id": "c1", "output": "out"},
            {"role": "user", "content": [{"type": "input_text", "text": "condense"}]},
        ],
        "tools": [{"type": "function", "name": "shell", "parameters": SCHEMA, "strict": False}],
        "max_output_tokens": 50,
        "prompt_cache_key": "key",
    },
    ANTHROPIC: {
        "system": [{"type": "text", "text": "s", "cache_control": MARK}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "so", "signature": "c2ln"},
                    {"type": "tool_use", "id": "c1", "name": "shell", "input": {"z": 2**70}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": [OUT]}
                    | {"cache_control": MARK},
                    CONDENSE,
                ],
            },
        ],
        "tools": [{"name": "shell", "input_schema": SCHEMA}],
        "max_tokens": 50,
    },
}
"""A request with everything that LiteLLM changes in ordinary ones."""


@pytest.fixture
def provider() -> Iterator[FakeProviders]:
    """A provider of all formats."""
    server = FakeProviders()
    yield server
    server.stop()


@pytest_asyncio.fixture
async def gateways(provider: FakeProviders) -> AsyncIterator[dict[FormatName, LiteLLMGateway]]:
    """The gateway of each format: the address of Anthropic has no version."""
    openai = LiteLLMGateway(provider.api_base, "sk-test")
    yield {
        CHAT: openai,
        RESPONSES: openai,
        ANTHROPIC: LiteLLMGateway(provider.root, "sk-test"),
    }
    await openai.close()


def call(format: FormatName, model: str) -> ModelCall:
    """Return a call with a request in a format."""
    request = NativeRequest(format, {"model": "x", **BODIES[format]}, "build", 10)
    messages = ({"role": "user", "content": "condense"},)
    return ModelCall(model, messages, 50, 20.0, "tenant", native=request)


CASES = [
    (format, CLAUDE if name == "anthropic" else f"{name}/model")
    for format, spoken in PROVIDERS.items()
    for name in sorted(spoken.litellm_providers)
]


@pytest.mark.parametrize(("format", "model"), CASES)
async def test_a_request_arrives_as_it_is(
    gateways: dict[FormatName, LiteLLMGateway],
    provider: FakeProviders,
    format: FormatName,
    model: str,
) -> None:
    """Every field is there byte for byte, for each provider; only the model's name is another."""
    gateway = gateways[format]
    assert await gateway.takes_payload(model, format)
    provider.script(Behaviour(body=ANSWERS[format]))
    completion = await gateway.complete(call(format, model))
    (request,) = provider.requests
    for name, value in BODIES[format].items():
        assert json.dumps(request.body[name]) == json.dumps(value), name
    assert request.body.keys() - BODIES[format].keys() <= {"model", "stream", "usage"}
    assert completion == Completion(
        "green tea", "stop", TokenUsage(15 - COSTS[format], 20, COSTS[format], 90)
    )


@pytest.mark.parametrize(
    ("model", "format"),
    [
        *(("gpt-4o", ANTHROPIC), ("gpt-4o", GEMINI), (CLAUDE, CHAT), (CLAUDE, RESPONSES)),
        *(("gemini/gemini-2.5-pro", GEMINI), ("gemini/gemini-2.5-pro", CHAT)),
        *(("bedrock/anthropic.claude-v2", ANTHROPIC), ("who-knows", CHAT), ("", CHAT)),
    ],
)
async def test_what_litellm_would_convert_is_not_taken(model: str, format: FormatName) -> None:
    """A payload for a provider of another format, and for an unknown model."""
    assert not await LiteLLMGateway().takes_payload(model, format)


def chat_answer(**changes: Any) -> dict[str, Any]:
    """Return an answer of OpenAI Chat."""
    body = fake.completion_body("green tea") | changes
    details = {"cached_tokens": 90, "cache_write_tokens": 0}
    usage = {"prompt_tokens": 105, "completion_tokens": 20, "total_tokens": 125}
    return body | {"usage": usage | {"prompt_tokens_details": details}}


def responses_answer(output: list[dict[str, Any]] | None = None, **changes: Any) -> dict[str, Any]:
    """Return an answer of OpenAI Responses."""
    text = {"type": "output_text", "text": "green tea", "annotations": []}
    message = {"type": "message", "id": "m1", "role": "assistant", "status": "completed"}
    usage: dict[str, Any] = {"input_tokens": 105, "output_tokens": 20, "total_tokens": 125}
    usage["input_tokens_details"] = {"cached_tokens": 90}
    usage["output_tokens_details"] = {"reasoning_tokens": 0}
    return {
        **{"id": "r1", "object": "response", "created_at": 1, "status": "completed"},
        **{"model": "fake", "output": output or [{**message, "content": [text]}], "error": None},
        **{"incomplete_details": None, "parallel_tool_calls": True, "tool_choice": "auto"},
        **{"tools": [], "usage": usage, **changes},
    }


def anthropic_answer(stop_reason: str = "end_turn", *blocks: dict[str, Any]) -> dict[str, Any]:
    """Return an answer of Anthropic."""
    cached = {"cache_read_input_tokens": 90, "cache_creation_input_tokens": 5}
    return {
        **{"id": "m1", "type": "message", "role": "assistant", "model": "fake"},
        **{"content": list(blocks) or [{"type": "text", "text": "green tea"}]},
        **{"stop_reason": stop_reason, "stop_sequence": None},
        **{"usage": {"input_tokens": 10, "output_tokens": 20, **cached}},
    }


ANSWERS = {CHAT: chat_answer(), RESPONSES: responses_answer(), ANTHROPIC: anthropic_answer()}
COSTS = {CHAT: 0, RESPONSES: 0, ANTHROPIC: 5}
"""The tokens that each answer reports as written to the cache."""
FUNCTION_CALL = {
    **{"type": "function_call", "id": "f1", "call_id": "c1", "name": "shell"},
    **{"arguments": "{}", "status": "completed"},
}
TOOL_USE = {"type": "tool_use", "id": "c1", "name": "shell", "input": {}}
MODELS = {CHAT: "openai/gpt-4o", RESPONSES: "openai/gpt-4o", ANTHROPIC: CLAUDE}


CUT: dict[str, Any] = {
    "status": "incomplete",
    "incomplete_details": {"reason": "max_output_tokens"},
}


@pytest.mark.parametrize(
    ("format", "body", "finish_reason", "has_tool_calls"),
    [
        (ANTHROPIC, anthropic_answer("max_tokens"), "length", False),
        (ANTHROPIC, anthropic_answer("tool_use", TOOL_USE), "stop", True),
        (RESPONSES, responses_answer([FUNCTION_CALL]), "stop", True),
        (RESPONSES, responses_answer(**CUT), "length", False),
    ],
)
async def test_answers_that_are_no_summary_are_recognised(
    gateways: dict[FormatName, LiteLLMGateway],
    provider: FakeProviders,
    format: FormatName,
    body: dict[str, Any],
    finish_reason: str,
    has_tool_calls: bool,
) -> None:
    """A text that was cut off, and a call of a tool, as in OpenAI Chat."""
    provider.script(Behaviour(body=body))
    completion = await gateways[format].complete(call(format, MODELS[format]))
    assert completion.finish_reason == finish_reason
    assert completion.has_tool_calls is has_tool_calls


REFUSAL_PART = {"type": "refusal", "refusal": "No."}
REFUSED_MESSAGE = {"type": "message", "id": "m1", "role": "assistant", "content": [REFUSAL_PART]}
WINDOW_EXCEEDED = anthropic_answer("model_context_window_exceeded")
FAILURES: list[tuple[FormatName, Behaviour, str]] = [
    (format, behaviour, reason)
    for format in (CHAT, RESPONSES, ANTHROPIC)
    for behaviour, reason in (
        (fake.status(503), "provider_error"),
        (fake.status(429, "slow down"), "rate_limited"),
        (fake.status(401, "bad key"), "authentication"),
        (fake.status(400, "malformed"), "refused"),
        (fake.status(400, "prompt is too long: 9000 tokens > 8000 maximum"), "context_window"),
        (fake.connection_reset(), "provider_error"),
    )
]
FAILURES += [
    (ANTHROPIC, Behaviour(body=anthropic_answer("refusal")), "refused"),
    (ANTHROPIC, Behaviour(body=WINDOW_EXCEEDED), "context_window"),
    (RESPONSES, Behaviour(body=responses_answer([REFUSED_MESSAGE])), "refused"),
    (ANTHROPIC, Behaviour(body={"what": "is this"}), "bad_answer"),
]


@pytest.mark.parametrize(("format", "behaviour", "reason"), FAILURES)
async def test_every_failure_has_one_reason(
    gateways: dict[FormatName, LiteLLMGateway],
    provider: FakeProviders,
    format: FormatName,
    behaviour: Behaviour,
    reason: str,
) -> None:
    """As for calls with messages, in the words of each provider; LiteLLM does not retry."""
    provider.script(behaviour)
    with pytest.raises(ServiceUnavailable) as failure:
        await gateways[format].complete(call(format, MODELS[format]))
    assert failure.value.facts["reason"] == reason
    assert provider.calls == 1
