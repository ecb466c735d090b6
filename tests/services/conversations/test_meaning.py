"""`recall` by meaning: over a real database with pgvector, and a model behind HTTP.

[search.recall-by-meaning]
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from threading import Event
from typing import Any

import pytest
import pytest_asyncio
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from app.adapters.models.circuit_breaker import EmbeddingCircuitBreaker
from app.adapters.models.litellm_gateway import LiteLLMGateway
from app.adapters.postgres.common.connections import Session, Statement
from app.adapters.postgres.database import PostgresDatabase
from app.adapters.telemetry.recorder import MeasuredEmbeddings, Telemetry
from app.domain.common.messages import FormatName
from app.domain.conversations.search.recall import RecallPage
from app.domain.tenancy.quotas import TenantLimits
from app.main import create_app
from app.services.conversations import meaning as meaning_module
from app.services.conversations.embedding_model import EmbeddingModel, EmbeddingSettings
from app.services.conversations.meaning import MeaningIndex
from app.services.conversations.redactions import RedactionService
from app.services.conversations.search import SearchService
from app.services.payload.tool_calls import BY_MEANING, ToolCallService
from app.services.tenancy.embedding_quota import EmbeddingQuota
from app.settings import Settings
from tests import fake_llm as fake
from tests.api.talk import append, new_conversation
from tests.collector import collecting, values
from tests.conftest import execute, started
from tests.fake_llm import FakeLLM
from tests.services.fakes import (
    MODELS,
    TENANT,
    TOKENIZER,
    Harness,
    WatchedDatabase,
    says,
    user,
)

MODEL = "openai/meanings"
SETTINGS = EmbeddingSettings(MODEL, timeout_seconds=20.0, question_seconds=20.0)
POLICY = {"budget": {"context_window": 4000, "max_output_tokens": 500}}
SAID = "Yesterday the medic acquired a red sedan."
QUESTION = "Has the physician purchased an automobile?"
"""No word but `the` is in the message."""


@dataclass
class Process:
    """A process with an embedding model, beside one without."""

    harness: Harness
    gateway: LiteLLMGateway
    telemetry: Telemetry
    model: FakeLLM
    limit: int | None = None

    def index(self, **changes: Any) -> MeaningIndex:
        """Return the index of a process with these settings."""

        async def limits_of(_tenant_id: str) -> TenantLimits:
            return TenantLimits(embedding_tokens_per_day=self.limit)

        database = self.harness.database
        measured = MeasuredEmbeddings(self.gateway, self.telemetry)
        counted = EmbeddingQuota(measured, database, limits_of, lambda: datetime.now(UTC))
        breaker = EmbeddingCircuitBreaker(counted, 100, 30)
        model = EmbeddingModel(breaker, MODELS, TOKENIZER, replace(SETTINGS, **changes))
        return MeaningIndex(database, model)

    def search(self, index: MeaningIndex | None) -> SearchService:
        """Return the search of a process with this index."""
        return SearchService(self.harness.database, self.harness.resolver, index, self.telemetry)

    async def recall(self, cid: str, question: str = QUESTION, **changes: Any) -> RecallPage:
        """Return the answer of a process with these settings."""
        return await self.search(self.index(**changes)).recall(TENANT, cid, question)

    async def by_words(self, cid: str, question: str = QUESTION) -> RecallPage:
        """Return the answer of a process without an embedding model."""
        return await self.search(None).recall(TENANT, cid, question)

    async def embed_all(self, cid: str, **changes: Any) -> MeaningIndex:
        """Embed the whole conversation, as a worker does, and return the index."""
        index = self.index(**changes)
        await index.request(cid, (await self.harness.stored(cid)).state.head_seq)
        await drained(index)
        return index

    async def value(self, statement: str, *arguments: Any) -> Any:
        """Return the first value of a statement."""
        async with self.harness.database.store.session() as session:
            return await session._connection.fetchval(statement, *arguments)

    async def embedded(self, cid: str) -> list[int]:
        """Return the seqs that have a vector."""
        found: list[int] = await self.value(
            "SELECT coalesce(array_agg(seq ORDER BY seq), '{}') FROM message_vectors"
            " WHERE conversation_id = $1::uuid AND embedding IS NOT NULL",
            cid,
        )
        return found

    async def make_due(self) -> None:
        """Let all pauses and claims end."""
        await self.value("UPDATE embedding_progress SET due_at = now() WHERE due_at IS NOT NULL")


async def drained(index: MeaningIndex) -> None:
    """Work until nothing is left to do now."""
    while await index.work():
        pass


@pytest_asyncio.fixture
async def process(database: PostgresDatabase, fake_llm: FakeLLM) -> AsyncIterator[Process]:
    """One process's services, which know only the fake endpoint."""
    gateway = LiteLLMGateway(fake_llm.api_base, "test")
    await asyncio.to_thread(gateway.load)
    yield Process(Harness(WatchedDatabase(database)), gateway, Telemetry(), fake_llm)
    await gateway.close()


@pytest_asyncio.fixture
async def cid(process: Process) -> str:
    """A conversation with `SAID` as message 9, and many messages around it."""
    made = await process.harness.conversation(POLICY)
    await process.harness.talk(made, 4)
    await process.harness.append(made, user(SAID), says("noted"))
    await process.harness.talk(made, 20)
    return made


# --- the ranking ------------------------------------------------------------------------------


async def test_a_message_is_found_by_meaning_alone(process: Process, cid: str) -> None:
    """A question that has no word of the message finds it first, once it is embedded."""
    assert 9 not in [item.seq for item in (await process.by_words(cid)).messages]
    await process.embed_all(cid)
    page = await process.recall(cid)
    assert page.by_meaning
    assert page.messages[0].seq == 9
    assert page.messages[0].excerpt == SAID


async def test_pages_of_both_rankings_have_each_message_once(process: Process, cid: str) -> None:
    """Offsets page through the fused ranking; the question is embedded once for all of them."""
    index = await process.embed_all(cid)
    search = process.search(index)
    calls = process.model.calls
    pages = [await search.recall(TENANT, cid, QUESTION, offset) for offset in range(0, 50, 10)]
    seqs = [item.seq for page in pages for item in page.messages]
    assert len(seqs) == len(set(seqs)) == pages[0].total == 40
    assert all(page.by_meaning for page in pages)
    assert process.model.calls == calls + 1


async def test_a_message_with_the_words_stays_first(process: Process, cid: str) -> None:
    """Where a message has all words of a question, the words decide, unless meaning is trusted."""
    await process.harness.append(cid, user("The physician: has he purchased an automobile?"))
    await process.harness.talk(cid, 5)
    await process.embed_all(cid)
    last = (await process.harness.stored(cid)).state.head_seq - 10
    page = await process.recall(cid)
    assert page.by_meaning
    assert page.messages[0].seq == last
    trusted = await process.recall(cid, trust=1.0)
    assert {item.seq for item in trusted.messages} >= {9, last}


async def test_a_question_of_function_words_is_ranked_by_meaning(
    process: Process, cid: str
) -> None:
    """A question without words that the index has is answered by meaning alone."""
    await process.embed_all(cid)
    assert (await process.by_words(cid, "and what was that?")).messages == ()
    page = await process.recall(cid, "and what was that?")
    assert page.by_meaning
    assert page.messages


async def test_the_answer_says_what_ranked_it(process: Process, cid: str) -> None:
    """A last line of the tool's answer, a log line and a metric name the ranking."""
    index = await process.embed_all(cid)
    text = await answer_of(process, index, cid)
    assert text.splitlines()[-1] == BY_MEANING
    metrics = (await process.telemetry.scrape())[0].decode()
    assert 'context_recalls_total{ranking="words_and_meaning",reason=""} 1.0' in metrics
    assert f'context_llm_calls_total{{model="{MODEL}",outcome="ok"}}' in metrics


async def answer_of(process: Process, index: MeaningIndex | None, cid: str) -> str:
    """Return the text that a model gets for a call of `recall`."""
    none: Any = None
    tools = ToolCallService(none, none, none, process.search(index))
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "recall", "arguments": f'{{"query": "{QUESTION}"}}'},
    }
    result = await tools.answer(TENANT, cid, FormatName.OPENAI_CHAT, call)
    assert not result.is_error
    return str(result.message["content"])


# --- without it, the answer is that of the words ----------------------------------------------


@pytest.mark.one_server  # it drops an extension
async def test_without_pgvector_nothing_changes(
    process: Process, cid: str, fake_llm: FakeLLM, database_url: str
) -> None:
    """The extension is missing: `recall`, redaction and deletion work, and no text is sent."""
    await execute(database_url, "DROP EXTENSION vector CASCADE")
    index = process.index()
    assert await answer_of(process, index, cid) == await answer_of(process, None, cid)
    assert not await index.work()
    await redact(process, cid, 9)
    await process.harness.conversations.remove(TENANT, cid)
    assert fake_llm.calls == 0
    metrics = (await process.telemetry.scrape())[0].decode()
    assert 'context_recalls_total{ranking="words",reason="no_pgvector"} 1.0' in metrics


@pytest.mark.one_server  # it drops an extension
async def test_an_extension_that_is_dropped_costs_no_more_calls(
    process: Process, cid: str, fake_llm: FakeLLM, database_url: str
) -> None:
    """The words answer, and a worker notices with its first failure that nothing can be stored."""
    index = await process.embed_all(cid)
    await process.harness.append(cid, user("one more"))
    await index.request(cid, 51)
    words = await answer_of(process, None, cid)
    await execute(database_url, "DROP EXTENSION vector CASCADE")
    assert await answer_of(process, index, cid) == words
    assert not await index.work()
    calls = fake_llm.calls
    for _ in range(3):
        await process.make_due()
        assert not await index.work()
    assert await answer_of(process, index, cid) == words
    assert fake_llm.calls == calls


async def test_while_the_index_is_behind_the_words_answer(
    process: Process, cid: str, fake_llm: FakeLLM
) -> None:
    """The first `recall` requests the index and does not wait for it; then it is complete."""
    index = process.index()
    words = await answer_of(process, None, cid)
    assert await answer_of(process, index, cid) == words
    assert fake_llm.calls == 0
    assert await index.work()
    await process.harness.compact(cid)
    hidden = (await process.harness.stored(cid)).state.hidden_span
    assert hidden is not None
    assert hidden.end - 1 > 32  # more than the first batch
    assert BY_MEANING not in await answer_of(process, index, cid)
    await drained(index)
    assert BY_MEANING in await answer_of(process, index, cid)


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (fake.status(500), "provider_error"),
        (fake.status(429), "rate_limited"),
        (fake.status(400), "refused"),
        (fake.connection_reset(), "provider_error"),
        (fake.truncated_body(), "provider_error"),
        (fake.Behaviour(body={"object": "list", "data": [], "model": "fake"}), "bad_answer"),
    ],
)
async def test_a_failing_model_leaves_the_words_answer(
    process: Process, cid: str, fake_llm: FakeLLM, behaviour: fake.Behaviour, reason: str
) -> None:
    """The answer is the same byte for byte, and the metric says why."""
    index = await process.embed_all(cid)
    fake_llm.always_embed(behaviour)
    assert await answer_of(process, index, cid) == await answer_of(process, None, cid)
    metrics = (await process.telemetry.scrape())[0].decode()
    assert f'context_recalls_total{{ranking="words",reason="{reason}"}} 1.0' in metrics


async def test_a_slow_model_leaves_the_words_answer(
    process: Process, cid: str, fake_llm: FakeLLM
) -> None:
    """The answer does not wait longer than the limit."""
    await process.embed_all(cid)
    fake_llm.always_embed(fake.slow(Event()))
    index = process.index(question_seconds=0.05)
    assert await answer_of(process, index, cid) == await answer_of(process, None, cid)


# --- appends ----------------------------------------------------------------------------------


async def test_appends_embed_nothing(
    process: Process, cid: str, fake_llm: FakeLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append runs the same statements with an index that is behind, and none is about it."""
    ran: list[str] = []
    run = Session._execute

    async def noting(self: Session, ask: Any, statement: Statement, values: Any) -> Any:
        ran.append(statement.sql)
        return await run(self, ask, statement, values)

    async def appended(conversation_id: str) -> list[str]:
        ran.clear()
        await process.harness.append(conversation_id, user("one more"))
        return ran.copy()

    other = await process.harness.conversation(POLICY)
    await process.harness.append(other, user("first"))
    monkeypatch.setattr(Session, "_execute", noting)
    await appended(cid)
    before = await appended(other)
    await process.embed_all(cid)
    calls = fake_llm.calls
    assert await appended(cid) == before
    assert not [sql for sql in before if "embedding" in sql or "vector" in sql]
    assert fake_llm.calls == calls


async def test_a_conversation_that_is_shown_whole_costs_nothing(
    process: Process, cid: str, fake_llm: FakeLLM
) -> None:
    """Nothing is embedded before a compaction; then what it hides."""
    index = process.index()
    search = process.search(index)
    await search.index_hidden(TENANT, cid)
    await drained(index)
    assert fake_llm.calls == 0
    await process.harness.compact(cid)
    await search.index_hidden(TENANT, cid)
    await drained(index)
    hidden = (await process.harness.stored(cid)).state.hidden_span
    assert hidden is not None
    assert await process.embedded(cid) == [*range(1, hidden.end)]
    assert (await process.recall(cid)).messages[0].seq == 9


# --- what is sent -----------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1_600, 2_600])
async def test_no_half_of_a_secret_is_sent(process: Process, fake_llm: FakeLLM, limit: int) -> None:
    """A text is cut before it is masked as well, and masked secrets move that cut to the front."""
    token = "ghp_" + "a1B2c3D4e5F6" * 3
    key = f"-----BEGIN PRIVATE KEY-----{'a1B2c3D4' * (limit // 10)}-----END PRIVATE KEY-----"
    start = f"{key} "
    text = start + "information " * ((limit - 20 - len(start)) // 12)
    text = text.ljust(limit - 20, ".") + f" {token} {'The medic drives. ' * 200}"
    assert text.index(token) < limit < text.index(token) + len(token)
    made = await process.harness.conversation()
    await process.harness.append(made, user(text))
    await process.embed_all(made, max_tokens=100)
    assert token[:12] not in str([request.inputs for request in fake_llm.requests])


async def test_secrets_are_masked_and_long_texts_cut(process: Process, fake_llm: FakeLLM) -> None:
    """What leaves for the model has no secret, at most the tokens of the settings, and a batch."""
    key = "sk-proj-" + "a1B2c3D4e5F6" * 4
    made = await process.harness.conversation()
    long = "The medic drives. " * 2_000
    await process.harness.append(made, user(f"api_key = {key}"), user(long), user("short"))
    await process.embed_all(made, max_tokens=50, batch=2)
    sent = [request.inputs for request in fake_llm.requests]
    assert [len(texts) for texts in sent] == [2, 1]
    assert key not in str(sent)
    assert "[secret masked]" in sent[0][0]
    assert 40 <= TOKENIZER.count(sent[0][1]) <= 50
    await process.recall(made, f"what was {key}?", max_tokens=50)
    assert key not in str([request.inputs for request in fake_llm.requests])


async def test_dimensions_are_requested(process: Process, cid: str, fake_llm: FakeLLM) -> None:
    """A model that can shorten its vectors is asked to; vectors of other lengths do not count."""
    await process.embed_all(cid, dimensions=16)
    assert {request.body["dimensions"] for request in fake_llm.requests} == {16}
    length = "SELECT max(vector_dims(embedding)) FROM message_vectors"
    assert await process.value(length) == 16
    assert (await process.recall(cid, dimensions=16)).by_meaning
    assert not (await process.recall(cid)).by_meaning


async def test_another_model_embeds_all_again(
    process: Process, cid: str, fake_llm: FakeLLM
) -> None:
    """Vectors of two models are never compared: until all are new, the words answer."""
    await process.embed_all(cid)
    other = process.index(model="openai/other")
    search = process.search(other)
    assert not (await search.recall(TENANT, cid, QUESTION)).by_meaning
    before = fake_llm.calls
    await drained(other)
    assert sum(len(it.inputs) for it in fake_llm.requests[before:]) == 50
    assert (await search.recall(TENANT, cid, QUESTION)).messages[0].seq == 9
    assert not (await process.recall(cid)).by_meaning


# --- failures of the work ---------------------------------------------------------------------


def held(released: Event, arrived: Event) -> Any:
    """Answer a request when `released` is set; `arrived` is set when it is there."""
    return lambda request: replace(fake.embed(request), released=released, arrived=arrived)


def refusing(word: str) -> Any:
    """Refuse every request that has this word."""

    def behave(request: fake.Request) -> fake.Behaviour:
        if any(word in text for text in request.inputs):
            return fake.status(400, "content refused", "invalid_request_error")
        return fake.embed(request)

    return behave


async def test_a_refused_message_does_not_block_the_others(
    process: Process, cid: str, fake_llm: FakeLLM, caplog: pytest.LogCaptureFixture
) -> None:
    """It is left out, and found by its words; the rest of its batch is embedded."""
    fake_llm.always_embed(refusing("sedan"))
    await process.embed_all(cid)
    assert await process.embedded(cid) == [seq for seq in range(1, 51) if seq != 9]
    assert caplog.messages.count("message_not_embedded") == 1
    assert SAID not in caplog.text
    assert 9 in [item.seq for item in (await process.recall(cid, "red sedan")).messages]


async def test_a_model_that_refuses_everything_loses_nothing(
    process: Process, cid: str, fake_llm: FakeLLM
) -> None:
    """No message is left out; all are embedded when the model works again."""
    fake_llm.always_embed(fake.status(404, "no such model"))
    index = await process.embed_all(cid)
    assert await process.embedded(cid) == []
    fake_llm.always_embed(fake.embed)
    await drained(index)
    assert await process.embedded(cid) == []  # it waits
    await process.make_due()
    await drained(index)
    assert await process.embedded(cid) == [*range(1, 51)]


async def test_pauses_grow_and_others_go_on(
    process: Process, cid: str, fake_llm: FakeLLM, caplog: pytest.LogCaptureFixture
) -> None:
    """A provider that fails is asked again later and later; a text of an error has no content."""
    fake_llm.always_embed(fake.status(503))
    index = await process.embed_all(cid)
    for _ in range(11):
        await process.make_due()
        await drained(index)
    pauses = [
        vars(record)["data"]["retry_seconds"]
        for record in caplog.records
        if record.msg == "embedding_failed"
    ]
    assert pauses[:5] == [2.0, 4.0, 8.0, 16.0, 32.0]
    assert pauses[-1] == meaning_module.MAX_PAUSE_SECONDS
    assert fake_llm.calls == len(pauses)  # nothing below retries
    fake_llm.always_embed(fake.embed)
    await process.make_due()
    await drained(index)
    assert await process.embedded(cid) == [*range(1, 51)]


async def test_a_text_that_is_too_long_for_the_model_is_shortened(
    process: Process, fake_llm: FakeLLM
) -> None:
    """A model with a smaller window than the settings say embeds the beginning."""

    def narrow(request: fake.Request) -> fake.Behaviour:
        if any(len(text) > 1_000 for text in request.inputs):
            return fake.context_too_long()
        return fake.embed(request)

    fake_llm.always_embed(narrow)
    made = await process.harness.conversation()
    await process.harness.append(made, user("The medic drives. " * 200), user("short"))
    await process.embed_all(made)
    assert await process.embedded(made) == [1, 2]


async def test_the_tokens_of_a_tenant_are_limited(
    process: Process, cid: str, fake_llm: FakeLLM
) -> None:
    """Beyond the limit nothing is sent, and the words answer; with a higher one it goes on."""
    process.limit = 0
    index = await process.embed_all(cid)
    assert fake_llm.calls == 0
    assert not (await process.recall(cid)).by_meaning
    process.limit = 1_000_000
    await process.make_due()
    await drained(index)
    assert await process.embedded(cid) == [*range(1, 51)]
    taken = "SELECT sum(taken) FROM allowances WHERE kind = 'embedding_tokens'"
    assert await process.value(taken) >= sum(map(TOKENIZER.count, fake_llm.requests[0].inputs))


async def test_two_workers_share_the_work(process: Process, fake_llm: FakeLLM) -> None:
    """Claims skip what another worker has; every message is sent once."""
    made = [await process.harness.conversation() for _ in range(6)]
    index = process.index(batch=4)
    for number in made:
        await process.harness.talk(number, 5)
        await index.request(number, 10)
    await asyncio.gather(*(drained(process.index(batch=4)) for _ in range(3)))
    await drained(index)
    for number in made:
        assert await process.embedded(number) == [*range(1, 11)]
    assert sum(len(request.inputs) for request in fake_llm.requests) == 60


async def test_the_work_of_a_dead_worker_is_done_by_another(
    process: Process, cid: str, fake_llm: FakeLLM
) -> None:
    """A claim ends; what its holder stores too late is not stored twice."""
    arrived, released = Event(), Event()
    fake_llm.script(held(released, arrived))
    index = process.index()
    await index.request(cid, 50)
    dead = asyncio.create_task(index.work())
    await asyncio.to_thread(arrived.wait, 20)
    assert not await index.work()
    await process.make_due()
    await drained(process.index())
    assert await process.embedded(cid) == [*range(1, 51)]
    released.set()
    await dead
    assert await process.embedded(cid) == [*range(1, 51)]
    assert (
        await process.value("SELECT count(*) FROM embedding_progress WHERE due_at IS NOT NULL") == 0
    )


# --- redaction and deletion -------------------------------------------------------------------


async def redact(process: Process, cid: str, seq: int) -> None:
    """Redact the message with this seq."""
    harness = process.harness
    service = RedactionService(harness.database, harness.resolver, harness.outputs)
    await service.redact(TENANT, cid, await harness._id_of(cid, seq), None, None)


async def test_a_redacted_message_has_no_vector(process: Process, cid: str) -> None:
    """The vector goes with the content, and does not come back with another model."""
    index = await process.embed_all(cid)
    await redact(process, cid, 9)
    assert 9 not in await process.embedded(cid)
    page = await process.search(index).recall(TENANT, cid, QUESTION)
    assert SAID not in str(page)
    await process.embed_all(cid, model="openai/other")
    assert 9 not in await process.embedded(cid)


async def test_a_message_that_is_redacted_meanwhile_gets_no_vector(
    process: Process, cid: str, fake_llm: FakeLLM
) -> None:
    """A redaction during the model's call wins."""
    arrived, released = Event(), Event()
    fake_llm.script(held(released, arrived))
    index = process.index()
    await index.request(cid, 50)
    work = asyncio.create_task(index.work())
    await asyncio.to_thread(arrived.wait, 20)
    await redact(process, cid, 9)
    released.set()
    assert await work
    await drained(index)
    assert await process.embedded(cid) == [seq for seq in range(1, 51) if seq != 9]


async def test_a_deletion_leaves_no_vector(process: Process, cid: str, fake_llm: FakeLLM) -> None:
    """Neither of what is stored nor of what a worker has claimed."""
    arrived, released = Event(), Event()
    index = await process.embed_all(cid)
    await process.harness.append(cid, user("one more"))
    fake_llm.script(held(released, arrived))
    await index.request(cid, 51)
    work = asyncio.create_task(index.work())
    await asyncio.to_thread(arrived.wait, 20)
    await process.harness.conversations.remove(TENANT, cid)
    released.set()
    await work
    for table in ("message_vectors", "embedding_progress"):
        assert await process.value(f"SELECT count(*) FROM {table}") == 0
    await index.request(cid, 51)
    assert await process.value("SELECT count(*) FROM embedding_progress") == 0


# --- the whole service ------------------------------------------------------------------------


async def test_a_service_with_an_embedding_model(settings: Settings, fake_llm: FakeLLM) -> None:
    """Its worker embeds what a background compaction hides, and `recall` finds it by meaning."""
    with collecting() as (collector, address):
        configured = settings.model_copy(
            update={
                "embedding_model": MODEL,
                "embedding_api_base": fake_llm.api_base,
                "embedding_api_key": "test",
                "embedding_question_seconds": 20.0,
                "sweep_seconds": 0.05,
                "otlp_endpoint": address,
            }
        )
        async with started(create_app(configured, with_worker=True)) as client:
            path = await new_conversation(client, policy=POLICY)
            await append(client, path, user(SAID), says("noted"))
            await append(client, path, *(user("why " * 300) for _ in range(30)))
            call = {
                "id": "c1",
                "type": "function",
                "function": {"name": "recall", "arguments": f'{{"query": "{QUESTION}"}}'},
            }
            async with asyncio.timeout(60):
                while True:
                    answer = await client.post(f"{path}/tool-calls", json={"tool_call": call})
                    assert answer.status_code == 200, answer.text
                    text = answer.json()["message"]["content"]
                    if BY_MEANING in text:
                        break
    assert text.startswith("#1 user")
    assert SAID in text
    span = collector.named(f"embeddings {MODEL}")[0]
    assert span.kind == Span.SPAN_KIND_CLIENT
    attributes = values(span.attributes)
    assert attributes.pop("gen_ai.usage.input_tokens") > 0
    assert attributes == {
        "gen_ai.operation.name": "embeddings",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": MODEL,
    }
