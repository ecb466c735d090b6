"""Calls language models through LiteLLM. No other module imports litellm.

1. The import of LiteLLM takes seconds and 180 MB. It happens with the first call, in a thread.
2. Address and key come from the settings, never from a request. LiteLLM downloads nothing.
3. LiteLLM does not retry, and the timeout is enforced here: the caller decides about retries.
4. Every failure is raised as ServiceUnavailable with the reason in `facts["reason"]`. The
   provider's message is only in the cause, since it may quote the conversation. The log has the
   type of the error and where it was raised.
5. Each process has one circuit per model. A number of failures in a row opens it. Calls are then
   refused at once, until one of them may try the model again. Only failures of the provider count.
   An answer, a refused call and an overflow show that it works.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

from purgatory import AsyncCircuitBreakerFactory
from purgatory.domain.model import HALF_OPENED, OPENED, OpenedState

from app.common.errors import ServiceUnavailable, ValidationError
from app.formats.message import LOG_FORMAT
from app.models.error_verdicts import is_context_overflow
from app.models.usage import Completion, Gateway, ModelCall, TokenUsage, read_usage

_log = logging.getLogger("app.models.litellm_gateway")

_OFFLINE = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_LOCAL_BLOG_POSTS": "True",
    "LITELLM_LOCAL_POLICY_TEMPLATES": "True",
    "LITELLM_LOCAL_AUTOROUTER_PRESETS": "True",
    "LITELLM_MODE": "PRODUCTION",
    "LITELLM_LOG": "ERROR",
}
_REASONS = {
    **dict.fromkeys((400, 402, 404, 422), "refused"),
    **dict.fromkeys((401, 403), "authentication"),
    **dict.fromkeys((408, 504), "timeout"),
    **dict.fromkeys((413, 429), "rate_limited"),  # an overflow is recognized before
}
"""Why a call failed, by HTTP status; every other status is a provider error."""

_BY_CLASS = {
    **dict.fromkeys(("TimeoutError", "Timeout", "APITimeoutError", "TimeoutException"), "timeout"),
    "ContextWindowExceededError": "context_window",
    "ContentPolicyViolationError": "refused",
    "APIResponseValidationError": "bad_answer",
}
_DETAILS = {
    "timeout": "The model did not answer in time",
    "rate_limited": "The model's provider limits the rate of calls",
    "refused": "The model's provider refused the call",
    "context_window": "The call is larger than the model's context window",
    "authentication": "The model's provider does not accept the key",
    "provider_error": "The model's provider failed",
    "bad_answer": "The model's answer cannot be parsed",
}
MAX_TOKEN_CHARS = 100
"""An answer with more characters a token did not keep to its limit."""


class LiteLLMGateway:
    """Calls any model that LiteLLM supports; one instance serves the process."""

    def __init__(self, api_base: str | None = None, api_key: str | None = None) -> None:
        self._api_base = api_base
        self._api_key = api_key

    def load(self) -> None:
        """Import LiteLLM now (rule 1)."""
        _litellm()

    async def complete(self, call: ModelCall) -> Completion:
        """Return the model's answer, or raise ServiceUnavailable with the reason."""
        litellm = await asyncio.to_thread(_litellm)
        try:
            async with asyncio.timeout(call.timeout_seconds):
                response = await litellm.acompletion(
                    model=call.model,
                    messages=[dict(message) for message in call.messages],
                    max_tokens=call.max_tokens,
                    timeout=call.timeout_seconds,
                    num_retries=0,
                    max_retries=0,
                    api_base=self._api_base,
                    api_key=self._api_key,
                )
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
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return litellm


def _unavailable(reason: str, model: str, retry_after: int | None = None) -> ServiceUnavailable:
    facts: dict[str, Any] = {"reason": reason, "model": model}
    if retry_after is not None:
        facts["retry_after"] = retry_after
    return ServiceUnavailable(_DETAILS[reason], facts)


def _reason(exc: Exception) -> str:
    """Return why a call failed: by the exception's class first, then by its status."""
    named = (_BY_CLASS[kind.__name__] for kind in type(exc).__mro__ if kind.__name__ in _BY_CLASS)
    if reason := next(named, None):
        return reason
    status, body = getattr(exc, "status_code", None), getattr(exc, "body", None)
    code = status if isinstance(status, int) else None
    quoted = body if isinstance(body, str | Mapping) else None
    if is_context_overflow(str(exc), code) or is_context_overflow(quoted, code):
        return "context_window"
    return _REASONS.get(code or 0, "provider_error")


def _retry_after(exc: Exception) -> int | None:
    """Return the seconds of the provider's Retry-After header, None without one."""
    headers = getattr(exc, "litellm_response_headers", None)
    header = str(headers.get("retry-after", "")) if isinstance(headers, Mapping) else ""
    return int(header) if header.isdecimal() and len(header) < 10 else None


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
    billed = TokenUsage()
    if usage is not None:
        with suppress(ValidationError):  # impossible numbers
            billed = read_usage(usage.model_dump(), LOG_FORMAT).billed
    text = str(message.content or "")
    if len(text) > MAX_TOKEN_CHARS * (call.max_tokens + 1_000):
        raise _unavailable("bad_answer", call.model)
    return Completion(text, reason, billed, bool(message.tool_calls))


# --- the circuit breaker ---

PROVIDER_FAILURES = frozenset({"timeout", "provider_error", "rate_limited", "authentication"})
FAILURES, OPEN_SECONDS = 5, 30.0
"""Failures in a row that open a circuit, and how long it stays open before a call may try again."""


class CircuitBreaker:
    """A gateway that refuses calls to a model whose calls keep failing."""

    def __init__(
        self, gateway: Gateway, failures: int = FAILURES, seconds: float = OPEN_SECONDS
    ) -> None:
        self._gateway, self._seconds = gateway, seconds
        ignored = (BaseException, _is_ignored)
        self._circuits = AsyncCircuitBreakerFactory(failures, seconds, exclude=[ignored])
        self._circuits.add_listener(_log_change)

    async def complete(self, call: ModelCall) -> Completion:
        """Return the model's answer; raises ServiceUnavailable, also where the circuit is open."""
        circuit = await self._circuits.get_breaker(call.model)
        retry_after = 1
        if circuit.context.state != HALF_OPENED:  # it would let any number of calls try the model
            try:
                async with circuit:
                    return await self._gateway.complete(call)
            except OpenedState as opened:
                left = opened.opened_at + self._seconds - time.time()
                retry_after = max(1, math.ceil(left))
                opened.__traceback__ = None  # one object serves all calls, and would keep them
        raise ServiceUnavailable(
            "The model failed several times in a row and is not called for a while",
            {"reason": "circuit_open", "model": call.model, "retry_after": retry_after},
        )


def _is_ignored(exc: BaseException) -> bool:
    return not isinstance(exc, ServiceUnavailable) or (
        exc.facts.get("reason") not in PROVIDER_FAILURES
    )


def _log_change(model: str, event: str, change: Any) -> None:
    if event == "state_changed" and change.state == OPENED:
        _log.warning("circuit_open", extra={"data": {"model": model}})
