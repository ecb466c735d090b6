"""A circuit breaker in front of the gateway: a model that is down is left alone for a while (E9).

1. One circuit per model, in this process. So many failures in a row open it; then calls are
   refused at once, until one of them may try whether the model is back.
2. Only what the provider is to blame for counts. An answer, a call it refuses and an overflow
   show that it is there.
"""

from __future__ import annotations

import logging
import math
import time
from typing import Any

from purgatory import AsyncCircuitBreakerFactory
from purgatory.domain.model import HALF_OPENED, OpenedState

from app.domain.common.errors import ServiceUnavailable
from app.domain.compaction.summaries.model_calls import Completion, ModelCall
from app.services.ports import Gateway

PROVIDER_FAILURES = frozenset({"timeout", "provider_error", "rate_limited", "authentication"})

_log = logging.getLogger("app.breaker")


class CircuitBreaker:
    """A gateway that refuses calls to a model whose calls keep failing."""

    def __init__(self, gateway: Gateway, failures: int, seconds: float) -> None:
        self._gateway = gateway
        self._seconds = seconds
        self._circuits = AsyncCircuitBreakerFactory(
            failures, seconds, exclude=[(BaseException, _is_spared)]
        )
        self._circuits.add_listener(_tell)

    async def complete(self, call: ModelCall) -> Completion:
        """Return the model's answer; raises ServiceUnavailable as the gateway does, or refused."""
        circuit = await self._circuits.get_breaker(call.model)
        # purgatory lets any number of calls try at once; here the first one is enough.
        retry_after = 1
        if circuit.context.state != HALF_OPENED:
            try:
                async with circuit:
                    return await self._gateway.complete(call)
            except OpenedState as opened:
                opened.__traceback__ = None  # the same one each time: it would hold every call
                left = opened.opened_at + self._seconds - time.time()
                retry_after = max(1, math.ceil(left))
        raise ServiceUnavailable(
            "The model failed several times in a row and is left alone for a while",
            {"reason": "circuit_open", "model": call.model, "retry_after": retry_after},
        )


def _is_spared(exc: BaseException) -> bool:
    reason = exc.facts.get("reason") if isinstance(exc, ServiceUnavailable) else None
    return reason not in PROVIDER_FAILURES


def _tell(model: str, event: str, payload: Any) -> None:
    if event == "state_changed":
        data = {"model": model, "state": payload.state}
        _log.warning("circuit_changed", extra={"data": data})
