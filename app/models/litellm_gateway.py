"""Calls language models through LiteLLM. No other module imports litellm.

1. The import of LiteLLM takes seconds and 180 MB. It happens with the first call, in a thread.
2. Address and key come from the settings, never from a request. LiteLLM downloads nothing.
3. LiteLLM does not retry, and the timeout is enforced here: the caller decides about retries.
4. LiteLLM parses answers, and searches the texts of errors by regular expressions, on the event
   loop. So no more than a limit is read: the rest of a longer answer is cut off, which makes a
   successful one unreadable. No content coding is asked for, and none is accepted: its size does
   not bound the content.
5. Every failure is raised as ServiceUnavailable with the reason in `facts["reason"]`. The
   provider's message is only in the cause, since it may quote the conversation. The log has the
   type of the error and where it was raised.
6. Each process has one circuit per model. A number of failures in a row opens it. Calls are then
   refused at once, until one of them may try the model again. Only failures of the provider count.
   An answer, a refused call and an overflow show that it works.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any

import httpx
from purgatory import AsyncCircuitBreakerFactory
from purgatory.domain.model import HALF_OPENED, OpenedState

from app.common.errors import ServiceUnavailable, ValidationError
from app.formats.message import LOG_FORMAT
from app.models.overflow_errors import is_context_overflow
from app.models.usage import Completion, Gateway, ModelCall, TokenUsage, read_usage

MAX_ANSWER_BYTES = 4 * 2**20
MAX_ERROR_BYTES = 16 * 2**10
_log = logging.getLogger("app.models.litellm_gateway")

_OFFLINE_SWITCHES = (
    *("MODEL_COST_MAP", "ANTHROPIC_BETA_HEADERS", "BLOG_POSTS", "POLICY_TEMPLATES"),
    "AUTOROUTER_PRESETS",
)
_OFFLINE = {
    **{f"LITELLM_LOCAL_{name}": "True" for name in _OFFLINE_SWITCHES},
    **{"LITELLM_MODE": "PRODUCTION", "LITELLM_LOG": "ERROR"},
}

_REASONS = {
    **dict.fromkeys((400, 402, 404, 422), "refused"),
    **dict.fromkeys((401, 403), "authentication"),
    **dict.fromkeys((408, 504), "timeout"),
    **dict.fromkeys((413, 429), "rate_limited"),  # an overflow is recognized before
}
"""Why a call failed, by HTTP status; every other status is a provider error."""

_DETAILS = {
    "timeout": "The model did not answer in time",
    "rate_limited": "The model's provider limits the rate of calls",
    "refused": "The model's provider refused the call",
    "context_window": "The call is larger than the model's context window",
    "authentication": "The model's provider does not accept the key",
    "provider_error": "The model's provider failed",
    "bad_answer": "The model's answer cannot be parsed",
}


_PLAIN_USAGE = ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens")
_KEYED = re.compile(
    r"(?:(openai|anthropic|deepseek|gemini|groq|mistral|openrouter|xai)/|(claude-)|(?:chat)?gpt-|o\d)"
)
_OTHER_KEYS = {"ANTHROPIC": "ANTHROPIC_AUTH_TOKEN", "GEMINI": "GOOGLE_API_KEY"}
"""The second variable that LiteLLM reads a provider's key from."""


class LiteLLMGateway:
    """Calls any model that LiteLLM supports; one instance serves the process."""

    def __init__(self, api_base: str | None = None, api_key: str | None = None) -> None:
        self._api_base = api_base
        self._api_key = api_key

    def missing_key(self, model: str) -> str | None:
        """Return the variable that the key of a model is missing in, None where one is given.

        None also for a provider that needs no key, or several values. Does not import LiteLLM.
        """
        match = _KEYED.match(model)
        if self._api_key or match is None:
            return None
        provider = (match[1] or ("anthropic" if match[2] else "openai")).upper()
        variable = f"{provider}_API_KEY"
        given = (variable, _OTHER_KEYS.get(provider, variable))
        return None if any(os.environ.get(name) for name in given) else variable

    def load(self) -> None:
        """Import LiteLLM now (rule 1)."""
        _litellm()

    async def complete(self, call: ModelCall) -> Completion:
        """Return the model's answer, or raise ServiceUnavailable with the reason."""
        litellm = await asyncio.to_thread(_litellm)
        try:
            async with asyncio.timeout(call.timeout_seconds):
                response = await self._send(litellm, call)
        # LiteLLM raises its own errors, those of openai and httpx, and built-in ones.
        except Exception as exc:
            reason = _reason(exc)
            data = {"model": call.model, "reason": reason}
            _log.warning("model_call_failed", exc_info=exc, extra={"data": data})
            raise _unavailable(reason, call.model, _retry_after(exc)) from exc
        try:
            return _completion(response, call)
        except (AttributeError, LookupError, TypeError, ValidationError) as exc:
            raise _unavailable("bad_answer", call.model) from exc

    async def _send(self, litellm: Any, call: ModelCall) -> Any:
        """Send a call."""
        options = {
            "model": call.model,
            "timeout": call.timeout_seconds,
            "num_retries": 0,
            "max_retries": 0,
            "api_base": self._api_base,
            "api_key": self._api_key,
        }
        messages = [dict(message) for message in call.messages]
        return await litellm.acompletion(messages=messages, max_tokens=call.max_tokens, **options)

    async def close(self) -> None:
        """Close the open connections of LiteLLM, if it was ever used.

        All gateways of the process share them; a later call opens new ones.
        """
        if _litellm.cache_info().currsize:
            litellm = _litellm()
            await litellm.close_litellm_async_clients()
            litellm.in_memory_llm_clients_cache.flush_cache()


@cache
def _litellm() -> Any:
    """Import LiteLLM without downloads and log lines."""
    for name, value in _OFFLINE.items():
        os.environ.setdefault(name, value)
    import litellm

    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.drop_params = True
    litellm.disable_aiohttp_transport = True
    _bound_answers(litellm)
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return litellm


def _bound_answers(litellm: Any) -> None:
    """Limit what all clients of LiteLLM read, those that it has made and those that it will."""
    from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler
    from litellm.llms.openai.common_utils import BaseOpenAILLM

    def bounding(make: Callable[..., httpx.AsyncClient]) -> Any:
        return lambda *arguments, **options: _bound(make(*arguments, **options))

    AsyncHTTPHandler.create_client = bounding(AsyncHTTPHandler.create_client)
    openai_client = bounding(BaseOpenAILLM._get_async_http_client)
    BaseOpenAILLM._get_async_http_client = staticmethod(openai_client)
    _bound(litellm.module_level_aclient.client)


def _bound(client: httpx.AsyncClient) -> httpx.AsyncClient:
    """Limit the answers that a client reads (rule 4); return it."""
    client.headers["Accept-Encoding"] = "identity"
    client.event_hooks["response"].append(_bound_answer)
    return client


async def _bound_answer(response: httpx.Response) -> None:
    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx.DecodingError("The answer has a content coding", request=response.request)
    assert isinstance(response.stream, httpx.AsyncByteStream)
    response.stream = _Bounded(
        response.stream, MAX_ERROR_BYTES if response.is_error else MAX_ANSWER_BYTES
    )


class _Bounded(httpx.AsyncByteStream):
    """The first bytes of a stream."""

    def __init__(self, stream: httpx.AsyncByteStream, max_bytes: int) -> None:
        self._stream = stream
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._max_bytes
        async for chunk in self._stream:
            yield chunk[:left]
            left -= len(chunk)
            if left <= 0:
                return

    async def aclose(self) -> None:
        """Close the stream, with the connection where bytes are left."""
        await self._stream.aclose()


def _unavailable(reason: str, model: str, retry_after: int | None = None) -> ServiceUnavailable:
    facts: dict[str, Any] = {"reason": reason, "model": model}
    if retry_after is not None:
        facts["retry_after"] = retry_after
    return ServiceUnavailable(_DETAILS[reason], facts)


def _reason(exc: Exception) -> str:
    """Return why a call failed: by the exception's class first, then by its status."""
    kinds = {kind.__name__ for kind in type(exc).__mro__}
    if kinds & {"TimeoutError", "Timeout", "APITimeoutError", "TimeoutException"}:
        return "timeout"
    if "ContextWindowExceededError" in kinds:
        return "context_window"
    if "ContentPolicyViolationError" in kinds:
        return "refused"
    status, body = getattr(exc, "status_code", None), getattr(exc, "body", None)
    code = status if isinstance(status, int) else None
    quoted = body if isinstance(body, str | Mapping) else None
    if is_context_overflow(str(exc), code) or is_context_overflow(quoted, code):
        return "context_window"
    if kinds & {"APIConnectionError", "TransportError"}:
        return "provider_error"
    if "APIResponseValidationError" in kinds:
        return "bad_answer"
    return _REASONS.get(status, "provider_error") if status else "provider_error"


def _retry_after(exc: Exception) -> int | None:
    """Return the seconds of the provider's Retry-After header, None without one."""
    headers = getattr(exc, "litellm_response_headers", None)
    header = str(headers.get("retry-after", "")) if isinstance(headers, Mapping) else ""
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds()
        except (TypeError, ValueError):
            return None
    return math.ceil(max(0.0, seconds)) if math.isfinite(seconds) else None


def _completion(response: Any, call: ModelCall) -> Completion:
    """Return what an answer says.

    Raises AttributeError, LookupError, TypeError or ValidationError for one without the fields of
    its format, and ServiceUnavailable for a refusal.
    """
    choice = response.choices[0]
    message, usage = choice.message, getattr(response, "usage", None)
    # LiteLLM has some fields of providers apart, and maps unknown reasons to `stop`.
    extra = getattr(message, "provider_specific_fields", None) or {}
    reason = str(choice.finish_reason or "stop")
    if reason == "content_filter" or getattr(message, "refusal", None) or extra.get("refusal"):
        raise _unavailable("refused", call.model)
    extra = getattr(choice, "provider_specific_fields", None) or {}
    native_reason = extra.get("native_finish_reason")
    if isinstance(native_reason, str) and is_context_overflow(native_reason):
        raise _unavailable("context_window", call.model)
    billed = _billed(usage.model_dump()) if usage is not None else TokenUsage()
    return Completion(str(message.content or ""), reason, billed, bool(message.tool_calls))


def _billed(usage: Mapping[str, Any]) -> TokenUsage:
    """Return the tokens of a usage object; with impossible cached tokens, none is cached."""
    try:
        return read_usage(usage, LOG_FORMAT).billed
    except ValidationError:
        plain = {name: usage.get(name) for name in _PLAIN_USAGE}
        return read_usage(plain, LOG_FORMAT).billed


# --- the circuit breaker ---

PROVIDER_FAILURES = frozenset({"timeout", "provider_error", "rate_limited", "authentication"})

FAILURES = 5
"""Failures in a row that open a circuit."""
OPEN_SECONDS = 30.0
"""How long it stays open before a call may try the model again."""


class CircuitBreaker:
    """A gateway that refuses calls to a model whose calls keep failing."""

    def __init__(
        self, gateway: Gateway, failures: int = FAILURES, seconds: float = OPEN_SECONDS
    ) -> None:
        self._gateway = gateway
        self._seconds = seconds
        self._circuits = AsyncCircuitBreakerFactory(
            failures, seconds, exclude=[(BaseException, _is_ignored)]
        )
        self._circuits.add_listener(_log_change)

    async def complete(self, call: ModelCall) -> Completion:
        """Return the model's answer; raises ServiceUnavailable, also where the circuit is open."""
        circuit = await self._circuits.get_breaker(call.model)
        # A half-open circuit of purgatory admits any number of calls; one is enough here.
        retry_after = 1
        if circuit.context.state != HALF_OPENED:
            try:
                async with circuit:
                    return await self._gateway.complete(call)
            except OpenedState as opened:
                # One object serves all calls: its traceback would keep them all alive.
                opened.__traceback__ = None
                remaining_seconds = opened.opened_at + self._seconds - time.time()
                retry_after = max(1, math.ceil(remaining_seconds))
        raise ServiceUnavailable(
            "The model failed several times in a row and is not called for a while",
            {"reason": "circuit_open", "model": call.model, "retry_after": retry_after},
        )


def _is_ignored(exc: BaseException) -> bool:
    reason = exc.facts.get("reason") if isinstance(exc, ServiceUnavailable) else None
    return reason not in PROVIDER_FAILURES


def _log_change(model: str, event: str, payload: Any) -> None:
    if event == "state_changed":
        data = {"model": model, "state": payload.state}
        _log.warning("circuit_changed", extra={"data": data})
