"""Names of speakers and tools, and ids, in the form that each provider takes.

[formats.speakers, payload.call-ids, payload.item-ids]
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.conversations.view import View
from app.formats.message import FormatName
from app.payload.format_assemblers import assembler_of
from tests.domain.histories import (
    ANTHROPIC,
    CHAT,
    QUICK,
    RESPONSES,
    RawLog,
    raw_logs,
    rows_of,
    third,
)

CHAT_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
WORDS = st.text(st.sampled_from("aZ9_-. :é李"), max_size=12)


def items(log: RawLog, format: FormatName, view: View | None = None) -> list[Any]:
    """Return the items of a payload of the whole log."""
    assembler = assembler_of(format)(view or View(), third)
    for row in rows_of(log, format):
        assembler.add(row)
    return list(map(json.loads, assembler.items().wire_items))


def values(value: Any, key: str) -> list[Any]:
    """Return all values of a key, at any depth."""
    if isinstance(value, list):
        return [found for item in value for found in values(item, key)]
    if not isinstance(value, dict):
        return []
    own = [value[key]] if key in value else []
    return own + [found for item in value.values() for found in values(item, key)]


@pytest.mark.parametrize("format", FormatName)
@given(name=WORDS, role=st.sampled_from(("user", "assistant")), with_text=st.booleans())
def test_who_spoke_is_said(format: FormatName, name: str, role: str, with_text: bool) -> None:
    """A name is in the field, where the format takes it, else before the text as it is."""
    content: Any = "hello" if with_text else [{"type": "image_url", "image_url": {"url": "x"}}]
    message: dict[str, Any] = {"role": role, "name": name, "content": content}
    if role == "assistant":
        function = {"name": "f", "arguments": "{}"}
        call = {"id": "c1", "type": "function", "function": function}
        message |= {"content": "hello" if with_text else None, "tool_calls": [call]}
    sent = items(RawLog([(CHAT, {"role": "user", "content": "go"}), (CHAT, message)]), format)
    names = values(sent, "name") if format is CHAT else []
    spoken = [found for found in names if found != "f"]
    assert all(map(CHAT_NAME.fullmatch, spoken))
    if name.strip():
        assert spoken or f"{name}:" in json.dumps(sent, ensure_ascii=False)
    else:
        assert not spoken


@QUICK
@given(log=raw_logs())
def test_mistral_gets_short_ids(log: RawLog) -> None:
    """Every id is nine letters or digits, unique, and that of a call where it answers one."""
    sent = items(log, CHAT, View(reasoning_of=("mistral",)))
    calls = [call["id"] for item in sent for call in item.get("tool_calls", ())]
    assert all(re.fullmatch("[a-zA-Z0-9]{9}", call_id) for call_id in calls)
    assert len(set(calls)) == len(calls)
    assert sorted(values(sent, "tool_call_id")) == sorted(calls)


@QUICK
@given(log=raw_logs(), times=st.integers(2, 3))
def test_items_of_responses_have_ids_of_their_own(log: RawLog, times: int) -> None:
    """A log that has the same items again sends no id of an item twice."""
    sent = items(RawLog(log.messages * times), RESPONSES)
    ids = [item.get("id") for item in sent]
    ids = [item_id for item_id in ids if item_id is not None]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("answered", [True, False])
def test_a_result_has_the_fields_of_its_call(answered: bool) -> None:
    """Also where it came in another format, and where the service closes the call."""
    use = {"type": "tool_use", "id": "t1", "name": "click", "input": {}}
    caller = {"type": "program", "caller_id": "p1"}
    call = {"type": "function_call", "call_id": "t1", "name": "f", "arguments": "{}"}
    for format, asked, field in (
        (ANTHROPIC, {"role": "assistant", "content": [{**use, "toolset_name": "web"}]}, "web"),
        (RESPONSES, {**call, "caller": caller}, caller),
    ):
        answer = {"role": "tool", "tool_call_id": "t1", "content": "ok"}
        log = RawLog([(CHAT, {"role": "user", "content": "go"}), (format, asked)])
        log.messages += [(CHAT, answer)] if answered else []
        key = "toolset_name" if format is ANTHROPIC else "caller"
        assert values(items(log, format), key) == [field, field]
