"""Entries, imports, copies and the ids of their calls.

[snapshots.import, snapshots.restore-elsewhere]
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.compaction.summaries.snapshot_summary import extract_snapshot_summary
from app.conversations.messages.draft import make_drafts
from app.conversations.messages.row import NO_CALLS, batch_shape
from app.formats import PROVIDERS
from app.formats.message import FormatName, Message, Role, Text, ToolCall
from app.snapshots.copies import (
    ENTRY_FIELDS,
    SourceMessage,
    copy_id,
    copy_of,
    entry_of,
    message_of,
    pending_calls,
    renamed_calls,
)
from app.snapshots.service import parse_import
from tests.domain.histories import QUICK, RawLog, raw_logs
from tests.snapshot_files import SESSION_ID, entry

CHAT, RESPONSES = FormatName.OPENAI_CHAT, FormatName.OPENAI_RESPONSES
ANTHROPIC, GEMINI = FormatName.ANTHROPIC, FormatName.GEMINI
OWN = {name: entry({})[name] for name in ENTRY_FIELDS}


def call(call_id: str, name: str = "f") -> dict[str, Any]:
    """Return a chat call."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}


def groups(log: RawLog) -> list[list[tuple[FormatName, dict[str, Any]]]]:
    """Return the messages of a log, each call group together."""
    found: list[list[tuple[FormatName, dict[str, Any]]]] = []
    for format, raw in log.messages:
        if not PROVIDERS[format].results(raw):
            found.append([])
        found[-1].append((format, raw))
    return found


# --- entries ---------------------------------------------------------------------------------

fields = st.sampled_from((*ENTRY_FIELDS, "given", "role", "content", "mood"))
values = st.one_of(st.none(), st.booleans(), st.text(max_size=3), st.just({"a": 1}))


@given(st.dictionaries(fields, values))
def test_an_entry_preserves_its_message(message: dict[str, Any]) -> None:
    """An entry has all of its message, with any fields, and the entry fields [snapshots.import]."""
    shown = entry_of(message, OWN)
    assert {name: shown[name] for name in OWN} == OWN
    assert message_of(shown) == message
    assert message_of(json.loads(json.dumps(shown))) == message


# --- importing -------------------------------------------------------------------------------


@QUICK
@given(raw_logs())
def test_every_log_can_be_imported(log: RawLog) -> None:
    """An import accepts each message of a log, and returns it unchanged."""
    made = [
        entry_of(raw, OWN | {"id": f"m{place}", "format": format})
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
    fresh = renamed_calls(calls, used, origin)
    assert fresh.keys() == {*calls} & used
    assert not {*fresh.values()} & ({*calls} | used)
    assert len({*fresh.values()}) == len(fresh)
    assert fresh == renamed_calls(calls, used, origin)
    crowded = renamed_calls(calls, used | {*fresh.values()}, origin)
    assert not {*crowded.values()} & {*fresh.values()}
    waiting = [fresh.get(name, name) for name in calls]
    assert pending_calls(calls, waiting, origin) == {name: fresh.get(name, name) for name in calls}
    assert pending_calls([*calls, "unknown"], waiting, origin) is None


@QUICK
@given(raw_logs(), st.frozensets(call_ids))
def test_copies_are_valid_messages(log: RawLog, used: frozenset[str]) -> None:
    """Copies parse and pair like their sources, name them, and have no timestamp."""
    drafts = []
    fresh: dict[str, str] = {}
    for group in groups(log):
        for place, (format, raw) in enumerate(group):
            timed = raw | {"timestamp": "2026-02-12T14:30:00Z"}
            source = SourceMessage("conversation", f"m{place}", "", format, timed)
            own = renamed_calls(source.own_calls, used, "origin") if not place else {}
            fresh |= {call: own.get(call, call) for call in (source.own_calls if not place else ())}
            copy = copy_of(source, copy_id("target", source), SESSION_ID, fresh)
            made = make_drafts(copy, format, len, "")
            ids = source.ids_in("target", copy_id("target", source))
            assert tuple(item.id for item in made) == ids
            assert all(item.timestamp is None for item in made)
            assert copy["restored_from"] == {
                "session_id": SESSION_ID,
                "conversation_id": "conversation",
                "message_id": f"m{place}",
                "timestamp": "2026-02-12T14:30:00Z",
            }
            drafts += made
    if drafts:
        assert batch_shape(drafts, NO_CALLS) is not None


def test_a_copied_item_of_the_model_stays_separate() -> None:
    """A copied Responses item is not joined with its neighbours [snapshots.restore-elsewhere]."""
    item = {"type": "message", "role": "assistant", "content": "hi", "timestamp": "2026-01-01"}
    copy = copy_of(SourceMessage("c", "m", "", RESPONSES, item), "id", SESSION_ID, {})
    assert copy["output"] == [{"type": "message", "role": "assistant", "content": "hi"}]
    assert copy["restored_from"]["timestamp"] == "2026-01-01"
    (parsed,) = PROVIDERS[RESPONSES].parse(copy, "")
    assert parsed == PROVIDERS[RESPONSES].parse(item, "")[0]


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
