"""Appending and reading back over a real database: atomic, idempotent, ordered.

[log.any-format, log.idempotency-key, log.pairing]
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.conversations.messages.stored_results import Content
from app.formats.message import FormatName
from tests.domain.histories import raw_logs
from tests.services.fakes import Harness, says, user


async def bodies(harness: Harness, cid: str) -> list[Any]:
    """Return messages of the log as they were appended."""
    found = await harness.messages(cid)
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
