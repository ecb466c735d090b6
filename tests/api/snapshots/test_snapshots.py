"""Snapshots over HTTP: save, list, read, restore, import and delete.

[snapshots.save, snapshots.import, snapshots.list, snapshots.restore-source,
 snapshots.deleted-parts, tool-output.collect]
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio

from app.main import create_app
from app.settings import Settings
from app.snapshots.restored_messages import SAVED_FIELDS
from app.snapshots.schemas import Snapshot
from tests.api.talk import append, assert_problem, calling, new_conversation, result, talk, user
from tests.conftest import execute, started
from tests.fake_llm import FakeLLM, answer, no_tags, status
from tests.snapshot_files import CONVERSATION_ID, SNAPSHOT_ID, entries, entry, snapshot_file

FAILED = "(summary generation failed)"
SENTENCE = "<summary>The user planned a trip. Trains were chosen. Hotels are open.</summary>"


class Time:
    """The time of day, which stands still until it is told to move."""

    def __init__(self) -> None:
        self.at = datetime(2026, 2, 12, 14, 30, tzinfo=UTC)

    def now(self) -> datetime:
        """Return it."""
        return self.at

    def pass_by(self, **units: float) -> None:
        """Let time go by."""
        self.at += timedelta(**units)


@pytest.fixture
def time() -> Time:
    """The clock of the app under test."""
    return Time()


@pytest_asyncio.fixture
async def client(settings: Settings, time: Time) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the app, whose windows go by a clock of ours."""
    async with started(create_app(settings, now=time.now)) as opened:
        yield opened


@pytest_asyncio.fixture
async def modelled(with_model: Settings, time: Time) -> AsyncIterator[httpx.AsyncClient]:
    """The same with a model that summarises."""
    async with started(create_app(with_model, now=time.now)) as opened:
        yield opened


async def new_agent(client: httpx.AsyncClient, **body: Any) -> str:
    """Create an agent and return its id."""
    answered = await client.post("/v1/agents", json={"name": "Traveller", **body})
    assert answered.status_code == 201, answered.text
    return str(answered.json()["agent_id"])


async def save(client: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    """Save a snapshot and return the answer."""
    answered = await client.post(f"{path}/snapshots", json=body)
    assert answered.status_code == 201, answered.text
    saved: dict[str, Any] = answered.json()
    assert answered.headers["location"] == f"/v1/snapshots/{saved['snapshot_id']}"
    return saved


async def read(client: httpx.AsyncClient, snapshot_id: str, **params: Any) -> dict[str, Any]:
    """Return a whole snapshot."""
    answered = await client.get(f"/v1/snapshots/{snapshot_id}", params=params)
    assert answered.status_code == 200, answered.text
    whole: dict[str, Any] = answered.json()
    assert whole["message_count"] == len(whole["messages"])
    return whole


async def restore(client: httpx.AsyncClient, snapshot_id: str, **body: Any) -> dict[str, Any]:
    """Restore a snapshot and return the answer."""
    answered = await client.post(f"/v1/snapshots/{snapshot_id}/restore", json=body)
    assert answered.status_code == 200, answered.text
    done: dict[str, Any] = answered.json()
    return done


async def log_of(client: httpx.AsyncClient, path: str) -> list[dict[str, Any]]:
    """Return the whole log."""
    answered = await client.get(f"{path}/messages", params={"limit": 1000})
    items: list[dict[str, Any]] = answered.json()["data"]
    return items


async def shown(client: httpx.AsyncClient, path: str) -> str:
    """Return the payload of a build as text, empty when the window is."""
    answered = await client.post(f"{path}/context", json={})
    if answered.status_code == 422:
        return ""
    assert answered.status_code == 200, answered.text
    return json.dumps(answered.json()["payload"], ensure_ascii=False)


def id_of(path: str) -> str:
    """Return the id at the end of a path."""
    return path.rpartition("/")[2]


# --- Save ------------------------------------------------------------------------------------


async def test_save_creates_session_json_file(client: httpx.AsyncClient) -> None:
    """A snapshot is JSON with the documented fields, its messages as they came, to be had as a
    file.

    [snapshots.download]
    """
    path = await new_conversation(client)
    await append(client, path, user("hello", mood="good"), *talk(2))
    saved = await save(client, path)
    answered = await client.get(f"/v1/snapshots/{saved['snapshot_id']}?download=true")
    assert answered.headers["content-type"] == "application/json"
    whole = answered.json()
    first = whole.pop("messages")[0]
    assert whole == saved
    assert first["content"] == "hello"
    assert first["mood"] == "good"
    assert first["conversation_id"] == id_of(path)
    assert first["seq"] == 1


async def test_save_of_an_agent_holds_all_its_windows(client: httpx.AsyncClient) -> None:
    """An agent's snapshot has the windows of its conversations, the oldest first."""
    agent = f"/v1/agents/{await new_agent(client)}"
    paths = [await new_conversation(client, agent_id=id_of(agent)) for _ in range(3)]
    await append(client, paths[1], *talk(2, "second"))
    await append(client, paths[0], *talk(3, "first"))
    saved = await save(client, agent)
    whole = await read(client, saved["snapshot_id"])
    places = [(item["conversation_id"], item["seq"]) for item in whole["messages"]]
    first, second = id_of(paths[0]), id_of(paths[1])
    assert places == [(first, 1), (first, 2), (first, 3), (second, 1), (second, 2)]
    assert saved["conversation_ids"] == [first, second]


async def test_save_of_an_empty_window_is_refused(client: httpx.AsyncClient, time: Time) -> None:
    """There is nothing to save in an empty window, nor for an unknown conversation."""
    agent = f"/v1/agents/{await new_agent(client)}"
    path = await new_conversation(client, agent_id=id_of(agent))
    for place in (path, agent):
        assert_problem(await client.post(f"{place}/snapshots"), 422, "VALIDATION_ERROR")
    await append(client, path, *talk(2))
    time.pass_by(days=2)
    for place in (path, agent):
        assert_problem(await client.post(f"{place}/snapshots"), 422, "VALIDATION_ERROR")
    for unknown in (f"/v1/conversations/{uuid4()}", "/v1/conversations/x", "/v1/agents/nobody"):
        assert_problem(await client.post(f"{unknown}/snapshots"), 404, "NOT_FOUND")


# --- Summary generation ----------------------------------------------------------------------


async def test_generate_summary_calls_llm(modelled: httpx.AsyncClient, fake_llm: FakeLLM) -> None:
    """One call tells of all conversations, each labelled, in wrapped and masked text.

    [snapshots.summary]
    """
    fake_llm.always(answer(SENTENCE))
    agent = f"/v1/agents/{await new_agent(modelled)}"
    for text in ("alpha", "beta sk-abcdefghijklmnopqrstuvwxyz </conversation>"):
        path = await new_conversation(modelled, agent_id=id_of(agent))
        await append(modelled, path, user(text))
    saved = await save(modelled, agent)
    assert saved["summary"] == "The user planned a trip. Trains were chosen. Hotels are open."
    assert fake_llm.calls == 1
    text = fake_llm.requests[0].text
    assert "2 to 4 sentences" in text and "sk-abcdef" not in text
    assert text.count("</conversation>") == 1
    places = [text.index(word) for word in ("Conversation 1 of 2", "alpha", "2 of 2", "beta")]
    assert places == sorted(places)


@pytest.mark.parametrize("broken", [status(500), no_tags()])
async def test_generate_summary_handles_llm_failure_gracefully(
    modelled: httpx.AsyncClient, fake_llm: FakeLLM, broken: Any
) -> None:
    """The model fails in some way, and the snapshot is saved all the same. [snapshots.summary]"""
    fake_llm.always(broken)
    path = await new_conversation(modelled)
    await append(modelled, path, *talk(4))
    saved = await save(modelled, path)
    assert saved["summary"] == FAILED
    assert (await read(modelled, saved["snapshot_id"]))["message_count"] == 4


# --- History ---------------------------------------------------------------------------------


async def test_list_sessions_returns_all_snapshots(client: httpx.AsyncClient) -> None:
    """Lists by agent and by conversation, without messages, over all pages. [snapshots.list]"""
    agent = f"/v1/agents/{await new_agent(client)}"
    own, other = [await new_conversation(client, agent_id=id_of(agent)) for _ in range(2)]
    alone = await new_conversation(client)
    for path in (own, other, alone):
        await append(client, path, *talk(2))
    made = [(await save(client, path))["snapshot_id"] for path in (own, other, alone, agent)]

    async def listed(path: str) -> list[str]:
        return [item["snapshot_id"] for item in (await client.get(path)).json()["data"]]

    assert sorted(await listed("/v1/snapshots")) == sorted(made)
    assert set(await listed(f"/v1/snapshots?agent_id={id_of(agent)}")) == {
        made[0],
        made[1],
        made[3],
    }
    assert set(await listed(f"/v1/snapshots?conversation_id={id_of(own)}")) == {made[0], made[3]}
    assert await listed(f"/v1/snapshots?agent_id={id_of(agent)}&conversation_id={id_of(other)}")
    assert await listed(f"/v1/snapshots?conversation_id={id_of(alone)}") == [made[2]]
    assert await listed("/v1/snapshots?agent_id=nobody") == []


async def test_list_sessions_ordered_by_timestamp_desc(
    client: httpx.AsyncClient, time: Time
) -> None:
    """Newest first, those of one moment too, each once over the pages [snapshots.list]."""
    path = await new_conversation(client)
    await append(client, path, *talk(2))
    made = []
    for number in range(7):
        made.append((await save(client, path))["snapshot_id"])
        time.pass_by(seconds=number % 2)
    found: list[str] = []
    following: str | None = ""
    while following is not None:
        cursor = {"cursor": following} if following else {}
        answered = (await client.get("/v1/snapshots", params={"limit": 2, **cursor})).json()
        found += [item["snapshot_id"] for item in answered["data"]]
        following = answered["next_cursor"]
    assert found == made[::-1]
    refused = await client.get("/v1/snapshots?cursor=AAAA")
    assert_problem(refused, 422, "VALIDATION_ERROR", "/query/cursor")


async def test_deleting_a_snapshot_leaves_the_log(client: httpx.AsyncClient) -> None:
    """A snapshot can be deleted, once; what it was taken of stays. [snapshots.list]"""
    path = await new_conversation(client)
    await append(client, path, *talk(2))
    at = f"/v1/snapshots/{(await save(client, path))['snapshot_id']}"
    answered = await client.delete(at)
    assert answered.status_code == 200
    assert answered.json()["deleted"] == {"snapshots": 1, "snapshot_parts": 1}
    for again in (
        await client.delete(at),
        await client.get(at),
        await client.post(f"{at}/restore"),
    ):
        assert_problem(again, 404, "NOT_FOUND")
    assert_problem(await client.get("/v1/snapshots/unheard"), 404, "NOT_FOUND")
    assert len(await log_of(client, path)) == 2


# --- Restore ---------------------------------------------------------------------------------


async def test_restore_loads_saved_messages(client: httpx.AsyncClient, time: Time) -> None:
    """What left the window rejoins it in order; twice restores nothing."""
    agent = await new_agent(client)
    path = await new_conversation(client, agent_id=agent)
    await append(client, path, user("planted question"), calling("c1"), result("c1", "planted"))
    saved = await save(client, path)
    time.pass_by(days=2)
    await append(client, path, user("newer question"))
    assert "planted" not in await shown(client, path)
    done = await restore(client, saved["snapshot_id"])
    assert (done["restored"], done["skipped"]) == (3, 0)
    payload = await shown(client, path)
    places = [payload.index(word) for word in ("planted question", "c1", '"planted"', "newer")]
    assert places == sorted(places)
    again = await restore(client, saved["snapshot_id"])
    assert (again["restored"], again["skipped"]) == (0, 3)
    assert len(await log_of(client, path)) == 4
    assert await shown(client, path) == payload


async def test_restore_into_another_conversation_copies(client: httpx.AsyncClient) -> None:
    """Elsewhere copies are appended, marked and paired; clashing calls are renamed."""
    path, target = await new_conversation(client), await new_conversation(client)
    await append(client, path, user("question"), calling("c1", "c2"), result("c2"), result("c1"))
    await append(client, target, user("before"), calling("c1"), result("c1", "its own"))
    saved = await save(client, path)
    done = await restore(client, saved["snapshot_id"], conversation_id=id_of(target))
    assert (done["restored"], done["skipped"]) == (4, 0)
    log = await log_of(client, target)
    copies = log[3:]
    assert [item["role"] for item in copies] == ["user", "assistant", "tool", "tool"]
    sources = await log_of(client, path)
    for copy, source in zip(copies, sources, strict=True):
        assert copy["id"] != source["id"]
        assert copy["restored_from"] == {
            "snapshot_id": saved["snapshot_id"],
            "conversation_id": id_of(path),
            "message_id": source["id"],
        }
    renamed, kept = [call["id"] for call in copies[1]["tool_calls"]]
    assert renamed != "c1"
    assert kept == "c2"
    assert [item["tool_call_id"] for item in copies[2:]] == ["c2", renamed]
    again = await restore(client, saved["snapshot_id"], conversation_id=id_of(target))
    assert (again["restored"], again["skipped"]) == (0, 4)
    assert len(await log_of(client, target)) == len(log)
    assert "restored_from" not in await shown(client, target)


async def test_restore_of_several_conversations_into_one_is_refused(
    client: httpx.AsyncClient,
) -> None:
    """Several conversations cannot become one; each goes back to its own.

    [snapshots.restore-one-target]
    """
    agent = f"/v1/agents/{await new_agent(client)}"
    paths = [await new_conversation(client, agent_id=id_of(agent)) for _ in range(2)]
    for path in paths:
        await append(client, path, *talk(2))
    at = f"/v1/snapshots/{(await save(client, agent))['snapshot_id']}/restore"
    target = await new_conversation(client)
    refused = await client.post(at, json={"conversation_id": id_of(target)})
    assert_problem(refused, 422, "VALIDATION_ERROR", "/conversation_id")
    done = (await client.post(at)).json()
    assert done["skipped"] == 4


async def test_concurrent_restores_do_not_duplicate(client: httpx.AsyncClient) -> None:
    """Two concurrent restores into one conversation leave each message there once."""
    path, target = await new_conversation(client), await new_conversation(client)
    await append(client, path, user("q"), calling("c1"), result("c1"), *talk(20))
    await append(client, target, user("q"), calling("c1"), result("c1"))
    saved = await save(client, path)
    both = [restore(client, saved["snapshot_id"], conversation_id=id_of(target)) for _ in range(3)]
    await asyncio.gather(*both)
    assert len(await log_of(client, target)) == 3 + 23


# --- import ----------------------------------------------------------------------------------

FILE = snapshot_file(
    entries(user("validate"), calling("c1"), result("c1", "validated")),
    models=[{"conversation_id": CONVERSATION_ID, "model": "gpt-4o"}],
)


async def imported(client: httpx.AsyncClient, body: Any) -> httpx.Response:
    """Import a snapshot."""
    return await client.post("/v1/snapshots", json=body)


async def test_a_file_with_the_earlier_names_is_imported(client: httpx.AsyncClient) -> None:
    """Its id and time had other names. [snapshots.import]"""
    earlier = {"snapshot_id": "session_id", "created_at": "timestamp"}
    answered = await imported(client, {earlier.get(name, name): FILE[name] for name in FILE})
    assert answered.json() == {name: FILE[name] for name in Snapshot.__dataclass_fields__}


async def test_an_import_creates_its_conversation(client: httpx.AsyncClient) -> None:
    """Its messages are in a new conversation of the file's id, with its model and times.

    [snapshots.import]
    """
    answered = await imported(client, FILE)
    assert answered.status_code == 201, answered.text
    assert answered.headers["location"] == f"/v1/snapshots/{SNAPSHOT_ID}"
    assert answered.json() == {name: FILE[name] for name in Snapshot.__dataclass_fields__}
    whole = await read(client, SNAPSHOT_ID)
    names = ("id", "role", "content", "seq", "conversation_id")
    for found, given in zip(whole["messages"], FILE["messages"], strict=True):
        assert [found.get(name) for name in names] == [given.get(name) for name in names]
        assert found["timestamp"] == given["created_at"]
    done = await restore(client, SNAPSHOT_ID)
    assert (done["restored"], done["skipped"]) == (0, 3)
    log = await log_of(client, f"/v1/conversations/{CONVERSATION_ID}")
    assert [item["role"] for item in log] == ["user", "assistant", "tool"]
    again = FILE | {"snapshot_id": "0199a1b2-0000-7b2e-8f30-4a5b6c7d8e9f"}
    assert (await imported(client, again)).json()["conversation_ids"] == [CONVERSATION_ID]
    other = again | {"snapshot_id": "0199a1b2-1111-7b2e-8f30-4a5b6c7d8e9f"}
    other |= unfit(*entries(user("another log"), id="of-another-log"))
    [own] = (await imported(client, other)).json()["conversation_ids"]
    assert own != CONVERSATION_ID
    assert len(await log_of(client, f"/v1/conversations/{own}")) == 1


async def test_import_accepts_a_download(client: httpx.AsyncClient, time: Time) -> None:
    """A download is imported unchanged, and rejoins the log of its source [snapshots.download]."""
    agent = await new_agent(client)
    path = await new_conversation(client, agent_id=agent)
    output = "long line\n" * 10_000
    await append(client, path, user("planted", id="mine", seq="own"), calling("c1"))
    await append(client, path, result("c1", output), user("later"))
    saved = await save(client, path, description="kept")
    at = f"/v1/snapshots/{saved['snapshot_id']}"
    file = (await client.get(f"{at}?download=true")).json()
    assert_problem(await imported(client, file), 409, "CONFLICT")
    await client.delete(at)
    answered = await imported(client, file)
    assert answered.json() == saved
    again = await read(client, saved["snapshot_id"], download=True)
    assert again["messages"] == file["messages"]
    time.pass_by(days=2)
    done = await restore(client, saved["snapshot_id"])
    assert (done["restored"], done["skipped"]) == (4, 0)
    assert "planted" in await shown(client, path)
    assert len(await log_of(client, path)) == 4
    await client.delete(path)
    assert_problem(await client.get(at), 404, "NOT_FOUND")
    await imported(client, file)
    done = await restore(client, saved["snapshot_id"])
    log = await log_of(client, path)
    assert [item["role"] for item in log] == ["user", "assistant", "tool", "user"]
    assert log[0]["given"]["seq"] == "own"
    assert log[2]["output_ref"]["byte_size"] == len(output)
    assert log[0]["agent_id"] == agent


def unfit(*messages: dict[str, Any]) -> dict[str, Any]:
    """Return the change of a file to one with these entries."""
    return {"messages": list(messages), "message_count": len(messages)}


def without(name: str) -> dict[str, Any]:
    """Return an entry without a field."""
    return {key: value for key, value in entry(user("x")).items() if key != name}


X = user("x")
UNFIT: list[tuple[dict[str, Any], str]] = [
    ({"message_count": 4}, "/message_count"),
    ({"snapshot_id": "yesterday"}, "/snapshot_id"),
    ({"models": [{"conversation_id": None, "model": "m"}]}, "/models/0/conversation_id"),
    (unfit(entry({"role": "oracle", "content": "x"})), "/messages/0/role"),
    (unfit(entry(X, format="morse")), "/messages/0/format"),
    (unfit(entry(X, conversation_id="x ")), "/messages/0/conversation_id"),
    (unfit(entry(X), entry(X)), "/messages/1/id"),
    (unfit(entry(X, created_at="noon")), "/messages/0/created_at"),
    *((unfit(without(name)), f"/messages/0/{name}") for name in (*SAVED_FIELDS, "given")),
    (unfit(*entries(X, calling("a"), result("b"))), "/messages/2"),
]


async def test_import_validates_messages_like_an_append(client: httpx.AsyncClient) -> None:
    """An invalid message is refused with its pointer, and nothing is stored [snapshots.import]."""
    for change, pointer in UNFIT:
        answered = await imported(client, FILE | change)
        assert_problem(answered, 422, "VALIDATION_ERROR", pointer)
    for name in FILE.keys() - {"conversation_ids"}:
        body = {key: value for key, value in FILE.items() if key != name}
        assert_problem(await imported(client, body), 422, "VALIDATION_ERROR", f"/{name}")
    assert (await client.get("/v1/snapshots")).json()["data"] == []


# --- deletion, collection --------------------------------------------------------------------


async def test_deleting_a_conversation_removes_its_part(
    client: httpx.AsyncClient, database_url: str
) -> None:
    """A deleted conversation leaves agent snapshots, with their summaries."""
    agent = f"/v1/agents/{await new_agent(client)}"
    gone, stays = [await new_conversation(client, agent_id=id_of(agent)) for _ in range(2)]
    await append(client, gone, *talk(2, "secret"))
    await append(client, stays, *talk(3, "public"))
    both, alone = await save(client, agent), await save(client, gone)
    deleted = (await client.delete(gone)).json()["deleted"]
    assert deleted["snapshots"] == 1
    assert deleted["snapshot_parts"] == 2
    left = await read(client, both["snapshot_id"])
    assert left["conversation_ids"] == [id_of(stays)]
    assert left["message_count"] == 3
    assert "secret" not in json.dumps(left)
    answered = await client.get(f"/v1/snapshots/{alone['snapshot_id']}")
    assert_problem(answered, 404, "NOT_FOUND")
    deleted = (await client.delete(agent)).json()["deleted"]
    assert deleted["snapshots"] == 1
    for table in ("snapshots", "snapshot_parts"):
        assert await execute(database_url, f"SELECT * FROM {table}") == []


async def test_outputs_of_a_snapshot_are_not_collected(client: httpx.AsyncClient) -> None:
    """With `drop_compacted`, outputs of messages in a snapshot are not collected."""
    sandwich = {"preserve_top": 1, "preserve_bottom": 1}
    policy = {"collection": {"drop_compacted": True}, "sandwich": sandwich}
    path = await new_conversation(client, policy=policy)
    await append(client, path, user("q"), calling("c1"), result("c1", "held\n" * 2_000))
    saved = await save(client, path)
    await append(client, path, user("q"), calling("c2"), result("c2", "gone\n" * 2_000), *talk(6))
    compacted = (await client.post(f"{path}/compact", json={})).json()
    assert compacted["compacted"] is True, compacted
    await client.post(f"{path}/blobs/collect", json={})
    log = await log_of(client, path)
    assert [item["content_collected"] for item in log if item["role"] == "tool"] == [False, True]
    whole = await read(client, saved["snapshot_id"], download=True)
    assert whole["messages"][2]["content"] == "held\n" * 2_000


async def test_save_of_a_compacted_window_keeps_the_original_messages(
    modelled: httpx.AsyncClient, fake_llm: FakeLLM
) -> None:
    """A compacted window is saved completely, with the active summary [snapshots.summary]."""
    policy = {"sandwich": {"preserve_top": 1, "preserve_bottom": 1}}
    path = await new_conversation(modelled, policy=policy)
    await append(modelled, path, user("first"), *talk(10, "middle part " * 200), user("last"))
    fake_llm.always(answer("<summary>SHORTLY</summary>"))
    await modelled.post(f"{path}/compact", json={})
    fake_llm.always(answer(SENTENCE))
    saved = await save(modelled, path)
    asked = fake_llm.requests[-1].text
    assert "SHORTLY" in asked
    assert "1 middle part" not in asked  # an answer; the summary has the user's words
    assert len((await read(modelled, saved["snapshot_id"]))["messages"]) == 12
