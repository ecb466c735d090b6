"""Appending and reading back over a real database: atomic, idempotent, ordered.

[log.any-format, log.idempotency-key, log.pairing]
"""

from __future__ import annotations

import asyncio
import json
from itertools import islice
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.common import json_text
from app.common.errors import Conflict, UnpairedToolResult
from app.conversations.messages.row import Append
from app.conversations.messages.schemas import AppendAnswer
from app.conversations.messages.stored_results import Content
from app.formats.message import FormatName
from tests.domain.histories import raw_logs
from tests.services.fakes import CHAT, TENANT, Harness, asks, result, says, user


async def bodies(harness: Harness, cid: str, **page: Any) -> list[Any]:
    """Return messages of the log as they were appended."""
    wanted: dict[str, Any] = {
        "after_seq": 0,
        "before_seq": 10**9,
        "order": "asc",
        "limit": 1000,
    } | page
    _, found = await harness.transcripts.page(TENANT, cid, **wanted)
    return [item.raw_message for item in await harness.outputs.originals(cid, found, Content.FULL)]


@given(log=raw_logs(8), cuts=st.lists(st.integers(1, 4), max_size=8))
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
async def test_messages_are_returned_unchanged(harness: Harness, log: Any, cuts: list[int]) -> None:
    """Any log, in any batches, is returned with identical strings, in order."""
    cid = await harness.conversation()
    left = list(log.messages)
    expected = 0
    for size in [*cuts, *[1] * len(left)]:
        batch = left[:size]
        while len({format for format, _ in batch}) > 1:
            batch = batch[:-1]
        left = left[len(batch) :]
        if batch:
            answer = await harness.append(
                cid, *(raw for _, raw in batch), format=FormatName(batch[0][0])
            )
            expected += len(answer.messages)
            assert answer.head_seq == expected
    stored = await bodies(harness, cid)
    assert len(stored) == expected
    sent = [raw for _, raw in log.messages]
    assert _blocks(stored) == _blocks(sent)
    state = (await harness.stored(cid)).state
    assert sorted(state.open_calls) == sorted(log.open_calls)


def _blocks(messages: list[Any]) -> list[Any]:
    """Return all content of messages in order, so that split messages compare equal."""
    found: list[Any] = []
    for message in messages:
        content = message.get("content") or message.get("parts")
        apart = ("content", "parts", "role")
        rest = {key: value for key, value in message.items() if key not in apart}
        found += content if isinstance(content, list) else [content]
        found += [rest] if rest else []
    return found


@pytest.mark.parametrize("batches", [[3], [1, 1, 1], [1, 2], [2, 1]])
async def test_gemini_responses_without_ids_may_be_contents_of_their_own(
    harness: Harness, batches: list[int]
) -> None:
    """However responses of one name are sent, the nth answers the nth call. [log.pairing]"""
    cid = await harness.conversation()
    calls: list[Any] = [
        {"functionCall": {"name": name, "args": {}}} for name in ("f", "f", "g", "f")
    ]
    await harness.append(
        cid,
        {"role": "user", "parts": [{"text": "hi"}]},
        {"role": "model", "parts": calls},
        format=FormatName.GEMINI,
    )
    answers: list[Any] = [
        {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"n": n}}}]}
        for n in range(3)
    ]
    sent = iter(answers)
    for size in batches:
        await harness.append(cid, *islice(sent, size), format=FormatName.GEMINI)
    assert (await harness.stored(cid)).state.open_calls == ("g",)
    again = {**answers[0], "id": "r1"}
    with pytest.raises(UnpairedToolResult):
        await harness.append(cid, again, format=FormatName.GEMINI)
    await harness.append(
        cid,
        {"role": "model", "parts": calls},
        again,
        {**answers[1], "id": "r2"},
        format=FormatName.GEMINI,
    )
    head = (await harness.stored(cid)).state.head_seq
    await harness.append(cid, {**answers[1], "id": "r2"}, format=FormatName.GEMINI)
    assert (await harness.stored(cid)).state.head_seq == head


async def test_system_messages_that_begin_a_log_are_a_section(harness: Harness) -> None:
    """The answer says so; sent again they store nothing, later ones are messages.

    [log.system-messages]
    """
    cid = await harness.conversation()
    first = [{"role": "system", "content": "Be kind."}, {"role": "developer", "content": "Short."}]
    answer = await harness.append(cid, *first, user("hi"))
    assert (answer.system_section, [item.role for item in answer.messages]) == ("system", ["user"])
    again = await harness.append(cid, *first, says("hello"), {"role": "system", "content": "Now."})
    assert (again.system_section, again.head_seq) == ("system", 3)
    other = await harness.append(cid, {"role": "system", "content": "Else."}, user("so?"))
    assert (other.system_section, other.head_seq) == (None, 5)
    messages = (await harness.build(cid)).messages
    assert [(item["role"], item["content"]) for item in messages] == [
        ("system", "Be kind.\n\nShort."),
        ("user", "hi"),
        ("assistant", "hello"),
        ("system", "Now."),
        ("system", "Else."),
        ("user", "so?"),
    ]


@pytest.mark.parametrize(
    ("own", "batches", "sections", "seqs"),
    [
        ([], [["A"], ["B", user("hi")]], {"system": "A\n\nB"}, [0, 1]),
        ([("system", "Mine.")], [["A", user("hi")]], {"system": "Mine.\n\nA"}, [1]),
        ([("main", "A")], [["A", user("hi")], ["A", user("so?")]], {"main": "A"}, [1, 2]),
        ([], [[" ", user("hi")], [" ", user("so?")]], {}, [1, 3]),
    ],
)
async def test_no_text_of_sections_is_lost_or_repeated(
    harness: Harness,
    own: list[tuple[str, str]],
    batches: list[list[Any]],
    sections: dict[str, str],
    seqs: list[int],
) -> None:
    """What the caller stored stays, and what is stored is not added again."""
    stored = [{"name": name, "content": content} for name, content in own]
    cid = await harness.conversation(sections=stored)
    heads = []
    for batch in batches:
        sent = [{"role": "system", "content": m} if isinstance(m, str) else m for m in batch]
        answer = await harness.append(cid, *sent)
        assert answer.system_section == next(iter(sections), None)
        heads.append(answer.head_seq)
    assert heads == seqs
    found = json.loads((await harness.stored(cid)).settings.sections)
    assert {item["name"]: item["content"] for item in found} == sections


async def test_a_refused_batch_stores_no_section(harness: Harness) -> None:
    """The section is stored with the batch, and an idempotency key covers both."""
    cid = await harness.conversation()
    note = {"role": "system", "content": "Be kind."}
    with pytest.raises(UnpairedToolResult):
        await harness.append(cid, note, result("a"))
    with pytest.raises(Conflict):
        await harness.log.append(TENANT, cid, Append([note], CHAT, expected_seq=3))
    assert (await harness.stored(cid)).settings.sections == "[]"
    keyed = Append([note, user("hi")], CHAT, idempotency_key="k")
    first = await harness.log.append(TENANT, cid, keyed)
    again = await harness.log.append(TENANT, cid, keyed)
    assert isinstance(first, AppendAnswer)
    assert again == json.loads(json_text.dumps(first))
    assert first.system_section == "system"


async def test_of_two_concurrent_results_one_is_stored(harness: Harness) -> None:
    """The other is refused [log.pairing]."""
    cid = await harness.conversation()
    await harness.append(cid, user("hi"), asks("a"))
    answers = await asyncio.gather(
        *(harness.append(cid, result("a", f"{n}")) for n in range(3)), return_exceptions=True
    )
    assert sum(isinstance(answer, UnpairedToolResult) for answer in answers) == 2
    assert (await harness.stored(cid)).state.head_seq == 3


async def test_pages_in_both_orders(harness: Harness) -> None:
    """Both bounds are exclusive; every page is part of the whole log."""
    cid = await harness.conversation()
    await harness.append(cid, *(user(str(n)) for n in range(1, 8)))

    async def texts(**page: Any) -> list[str]:
        return [body["content"] for body in await bodies(harness, cid, **page)]

    assert await texts(limit=3) == ["1", "2", "3"]
    assert await texts(after_seq=3, limit=3) == ["4", "5", "6"]
    assert await texts(order="desc", limit=2) == ["7", "6"]
    assert await texts(order="desc", before_seq=6) == ["5", "4", "3", "2", "1"]
    assert await texts(after_seq=7) == []


async def test_an_append_returns_the_pressure_of_the_next_build(harness: Harness) -> None:
    """Its pressure and budget equal those of the next build [budget.levels]."""
    budget = {"context_window": 1100, "max_output_tokens": 100}
    cid = await harness.conversation({"budget": budget}, [{"name": "a", "content": "Be kind."}])
    while True:
        answer = await harness.append(cid, user("why " * 6), says("so " * 6))
        build = await harness.build(cid)
        assert answer.budget is not None
        if build["compaction"] is not None:
            break
        assert answer.budget == build["budget"]
        assert answer.pressure == build["pressure"]
        assert answer.notice == build["notice"]
        assert (answer.next_threshold, answer.tokens_to_next) == (
            build["next_threshold"],
            build["tokens_to_next"],
        )
    assert answer.pressure in ("compact", "blocked")
    after = await harness.append(cid, user("why"))
    assert after.budget is not None
    assert after.budget.used_tokens == (await harness.build(cid))["tokens_used"]


@pytest.mark.parametrize("counter", ["bytes_4", "chars_4", "chars_2_5"])
async def test_a_conversation_keeps_its_counter(harness: Harness, counter: str) -> None:
    """It counts its appends and its builds [tokens.counters]."""
    cid = await harness.conversation({"budget": {"counter": counter}})
    answer = await harness.append(cid, user("é" * 40), says("abc" * 10))
    expected = {"bytes_4": [24, 11], "chars_4": [14, 11], "chars_2_5": [20, 16]}[counter]
    assert [message.token_count for message in answer.messages] == expected
    assert (await harness.build(cid))["tokens_used"] == sum(expected)
