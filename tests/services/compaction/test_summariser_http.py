"""Summaries over real HTTP: every way a model can fail, and how often it is called.

[summary.accepted-answers, compaction.failure-keeps-state]
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

import httpx
import pytest
import pytest_asyncio

from app.common.errors import ServiceUnavailable
from app.compaction.summaries.model_calls import SummariserRun, SummariserSettings
from app.compaction.summaries.model_summary import ModelAccess, SummaryTask
from app.compaction.summaries.prompt import SummaryRequest, SummaryResult
from app.compaction.summaries.summariser import Summariser
from app.compaction.summaries.writing import SummaryScope
from app.formats.message import Message, Role, Text, ToolCall
from app.main import create_app
from app.models.litellm_gateway import CircuitBreaker, LiteLLMGateway
from app.models.usage import ModelCall
from app.settings import Settings
from tests import fake_llm as fake
from tests.conftest import started
from tests.fake_llm import FakeLLM
from tests.services.fakes import MODELS, TOKENIZER

MAIN, SPARE = "openai/main", "openai/spare"
LONG_SECONDS = 20.0
SETTINGS = SummariserSettings(MAIN, (), (), LONG_SECONDS)


async def no_sleep(_: float) -> None:
    """Retry at once."""


def task(run: SummariserRun) -> SummaryTask:
    """Return a summary by the main model."""
    return SummaryTask(SummaryRequest(), MAIN, 500, run, SummaryScope(len))


@dataclass
class Bench:
    """A summariser with the real gateway, and its one run."""

    gateway: LiteLLMGateway
    settings: SummariserSettings = SETTINGS
    breaker_failures: int = 100
    run: SummariserRun | None = None

    async def summarise(
        self, messages: Sequence[Message] | None = None, **changes: object
    ) -> SummaryResult:
        """Summarise within the same run each time."""
        settings = replace(self.settings, **changes)  # type: ignore[arg-type]
        breaker = CircuitBreaker(self.gateway, self.breaker_failures, 30)
        summariser = Summariser(ModelAccess(breaker, MODELS, TOKENIZER, settings, no_sleep))
        self.run = self.run or summariser.start_run("tenant")
        return await summariser.summarise(task(self.run), messages or talk())

    async def reason(self, **changes: object) -> str:
        """Return why a summary fails."""
        with pytest.raises(ServiceUnavailable) as failure:
            await self.summarise(**changes)  # type: ignore[arg-type]
        assert failure.value.code == "SERVICE_UNAVAILABLE"
        return str(failure.value.facts["reason"])


@pytest_asyncio.fixture
async def bench(fake_llm: FakeLLM) -> AsyncIterator[Bench]:
    """A summariser that knows only the fake endpoint."""
    gateway = LiteLLMGateway(fake_llm.api_base, "test")
    yield Bench(gateway)
    await gateway.close()


def user(text: str) -> Message:
    """Return a user message."""
    return Message(Role.USER, (Text(text),))


def talk() -> list[Message]:
    """Return a short conversation."""
    answer = Message(Role.ASSISTANT, (Text("Green tea it is. " * 10),))
    return [user("I would like some tea. " * 10), answer]


# --- An open call at the end ----------------------------------------------------------------


async def test_s1_checkpoint_4_a_trailing_call_left_in_is_refused_and_taken_out_is_not(
    fake_llm: FakeLLM, bench: Bench
) -> None:
    """A native call without its result is 400; our text form never is. [summary.labelled-text]"""
    native = {"id": "c", "type": "function", "function": {"name": "shell", "arguments": "{}"}}
    asks = {"role": "user", "content": "Summarise the conversation above."}
    for trailing, accepted in (
        ({"role": "assistant", "content": "wait a bit", "tool_calls": [native]}, False),
        ({"role": "assistant", "content": "wait a bit"}, True),
    ):
        call = ModelCall(MAIN, (trailing, asks), 50, LONG_SECONDS, "tenant")  # type: ignore[arg-type]
        if accepted:
            assert (await bench.gateway.complete(call)).text == fake.GOOD_TEXT
        else:
            with pytest.raises(ServiceUnavailable) as failure:
                await bench.gateway.complete(call)
            assert failure.value.facts["reason"] == "refused"
    left_in = Message(Role.ASSISTANT, (Text("wait a bit"), ToolCall("c", "shell", "{}")))
    await bench.summarise([*talk(), left_in])
    shown = fake_llm.requests[-1]
    assert "wait a bit" in shown.text
    assert "shell" not in shown.text
    await bench.summarise([*talk(), left_in, user("and then?")])
    assert "Assistant called shell with {}" in fake_llm.requests[-1].text
    for request in fake_llm.requests[2:]:
        assert [message["role"] for message in request.body["messages"]] == ["system", "user"]
        assert "tool_calls" not in str(request.body)
        assert "tools" not in request.body


# --- failures -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("behaviour", "reason", "calls"),
    [
        (fake.status(429, "Rate limit reached"), "rate_limited", 2),
        (fake.status(500), "provider_error", 2),
        (fake.connection_reset(), "provider_error", 2),
        (fake.status(401, "bad key"), "authentication", 1),
        (fake.status(400, "malformed"), "refused", 1),
        (fake.refusal(), "refused", 1),
        (fake.answer(""), "bad_answer", 2),
        (fake.cut_off(), "bad_answer", 2),
        (fake.too_long(), "bad_answer", 2),
        (fake.tool_call(), "bad_answer", 2),
    ],
)
async def test_each_failure_ends_as_service_unavailable(
    fake_llm: FakeLLM, bench: Bench, behaviour: fake.Behaviour, reason: str, calls: int
) -> None:
    """One more attempt where that may help, then 503; the number of calls is bounded."""
    fake_llm.always(behaviour)
    assert await bench.reason() == reason
    assert fake_llm.calls == calls
    assert bench.run is not None
    assert (bench.run.calls, bench.run.failures) == (calls, calls)


async def test_an_open_circuit_keeps_calls_from_the_server(fake_llm: FakeLLM, bench: Bench) -> None:
    """After failures in a row the model is not called, and the error has `retry_after`."""
    fake_llm.always(fake.status(500))
    breaker = CircuitBreaker(bench.gateway, failures=3, seconds=30)
    settings = replace(SETTINGS, attempts=5)
    summariser = Summariser(ModelAccess(breaker, MODELS, TOKENIZER, settings, no_sleep))
    failures = []
    for _ in range(4):
        run = summariser.start_run("tenant")
        with pytest.raises(ServiceUnavailable) as failure:
            await summariser.summarise(task(run), talk())
        failures.append(failure.value.facts)
    assert {facts["reason"] for facts in failures} == {"circuit_open"}
    assert all(facts["retry_after"] > 0 for facts in failures)
    assert fake_llm.calls == 3


# --- the whole service ----------------------------------------------------------------------


async def compress(client: httpx.AsyncClient) -> httpx.Response:
    """Summarise two messages by the stateless endpoint."""
    messages = [{"role": "user", "content": "I would like some tea. " * 10}] * 2
    return await client.post("/v1/context/compress", json={"messages": messages})


async def test_secret_settings_reach_the_summariser(
    with_model: Settings, fake_llm: FakeLLM
) -> None:
    """The service masks by default, by the configured patterns, or not at all."""
    messages = [{"role": "user", "content": f"AKIAIOSFODNN7EXAMPLE and id-42 {'tea ' * 40}"}]
    for changes, hidden, shown in (
        ({}, ["AKIA"], ["id-42"]),
        ({"secret_patterns": (r"id-\d+",)}, ["id-42"], ["AKIA"]),
        ({"secret_patterns": ()}, [], ["AKIA", "id-42"]),
    ):
        async with started(create_app(with_model.model_copy(update=changes))) as client:
            await client.post("/v1/context/compress", json={"messages": messages})
        text = fake_llm.requests[-1].text
        assert not [word for word in hidden if word in text]
        assert all(word in text for word in shown)
