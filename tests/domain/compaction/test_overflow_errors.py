"""Which errors of providers report an input that is too long. [compaction.overflow-errors]"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.compaction.reduction.overflow_errors import is_context_overflow

# Recorded errors of providers.
TOO_LONG: dict[str, str] = {
    "OpenAI": (
        "This model's maximum context length is 8192 tokens. However, your messages resulted in "
        "8545 tokens. Please reduce the length of the messages."
    ),
    "OpenAI completions": (
        "This model's maximum context length is 4097 tokens, however you requested 4113 tokens "
        "(1613 in your prompt; 2500 for the completion). Please reduce your prompt; or "
        "completion length."
    ),
    "OpenAI functions": (
        "Error code: 400 - {'error': {'message': \"This model's maximum context length is 8192 "
        "tokens. However, you requested 8213 tokens (6683 in the messages, 730 in the functions, "
        "and 800 in the completion). Please reduce the length of the messages, functions, or "
        "completion.\", 'type': 'invalid_request_error', 'param': 'messages', "
        "'code': 'context_length_exceeded'}}"
    ),
    "OpenAI Responses": (
        "Your input exceeds the context window of this model. Please adjust your input and try "
        "again."
    ),
    "OpenAI, newer": "Your input exceeds the model's context window.",
    "OpenAI GPT-5": (
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in "
        "300512 tokens. Please reduce the length of the messages."
    ),
    "OpenAI string": (
        "Invalid 'messages[1].content': string too long. Expected a string with maximum length "
        "1048576, but got a string with length 1540820 instead."
    ),
    "Azure": (
        "This model's maximum context length is 128000 tokens. However, you requested 131072 "
        "tokens (127072 in the messages, 4000 in the completion)."
    ),
    "Anthropic": "prompt is too long: 213462 tokens > 200000 maximum",
    "Anthropic with output": (
        "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease "
        "input length or `max_tokens` and try again"
    ),
    "Anthropic bytes": (
        '413 {"error":{"type":"request_too_large","message":"Request exceeds the maximum size"}}'
    ),
    "Gemini": (
        "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575)."
    ),
    "Gemini without a count": (
        "The input token count exceeds the maximum number of tokens allowed (1048576)."
    ),
    "Gemini bytes": "400 Request payload size exceeds the limit: 20971520 bytes.",
    "Vertex": (
        "Unable to submit request because the input token count is 36374 but model only supports "
        "up to 32768. Reduce the input token count and try again."
    ),
    "Bedrock": (
        "An error occurred (ValidationException) when calling the InvokeModel operation: Input is "
        "too long for requested model."
    ),
    "Bedrock Titan": (
        "ValidationException: 400 Bad Request: Too many input tokens. Max input tokens: 8192, "
        "request input token count: 9279"
    ),
    "Bedrock Claude 2": (
        "Malformed input request: expected maxLength: 50000, actual: 52611, please reformat your "
        "input and try again."
    ),
    "Bedrock Nova": (
        "The model returned the following errors: Input Tokens Exceeded: Number of input tokens "
        "exceeds maximum length. Please update the input to try again."
    ),
    "Mistral": (
        "Prompt contains 40021 tokens and 0 draft tokens, too large for model with 32768 maximum "
        "context length"
    ),
    "Cohere": (
        "too many tokens: total number of tokens (prompt and prediction) cannot exceed 2048 - "
        "received 6354. Try using a shorter prompt or a smaller max_tokens value."
    ),
    "Cohere chat": (
        "too many tokens: size limit exceeded by 2834 tokens. Try using shorter or fewer inputs. "
        "The limit for this model is 128000 tokens."
    ),
    "Groq": "Please reduce the length of the messages or completion.",
    "Cerebras": (
        "Please reduce the length of the messages or completion. Current length is 10301 while "
        "limit is 8192"
    ),
    "Together": (
        "The input (5012 tokens) is longer than the model's context length (4096 tokens)."
    ),
    "Fireworks": "The prompt is too long: 40177, model maximum context length: 32767",
    "DeepSeek": (
        "This model's maximum context length is 131072 tokens. However, you requested 131134 "
        "tokens (122942 in the messages, 8192 in the completion). Please reduce the length of the "
        "messages or completion."
    ),
    "xAI": ("This model's maximum prompt length is 131072 but the request contains 537812 tokens."),
    "OpenRouter": (
        "This endpoint's maximum context length is 1048576 tokens. However, you requested about "
        "1293741 tokens (1227853 of text input, 353 of tool input, 65535 in the output). Please "
        'reduce the length of either one, or use the "middle-out" transform to compress your '
        "prompt automatically."
    ),
    "OpenRouter, other": (
        "Input length 140211 exceeds the maximum allowed input length of 131072 tokens."
    ),
    "Ollama": "prompt too long; exceeded max context length by 1034 tokens",
    "Ollama embeddings": "the input length exceeds the context length",
    "vLLM": (
        "This model's maximum context length is 131072 tokens. However, you requested 102400 "
        "output tokens and your prompt contains at least 28673 input tokens, for a total of at "
        "least 131073 tokens. Please reduce the length of the input prompt or the number of "
        "requested output tokens. (parameter=input_tokens, value=28673)"
    ),
    "vLLM output": (
        "'max_tokens' or 'max_completion_tokens' is too large: 2000. This model's maximum context "
        "length is 4096 tokens and your request has 2104 input tokens (2000 > 4096 - 2104)."
    ),
    "SGLang": ("Input length (160062 tokens) exceeds the maximum allowed length (59862 tokens)."),
    "LiteLLM proxy": (
        "Requested token count exceeds the model's maximum context length of 131072 tokens."
    ),
    "llama.cpp": "the request exceeds the available context size, try increasing it",
    "llama.cpp slot": "Context size has been exceeded.",
    "llama-cpp-python": "Requested tokens (1204) exceed context window of 512",
    "LM Studio": (
        "Trying to keep the first 111490 tokens when context the overflows. However, the model is "
        "loaded with context length of only 32768 tokens, which is not enough. Try to load the "
        "model with a larger context length, or provide a shorter input."
    ),
    "LM Studio, newer": (
        "The number of tokens to keep from the initial prompt is greater than the context length."
    ),
    "TGI": (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 1512. Given: 1000 "
        "`inputs` tokens and 1024 `max_new_tokens`"
    ),
    "TGI input": ("Input validation error: `inputs` must have less than 1024 tokens. Given: 1168"),
    "watsonx": (
        "Invalid input argument for Model 'meta-llama/llama-2-70b-chat': the number of input "
        "tokens 4098 cannot exceed the total tokens limit 4096 for this model"
    ),
    "Replicate": (
        "Cannot process new request: Prompt length (1251) exceeds maximum input length "
        "(1024). Set log level to info"
    ),
    "SiliconFlow": ("length of prompt_tokens (57535) must be less than max_seq_len (32768)."),
    "GitHub Copilot": "prompt token count of 140211 exceeds the limit of 128000",
    "Moonshot": (
        "Invalid request: Your request exceeded model token limit: 262144 (requested: 300112)"
    ),
    "MiniMax": "invalid params, context window exceeds limit (2013)",
    "Zhipu": "Prompt exceeds max length",
    "DashScope": (
        "InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]"
    ),
    "Volcengine": "Total tokens of image and text exceed max message tokens",
    "NIM embeddings": "Input length 513 exceeds maximum allowed token size 512",
}

# What providers answer for other reasons, with the status it comes with.
OTHER: dict[str, tuple[str, int | None]] = {
    "Groq TPM": (
        "Request too large for model `llama-3.3-70b-versatile` in organization `org_01` service "
        "tier `on_demand` on tokens per minute (TPM): Limit 12000, Requested 14137, please reduce "
        "your message size and try again.",
        413,
    ),
    "OpenAI TPM": (
        "Request too large for gpt-4 in organization org-1 on tokens per min (TPM): Limit 10000, "
        "Requested 11200. The input or output tokens must be reduced in order to run "
        "successfully.",
        429,
    ),
    "OpenAI rate": (
        "Rate limit reached for gpt-4o in organization org-1 on tokens per min (TPM): Limit "
        "30000, Used 29500, Requested 1200. Please try again in 1.4s.",
        429,
    ),
    "Anthropic rate": (
        "This request would exceed your organization's rate limit of 40,000 input tokens per "
        "minute.",
        429,
    ),
    "Bedrock throttling": (
        "ThrottlingException: Too many tokens, please wait before trying again.",
        429,
    ),
    "Bedrock day": ("Too many tokens per day, please wait before trying again.", 400),
    "Cerebras rate": ("Too many tokens processed", 429),
    "copied limit": ("This request exceeds the limit of 30000 tokens per minute", 429),
    "too many requests": ("Too Many Requests", 429),
    "OpenAI quota": (
        "You exceeded your current quota, please check your plan and billing details.",
        429,
    ),
    "Gemini quota": (
        "Quota exceeded for metric: generate_content_free_tier_input_token_count, limit: 250000",
        429,
    ),
    "OpenRouter credits": (
        "This request requires more credits, or fewer max_tokens. You requested up to 32000 "
        "tokens, but can only afford 1024.",
        402,
    ),
    "Anthropic overloaded": ("Overloaded", 529),
    "OpenAI output": (
        "max_tokens is too large: 50000. This model supports at most 16384 completion tokens, "
        "whereas you provided 50000.",
        400,
    ),
    "Anthropic output": (
        "max_tokens: 9000 > 8192, which is the maximum allowed number of output tokens for "
        "claude-3-5-sonnet-20241022",
        400,
    ),
    "Groq output": (
        "`max_tokens` must be less than or equal to `8192`, the maximum value for `max_tokens` is "
        "less than the `context_window` for this model",
        400,
    ),
    "DeepSeek output": (
        "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]",
        400,
    ),
    "Bedrock output": (
        "The maximum tokens you requested exceeds the model limit of 2048. Try again with a "
        "maximum tokens value that is lower than 2048.",
        400,
    ),
    "Databricks output": (
        "max_tokens (10000) cannot exceed 8192. Please reduce the length of max output tokens "
        "generated.",
        400,
    ),
    "Vertex output": (
        "Unable to submit request because it has a maxOutputTokens value of 10000 but the "
        "supported range is from 1 (inclusive) to 8193 (exclusive).",
        400,
    ),
    "pydantic output": ("max_tokens: Input should be less than or equal to 8192", 422),
    "TGI output": ("Input validation error: `max_new_tokens` must be <= 512", 422),
    "OpenAI name": (
        "Invalid 'tools[0].function.name': string too long. Expected a string with maximum length "
        "64, but got a string with length 70 instead.",
        400,
    ),
    "OpenAI user": (
        "Invalid 'user': string too long. Expected a string with maximum length 64, but got a "
        "string with length 100 instead. (string_above_max_length)",
        400,
    ),
    "Bedrock embeddings": (
        "Malformed input request: #/texts/41: expected maxLength: 2048, actual: 2911",
        400,
    ),
    "OpenAI tools": (
        "Invalid 'tools': array too long. Expected an array with maximum length 128, but got an "
        "array with length 140 instead.",
        400,
    ),
    "Anthropic image": (
        "messages.0.content.1.image.source.base64: image exceeds 5 MB maximum: 6291456 bytes > "
        "5242880 bytes",
        400,
    ),
    "image dimension": (
        "At least one of the image dimensions exceed max allowed size: 8000 pixels",
        400,
    ),
    "too many images": ("Input exceeds the maximum of 20 images", 400),
    "PDF pages": ("A maximum of 100 PDF pages may be provided.", 400),
    "chat app": ("Bad Request: message is too long", 400),
    "bad key": ("Incorrect API key provided: sk-abc.", 401),
    "unknown model": ("The model `gpt-9` does not exist or you do not have access to it.", 404),
    "unpaired": (
        "An assistant message with 'tool_calls' must be followed by tool messages responding to "
        "each 'tool_call_id'.",
        400,
    ),
    "server": ("The server had an error while processing your request. Sorry about that!", 500),
    "empty": ("", 400),
}

CODES = [
    "context_length_exceeded",
    "string_above_max_length",
    "model_context_window_exceeded",
    "exceed_context_size_error",
    "request_too_large",
    "model_max_prompt_tokens_exceeded",
    "token_quantity_exceeded",
]


@pytest.mark.parametrize("provider", sorted(TOO_LONG))
def test_overflow_errors_are_recognised_in_every_wording(provider: str) -> None:
    """Each provider's wording of an input that is too long is recognised."""
    text = TOO_LONG[provider]
    assert is_context_overflow(text)
    assert is_context_overflow(text, 400)
    assert is_context_overflow({"error": {"message": text, "code": None}}, 400)


@pytest.mark.parametrize("provider", sorted(OTHER))
def test_other_limits_are_no_overflow(provider: str) -> None:
    """Limits of rate, spending, output, media and short fields are not an overflow."""
    text, status = OTHER[provider]
    assert not is_context_overflow(text, status)
    assert not is_context_overflow(text)
    assert not is_context_overflow({"error": {"message": text}}, status)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("name", ["code", "type", "stop_reason", "finish_reason"])
def test_a_code_is_enough(code: str, name: str) -> None:
    """A code decides, in any field and beside any message."""
    assert is_context_overflow({"error": {name: code, "message": "Bad request"}}, 400)
    assert is_context_overflow(code)


def test_a_status_is_enough() -> None:
    """413 is enough; other statuses alone are not."""
    assert is_context_overflow(None, 413)
    assert is_context_overflow("Request Entity Too Large", 413)
    assert not any(is_context_overflow(None, status) for status in (200, 400, 429, 500, None))


def test_a_code_counts_with_429_and_words_do_not() -> None:
    """With 429 only a code decides."""
    assert is_context_overflow({"error": {"code": "context_length_exceeded"}}, 429)
    assert not is_context_overflow("prompt is too long: 9 tokens > 8 maximum", 429)


def test_nested_and_quoted_json_is_read() -> None:
    """Proxies put the provider's JSON into a string of their own, some more than once."""
    inner = {"type": "error", "error": {"message": "prompt is too long: 300 tokens > 256 maximum"}}
    wrapped: Any = {"error": {"message": "Provider returned error", "metadata": {}}}
    wrapped["error"]["metadata"]["raw"] = json.dumps(inner)
    assert is_context_overflow(wrapped, 400)
    twice = f"upstream said: {json.dumps({'detail': json.dumps(wrapped)})}"
    assert is_context_overflow(twice)
    listed = json.dumps({"errors": [{"code": "other"}, {"message": "context length exceeded"}]})
    assert is_context_overflow(listed)


def test_a_quoted_request_is_ignored() -> None:
    """Words in the part of an error that repeats the request are not the provider's."""
    error = {"detail": [{"loc": ["body"], "msg": "Field required", "input": "prompt is too long"}]}
    assert not is_context_overflow(error, 422)


def test_large_hostile_errors_take_no_time() -> None:
    """An error of a megabyte is judged within two seconds. [errors.problem-json]"""
    for text in ("prompt " * 150_000, "{" * 1_000_000, "max " * 250_000, "context " * 125_000):
        began = time.perf_counter()
        is_context_overflow(text)
        assert time.perf_counter() - began < 2


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.text() | st.dictionaries(st.text(), _json), st.none() | st.integers(100, 599))
def test_no_error_can_raise(error: Any, status: int | None) -> None:
    """Any answer of a provider is judged. [errors.no-500]"""
    is_context_overflow(error, status)
