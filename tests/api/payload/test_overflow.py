"""Overflows over HTTP. [compaction.overflow]"""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest
import pytest_asyncio

from app.main import create_app
from app.settings import Settings
from tests import fake_llm as behave
from tests.api.compaction.builders import LONG
from tests.api.talk import append, assert_problem, new_conversation, talk, user
from tests.conftest import started
from tests.fake_llm import FakeLLM

TOO_LONG: list[Any] = [
    None,
    {"error": {"type": "invalid_request_error", "message": "prompt is too long: 210000 tokens"}},
    [{"error": {"code": 400, "message": "The input token count (9) exceeds the maximum number"}}],
]
OTHERS: list[Any] = ["", "Rate limit reached: too many tokens per minute", {}, []]


@pytest_asyncio.fixture
async def model_client(with_model: Settings) -> Any:
    """A client of an app whose summariser is the scriptable model."""
    async with started(create_app(with_model)) as opened:
        yield opened


async def long_talk(client: httpx.AsyncClient, **body: Any) -> str:
    """Create a conversation of sixteen turns, and return its path."""
    path = await new_conversation(client, **body)
    await append(client, path, *talk(32, LONG))
    return path


def numbers(built: dict[str, Any]) -> list[int]:
    """Return the numbers of the messages that a payload shows."""
    found = []
    for item in built["payload"]["messages"]:
        content = item["content"]
        parts = [content] if isinstance(content, str) else [part["text"] for part in content]
        matches = (re.match(r"(\d+) We talked", part) for part in parts)
        found += [int(match[1]) for match in matches if match is not None]
    return found


@pytest.mark.parametrize("error", TOO_LONG, ids=lambda error: str(error)[:30])
@pytest.mark.parametrize(
    "policy",
    [{}, {"strategy": "full_history"}, {"compaction": {"enabled": False}}],
    ids=["sandwich", "full_history", "disabled"],
)
async def test_a_cut_leaves_out_half_of_the_turns(
    model_client: httpx.AsyncClient, fake_llm: FakeLLM, error: Any, policy: dict[str, Any]
) -> None:
    """The oldest half of the turns goes, the answer brings the new payload; no model."""
    fake_llm.always(behave.status(500))
    path = await long_talk(model_client, policy=policy | {"agent_tools": "none"})
    before = (await model_client.post(f"{path}/context")).json()
    body = {} if error is None else {"error": error}
    answer = await model_client.post(f"{path}/overflow", json=body)
    assert answer.status_code == 200, answer.text
    made = answer.json()
    assert made["compacted"] is True and made["stages"] == ["overflow"]
    assert made["before_tokens"] == before["tokens_used"]
    assert made["after_tokens"] == made["context"]["tokens_used"] < made["before_tokens"]
    assert numbers(made["context"]) == list(range(16, 32))
    assert "16 earlier messages were left out" in str(made["context"]["payload"])
    again = (await model_client.post(f"{path}/context")).json()
    assert again["payload"] == made["context"]["payload"]
    assert len((await model_client.get(f"{path}/messages?limit=1000")).json()["data"]) == 32
    undo = f"{path}/compactions/{made['compaction_id']}/undo"
    assert (await model_client.post(undo)).json()["trigger"] == "overflow"
    assert (await model_client.post(f"{path}/context")).json()["payload"] == before["payload"]
    assert fake_llm.calls == 0


async def test_no_body_is_needed(client: httpx.AsyncClient) -> None:
    """The report alone is enough; each one cuts more, until nothing is left to cut."""
    path = await long_talk(client)
    left = []
    while (answer := await client.post(f"{path}/overflow")).status_code == 200:
        left.append(len(numbers(answer.json()["context"])))
    assert left == [16, 8, 4, 2, 1]
    body = assert_problem(answer, 422, "CONTEXT_OVERFLOW")
    assert body["budget"]["tokens_used"] > 0
    assert (await client.post(f"{path}/context")).status_code == 200


@pytest.mark.parametrize("error", OTHERS, ids=lambda error: str(error)[:30])
async def test_another_error_cuts_nothing(client: httpx.AsyncClient, error: Any) -> None:
    """An error with another meaning is a 422 with a pointer."""
    path = await long_talk(client)
    before = (await client.post(f"{path}/context")).json()["payload"]
    answer = await client.post(f"{path}/overflow", json={"error": error})
    assert_problem(answer, 422, "VALIDATION_ERROR", "/error")
    assert (await client.post(f"{path}/context")).json()["payload"] == before
    assert (await client.get(f"{path}/compactions")).json()["data"] == []


OUTPUTS: list[tuple[Any, int]] = [
    ("max_tokens is too large: 99999. This model supports at most 1000 completion tokens", 1000),
    (
        [
            {
                "error": {
                    "message": "max_tokens: 9000 > 2000, which is the maximum allowed number of"
                    " output tokens for claude"
                }
            }
        ],
        2000,
    ),
    (
        {
            "error": {
                "code": "context_length_exceeded",
                "message": "maximum context length is 4096"
                " tokens. However, you requested 4196 tokens (100 in the messages, 4096 in the"
                " completion)",
            }
        },
        3996,
    ),
    ("max_completion_tokens is too high", 2048),
    ("max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens", 4096),
]


@pytest.mark.parametrize(("error", "limit"), OUTPUTS, ids=lambda value: str(value)[:30])
async def test_a_large_output_leaves_the_history(
    client: httpx.AsyncClient, error: Any, limit: int
) -> None:
    """The payload is the same with a lower output limit: the named one, else half. Nothing is cut.

    It is lower for this payload only; a request with the limit has it again.

    [compaction.large-output]
    """
    path = await long_talk(client)
    before = (await client.post(f"{path}/context")).json()
    answer = await client.post(f"{path}/overflow", json={"error": error, "error_status": 400})
    assert answer.status_code == 200, answer.text
    made = answer.json()
    assert (made["verdict"], made["reason"]) == ("output_too_large", "output_too_large")
    assert (made["compacted"], made["compaction_id"]) == (False, None)
    assert made["before_tokens"] == made["after_tokens"] == before["tokens_used"]
    assert made["before_messages"] == made["after_messages"] == 32
    assert made["max_output_tokens"] == limit
    lowered = {"max_completion_tokens": limit}
    assert made["context"]["payload"] == before["payload"] | lowered
    assert made["context"]["cache_break_reason"] in (None, "budget_changed")
    assert (await client.get(f"{path}/compactions")).json()["data"] == []
    again = await client.post(f"{path}/context", json={"max_output_tokens": limit})
    assert again.json()["payload"] == made["context"]["payload"]
    assert (await client.post(f"{path}/context")).json()["payload"] == before["payload"]


WRONG: list[tuple[Any, str]] = [
    ({"error_status": "400"}, "/error_status"),
    ({"error_status": 99}, "/error_status"),
    ({"error": 5}, "/error"),
    ({"error": ["a"]}, "/error"),
    ({"format": "nothing"}, "/format"),
    ({"context_window": 10**12}, "/context_window"),
    ({"sections": [{"name": "a"}]}, "/sections/0/content"),
    ({"force": True}, "/force"),
]


@pytest.mark.parametrize(("body", "pointer"), WRONG, ids=lambda value: str(value)[:40])
async def test_wrong_reports(client: httpx.AsyncClient, body: Any, pointer: str) -> None:
    """Each wrong field is a 422 that points at it, and nothing is cut. [errors.problem-json]"""
    path = await long_talk(client)
    answer = await client.post(f"{path}/overflow", json=body)
    assert_problem(answer, 422, "VALIDATION_ERROR", pointer)
    assert (await client.get(f"{path}/compactions")).json()["data"] == []


# --- reasoning that a provider refuses ----------------------------------------------------------

SIGNED = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln" * 30}
SEALED = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAAB" * 20}
REFUSALS: dict[str, tuple[str, dict[str, Any], str]] = {
    "anthropic": (
        "claude-sonnet-4-5",
        {"role": "assistant", "content": [SIGNED, {"type": "text", "text": "Yes."}]},
        "messages.1.content.0: Invalid `signature` in `thinking` block",
    ),
    "openai_responses": (
        "gpt-5",
        {"role": "assistant", "output": [SEALED, {"role": "assistant", "content": "Yes."}]},
        "The encrypted content gAAA could not be verified.",
    ),
    "openai_chat": (
        "groq/qwen3",
        {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."},
        "property 'reasoning_content' is unsupported",
    ),
}
MARKS = ("c2ln", "gAAAAB", "Hm.")


@pytest.mark.parametrize("format", REFUSALS)
async def test_refused_reasoning_goes_for_good(client: httpx.AsyncClient, format: str) -> None:
    """No build of that model sends it again; what comes later is sent.

    [compaction.refused-reasoning]
    """
    model, said, error = REFUSALS[format]
    path = await new_conversation(client)
    form = {"format": format}
    asked = {"model": model, "context_window": 20_000, **form}

    async def sent() -> tuple[bool, list[str]]:
        built = (await client.post(f"{path}/context", json=asked)).json()
        return any(mark in json.dumps(built["payload"]) for mark in MARKS), built["degraded"]

    await append(client, path, user("hi"))
    await append(client, path, said, **form)
    await append(client, path, user("on"))
    assert await sent() == (True, [])
    refusal = {"error": {"error": {"message": error}}, "error_status": 400}
    made = (await client.post(f"{path}/overflow", json=asked | refusal)).json()
    assert (made["verdict"], made["compacted"]) == ("reasoning_refused", False)
    assert made["context"]["cache_break_reason"] == "reasoning_dropped"
    assert made["after_tokens"] == made["context"]["tokens_used"] < made["before_tokens"]
    assert await sent() == (False, ["reasoning_dropped"])
    again = await client.post(f"{path}/overflow", json=asked | refusal)
    assert_problem(again, 422, "VALIDATION_ERROR", "/error")
    await client.patch(path, json={"sections": [{"name": "a", "content": "New."}]})
    assert await sent() == (False, ["reasoning_dropped"])
    later = json.loads(json.dumps(said).replace("rs_1", "rs_2"))
    await append(client, path, later, **form)
    await append(client, path, user("and?"))
    assert await sent() == (True, ["reasoning_dropped"])
