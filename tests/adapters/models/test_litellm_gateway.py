"""The gateway against a real local endpoint: every failure has one reason. [summary.gateway]"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from threading import Event

import pytest
import pytest_asyncio

from app.common.errors import ServiceUnavailable
from app.common.logs import JsonLines
from app.models.litellm_gateway import LiteLLMGateway
from app.models.usage import ModelCall, TokenUsage
from tests import fake_llm as fake
from tests.fake_llm import FakeLLM

LONG_SECONDS = 20.0


def call(timeout_seconds: float = LONG_SECONDS, model: str = "openai/some-model") -> ModelCall:
    """Return an ordinary call."""
    messages = ({"role": "system", "content": "s"}, {"role": "user", "content": "condense"})
    return ModelCall(model, messages, 200, timeout_seconds, "tenant")


@pytest_asyncio.fixture
async def gateway(fake_llm: FakeLLM) -> AsyncIterator[LiteLLMGateway]:
    """A gateway of the fake endpoint."""
    gateway = LiteLLMGateway(fake_llm.api_base, "sk-test")
    yield gateway
    await gateway.close()


async def reason_of(gateway: LiteLLMGateway, asked: ModelCall | None = None) -> str:
    """Return the reason a call fails for."""
    with pytest.raises(ServiceUnavailable) as failure:
        await gateway.complete(asked or call())
    assert failure.value.code == "SERVICE_UNAVAILABLE"
    return str(failure.value.facts["reason"])


async def test_an_answer_comes_back_with_its_usage(
    gateway: LiteLLMGateway, fake_llm: FakeLLM
) -> None:
    """One call without tools, and what it cost, is all that a completion holds."""
    completion = await gateway.complete(call())
    assert completion.text == fake.GOOD_TEXT
    assert completion.finish_reason == "stop"
    assert completion.usage == TokenUsage(100, 20)
    assert not completion.has_tool_calls
    (request,) = fake_llm.requests
    assert request.body["messages"][-1] == {"role": "user", "content": "condense"}
    assert request.body["max_tokens"] == 200
    assert "tools" not in request.body
    assert not request.body.get("stream")
    assert request.headers["authorization"] == "Bearer sk-test"


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (fake.status(500), "provider_error"),
        (fake.status(503), "provider_error"),
        (fake.status(429, "slow down"), "rate_limited"),
        (fake.status(401, "bad key"), "authentication"),
        (fake.status(403, "not yours"), "authentication"),
        (fake.status(404, "no such model"), "refused"),
        (fake.status(400, "malformed"), "refused"),
        (fake.status(400, "prompt is too long: 9000 tokens"), "context_window"),
        (fake.status(413, "Request Entity Too Large"), "context_window"),
        (fake.status(413, "Request too large on tokens per minute (TPM)"), "rate_limited"),
        (fake.status(400, "max_tokens is too large: 99. This model supports"), "refused"),
        (fake.status(500, "the request exceeds the available context size"), "context_window"),
        (fake.answer("cut", "model_context_window_exceeded"), "context_window"),
        (fake.context_too_long(), "context_window"),
        (fake.connection_reset(), "provider_error"),
        (fake.truncated_body(), "provider_error"),
        (fake.refusal(), "refused"),
        (fake.Behaviour(body={"choices": []}), "bad_answer"),
        (fake.Behaviour(body=[1]), "provider_error"),
    ],
)
async def test_every_failure_is_service_unavailable_with_its_reason(
    gateway: LiteLLMGateway, fake_llm: FakeLLM, behaviour: fake.Behaviour, reason: str
) -> None:
    """Errors, resets and unreadable answers become one error, without a hidden retry."""
    fake_llm.always(behaviour)
    assert await reason_of(gateway) == reason
    assert fake_llm.calls == 1


@pytest.mark.parametrize(("header", "seconds"), [("7", 7), ("soon", None), (None, None)])
async def test_retry_after_of_the_provider_is_passed_on(
    gateway: LiteLLMGateway, fake_llm: FakeLLM, header: str | None, seconds: int | None
) -> None:
    """Retry-After is in the facts, where it is a number of seconds."""
    headers = {"Retry-After": header} if header is not None else {}
    fake_llm.always(fake.Behaviour(429, {"error": {"message": "slow down"}}, headers))
    with pytest.raises(ServiceUnavailable) as failure:
        await gateway.complete(call())
    assert failure.value.facts.get("retry_after") == seconds
    assert failure.value.facts["reason"] == "rate_limited"


async def test_the_timeout_ends_a_slow_call(gateway: LiteLLMGateway, fake_llm: FakeLLM) -> None:
    """A model that does not answer costs at most the timeout [summary.gateway]."""
    await gateway.complete(call())
    fake_llm.script(fake.slow(Event()))
    assert await reason_of(gateway, call(timeout_seconds=0.2)) == "timeout"
    assert fake_llm.calls == 2


async def test_a_failure_is_logged_without_what_was_said(
    gateway: LiteLLMGateway, fake_llm: FakeLLM, caplog: pytest.LogCaptureFixture
) -> None:
    """The line has the type and the place of the error, not its message. [operation.logs]"""
    fake_llm.always(fake.status(401, "the key of condense"))
    await reason_of(gateway)
    (record,) = (r for r in caplog.records if r.getMessage() == "model_call_failed")
    line = json.loads(JsonLines().format(record))
    assert line["reason"] == "authentication"
    assert line["model"] == "openai/some-model"
    assert line["error"] == "AuthenticationError"
    assert line["places"]
    assert "condense" not in json.dumps(line)
