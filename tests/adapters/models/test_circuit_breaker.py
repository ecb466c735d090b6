"""The circuit breaker: a model that is down is left alone, others are not.

[summary.circuit-breaker]
"""

from __future__ import annotations

import asyncio

import pytest

from app.common.errors import ServiceUnavailable
from app.models.litellm_gateway import PROVIDER_FAILURES, CircuitBreaker
from app.models.usage import Completion, ModelCall, TokenUsage

NO_TIME = 1e-9
ANSWER = Completion("fine", "stop", TokenUsage(1, 1))


class Model:
    """Fails with `reason` while it has one, and holds its calls up while `release` is unset."""

    def __init__(self, reason: str | None = None) -> None:
        self.reason = reason
        self.calls = 0
        self.release = asyncio.Event()
        self.release.set()

    async def complete(self, call: ModelCall) -> Completion:
        """Answer or fail."""
        self.calls += 1
        await self.release.wait()
        if self.reason is not None:
            raise ServiceUnavailable("down", {"reason": self.reason})
        return ANSWER


def call(model: str = "m") -> ModelCall:
    """Return a call of this model."""
    return ModelCall(model, ({"role": "user", "content": "x"},), 10, 1.0, "tenant")


async def reason_of(breaker: CircuitBreaker, model: str = "m") -> str:
    """Return why a call fails."""
    with pytest.raises(ServiceUnavailable) as failure:
        await breaker.complete(call(model))
    return str(failure.value.facts["reason"])


@pytest.mark.parametrize("reason", sorted(PROVIDER_FAILURES))
async def test_failures_in_a_row_open_the_circuit(reason: str) -> None:
    """Then calls of this model are refused unmade, with a time to come back."""
    model = Model(reason)
    breaker = CircuitBreaker(model, failures=3, seconds=30)
    assert [await reason_of(breaker) for _ in range(3)] == [reason] * 3
    with pytest.raises(ServiceUnavailable) as failure:
        await breaker.complete(call())
    assert failure.value.facts["reason"] == "circuit_open"
    assert failure.value.facts["model"] == "m"
    assert failure.value.facts["retry_after"] in {29, 30}
    assert model.calls == 3
    assert await reason_of(breaker, "spare") == reason  # each model has a circuit of its own


async def test_one_call_tries_the_model_after_the_pause() -> None:
    """After the pause one call goes through, and the others are refused until it returns."""
    model = Model("timeout")
    breaker = CircuitBreaker(model, failures=1, seconds=NO_TIME)
    assert await reason_of(breaker) == "timeout"
    model.reason = None
    model.release.clear()
    trying = asyncio.create_task(breaker.complete(call()))
    await asyncio.sleep(0)
    assert {await reason_of(breaker) for _ in range(3)} == {"circuit_open"}
    assert model.calls == 2
    model.release.set()
    assert await trying == ANSWER
    assert await breaker.complete(call()) == ANSWER
