"""Summaries through a scripted gateway: choice of model, chunks, retries, failures.

[summary.bounded-input, summary.gateway]
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.common.errors import ServiceUnavailable
from app.compaction.summaries.model_calls import SummariserRun, SummariserSettings
from app.compaction.summaries.model_summary import MAX_FAILED_CALLS, ModelAccess, SummaryTask
from app.compaction.summaries.prompt import SummaryRequest
from app.compaction.summaries.summariser import Summariser
from app.compaction.summaries.transcript import SourceText, take_chunk
from app.compaction.summaries.writing import SummaryScope
from app.formats.message import Message, Role, Text, ToolCall
from app.models.model_info import ModelInfo
from app.models.usage import Completion, ModelCall, TokenUsage

SETTINGS = SummariserSettings("main", (), ("spare", "last"), 5.0)
GOOD = "<summary>short</summary>"


SIZES = st.integers(64, 500)
"""Limits in tokens."""

Reply = str | Completion | ServiceUnavailable | Callable[[ModelCall], str]


class QuarterTokenizer:
    """Counts a token per four characters."""

    def count(self, text: str) -> int:
        """Return a quarter of the length."""
        return len(text) // 4


class KnownModels:
    """A registry of these models."""

    def __init__(self, *infos: ModelInfo) -> None:
        self._infos = infos

    def find(self, model: str) -> ModelInfo | None:
        """Return the model of that name."""
        return next((info for info in self._infos if info.model == model), None)

    def list(self) -> Sequence[ModelInfo]:
        """Return them all."""
        return self._infos


class ScriptedGateway:
    """Replies from a list; the last reply is repeated."""

    def __init__(self, *replies: Reply) -> None:
        self._replies = list(replies)
        self.calls: list[ModelCall] = []

    async def complete(self, call: ModelCall) -> Completion:
        """Return or raise the next reply."""
        self.calls.append(call)
        reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        if isinstance(reply, ServiceUnavailable):
            raise reply
        if isinstance(reply, Completion):
            return reply
        return Completion(
            reply if isinstance(reply, str) else reply(call), "stop", TokenUsage(100, 10)
        )

    @property
    def models(self) -> list[str]:
        """The model of each call."""
        return [call.model for call in self.calls]

    @property
    def texts(self) -> list[str]:
        """The instructions of each call."""
        return [call.messages[-1]["content"] for call in self.calls]


def down(reason: str, **facts: int) -> ServiceUnavailable:
    """Return the failure a gateway raises."""
    return ServiceUnavailable("the model is down", {"reason": reason, **facts})


def model(name: str, window: int | None, max_input: int | None = None) -> ModelInfo:
    """Return a model with this window and one dollar per million tokens each way."""
    return ModelInfo(
        model=name,
        context_window=window,
        max_input_tokens=max_input,
        max_output_tokens=None,
        tokenizer="unknown",
        exact=True,
        cache_minimum_tokens=None,
        input_price=1e-6,
        output_price=1e-6,
        cache_read_price=None,
        cache_write_price=None,
        sources={},
    )


def numbered(count: int, size: int = 400) -> list[Message]:
    """Return user messages, each numbered and of this many characters."""
    return [Message(Role.USER, (Text(f"<{i}>".ljust(size, "x")),)) for i in range(count)]


async def no_sleep(_: float) -> None:
    """Pass no time."""


def summariser(
    gateway: ScriptedGateway, *infos: ModelInfo, settings: SummariserSettings = SETTINGS
) -> Summariser:
    """Return a summariser that never waits."""
    return Summariser(
        ModelAccess(gateway, KnownModels(*infos), QuarterTokenizer(), settings, no_sleep)
    )


def plain_task(run: SummariserRun) -> SummaryTask:
    """Return a summary by the main model."""
    scope = SummaryScope(QuarterTokenizer().count)
    return SummaryTask(SummaryRequest(), "main", 300, run, scope)


async def run(
    gateway: ScriptedGateway,
    *infos: ModelInfo,
    messages: Sequence[Message] | None = None,
    settings: SummariserSettings = SETTINGS,
) -> tuple[str, SummariserRun]:
    """Summarise by the main model; return the text and the run."""
    subject = summariser(gateway, *infos, settings=settings)
    summary_run = subject.start_run("tenant")
    made = await subject.summarise(plain_task(summary_run), messages or numbered(4))
    return made.text, summary_run


# --- which model ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "policy", "conversation", "chosen"),
    [
        ("spare", "last", "main", "spare"),
        (None, "last", "main", "last"),
        (None, None, "other", "main"),
        ("extractive", "last", None, None),
        (None, "extractive", None, None),
    ],
)
def test_the_model_is_chosen_in_order(
    call: str | None, policy: str | None, conversation: str | None, chosen: str | None
) -> None:
    """The call's, the policy's, the service's; the built-in one can be named."""
    assert summariser(ScriptedGateway("")).choose_model(call, policy, conversation) == chosen


# --- one call -------------------------------------------------------------------------------


async def test_no_cut_lets_a_part_of_a_secret_through() -> None:
    """Calls and their results are masked whole, before they are cut to the model's window."""
    secret = "q7" + "Zk3mW9xR" * 8
    inner = json.dumps({"password": secret, "pad": "x " * 300})
    calls = [
        Message(Role.ASSISTANT, (ToolCall(f"c{n}", f"sk-{secret}", json.dumps({"body": inner})),))
        for n in range(6)
    ]
    results = [
        Message(
            Role.TOOL,
            (Text("".join(f"{'y' * (7 * n)}\nDB_PASS={secret}\n" for n in range(60))),),
            tool_call_id=f"c{n}",
        )
        for n in range(6)
    ]
    gateway = ScriptedGateway(GOOD)
    messages = [message for pair in zip(calls, results, strict=True) for message in pair]
    await run(gateway, messages=messages, settings=replace(SETTINGS, context_window=1_200))
    assert len(gateway.texts) > 5
    pieces = {secret[place : place + 8] for place in range(len(secret) - 8)}
    assert not [piece for piece in pieces for text in gateway.texts if piece in text]


# --- chunks ---------------------------------------------------------------------------------


async def test_large_input_is_chunked_between_messages_and_merged() -> None:
    """Each message goes out once and whole; each summary is carried into the next call."""
    numbers = iter(range(100))
    gateway = ScriptedGateway(lambda _: f"<summary>summary {next(numbers)}</summary>")
    text, summary_run = await run(gateway, model("main", 2_000), messages=numbered(30))
    assert summary_run.calls == len(gateway.calls) > 2
    assert text == f"summary {summary_run.calls - 1}"
    for index, text in enumerate(gateway.texts[1:]):
        assert f"<earlier_summary>\nsummary {index}\n" in text
    everything = "".join(gateway.texts)
    assert all(everything.count(f"<{i}>xxx") == 1 for i in range(30))
    assert all(len("".join(m["content"] for m in c.messages)) // 4 < 1_700 for c in gateway.calls)


# --- failure --------------------------------------------------------------------------------


async def test_an_unusable_answer_is_asked_for_again_with_more_room() -> None:
    """A stricter call follows, then the fallback models. [summary.accepted-answers]"""
    gateway = ScriptedGateway("no tags", "no tags", GOOD)
    text, _ = await run(gateway)
    assert (text, gateway.models) == ("short", ["main", "main", "spare"])
    first, second, third = (call.max_tokens for call in gateway.calls)
    assert second > first == third
    assert ["could not be used" in text for text in gateway.texts] == [False, True, False]


@given(
    st.lists(
        st.sampled_from(
            ["no tags", *(down(r) for r in ("timeout", "rate_limited", "context_window"))]
        ),
        max_size=12,
    ),
    st.integers(1, 5),
)
def test_no_summary_costs_more_than_six_failing_calls(failures: list[Reply], tries: int) -> None:
    """Six failing calls end the run, in any order of failures. [summary.retries]"""
    gateway = ScriptedGateway(*failures, GOOD)
    subject = summariser(gateway, settings=replace(SETTINGS, attempts=tries))
    summary_run = subject.start_run("tenant")

    async def compaction() -> None:
        for _ in range(3):
            made = await subject.summarise(plain_task(summary_run), numbered(40))
            assert made.text == "short"

    with suppress(ServiceUnavailable):
        asyncio.run(compaction())
    assert summary_run.calls == len(gateway.calls)
    assert summary_run.failures <= MAX_FAILED_CALLS


async def test_no_other_model_is_called_after_the_spend_guard() -> None:
    """The spend guard ends the run, whichever models are left. [summary.spend-guard]"""
    gateway = ScriptedGateway(down("spend_guard", retry_after=1200), GOOD)
    with pytest.raises(ServiceUnavailable) as failure:
        await run(gateway)
    assert failure.value.facts["retry_after"] == 1200
    assert gateway.models == ["main"]


# --- cutting --------------------------------------------------------------------------------


TEXTS = st.builds(SourceText, st.text(max_size=400), st.just(1))


@given(st.lists(st.lists(TEXTS, min_size=1, max_size=4).map(tuple), max_size=9), SIZES)
def test_chunks_fit_and_use_every_text_once(
    groups: list[tuple[SourceText, ...]], budget: int
) -> None:
    """Chunks are within the limit, have every text in order, and cut no group that fits."""
    tokenizer = QuarterTokenizer()
    rest, chunks, starts = list(groups), [], [len(groups)]
    while rest:
        chunk, rest = take_chunk(rest, budget, tokenizer.count)
        assert tokenizer.count(chunk.text) <= budget
        chunks.append(chunk)
        starts.append(len(rest))
    texts = [item.text for group in groups for item in group]
    assert sum(chunk.source_chars for chunk in chunks) == len(texts)
    if all(tokenizer.count(text) + 2 <= budget for text in texts):
        assert "\n\n".join(chunk.text for chunk in chunks) == "\n\n".join(texts)
    if all(sum(tokenizer.count(item.text) + 2 for item in group) <= budget for group in groups):
        assert starts == sorted(set(starts), reverse=True)
