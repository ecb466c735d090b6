"""Compactions over HTTP: forced, as jobs, listed, expanded, undone.

[compaction.forced, compaction.undo, compaction.failure-keeps-state]
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from app.composition import Services
from app.tenancy.api_keys import DEFAULT_TENANT as TENANT
from tests import fake_llm as behave
from tests.api.compaction.builders import LONG
from tests.api.talk import append, assert_problem, assistant, new_conversation, talk, user
from tests.conftest import execute
from tests.fake_llm import FakeLLM

STRATEGIES = ["sandwich", "retain_summary", "tree_summary", "chain"]


async def long_talk(client: httpx.AsyncClient, **body: Any) -> str:
    """Create a conversation with enough to compact, and return its path."""
    path = await new_conversation(client, **body)
    await append(client, path, *talk(60, LONG))
    return path


async def compact(client: httpx.AsyncClient, path: str, **options: Any) -> dict[str, Any]:
    """Compact, and return what came of it."""
    answer = await client.post(f"{path}/compact", json=options)
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def payload(client: httpx.AsyncClient, path: str, **options: Any) -> bytes:
    """Return the bytes of a payload."""
    answer = await client.post(f"{path}/context", json=options)
    assert answer.status_code == 200, answer.text
    return bytes(str(answer.json()["payload"]), "utf-8", "surrogatepass")


async def work(app: FastAPI, path: str, job_id: str | None) -> None:
    """Do what a worker does that was woken for this."""
    services: Services = app.state.services
    await services.compaction.work(TENANT, path.rpartition("/")[2], job_id)


# --- options ---------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_call_has_its_own_options(
    client: httpx.AsyncClient, fake_llm: FakeLLM, strategy: str
) -> None:
    """Strategy, model, instructions and target are for one call; a dry run shows the plan."""
    path = await long_talk(client)
    options = {"strategy": strategy, "model": "openai/fake", "instructions": "Keep the prices."}
    shown = await compact(client, path, **options, dry_run=True)
    assert (shown["compacted"], shown["reason"], fake_llm.calls) == (False, "dry run", 0)
    made = await compact(client, path, **options)
    assert made["compacted"] and made["reason"] is None
    for name in ("summary_range", "stages", "before_tokens"):
        assert made[name] == shown[name], name
    assert made["after_tokens"] <= shown["after_tokens"]
    assert fake_llm.calls >= 1
    assert all("Keep the prices." in request.text for request in fake_llm.requests)
    built = (await client.post(f"{path}/context")).json()
    assert built["tokens_used"] == made["after_tokens"]
    policy = (await client.get(path)).json()["policy"]
    assert policy["strategy"] == "sandwich"


async def test_a_receipt_shows_what_had_no_room(client: httpx.AsyncClient) -> None:
    """Important statements that had no room can be read. [summary.unlisted, compaction.receipt]"""
    path = await new_conversation(client, policy={"strategy": "retain_summary"})
    for number in range(40):
        walked = f"I walked past berth {number} this morning and saw ship-{number} there."
        await append(client, path, user(walked), assistant(f"The captain of it reads {number}."))
    options = {"target_tokens": 150, "model": "extractive"}
    made = await compact(client, path, **options)
    receipt = (await client.get(f"{path}/compactions/{made['compaction_id']}")).json()
    (summary,) = receipt["made"]
    assert sum(heading["dropped"] for heading in summary["headings"]) > 0
    assert "- @1 I walked past berth 0" in summary["unlisted"]
    assert "berth 0" not in summary["text"]
    assert receipt["summaries"] == [summary]


WRONG: list[tuple[Any, str]] = [
    ({"strategy": "nothing"}, "/strategy"),
    ({"strategy": 5}, "/strategy"),
    ({"model": ""}, "/model"),
    ({"model": "a\x00"}, "/model"),
    ({"model": "m" * 257}, "/model"),
    ({"instructions": "x" * 32_001}, "/instructions"),
    ({"instructions": ["a"]}, "/instructions"),
    ({"target_tokens": 0}, "/target_tokens"),
    ({"target_tokens": -5}, "/target_tokens"),
    ({"target_tokens": 10**12}, "/target_tokens"),
    ({"target_tokens": 1.5}, "/target_tokens"),
    ({"target_tokens": "9"}, "/target_tokens"),
    ({"dry_run": "yes"}, "/dry_run"),
    ({"force": True}, "/force"),
]


@pytest.mark.parametrize(("body", "pointer"), WRONG, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("wait", ["true", "false"])
async def test_wrong_options_are_refused(
    client: httpx.AsyncClient, database_url: str, body: Any, pointer: str, wait: str
) -> None:
    """Each wrong field is a 422 that points at it, and no job is made of it."""
    path = await new_conversation(client)
    answer = await client.post(f"{path}/compact?wait={wait}", json=body)
    assert_problem(answer, 422, "VALIDATION_ERROR", pointer)
    assert await execute(database_url, "SELECT FROM jobs") == []


@pytest.mark.parametrize("wait", ["true", "false"])
async def test_a_forbidden_model_is_refused(client: httpx.AsyncClient, wait: str) -> None:
    """It is refused before any work, with and without `wait`, and in a dry run.

    [summary.allowed-models]
    """
    path = await long_talk(client)
    for more in ({}, {"dry_run": True}):
        options = {"model": "gpt-4o", **more}
        answer = await client.post(f"{path}/compact?wait={wait}", json=options)
        assert_problem(answer, 422, "VALIDATION_ERROR", "/model")


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_failing_model_is_503_and_changes_nothing(
    client: httpx.AsyncClient, fake_llm: FakeLLM, strategy: str
) -> None:
    """503 with the reason and `retry_after`; state, payload and receipts unchanged."""
    path = await long_talk(client, policy={"strategy": strategy})
    before, state = await payload(client, path), (await client.get(f"{path}/state")).json()
    for failing, reason in (
        (behave.no_tags(), "bad_answer"),
        (behave.status(500), "provider_error"),
        (behave.status(401, "no key", "invalid_request_error"), "authentication"),
    ):
        fake_llm.always(failing)
        answer = await client.post(f"{path}/compact")
        body = assert_problem(answer, 503, "SERVICE_UNAVAILABLE")
        assert body["reason"] in {reason, "circuit_open"}
        assert int(answer.headers["retry-after"]) >= 1
    assert await payload(client, path) == before
    assert (await client.get(f"{path}/state")).json() == state
    assert (await client.get(f"{path}/compactions")).json()["data"] == []


# --- not waiting ----------------------------------------------------------------------------


async def test_a_job_is_polled_until_it_is_done(app: FastAPI, client: httpx.AsyncClient) -> None:
    """`wait=false` answers 202 with a job at `Location`; a worker ends it with the result."""
    path = await long_talk(client)
    options = {"instructions": "Keep the prices.", "strategy": "retain_summary"}
    answer = await client.post(f"{path}/compact?wait=false", json=options)
    assert answer.status_code == 202
    job = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job['job_id']}"
    assert (job["status"], job["result"], job["error"]) == ("queued", None, None)
    assert path.endswith(job["conversation_id"])
    assert (await client.get(answer.headers["location"])).json() == job
    assert (await client.get(f"{path}/state")).json()["summary"] is None
    await work(app, path, job["job_id"])
    done = (await client.get(answer.headers["location"])).json()
    assert (done["status"], done["error"]) == ("done", None)
    assert done["result"]["compacted"] is True
    assert done["result"]["stages"] == ["retain_summary"]
    receipt = await client.get(f"{path}/compactions/{done['result']['compaction_id']}")
    assert receipt.json()["trigger"] == "forced"
    await work(app, path, job["job_id"])
    assert (await client.get(answer.headers["location"])).json() == done
    assert len((await client.get(f"{path}/compactions")).json()["data"]) == 1


async def test_a_failed_job_has_the_problem_of_the_request(
    app: FastAPI, client: httpx.AsyncClient, fake_llm: FakeLLM
) -> None:
    """Its error is the problem of the request; nothing changed."""
    path = await long_talk(client)
    before = await payload(client, path)
    fake_llm.always(behave.no_tags())
    job = (await client.post(f"{path}/compact?wait=false")).json()
    await work(app, path, job["job_id"])
    failed = (await client.get(f"/v1/jobs/{job['job_id']}")).json()
    assert (failed["status"], failed["result"]) == ("failed", None)
    assert failed["error"]["status"] == 503
    assert failed["error"]["code"] == "SERVICE_UNAVAILABLE"
    assert failed["error"]["reason"] == "bad_answer"
    assert await payload(client, path) == before


# --- receipts -------------------------------------------------------------------------------


async def test_receipts_are_listed_in_pages(client: httpx.AsyncClient) -> None:
    """Newest first, undone ones too; a cursor continues after its page. [compaction.undo]"""
    path = await new_conversation(client)
    made = []
    for _ in range(5):
        await append(client, path, *talk(40, LONG))
        made.append((await compact(client, path))["compaction_id"])
    await client.post(f"{path}/compactions/{made[-1]}/undo")
    whole = (await client.get(f"{path}/compactions")).json()
    assert [found["compaction_id"] for found in whole["data"]] == made[::-1]
    assert [found["status"] for found in whole["data"]] == ["undone", "active", *["replaced"] * 3]
    assert whole["next_cursor"] is None
    seen, cursor = [], None
    while True:
        query = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = (await client.get(f"{path}/compactions", params=query)).json()
        seen += page["data"]
        assert len(page["data"]) <= 2
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == whole["data"]
    for found in seen:
        answer = await client.get(f"{path}/compactions/{found['compaction_id']}")
        assert answer.json() == found


async def test_a_compaction_is_expanded_in_pages(client: httpx.AsyncClient) -> None:
    """The originals of the range as the transcript has them, page by page. [compaction.expand]"""
    path = await long_talk(client)
    made = await compact(client, path)
    start, end = made["summary_range"]
    expand = f"{path}/compactions/{made['compaction_id']}/messages"
    seen, cursor = [], None
    while True:
        query: dict[str, Any] = {"limit": 7} | ({"cursor": cursor} if cursor else {})
        page = (await client.get(expand, params=query)).json()
        seen += page["data"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    log = (await client.get(f"{path}/messages?limit=1000")).json()["data"]
    assert seen == log[start - 1 : end - 1]
    assert (await client.get(expand, params={"limit": 1000})).json()["data"] == seen


# --- undo -----------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["openai_chat", "anthropic"])
async def test_undo_restores_payload_budget_and_state(
    client: httpx.AsyncClient, format: str
) -> None:
    """200 with the receipt; payload, budget and state are those of before. [compaction.undo]"""
    path = await long_talk(client)
    options = {"format": format, "model": "gpt-4o" if format == "openai_chat" else "claude-3-opus"}
    before = await payload(client, path, **options)
    budget = (await client.get(f"{path}/budget")).json()
    made = await compact(client, path)
    assert await payload(client, path, **options) != before
    answer = await client.post(f"{path}/compactions/{made['compaction_id']}/undo")
    assert answer.status_code == 200
    undone = answer.json()
    assert (undone["status"], undone["compaction_id"]) == ("undone", made["compaction_id"])
    assert undone["undone_at"] is not None
    built = (await client.post(f"{path}/context", json=options)).json()
    assert built["cache_break_reason"] == "undone"
    assert await payload(client, path, **options) == before
    assert (await client.get(f"{path}/budget")).json() == budget
    assert (await client.get(f"{path}/state")).json()["summary"] is None
    again = await client.post(f"{path}/compactions/{made['compaction_id']}/undo")
    assert assert_problem(again, 409, "CONFLICT")["active"] is None


# --- the database fails ---------------------------------------------------------------------


# --- at once --------------------------------------------------------------------------------


# --- rewind ---------------------------------------------------------------------------------


async def test_a_user_edits_a_question(client: httpx.AsyncClient) -> None:
    """The answer tells what left; the same receipt undoes it, and a fork has the old branch.

    [rewind.window, rewind.undo]
    """
    path = await new_conversation(client)
    await append(client, path, user("a"), assistant("b"), user("c"), assistant("d"))
    before = (await client.post(f"{path}/context", json={})).json()
    assert_problem(await client.post(f"{path}/rewind", json={"to_seq": 9}), 422, "VALIDATION_ERROR")
    asked = {"to_seq": 2, "expected_seq": 4}
    rewound = (await client.post(f"{path}/rewind", json=asked)).json()
    assert (rewound["to_seq"], rewound["message_count"]) == (2, 2)
    assert (await client.post(f"{path}/rewind", json=asked)).json() == rewound
    await append(client, path, user("another"))
    assert_problem(await client.post(f"{path}/rewind", json=asked), 409, "CONFLICT")
    built = (await client.post(f"{path}/context", json={})).json()
    shown = [*before["payload"]["messages"][:2], user("another")]
    assert built["payload"]["messages"] == shown
    forked = (await client.post(f"{path}/fork", json={"through_seq": 4})).json()
    of_fork = f"/v1/conversations/{forked['conversation_id']}"
    old = (await client.post(f"{of_fork}/context", json={})).json()["payload"]
    assert old["messages"] == before["payload"]["messages"]
    forked = (await client.post(f"{path}/fork", json={})).json()
    of_fork = f"/v1/conversations/{forked['conversation_id']}"
    same = (await client.post(f"{of_fork}/context", json={})).json()["payload"]
    assert same["messages"] == shown
    undo = f"compactions/{rewound['compaction_id']}/undo"
    assert (await client.post(f"{path}/{undo}")).json()["trigger"] == "rewind"
    assert (await client.post(f"{of_fork}/{undo}")).status_code == 200
    for each in (path, of_fork):
        built = (await client.post(f"{each}/context", json={})).json()
        assert built["payload"]["messages"] == [*before["payload"]["messages"], user("another")]
