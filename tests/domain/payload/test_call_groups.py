"""Calls and results in any order: every batch is taken, and every payload shows every result.

[log.pairing, log.groups, payload.late-results, payload.one-answer, payload.provider-calls,
log.system-messages]
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.conversations.messages.row import LogRow
from app.conversations.view import ENDLESS, Span, View
from app.formats.message import GOOGLE_FORMATS, NO_RESULT, FormatName
from app.models.tokens import count_payload_messages
from app.payload.assembler import CONTINUE_NOTE, Assembler
from app.payload.format_assemblers import assembler_of
from app.prompt.sections import DynamicTexts
from tests.domain.histories import (
    ANTHROPIC,
    CHAT,
    GEMINI,
    INTERACTIONS,
    QUICK,
    RESPONSES,
    RawLog,
    rows_of,
    third,
)
from tests.domain.payload.builders import asks, faults, result, user
from tests.judge.epochs import ITEMS

STATUS = DynamicTexts(("[Status]\nall is well",))
PROGRAM = {"type": "program", "id": "prog_1", "call_id": "p1", "code": "f()", "fingerprint": "x"}
PROGRAM_OUTPUT = {
    "type": "program_output",
    "id": "po_1",
    "call_id": "p1",
    "result": "done",
    "status": "completed",
}
SEARCH = {
    "type": "server_tool_use",
    "id": "srvtoolu_1",
    "name": "web_search",
    "input": {"query": "q"},
}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}


def called(format: FormatName, ids: list[str]) -> dict[str, Any]:
    """Return a message of the assistant in a format that calls a tool under each id."""
    match format:
        case FormatName.OPENAI_CHAT:
            return asks(*ids)
        case FormatName.OPENAI_RESPONSES:
            item = {"type": "function_call", "name": "f", "arguments": "{}"}
            return {"role": "assistant", "output": [item | {"call_id": id} for id in ids]}
        case FormatName.ANTHROPIC:
            blocks = [{"type": "tool_use", "id": id, "name": "f", "input": {}} for id in ids]
            return {"role": "assistant", "content": blocks}
        case FormatName.INTERACTIONS:
            step = {"type": "function_call", "name": "f", "arguments": {}}
            return {"role": "assistant", "output": [step | {"id": id} for id in ids]}
    calls = [{"functionCall": {"id": id, "name": "f", "args": {}}} for id in ids]
    return {"role": "model", "parts": calls}


def answered(format: FormatName, call_id: str, text: str) -> dict[str, Any]:
    """Return the result of a call in a format."""
    match format:
        case FormatName.OPENAI_CHAT:
            return result(call_id, text)
        case FormatName.OPENAI_RESPONSES:
            return {"type": "function_call_output", "call_id": call_id, "output": text}
        case FormatName.ANTHROPIC:
            block = {"type": "tool_result", "tool_use_id": call_id, "content": text}
            return {"role": "user", "content": [block]}
        case FormatName.INTERACTIONS:
            return {"type": "function_result", "call_id": call_id, "result": text}
    response = {"id": call_id, "name": "f", "response": {"output": text}}
    return {"role": "user", "parts": [{"functionResponse": response}]}


def said(format: FormatName, role: str, text: str) -> dict[str, Any]:
    """Return a text of the user, the assistant or the system in a format."""
    if format is GEMINI:
        return {"role": "model" if role == "assistant" else role, "parts": [{"text": text}]}
    if format is INTERACTIONS:
        kind = "model_output" if role == "assistant" else "user_input"
        return {"type": kind, "content": [{"type": "text", "text": text}]}
    return {"role": role, "content": text}


@st.composite
def interleavings(draw: st.DrawFn) -> RawLog:
    """Draw a log of any formats in which any open call may be answered at any time.

    The system may say something anywhere.
    """
    log = RawLog([(CHAT, user("start"))])
    ids = iter(range(100))
    for number in range(draw(st.integers(1, 14))):
        format = draw(st.sampled_from(FormatName))
        match draw(st.sampled_from("uasccrrr")):
            case "s":
                format = CHAT if format in GOOGLE_FORMATS else format  # which have none
                raw = said(format, "system", f"system {number};")
            case "u":
                raw = said(format, "user", f"user {number}")
            case "a":
                raw = said(format, "assistant", f"assistant {number}")
            case "c":
                new = [f"call_{next(ids)}" for _ in range(draw(st.integers(1, 3)))]
                log.open_calls += new
                raw = called(format, new)
            case _:
                if not log.open_calls:
                    continue
                call_id = draw(st.sampled_from(log.open_calls))
                log.open_calls.remove(call_id)
                raw = answered(format, call_id, f"output of {call_id};")
        log.messages.append((format, raw))
    return log


def built(format: FormatName, rows: list[LogRow], late_through: int) -> Assembler:
    """Return an assembler with the rows of an epoch that began at a seq."""
    assembler = assembler_of(format)(View(late_through=late_through), third)
    assembler.expect(rows)
    for row in rows:
        assembler.add(row)
    return assembler


@given(interleavings(), st.sampled_from(FormatName), st.data())
@QUICK
def test_every_payload_is_valid_and_has_every_result_and_system_message(
    log: RawLog, format: FormatName, data: st.DataObject
) -> None:
    """Whenever its epoch began; what an earlier payload of the epoch promised stays."""
    rows = rows_of(log, format)
    start = data.draw(st.integers(1, len(rows)))
    assembler = built(format, rows[:start], start)
    promised: list[bytes] = []
    for number in range(start, len(rows) + 1):
        for row in rows[number - 1 : number] if number > start else ():
            assembler.add(row)
        items = assembler.items(STATUS)
        wire = [json.loads(item) for item in items.wire_items]
        assert faults(format, {ITEMS[format]: wire}) == []
        assert items.wire_items[: len(promised)] == promised
        promised = items.wire_items[: items.stable_items]
        text = json.dumps(wire)
        for row in rows[:number]:
            if row.role == "tool":
                assert f"output of {row.call_ids[0]};" in text
            elif row.role == "system":
                assert row.message().text in text
        assert items == built(format, rows[:number], start).items(STATUS)
        counted = count_payload_messages(format, wire, third)
        assert items.tokens + items.tail_tokens == counted


def rows_in(format: FormatName, *raws: dict[str, Any]) -> list[LogRow]:
    """Return the rows of a log in one format."""
    return rows_of(RawLog([(format, raw) for raw in raws]), format)


def wire_of(format: FormatName, *raws: dict[str, Any]) -> tuple[list[dict[str, Any]], Any]:
    """Return the items of a log in its own format with a status, which are valid."""
    rows = rows_in(format, *raws)
    items = built(format, rows, len(rows)).items(STATUS)
    wire = [json.loads(item) for item in items.wire_items]
    assert faults(format, {ITEMS[format]: wire}) == []
    return wire, items


def test_messages_of_one_answer_are_one_message() -> None:
    """Their texts come before their calls, and the results behind all of them."""
    calls = asks("a"), asks("b"), {"role": "assistant", "content": "both"}
    results = result("b"), result("a")
    wire, _ = wire_of(CHAT, user("hi"), *calls, *results)
    assert [item["role"] for item in wire[:4]] == ["user", "assistant", "tool", "tool"]
    assert wire[1]["content"] == "both"
    assert [call["id"] for call in wire[1]["tool_calls"]] == ["a", "b"]
    assert NO_RESULT not in json.dumps(wire)


@pytest.mark.parametrize("is_paused", [True, False])
def test_a_call_of_the_provider_ends_the_payload_until_it_has_its_result(is_paused: bool) -> None:
    """Neither a note nor a status follows it."""
    answer = {"role": "assistant", "content": [{"type": "text", "text": "one"}, SEARCH]}
    goes_on = {"role": "assistant", "content": [FOUND, {"type": "text", "text": "two"}]}
    wire, items = wire_of(ANTHROPIC, user("hi"), answer, *(() if is_paused else (goes_on,)))
    assert wire[1]["content"][:2] == answer["content"]
    assert (items.tail_items, CONTINUE_NOTE in json.dumps(wire)) == (1 - is_paused, not is_paused)
    assert items.stable_items == 1  # the answer may go on
    assert [item["role"] for item in wire] == ["user", "assistant", "user"][: 3 - is_paused]


def test_only_results_follow_a_call_of_the_provider() -> None:
    """Its result comes in a later answer, or else a label stands for it once the user speaks."""
    call = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
    asked = {"role": "assistant", "content": [SEARCH, call]}
    answer = answered(ANTHROPIC, "toolu_1", "out")
    wire, items = wire_of(ANTHROPIC, user("hi"), asked, answer)
    assert wire[-1]["content"] == answer["content"]
    assert items.tail_items == 0
    goes_on = {"role": "assistant", "content": [FOUND]}
    wire, items = wire_of(ANTHROPIC, user("hi"), asked, answer, goes_on, user("thanks"))
    assert wire[1]["content"] == asked["content"]
    wire, items = wire_of(ANTHROPIC, user("hi"), asked, answer, user("stop"))
    assert wire[1]["content"][0] == {"type": "text", "text": "[server_tool_use: web_search; q]"}
    before = {"role": "assistant", "content": [call, SEARCH]}
    wire, _ = wire_of(ANTHROPIC, user("hi"), before, answer, user("stop"))
    assert wire[1]["content"] == [call]
    assembler = assembler_of(ANTHROPIC)(View(spans=(Span(1, 2), Span(3, ENDLESS))), third)
    for row in rows_in(ANTHROPIC, user("hi"), {"role": "assistant", "content": [SEARCH]}, goes_on):
        if assembler.view.shows(row.seq):
            assembler.add(row)
    assert (
        faults(ANTHROPIC, {"messages": [json.loads(i) for i in assembler.items().wire_items]}) == []
    )


def test_programs_and_approvals_are_one_group() -> None:
    """The client's results, the approval and what the provider says then belong to the call."""
    call: dict[str, Any] = {"type": "function_call", "call_id": "c1", "name": "f"}
    call |= {"arguments": "{}", "caller": {"type": "program", "caller_id": "p1"}}
    output = {"type": "function_call_output", "call_id": "c1", "output": "ok"}
    asked = {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "s", "name": "n"}
    asked |= {"arguments": "{}"}
    given_ = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    answer = {"role": "assistant", "output": [PROGRAM, call]}
    rows = rows_in(RESPONSES, user("hi"), answer, output, PROGRAM_OUTPUT)
    assert [row.joins for row in rows] == [False, False, True, True]
    rows = rows_in(RESPONSES, user("hi"), asked, given_, user("so?"))
    assert [row.joins for row in rows] == [False, False, True, False]


def test_an_asynchronous_call_is_answered_where_its_result_came() -> None:
    """Until then it has none, and other formats show the result as they do late ones."""
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "async": True}
    output = {"type": "function_call_output", "call_id": "c1", "output": "ok"}
    rows = rows_in(RESPONSES, user("hi"), call, user("and?"), output)
    for late_through in (3, 4):
        items = built(RESPONSES, rows, late_through).items()
        assert [json.loads(item) for item in items.wire_items][1::2] == [call, output]
    waiting = built(RESPONSES, rows_in(RESPONSES, user("hi"), call), 2).items()
    assert NO_RESULT not in str(waiting.wire_items)
