"""Archived conversations over HTTP: every endpoint answers as before. [operation.archive]"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import pytest_asyncio
from fastapi import FastAPI

from app.adapters.blobs.archives import ArchiveObjects
from app.adapters.blobs.object_store import ObjectStore
from app.adapters.postgres.conversations.archives import ArchiveRepository
from app.adapters.postgres.database import PostgresDatabase
from app.domain.tenancy.retention import Retention
from app.main import create_app
from app.services.conversations.archives import ArchiveService
from app.services.tenancy.api_keys import KeyService
from app.services.tenancy.retention import RetentionService
from app.settings import Settings
from tests.api.conversations.builders import full_conversation, post
from tests.api.talk import append, assert_problem, new_conversation, user
from tests.conftest import execute, lock_waiters, started
from tests.services.fakes import ARCHIVED_AFTER, in_two_weeks, new_id
from tests.test_worker import until

PREFIX = "/v1/conversations/{conversation_id}"
READS = {
    "": "",
    "/messages": "",
    "/context": "?as_of={build_id}",
    "/context/preview": "?format=openai_chat&model=gpt-4o",
    "/epochs": "",
    "/messages/{message_id}": "",
    "/budget": "",
    "/state": "",
    "/blobs": "",
    "/blobs/{ref}": "",
    "/blobs/{ref}/content": "",
    "/blobs/{ref}/lines": "",
    "/blobs/{ref}/bytes": "",
    "/blobs/{ref}/grep": "?pattern=x",
    "/usage": "",
    "/usage/reports": "",
    "/compactions": "",
    "/compactions/{compaction_id}": "",
    "/compactions/{compaction_id}/messages": "",
    "/sections": "",
    "/tools": "",
    "/export": "",
    "/events": "?follow=false&last_event_id=0.0",
    "/snapshots": "",
}
"""Every endpoint that reads a conversation, with its query."""
WRITES: dict[tuple[str, str], Any] = {
    ("POST", "/messages"): {"messages": [user("more")]},
    ("POST", "/context"): {},
    ("PUT", "/messages/{message_id}/pin"): None,
    ("DELETE", "/messages/{message_id}/pin"): None,
    ("POST", "/messages/{message_id}/redact"): {},
    ("POST", "/overflow"): {"error": "This model's maximum context length is 8192 tokens"},
    ("POST", "/blobs"): b"raw",
    ("POST", "/blobs/gc"): {},
    ("DELETE", "/blobs/{ref}"): None,
    ("POST", "/tool-calls"): {
        "tool_call": {
            "id": "r1",
            "type": "function",
            "function": {"name": "recall", "arguments": '{"query": "word"}'},
        },
    },
    ("POST", "/tools/search"): {"query": "shell"},
    ("POST", "/usage"): {"usage": {"prompt_tokens": 9, "completion_tokens": 5}, "model": "gpt-4o"},
    ("POST", "/compact"): {},
    ("POST", "/compactions/{compaction_id}/undo"): {},
    ("PATCH", ""): {"metadata": {"a": "b"}},
    ("PUT", "/sections"): {"sections": []},
    ("PUT", "/tools"): {"tools": []},
    ("POST", "/fork"): {},
    ("POST", "/snapshots"): {},
    ("POST", "/clear"): {},
    ("DELETE", ""): None,
}
"""Every endpoint that changes a conversation, with a body."""
REFUSED = {
    ("DELETE", "/blobs/{ref}"): 409,
    ("POST", "/compactions/{compaction_id}/undo"): 409,
    ("POST", "/overflow"): 422,
}
"""Those that refuse what the test has, which they know once they have found the conversation."""


@pytest.fixture
def objects(tmp_path: Path) -> str:
    """The URL of a folder of objects."""
    return f"file://{tmp_path}/objects"


@pytest.fixture
def app(settings: Settings, objects: str) -> FastAPI:
    """An app with an object store."""
    return create_app(settings.model_copy(update={"blob_store_url": objects}))


@pytest_asyncio.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client of that app."""
    async with started(app) as opened:
        yield opened


class Worker:
    """Archives what is idle, in a process of its own."""

    def __init__(self, database: PostgresDatabase, url: str, objects: str) -> None:
        store = ArchiveObjects(ObjectStore(objects))
        self._service = ArchiveService(database, store, new_id, in_two_weeks, ARCHIVED_AFTER)
        self._url = url

    async def archive(self) -> int:
        """Archive all conversations, whose open work is done."""
        for statement in (
            "UPDATE jobs SET status = 'done' WHERE status <> 'done'",
            "UPDATE blobs SET attached = true WHERE NOT attached",
            "UPDATE heads SET due_at = NULL WHERE due_at IS NOT NULL",
        ):
            await execute(self._url, statement)
        return await self._service.archive_all()


@pytest.fixture
def worker(database: PostgresDatabase, database_url: str, objects: str) -> Worker:
    """The worker of these tests."""
    return Worker(database, database_url, objects)


async def names_in(client: httpx.AsyncClient, path: str) -> dict[str, str]:
    """Return ids of things of a conversation, by their names in paths."""

    async def listed(part: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await client.get(f"{path}/{part}")).json()["data"]
        return found

    await append(client, path, user("go on"))
    return {
        "build_id": (await post(client, f"{path}/context"))["build_id"],
        "message_id": (await listed("messages"))[4]["id"],
        "ref": (await listed("blobs"))[-1]["id"],
        "compaction_id": (await listed("compactions"))[0]["compaction_id"],
    }


async def is_archived(client: httpx.AsyncClient, path: str) -> bool:
    """Return whether the list shows a conversation as archived."""
    page = (await client.get("/v1/conversations?limit=1000")).json()["data"]
    (found,) = [item for item in page if path.endswith(item["conversation_id"])]
    return bool(found["archived"])


async def test_every_read_answers_as_before(client: httpx.AsyncClient, worker: Worker) -> None:
    """Each endpoint that reads a conversation restores it first, and answers the same."""
    await post(client, "/v1/agents", {"agent_id": "a", "name": "A"})
    path = await full_conversation(client, "a")
    names = await names_in(client, path)
    operations = (await client.get("/openapi.json")).json()["paths"]
    assert {
        name.removeprefix(PREFIX)
        for name, item in operations.items()
        if name.startswith(PREFIX) and "get" in item
    } == set(READS)
    await worker.archive()
    for read, query in READS.items():
        place = path + (read + query).format(**names)
        before = await client.get(place)
        assert before.status_code == 200, (place, before.text)
        await worker.archive()
        assert await is_archived(client, path), place
        after = await client.get(place)
        assert (after.status_code, _told(after)) == (200, _told(before)), place


def _told(answer: httpx.Response) -> str:
    """Return the body without what says when it was written."""
    if "exported_at" in answer.text:
        return answer.text.partition("\n")[2].rpartition('"sha256"')[0]
    return answer.text[answer.text.find("event: appended") :]


async def test_every_write_is_done(client: httpx.AsyncClient, worker: Worker) -> None:
    """Each endpoint that changes a conversation restores it first; deleting it need not."""
    await post(client, "/v1/agents", {"agent_id": "a", "name": "A"})
    path = await full_conversation(client, "a")
    names = await names_in(client, path)
    operations = (await client.get("/openapi.json")).json()["paths"]
    assert {
        (method.upper(), name.removeprefix(PREFIX))
        for name, item in operations.items()
        if name.startswith(PREFIX)
        for method in item
        if method in ("post", "put", "patch", "delete")
    } == set(WRITES)
    for (method, part), body in WRITES.items():
        await worker.archive()
        assert await is_archived(client, path), part
        place = path + part.format(**names)
        sent = {"content": body} if isinstance(body, bytes) else {"json": body}
        answer = await client.request(method, place, **sent if body is not None else {})
        expected = REFUSED.get((method, part))
        assert answer.status_code == expected or answer.is_success, (place, answer.text)
    assert (await client.get(path)).status_code == 404


async def test_lists_show_it_with_its_totals(client: httpx.AsyncClient, worker: Worker) -> None:
    """A list finds an archived conversation by every filter, and differs in `archived` alone."""
    await post(client, "/v1/agents", {"agent_id": "a", "name": "A"})
    path = await new_conversation(client, agent_id="a", metadata={"kind": "old"}, model="gpt-4o")
    await append(client, path, user("one"), user("two"))
    filters = ("", "?agent_id=a", "?metadata[kind]=old", "?model=gpt-4o")
    before = [(await client.get(f"/v1/conversations{each}")).json()["data"] for each in filters]
    assert await worker.archive() == 1
    for place, (item,) in zip(filters, before, strict=True):
        (found,) = (await client.get(f"/v1/conversations{place}")).json()["data"]
        assert found == item | {"archived": True}
    assert (await client.get(path)).json()["archived"] is False


async def test_another_tenant_neither_finds_nor_restores_it(
    client: httpx.AsyncClient, worker: Worker, database: PostgresDatabase
) -> None:
    """To another tenant an archived conversation is unknown, and stays archived."""
    keys = KeyService(database, lambda: datetime.now(UTC), monotonic)
    own, other = [
        {"Authorization": f"Bearer {await keys.create(key * 12, key * 43, tenant, '', None)}"}
        for key, tenant in (("a", "default"), ("b", "other"))
    ]
    made = await client.post("/v1/conversations", json={}, headers=own)
    path = f"/v1/conversations/{made.json()['conversation_id']}"
    body = {"messages": [user("one")]}
    await client.post(f"{path}/messages", json=body, headers=own)
    assert await worker.archive() == 1
    assert_problem(await client.get(f"{path}/messages"), 401, "UNAUTHENTICATED")
    for part in ("", "/messages", "/events?follow=false"):
        assert_problem(await client.get(path + part, headers=other), 404, "NOT_FOUND")
    answer = await client.post(f"{path}/messages", json=body, headers=other)
    assert_problem(answer, 404, "NOT_FOUND")
    assert_problem(await client.delete(path, headers=other), 404, "NOT_FOUND")
    (item,) = (await client.get("/v1/conversations", headers=own)).json()["data"]
    assert item["archived"]
    assert (await client.get("/v1/conversations", headers=other)).json()["data"] == []
    assert len((await client.get(f"{path}/messages", headers=own)).json()["data"]) == 1


async def test_its_own_id_finds_it(client: httpx.AsyncClient, worker: Worker) -> None:
    """A conversation with its caller's id is found by that, and the id stays taken."""
    path = await new_conversation(client, conversation_id="customer:42")
    await append(client, path, user("one"))
    await worker.archive()
    taken = await client.post("/v1/conversations", json={"conversation_id": "customer:42"})
    assert_problem(taken, 409, "CONFLICT")
    answer = await append(client, path, user("two"), expected_seq=1)
    assert answer["head_seq"] == 2


@pytest.mark.parametrize("deletes", ["conversation", "agent"])
async def test_deleting_it_deletes_its_objects(
    client: httpx.AsyncClient, worker: Worker, database_url: str, objects: str, deletes: str
) -> None:
    """An archived conversation is deleted without being restored, alone or with its agent."""
    await post(client, "/v1/agents", {"agent_id": "a", "name": "A"})
    path = await full_conversation(client, "a")
    await worker.archive()
    assert files_in(objects)
    other = await new_conversation(client)
    if deletes == "agent":
        deleted = (await client.delete("/v1/agents/a")).json()["deleted"]
        assert deleted["archives"] == 2  # with the fork
        assert files_in(objects) == []
    else:
        deleted = (await client.delete(path)).json()["deleted"]
        assert deleted["archives"] == deleted["archived_heads"] == 1
        assert deleted["messages"] == 0
        assert not [file for file in files_in(objects) if path.rpartition("/")[2] in str(file)]
    assert_problem(await client.get(path), 404, "NOT_FOUND")
    left = await execute(
        database_url,
        "SELECT conversation_id FROM conversations JOIN heads USING (conversation_id)",
    )
    assert [str(row["conversation_id"]) for row in left] == [other.rpartition("/")[2]]


async def test_an_expired_one_is_deleted(
    client: httpx.AsyncClient, worker: Worker, app: FastAPI, objects: str, database_url: str
) -> None:
    """After its expiry an archived conversation is unknown, and deleted with its object."""
    path = await new_conversation(client, ttl_seconds=3_600)
    await append(client, path, user("one"))
    await worker.archive()
    await execute(database_url, "UPDATE conversations SET expires_at = now() - interval '1 second'")
    assert_problem(await client.get(path), 404, "NOT_FOUND")
    assert await retention_of(app).delete_expired_conversations() == 1
    assert files_in(objects) == []


async def test_retention_deletes_it(
    client: httpx.AsyncClient, worker: Worker, app: FastAPI, database_url: str, objects: str
) -> None:
    """The age of an archived conversation counts from its newest message or report."""
    path = await new_conversation(client)
    await append(client, path, user("one"))
    usage = {"usage": {"prompt_tokens": 9, "completion_tokens": 5}, "model": "gpt-4o"}
    await post(client, f"{path}/usage", usage)
    await worker.archive()
    for table, column in (
        ("conversations", "updated_at"),
        ("events", "created_at"),
        ("archives", "archived_at"),
    ):
        await execute(database_url, f"UPDATE {table} SET {column} = now() - interval '9 days'")
    conversations = app.state.services.conversations
    conversation_id, since = path.rpartition("/")[2], datetime.now(UTC) - timedelta(days=5)
    assert not await conversations.remove_idle("default", conversation_id, since)
    await execute(database_url, "UPDATE archives SET idle_since = now() - interval '9 days'")
    assert await conversations.remove_idle("default", conversation_id, since)
    assert files_in(objects) == []


async def test_clearing_its_agent_clears_it(client: httpx.AsyncClient, worker: Worker) -> None:
    """The clear of an agent empties the windows of archived conversations as well."""
    await post(client, "/v1/agents", {"agent_id": "a", "name": "A"})
    path = await new_conversation(client, agent_id="a")
    await append(client, path, user("one"))
    await post(client, f"{path}/context")
    await worker.archive()
    assert (await post(client, "/v1/agents/a/clear"))["conversations"] == 1
    assert await is_archived(client, path)
    await append(client, path, user("two"))
    messages = (await post(client, f"{path}/context"))["payload"]["messages"]
    assert [message["content"] for message in messages] == ["two"]


async def test_a_redaction_reaches_archived_forks(
    client: httpx.AsyncClient, worker: Worker, objects: str
) -> None:
    """A message that is redacted is redacted in archived copies, and no object has it any more."""
    path = await new_conversation(client)
    message = (await append(client, path, user("my secret")))["messages"][0]["id"]
    fork = await post(client, f"{path}/fork")
    other = await new_conversation(client)
    await append(client, other, user("else"))
    await worker.archive()
    done = await post(client, f"{path}/messages/{message}/redact")
    assert done["conversations"] == 2
    for each in (path, f"/v1/conversations/{fork['conversation_id']}"):
        assert "my secret" not in (await client.get(f"{each}/messages")).text
    assert len(files_in(objects)) == 1
    assert await is_archived(client, other)


async def test_snapshots_of_it_are_read_and_restored(
    client: httpx.AsyncClient, worker: Worker
) -> None:
    """A snapshot whose conversations are archived is whole, and so is one of an agent."""
    await post(client, "/v1/agents", {"agent_id": "a", "name": "A", "rolling_window_seconds": None})
    paths = [await new_conversation(client, agent_id="a") for _ in range(2)]
    for path in paths:
        await append(client, path, user("one"), user("two"))
    first = (await post(client, "/v1/agents/a/snapshots"))["session_id"]
    before = (await client.get(f"/v1/snapshots/{first}")).json()["messages"]
    await worker.archive()
    second = (await post(client, "/v1/agents/a/snapshots"))["session_id"]
    for each in (first, second):
        await worker.archive()
        assert (await client.get(f"/v1/snapshots/{each}")).json()["messages"] == before
    await worker.archive()
    target = await new_conversation(client)
    restored = await client.post(f"/v1/snapshots/{first}/restore", json={})
    assert restored.status_code == 200, restored.text
    assert await is_archived(client, paths[0]) is await is_archived(client, paths[1]) is False
    one = (await post(client, f"{paths[0]}/snapshots"))["session_id"]
    await append(client, target, user("zero"))
    await worker.archive()
    body = {"conversation_id": target.rpartition("/")[2]}
    restored = await client.post(f"/v1/snapshots/{one}/restore", json=body)
    assert restored.status_code == 200, restored.text
    assert len((await client.get(f"{target}/messages")).json()["data"]) == 3


async def test_a_store_that_is_away_loses_nothing(
    client: httpx.AsyncClient, worker: Worker, objects: str
) -> None:
    """Without the object store a restore is a 503 with Retry-After, and works once it is back."""
    path = await new_conversation(client)
    await append(client, path, user("one"))
    await worker.archive()
    folder = Path(urlsplit(objects).path)
    folder.rename(folder.with_name("away"))
    answer = await client.get(f"{path}/messages")
    assert_problem(answer, 503, "SERVICE_UNAVAILABLE")
    assert int(answer.headers["retry-after"]) > 0
    assert await is_archived(client, path)
    folder.with_name("away").rename(folder)
    assert len((await client.get(f"{path}/messages")).json()["data"]) == 1


async def test_a_damaged_object_is_kept(
    client: httpx.AsyncClient, worker: Worker, objects: str
) -> None:
    """A damaged archive is an error that says so; everything stays, for a backup of the object."""
    path = await new_conversation(client)
    await append(client, path, user("one " * 500))
    await worker.archive()
    (file,) = files_in(objects)
    whole = file.read_bytes()
    for damaged in (whole[:-9], b"", b"x" + whole[1:], whole[:60] + b"\0" + whole[61:]):
        file.write_bytes(damaged)
        answer = await client.get(f"{path}/messages")
        problem = assert_problem(answer, 503, "SERVICE_UNAVAILABLE")
        assert "damaged" in problem["detail"]
        assert await is_archived(client, path)
    file.write_bytes(whole)
    assert len((await client.get(f"{path}/messages")).json()["data"]) == 1
    assert files_in(objects) == []


async def test_processes_that_know_its_state_go_on(
    app: FastAPI, client: httpx.AsyncClient, worker: Worker, settings: Settings, objects: str
) -> None:
    """Appends and builds of two processes, with the state in memory, restore it and are right."""
    elsewhere = create_app(settings.model_copy(update={"blob_store_url": objects}))
    async with started(elsewhere) as other:
        path = await new_conversation(client)
        said = []
        for number in range(12):
            one = (client, other)[number % 2]
            text = f"message {number}"
            appended = await append(one, path, user(text))
            said.append(text)
            assert appended["messages"][0]["seq"] == appended["head_seq"] == number + 1
            built = await post(one, f"{path}/context")
            messages = built["payload"]["messages"]
            assert [message["content"] for message in messages] == said
            assert built["cache_break_reason"] is None or number < 2
            if number % 3 == 2:
                assert await worker.archive() == 1


async def test_an_append_that_waits_for_the_archive_is_stored(
    client: httpx.AsyncClient,
    worker: Worker,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request that meets the deletion of the rows waits for it, and then for the restore."""
    path = await new_conversation(client)
    await append(client, path, user("one"))
    inner, sent = ArchiveRepository.move_out, list[asyncio.Task[dict[str, Any]]]()

    async def is_waiting() -> bool:
        return await lock_waiters(database_url) > 0

    async def met(*arguments: Any) -> bool:
        moved = await inner(*arguments)
        sent.append(asyncio.create_task(append(client, path, user("two"))))
        await until(is_waiting, "the append waits")
        return moved

    monkeypatch.setattr(ArchiveRepository, "move_out", met)
    assert await worker.archive() == 1
    assert (await sent[0])["head_seq"] == 2
    assert len((await client.get(f"{path}/messages")).json()["data"]) == 2


def files_in(objects: str) -> list[Path]:
    """Return the files of all objects."""
    return [file for file in Path(urlsplit(objects).path).rglob("*") if file.is_file()]


def retention_of(app: FastAPI) -> RetentionService:
    """Return the service that deletes what has expired."""
    conversations = app.state.services.conversations
    return RetentionService(
        conversations._database,
        Retention(),
        conversations.remove_idle,
        conversations.remove_expired,
        lambda: datetime.now(UTC),
    )
