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
from typing import Any

from purgatory import AsyncCircuitBreakerFactory
from purgatory.domain.model import HALF_OPENED, OpenedState

from app.common.errors import ServiceUnavailable
from app.models.model_calls import Completion, Gateway, ModelCall

PROVIDER_FAILURES = frozenset({"timeout", "provider_error", "rate_limited", "authentication"})

FAILURES = 5
"""Failures in a row that open a circuit."""
OPEN_SECONDS = 30.0
"""How long it stays open before a call may try the model again."""

_log = logging.getLogger("app.breaker")


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
