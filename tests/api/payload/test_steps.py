"""A step of an agent loop in one request: `append` and `report` in `/context` [payload.step]."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.api.talk import assert_problem, assistant, calling, new_conversation, result, talk, user
from tests.conftest import execute

POLICY = {"budget": {"context_window": 20_000, "max_output_tokens": 1_000}}
USAGE = {"prompt_tokens": 1_000, "completion_tokens": 50, "total_tokens": 1_050}
KEY = {"Idempotency-Key": "step-1"}


async def step(client: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    """Send a step and return its answer."""
    answer = await client.post(f"{path}/context", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def log_of(client: httpx.AsyncClient, path: str) -> list[Any]:
    """Return the content of all messages of a conversation."""
    page = (await client.get(f"{path}/messages")).json()
    return [message.get("content") for message in page["data"]]


async def reports_of(url: str) -> int:
    """Return the number of stored usage reports."""
    ((number,),) = await execute(url, "SELECT count(*) FROM usage_reports")
    return int(number)


async def test_a_step_answers_like_an_append_a_report_and_a_build(
    client: httpx.AsyncClient,
) -> None:
    """The same payload, positions and judgement as three requests give."""
    one, three = [await new_conversation(client, policy=POLICY) for _ in range(2)]
    first = await step(client, one, append={"messages": talk(3)})
    await client.post(f"{three}/messages", json={"messages": talk(3)})
    built = (await client.post(f"{three}/context", json={})).json()
    assert first["payload"]["messages"] == built["payload"]["messages"]

    batch = [calling("call_1"), result("call_1")]
    got = await step(
        client,
        one,
        append={"messages": batch, "expected_seq": 3},
        report={"usage": USAGE, "build_id": first["build_id"]},
    )
    report = {"usage": USAGE, "build_id": built["build_id"]}
    reported = (await client.post(f"{three}/usage", json=report)).json()
    appended = (await client.post(f"{three}/messages", json={"messages": batch})).json()
    built = (await client.post(f"{three}/context", json={})).json()

    assert got["payload"]["messages"] == built["payload"]["messages"]
    assert got["tokens_used"] == built["tokens_used"]
    assert [place["seq"] for place in got["appended"]["messages"]] == [4, 5]
    assert got["appended"]["head_seq"] == appended["head_seq"] == got["through_seq"]
    for name in ("token_usage", "calibrated"):
        assert got["reported"][name] == reported[name]
    plain = await step(client, one)
    assert plain["appended"] is None and plain["reported"] is None


async def test_a_build_that_fails_does_not_undo_the_append(
    client: httpx.AsyncClient, database_url: str
) -> None:
    """The error names what is stored; the key prevents a second append."""
    small = {**POLICY, "messages": {"offload_oversized": False}}
    path = await new_conversation(client, policy=small)
    body = {
        "append": {"messages": [user("Hello"), assistant("Hi"), user("word " * 30_000)]},
        "report": {"usage": USAGE},
    }
    answer = await client.post(f"{path}/context", json=body, headers=KEY)
    problem = assert_problem(answer, 422, "CONTEXT_OVERFLOW")
    assert problem["appended"] == {"first_seq": 1, "last_seq": 3, "head_seq": 3}
    assert problem["reported"]
    assert len(await log_of(client, path)) == 3
    again = await client.post(f"{path}/context", json=body, headers=KEY)
    assert again.json()["appended"] == problem["appended"]
    assert (len(await log_of(client, path)), await reports_of(database_url)) == (3, 1)


async def test_a_repeated_step_stores_nothing_again(
    client: httpx.AsyncClient, database_url: str
) -> None:
    """Also at once; another body under the key is a conflict."""
    path = await new_conversation(client, policy=POLICY)
    body = {"append": {"messages": talk(3)}, "report": {"usage": USAGE}}
    answers = await asyncio.gather(
        *(client.post(f"{path}/context", json=body, headers=KEY) for _ in range(4))
    )
    assert {answer.status_code for answer in answers} == {200}
    assert len({str(answer.json()["payload"]) for answer in answers}) == 1
    assert len({str(answer.json()["appended"]["messages"]) for answer in answers}) == 1
    assert len(await log_of(client, path)) == 3
    assert await reports_of(database_url) == 1

    other = {**body, "append": {"messages": talk(2)}}
    assert_problem(await client.post(f"{path}/context", json=other, headers=KEY), 409, "CONFLICT")
    other = {**body, "report": {"usage": {**USAGE, "prompt_tokens": 999}}}
    assert_problem(await client.post(f"{path}/context", json=other, headers=KEY), 409, "CONFLICT")
    alone = await client.post(f"{path}/usage", json=body["report"], headers=KEY)
    assert alone.status_code == 200 and await reports_of(database_url) == 1


@pytest.mark.parametrize(
    ("body", "status", "code", "pointer"),
    [
        (
            {"append": {"messages": [{"role": "king"}]}},
            422,
            "VALIDATION_ERROR",
            "/append/messages/0/role",
        ),
        ({"append": {"messages": [result("no")]}}, 409, "UNPAIRED_TOOL_RESULT", None),
        ({"append": {"messages": [user("x")], "expected_seq": 7}}, 409, "CONFLICT", None),
        (
            {"report": {"usage": {"prompt_tokens": -1}}},
            422,
            "VALIDATION_ERROR",
            "/report/usage/prompt_tokens",
        ),
    ],
)
async def test_a_refused_part_stores_nothing(
    client: httpx.AsyncClient,
    database_url: str,
    body: dict[str, Any],
    status: int,
    code: str,
    pointer: str | None,
) -> None:
    """The pointer is into the body of the step."""
    path = await new_conversation(client, policy=POLICY)
    answer = await client.post(f"{path}/context", json={"report": {"usage": USAGE}, **body})
    problem = assert_problem(answer, status, code, *([pointer] if pointer else []))
    assert not {"appended", "reported"} & problem.keys()
    assert await log_of(client, path) == []
    assert await reports_of(database_url) == 0
