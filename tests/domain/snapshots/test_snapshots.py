"""Entries, imports, copies and the ids of their calls.

[snapshots.import, snapshots.restore-elsewhere]
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.formats.message import FormatName, Message, Role, Text, ToolCall
from app.snapshots.restored_messages import SAVED_FIELDS, message_of, names_of, saved_of
from app.snapshots.restores import parse_import
from app.snapshots.snapshot_summary import extract_snapshot_summary
from tests.domain.histories import QUICK, RawLog, raw_logs
from tests.snapshot_files import entry

CHAT, RESPONSES = FormatName.OPENAI_CHAT, FormatName.OPENAI_RESPONSES
ANTHROPIC, GEMINI = FormatName.ANTHROPIC, FormatName.GEMINI
OWN = {name: entry({})[name] for name in SAVED_FIELDS}


def call(call_id: str, name: str = "f") -> dict[str, Any]:
    """Return a chat call."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}


# --- saved messages ------------------------------------------------------------------------------

fields = st.sampled_from((*SAVED_FIELDS, "given", "role", "content", "mood"))
values = st.one_of(st.none(), st.booleans(), st.text(max_size=3), st.just({"a": 1}))


@given(st.dictionaries(fields, values))
def test_an_entry_preserves_its_message(message: dict[str, Any]) -> None:
    """A saved message has all fields of its message, and its own [snapshots.import]."""
    shown = saved_of(message, OWN)
    assert {name: shown[name] for name in OWN} == OWN
    assert message_of(shown) == message
    assert message_of(json.loads(json.dumps(shown))) == message


# --- importing -------------------------------------------------------------------------------


@QUICK
@given(raw_logs())
def test_every_log_can_be_imported(log: RawLog) -> None:
    """An import accepts each message of a log, and returns it unchanged."""
    made = [
        saved_of(raw, OWN | {"id": f"m{place}", "format": format})
        for place, (format, raw) in enumerate(log.messages)
    ]
    found = parse_import(json.loads(json.dumps(made)))
    sources = [source for of_one in found.values() for source in of_one]
    for (format, raw), source in zip(log.messages, sources, strict=True):
        assert source.format is format
        assert source.message == json.loads(json.dumps(raw))


# --- copies ----------------------------------------------------------------------------------

call_ids = st.sampled_from(("c1", "c2", "c3", "toolu_A", "bad id!", "x" * 60))


@given(st.lists(call_ids, unique=True), st.frozensets(call_ids), st.text(max_size=5))
def test_only_clashing_calls_are_renamed(
    calls: list[str], used: frozenset[str], origin: str
) -> None:
    """A used id is replaced by an unused one, always the same; others stay."""
    names = names_of(calls, used, origin)
    assert {call for call in calls if names[call] != call} == {*calls} & used
    assert len({*names.values()}) == len(calls)
    assert not {*names.values()} & used
    assert names == names_of(calls, used, origin)


# --- the input of a summary ------------------------------------------------------------------


def test_an_extracted_summary() -> None:
    """Without a model a summary has two to four sentences [snapshots.summary]."""
    asked = Message(Role.USER, (Text("Book a train to Bergen. Soon!"),))
    answered = Message(Role.ASSISTANT, (Text("The night train is booked. Anything else?"),))
    calling = Message(Role.ASSISTANT, (ToolCall("c", "hotels", "{}"),))
    more = Message(Role.USER, (Text("And a hotel"),))
    assert extract_snapshot_summary(1, 1, [asked], [asked]) == (
        "A window of 1 message of 1 conversation. Asked was “Book a train to Bergen”. "
        "The last request is not answered yet."
    )
    assert extract_snapshot_summary(42, 2, [asked, answered], [answered, more, calling]) == (
        "A window of 42 messages of 2 conversations. "
        "First asked was “Book a train to Bergen”, last “And a hotel”. "
        "The last answer began “The night train is booked”. Open is the result of hotels."
    )
    assert extract_snapshot_summary(3, 1, [], []) == (
        "A window of 3 messages of 1 conversation. Nothing was asked in it."
    )
