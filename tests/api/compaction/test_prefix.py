"""Summaries by the agent's own model, which reads its payload from the provider's cache.

Payload and request are compared as they arrive at a strict local provider. [summary.prefix]
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import pytest_asyncio

from app.compaction.summaries.run import NOT_USED
from app.main import create_app
from app.settings import Settings
from tests import fake_llm as fake
from tests.api.talk import append, calling, new_conversation, result, talk, user
from tests.conftest import started
from tests.fake_llm import Behaviour, FakeLLM, Request
from tests.fake_providers import PROTOCOLS, FakeProviders, Spent

CHAT, RESPONSES, ANTHROPIC, GEMINI = "openai_chat", "openai_responses", "anthropic", "gemini"
MODEL, CLAUDE, SPARE = "openai/agent", "anthropic/claude-sonnet-4-5", "openai/spare"
NOT_ALLOWED = "openai/not-allowed"
ITEMS = {CHAT: "messages", RESPONSES: "input", ANTHROPIC: "messages"}
LIMITS = {
    CHAT: "max_completion_tokens",
    RESPONSES: "max_output_tokens",
    ANTHROPIC: "max_tokens",
}
LONG = "We talked about the harbour, the trains and the weather in Bergen. " * 6
SUMMARY = "<summary>They compared trains to Bergen.</summary>"
SPENT = Spent(6_000, 5_000)
PROPERTIES = {"zone": {"type": "string"}, "command": {"type": "string"}}
TOOL = {
    "name": "shell",
    "description": "Runs a command.",
    "parameters": {"type": "object", "properties": PROPERTIES, "required": ["zone", "command"]},
}
SECTION = {"name": "role", "content": "You plan journeys. " * 20}
POLICY: dict[str, Any] = {
    "budget": {"context_window": 16_600, "max_output_tokens": 500},
    "compaction": {"summary_input": "prefix"},
}


@dataclass(frozen=True)
class Case:
    """A client of the service, and the format and the model of its agent."""

    client: httpx.AsyncClient
    format: str
    model: str

    async def conversation(self, policy: dict[str, Any] | None = None, **body: Any) -> str:
        """Return the path of a conversation that has enough to compact."""
        path = await new_conversation(
            self.client,
            **{
                "model": self.model,
                "policy": {**POLICY, **(policy or {})},
                "sections": [SECTION],
                "tools": [TOOL],
                **body,
            },
        )
        await append(self.client, path, *talk(20, LONG), calling("c1"), result("c1", LONG))
        await append(self.client, path, *talk(19, LONG))
        return path

    async def build(self, path: str, **more: Any) -> dict[str, Any]:
        """Return the answer to a build."""
        answer = await self.client.post(f"{path}/context", json={"format": self.format, **more})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def compact(self, path: str, **more: Any) -> dict[str, Any]:
        """Compact, and return the receipt."""
        answer = await self.client.post(f"{path}/compact", json=more)
        assert answer.status_code == 200, answer.text
        assert answer.json()["compacted"], answer.text
        receipt = await self.client.get(f"{path}/compactions/{answer.json()['compaction_id']}")
        found: dict[str, Any] = receipt.json()
        return found


@asynccontextmanager
async def serving(settings: Settings, api_base: str) -> AsyncIterator[httpx.AsyncClient]:
    """Serve an app whose agents' models may summarise."""
    changes = {
        "summarizer_allowed_models": (MODEL, CLAUDE, SPARE),
        "summarizer_api_base": api_base,
        "summarizer_api_key": "test",
        "summarizer_timeout_seconds": 20.0,
    }
    async with started(create_app(settings.model_copy(update=changes))) as opened:
        yield opened


@pytest.fixture
def provider() -> Iterator[FakeProviders]:
    """A strict provider of all formats that answers with a summary."""
    server = FakeProviders()
    server.always(says(SUMMARY))
    yield server
    server.stop()


@pytest_asyncio.fixture(
    params=[(CHAT, MODEL), (RESPONSES, MODEL), (ANTHROPIC, CLAUDE)], ids=lambda param: param[0]
)
async def case(
    request: pytest.FixtureRequest, settings: Settings, provider: FakeProviders
) -> AsyncIterator[Case]:
    """An agent of each format that can be sent unchanged."""
    format, model = request.param
    api_base = provider.root if format == ANTHROPIC else provider.api_base
    async with serving(settings, api_base) as client:
        yield Case(client, format, model)


@pytest_asyncio.fixture
async def chat(settings: Settings, fake_llm: FakeLLM) -> AsyncIterator[Case]:
    """An agent of OpenAI Chat, whose provider misbehaves on demand."""
    fake_llm.always(fake.answer(SUMMARY))
    async with serving(settings, fake_llm.api_base) as client:
        yield Case(client, CHAT, MODEL)


def says(text: str) -> Callable[[Request], Behaviour]:
    """Answer with a text in the protocol of the request."""

    def behave(request: Request) -> Behaviour:
        protocol = next(item for item in PROTOCOLS if item.path.fullmatch(request.path))
        return Behaviour(body=protocol.saying(text, SPENT))

    return behave


def split(format: str, items: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """Return the items before the instruction, and its text, which has no cache breakpoint."""
    *before, last = items
    assert last["role"] == "user"
    if format == CHAT:
        return before, str(last["content"])
    *blocks, block = last["content"]
    assert block.keys() == {"type", "text"}
    return [*before, *([{**last, "content": blocks}] if blocks else [])], str(block["text"])


def kinds(requests: list[Request]) -> list[str]:
    """Return what each request of a chat had: the payload or a transcript."""
    return ["prefix" if "tools" in request.body else "transcript" for request in requests]


# --- what is sent ---------------------------------------------------------------------------


async def test_the_request_is_the_newest_payload_and_one_instruction(
    case: Case, provider: FakeProviders
) -> None:
    """Everything before the instruction is the payload byte for byte, cache breakpoints included.

    The limit of the answer is the only other difference.
    """
    path = await case.conversation()
    built = (await case.build(path))["payload"]
    receipt = await case.compact(path)
    (request,) = provider.requests
    items, limit = ITEMS[case.format], LIMITS[case.format]
    prefix, instruction = split(case.format, request.body[items])
    assert json.dumps(prefix) == json.dumps(built[items])
    others = {"model", items, limit, "stream"}
    for name in built.keys() - others:
        assert json.dumps(request.body[name]) == json.dumps(built[name]), name
    assert request.body.keys() - built.keys() <= {"stream"}
    assert request.body[limit] != built[limit]
    assert "<first_message>" in instruction
    assert ("cache_control" in json.dumps(prefix)) is (case.format == ANTHROPIC)
    assert receipt["summary_input"] == "prefix" and not receipt["degraded"]
    assert receipt["model"] == case.model
    assert not provider.refused


async def test_a_payload_that_has_grown_begins_as_it_was_sent(
    case: Case, provider: FakeProviders
) -> None:
    """Messages after the newest build follow its payload; what is open is closed behind them."""
    path = await case.conversation()
    built = await case.build(path)
    await append(case.client, path, *talk(2, LONG)[1:], user("list it"), calling("c2"))
    await case.compact(path)
    (request,) = provider.requests
    items = ITEMS[case.format]
    stable = built["payload"][items][: built["stable_items"]]
    sent = request.body[items][: len(stable)]
    assert json.dumps(without_marks(sent)) == json.dumps(without_marks(stable))
    assert not provider.refused


def without_marks(value: Any) -> Any:
    """Return a value without cache breakpoints: those of the newest message move with it."""
    match value:
        case dict():
            return {key: without_marks(item) for key, item in value.items() if "cache_" not in key}
        case list():
            return [without_marks(item) for item in value]
        case _:
            return value


async def test_cached_tokens_have_their_own_price(case: Case, provider: FakeProviders) -> None:
    """Receipt and usage totals have what the provider read from its cache, at that price."""
    prices = {"input_price": 1.0, "output_price": 4.0, "cache_read_price": 0.1}
    entry = {**prices, "cache_write_price": 1.0}
    assert (await case.client.put(f"/v1/models/{case.model}", json=entry)).status_code == 200
    path = await case.conversation()
    await case.build(path)
    receipt = await case.compact(path)
    uncached = receipt["input_tokens"] - SPENT.cached
    assert receipt["cached_tokens"] == SPENT.cached and uncached > 0
    cost = uncached + 0.1 * SPENT.cached + 4.0 * receipt["output_tokens"]
    assert receipt["cost_usd"] == pytest.approx(cost)
    (row,) = (await case.client.get(f"{path}/usage")).json()["data"]
    assert row["summaries"]["cache_read_tokens"] == SPENT.cached
    assert row["summaries"]["cost_usd"] == pytest.approx(cost)


async def test_the_instruction_names_the_part_that_is_replaced(
    chat: Case, fake_llm: FakeLLM
) -> None:
    """Its ends and the pinned messages inside it are quoted; the caller's wishes are in it."""
    path = await chat.conversation()
    await chat.client.put(f"{path}/messages/{await message_id(chat, path, 12)}/pin")
    await chat.build(path)
    receipt = await chat.compact(path, instructions="Keep every port.")
    start, end = receipt["hidden_range"]
    log = await messages_of(chat, path)
    instruction = fake_llm.requests[0].text
    first, rest = instruction.split("</first_message>")
    last, kept = rest.split("</last_message>")
    assert log[start - 1][:100] in first and log[end - 2][:60] in last
    assert receipt["kept"] == [12] and log[11][:60] in kept
    assert "Keep every port." in instruction and LONG not in instruction


async def messages_of(case: Case, path: str) -> list[str]:
    """Return the texts of the first messages."""
    page = (await case.client.get(f"{path}/messages?limit=100")).json()["data"]
    return [str(item["content"]) for item in page]


async def message_id(case: Case, path: str, seq: int) -> str:
    """Return the id of a message."""
    page = (await case.client.get(f"{path}/messages?limit=100")).json()["data"]
    return str(page[seq - 1]["id"])


# --- what is kept of the answer -------------------------------------------------------------


async def test_standing_instructions_and_secrets_are_treated_as_with_a_transcript(
    chat: Case, fake_llm: FakeLLM
) -> None:
    """Instructions are kept word for word; a secret in the answer is masked.

    [summary.checklist, summary.secrets-masked]
    """
    rule = "From now on, deploy only to region eu-north-7."
    secret = "sk-proj-" + "a1B2" * 12
    path = await chat.conversation()
    await append(chat.client, path, user(rule), *talk(30, LONG)[1:])
    await chat.build(path)
    fake_llm.always(fake.answer(f"<summary>The key is {secret}.</summary>"))
    receipt = await chat.compact(path)
    assert receipt["summary_input"] == "prefix"
    assert rule in receipt["summary"]
    assert "[secret masked]" in receipt["summary"] and secret not in json.dumps(receipt)


# --- when a transcript is used --------------------------------------------------------------


async def not_used(case: Case, path: str, **more: Any) -> str:
    """Compact with a transcript, and return why the payload was not used."""
    receipt = await case.compact(path, **more)
    assert receipt["summary_input"] == "transcript"
    (reason,) = receipt["degraded"]
    return str(reason.removeprefix(f"{NOT_USED}:"))


async def test_without_a_build_a_transcript_is_summarised(chat: Case, fake_llm: FakeLLM) -> None:
    """Nothing was sent, or nothing since the view changed: no cache has what is shown."""
    path = await chat.conversation()
    assert await not_used(chat, path) == "no_build"
    await append(chat.client, path, *talk(20, LONG)[1:])
    assert await not_used(chat, path) == "no_build"
    assert kinds(fake_llm.requests) == ["transcript"] * 2


async def test_what_was_redacted_is_not_sent_again(chat: Case, fake_llm: FakeLLM) -> None:
    """A payload from before the redaction has the message. [compaction.redaction]"""
    path = await chat.conversation()
    await chat.build(path)
    target = f"{path}/messages/{await message_id(chat, path, 12)}"
    assert (await chat.client.post(f"{target}/redact", json={})).status_code == 200
    assert await not_used(chat, path) == "no_build"


async def test_a_model_that_may_not_summarise_is_not_sent_the_payload(
    chat: Case, fake_llm: FakeLLM
) -> None:
    """Its conversation is summarised without a model, and the receipt says why."""
    path = await chat.conversation(model=NOT_ALLOWED)
    await chat.build(path)
    receipt = await chat.compact(path)
    assert receipt["degraded"] == [f"{NOT_USED}:model_not_allowed"]
    assert (receipt["model"], receipt["summary_input"]) == ("extractive", None)
    assert not fake_llm.requests


async def test_a_format_without_a_path_is_not_sent(chat: Case, fake_llm: FakeLLM) -> None:
    """LiteLLM would convert a payload of Gemini, and one in a format of another provider."""
    for format in (GEMINI, ANTHROPIC):
        path = await chat.conversation()
        answer = await chat.client.post(f"{path}/context", json={"format": format})
        assert answer.status_code == 200
        assert await not_used(chat, path) == "format"


async def test_a_payload_without_room_for_the_answer_is_not_sent(
    chat: Case, fake_llm: FakeLLM
) -> None:
    """Payload, instruction and answer have to fit the model's own window."""
    path = await chat.conversation()
    used = (await chat.build(path))["tokens_used"]
    entry = {"context_window": used + 200}
    assert (await chat.client.put(f"/v1/models/{MODEL}", json=entry)).status_code == 200
    assert await not_used(chat, path) == "too_long"
    assert set(kinds(fake_llm.requests)) == {"transcript"}


# --- failures -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failures", "reason"),
    [
        ([fake.status(503)] * 2, "provider_error"),
        ([fake.cut_off()] * 2, "bad_answer"),
        ([fake.context_too_long()], "context_window"),
    ],
    ids=["503", "cut_off", "overflow"],
)
async def test_a_failed_call_is_followed_by_one_with_a_transcript(
    chat: Case, fake_llm: FakeLLM, failures: list[Behaviour], reason: str
) -> None:
    """The receipt has the reason, and the tokens of all calls."""
    path = await chat.conversation()
    await chat.build(path)
    fake_llm.script(*failures)
    assert await not_used(chat, path) == reason
    assert kinds(fake_llm.requests) == ["prefix"] * len(failures) + ["transcript"]


# --- dry runs -------------------------------------------------------------------------------


async def test_a_dry_run_shows_the_instruction_the_payload_and_both_prices(
    chat: Case, fake_llm: FakeLLM
) -> None:
    """`messages` and the payload of `build_id` are what is sent then; no model is called."""
    entry = {"input_price": 1.0, "output_price": 4.0, "cache_read_price": 0.1}
    assert (await chat.client.put(f"/v1/models/{MODEL}", json=entry)).status_code == 200
    path = await chat.conversation()
    await chat.build(path)
    shown = (await chat.client.post(f"{path}/compact", json={"dry_run": True})).json()
    assert not fake_llm.requests
    (call,) = shown["calls"]
    payload = (await chat.client.get(f"{path}/context", params={"as_of": call["build_id"]})).json()[
        "payload"
    ]
    await chat.compact(path)
    (request,) = fake_llm.requests
    assert [*payload["messages"], *call["messages"]] == request.body["messages"]
    assert call["max_output_tokens"] == request.body["max_completion_tokens"]
    assert call["summary_input"] == "prefix" and shown["estimated"]
    answer = 4.0 * call["max_output_tokens"]
    new = call["input_tokens"] - call["prefix_tokens"]
    assert call["cost_usd"] == pytest.approx(call["input_tokens"] + answer)
    assert call["cached_cost_usd"] == pytest.approx(new + 0.1 * call["prefix_tokens"] + answer)
    assert shown["cost_usd"] == call["cost_usd"]
