"""A circuit breaker in front of the model gateway.

1. Each process has one circuit per model. A number of failures in a row opens it. Calls are then
   refused at once, until one of them may try the model again.
2. Only failures of the provider count. An answer, a refused call and an overflow show that it
   works.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from purgatory import AsyncCircuitBreakerFactory
from purgatory.domain.model import HALF_OPENED, OpenedState

from app.domain.common.errors import ServiceUnavailable
from app.domain.compaction.summaries.model_calls import Completion, ModelCall
from app.domain.models.embeddings import EmbeddingCall, Embeddings
from app.services.ports import EmbeddingGateway, Gateway

PROVIDER_FAILURES = frozenset({"timeout", "provider_error", "rate_limited", "authentication"})

T = TypeVar("T")

_log = logging.getLogger("app.breaker")


class CircuitBreaker:
    """A gateway that refuses calls to a model whose calls keep failing."""

    def __init__(self, gateway: Gateway, failures: int, seconds: float) -> None:
        self._gateway = gateway
        self._circuits = _Circuits(failures, seconds)

    async def complete(self, call: ModelCall) -> Completion:
        """Return the model's answer; raises ServiceUnavailable, also where the circuit is open."""
        return await self._circuits.guarded(call.model, lambda: self._gateway.complete(call))


class EmbeddingCircuitBreaker:
    """The same for embeddings, with a circuit of their own for questions, whose time is short."""

    def __init__(self, gateway: EmbeddingGateway, failures: int, seconds: float) -> None:
        self._gateway = gateway
        self._circuits = _Circuits(failures, seconds)

    async def embed(self, call: EmbeddingCall) -> Embeddings:
        """Return the vectors; raises ServiceUnavailable, also where the circuit is open."""
        name = f"{call.model} for a question" if call.is_question else call.model
        return await self._circuits.guarded(name, lambda: self._gateway.embed(call))


class _Circuits:
    def __init__(self, failures: int, seconds: float) -> None:
        self._seconds = seconds
        self._circuits = AsyncCircuitBreakerFactory(
            failures, seconds, exclude=[(BaseException, _is_ignored)]
        )
        self._circuits.add_listener(_log_change)

    async def guarded(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        """Return what the call returns, unless its circuit is open."""
        circuit = await self._circuits.get_breaker(name)
        # A half-open circuit of purgatory admits any number of calls; one is enough here.
        retry_after = 1
        if circuit.context.state != HALF_OPENED:
            try:
                async with circuit:
                    return await call()
            except OpenedState as opened:
                # One object serves all calls: its traceback would keep them all alive.
                opened.__traceback__ = None
                remaining_seconds = opened.opened_at + self._seconds - time.time()
                retry_after = max(1, math.ceil(remaining_seconds))
        raise ServiceUnavailable(
            "The model failed several times in a row and is not called for a while",
            {"reason": "circuit_open", "model": name, "retry_after": retry_after},
        )


def _is_ignored(exc: BaseException) -> bool:
    reason = exc.facts.get("reason") if isinstance(exc, ServiceUnavailable) else None
    return reason not in PROVIDER_FAILURES


def _log_change(model: str, event: str, payload: Any) -> None:
    if event == "state_changed":
        data = {"model": model, "state": payload.state}
        _log.warning("circuit_changed", extra={"data": data})
