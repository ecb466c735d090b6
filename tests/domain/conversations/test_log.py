"""Rows of the log: pairing judged by batch, pieces counted and kept.

[log.identical-strings, log.atomic-batch, log.pairing, formats.round-trip, tokens.what-counts]
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.domain.common import json_text
from app.domain.common.errors import UnpairedToolResult, ValidationError
from app.domain.common.messages import FormatName, Role, Text, clean
from app.domain.conversations.log.batch import BatchShape, batch_shape
from app.domain.conversations.log.draft import Draft, make_drafts
from app.domain.conversations.log.row import LogRow, parse_stored
from app.domain.formats import openai_chat
from app.domain.formats.compactions import is_compaction, without_compactions
from app.domain.models.tokens import count_payload_messages
from app.domain.tool_output.restoring import restore_result
from tests.domain.histories import (
    ANTHROPIC,
    CHAT,
    GEMINI,
    RESPONSES,
    RawLog,
    drafts_of,
    raw_logs,
    rows_of,
    third,
)

U, A, T = Role.USER, Role.ASSISTANT, Role.TOOL
ONLY_COMPACTION = {"type": "compaction", "encrypted_content": "Y29tcGFjdA==", "id": "cmp_1"}


def made(role: Role, *call_ids: str) -> Draft:
    """Return a draft with this role and these call ids."""
    return Draft(None, role, b"{}", None, 1, 0, call_ids, False, False, None)


class WholeLog:
    """The simple model: a log that knows every call, and takes a batch or refuses it whole."""

    def __init__(self) -> None:
        self.open: list[str] = []

    def try_append(self, batch: Sequence[Draft]) -> bool:
        """Append message by message, or nothing if one does not fit."""
        before = list(self.open)
        for entry in batch:
            if entry.role is T:
                (call_id,) = entry.call_ids
                if call_id not in self.open:
                    self.open = before
                    return False
                self.open.remove(call_id)
            else:
                self.open = list(entry.call_ids)
        return True


def applied(open_calls: Sequence[str], shape: BatchShape) -> list[str] | None:
    """Return the open calls after a batch as the append computes them, None if refused."""
    if not set(shape.required_calls) <= set(open_calls):
        return None
    if shape.closes_group:
        return list(shape.open_calls)
    return [call_id for call_id in open_calls if call_id not in shape.required_calls]


@st.composite
def batches(draw: st.DrawFn) -> list[Draft]:
    """Draw a batch of any messages; its results are paired only by chance."""
    ids = st.sampled_from("abc")
    message = st.one_of(
        st.just(made(U)),
        st.lists(ids, max_size=3, unique=True).map(lambda calls: made(A, *calls)),
        ids.map(lambda call_id: made(T, call_id)),
        ids.map(lambda call_id: made(T, call_id)),
    )
    return draw(st.lists(message, min_size=1, max_size=6))


@given(st.lists(batches(), max_size=8))
def test_a_batch_is_accepted_exactly_if_its_replay_is(given_: list[list[Draft]]) -> None:
    """The check by shape and state equals a check of the whole log [log.pairing]."""
    model, open_calls = WholeLog(), list[str]()
    for batch in given_:
        try:
            after = applied(open_calls, batch_shape(batch))
        except UnpairedToolResult:
            after = None
        assert model.try_append(batch) == (after is not None)
        open_calls = open_calls if after is None else after
        assert sorted(open_calls) == sorted(model.open)


@given(batches())
def test_a_shape_counts_turns(batch: list[Draft]) -> None:
    """Each user message starts a turn; user and assistant messages end a call group."""
    try:
        shape = batch_shape(batch)
    except UnpairedToolResult:
        return
    assert shape.turns == sum(entry.role is U for entry in batch)
    assert shape.closes_group == any(entry.role is not T for entry in batch)


def test_a_second_result_is_refused() -> None:
    """The error names the id of its call [log.pairing]."""
    with pytest.raises(UnpairedToolResult) as refused:
        batch_shape([made(A, "a"), made(T, "a"), made(T, "a")])
    assert refused.value.facts == {"tool_call_id": "a"}
    with pytest.raises(UnpairedToolResult):
        batch_shape([made(T, "a"), made(T, "a")])


def test_a_user_message_ends_the_open_group() -> None:
    """A user message while calls are open is allowed, and a later result is refused."""
    assert batch_shape([made(A, "a"), made(U)]).open_calls == ()
    with pytest.raises(UnpairedToolResult):
        batch_shape([made(A, "a"), made(U), made(T, "a")])


def original_of(entry: Draft, format: FormatName) -> Any:
    """Return the message of a draft, from its body and its blobs."""
    body = entry.body.decode()
    if entry.output is None or not entry.output.is_cut:
        return json.loads(body)
    (content,) = (
        b"".join(chunk.data for chunk in chunks)
        for blob, chunks in entry.blobs
        if blob.id == entry.output.ref
    )
    return restore_result(body, format, entry.output, content)


@given(raw_logs())
def test_bodies_are_stored_unchanged(log: RawLog) -> None:
    """Bodies hold the appended messages, and the parts of one message in order."""
    bodies = [(format, original_of(made_, format)) for format, made_ in drafts_of(log)]
    pieces: list[tuple[FormatName, Any]] = []
    for format, raw in log.messages:
        key = "parts" if format is GEMINI else "content"
        blocks = raw[key] if format in (ANTHROPIC, GEMINI) and raw["role"] == "user" else None
        results = [b for b in blocks or [] if isinstance(b, dict) and is_result(b)]
        rest = [] if not isinstance(blocks, list) else blocks[len(results) :]
        if not results:
            pieces.append((format, raw))
            continue
        pieces += [(format, raw | {key: [block]}) for block in results]
        pieces += [(format, raw | {key: rest})] if rest else []
    assert bodies == pieces


def is_result(block: dict[str, Any]) -> bool:
    """Whether a block of Anthropic, or a part of Gemini, is a tool result."""
    return block.get("type") == "tool_result" or "functionResponse" in block


@given(raw_logs())
def test_rows_have_the_same_roles_and_calls_in_every_format(log: RawLog) -> None:
    """A row for a chat build and one for its own format have the same roles and calls."""
    for chat, native in zip(rows_of(log, CHAT), rows_of(log, ANTHROPIC), strict=True):
        assert chat.role is native.role is chat.message().role
        assert len(chat.message().calls) == len(native.message().calls)
        assert native.message().tool_call_id in (None, *native.call_ids)
        stored = clean(parse_stored(chat.text, chat.format))
        assert replace(chat.message(), tool_call_id=stored.tool_call_id) == stored


@example(log=RawLog([(RESPONSES, ONLY_COMPACTION)]))
@given(log=raw_logs())
def test_stored_counts_are_those_of_the_chat_item(log: RawLog) -> None:
    """The stored count is the cost of the message as a chat item, without compaction items."""
    for row in rows_of(log, CHAT):
        message = row.message()
        if any(map(is_compaction, message.parts)):
            left = without_compactions(message)
            if left is None:
                assert row.tokens == 0
                continue
            message = left
        items = [openai_chat.render(message)]
        media = openai_chat.render_media(message)
        items += [media] if media is not None else []
        assert count_payload_messages(CHAT, items, third) == row.tokens
        labels = [
            p for p in openai_chat.adapt(message).parts if isinstance(p, Text) and p.stands_for
        ]
        assert row.has_media == (media is not None or bool(labels))
        if not row.has_media:
            shown = {"role", "content", "tool_calls", "tool_call_id", "name"}
            assert {k: v for k, v in json_text.loads(row.text).items() if k in shown} == items[0]


ANSWER = {"functionResponse": {"name": "read_file", "response": {"output": ""}}}


@given(raw_logs())
@example(RawLog([(FormatName.GEMINI, {"role": "user", "parts": [ANSWER, ANSWER]})]))
def test_a_fragment_is_stored_exactly_where_the_body_cannot_be_sent(log: RawLog) -> None:
    """A fragment is stored exactly where the body itself cannot be sent as it is."""
    for format, made_ in drafts_of(log):
        said = clean(parse_stored(made_.body, format))
        if said.role is Role.TOOL:  # an answer without an id is known by its place
            said = replace(said, tool_call_id=made_.call_ids[0])
        sent = openai_chat.render(said)
        if made_.fragment is None:
            assert format is CHAT
            assert json_text.loads(made_.body) == sent
        else:
            assert json_text.loads(made_.fragment) == json.loads(json_text.dump_payload(sent))


@pytest.mark.parametrize(
    ("raw", "pointer"),
    [
        ("text", "/messages/2"),
        ({"role": "system", "content": "x"}, "/messages/2/role"),
        ({"role": "user", "content": "x", "id": 5}, "/messages/2/id"),
        ({"role": "user", "content": "x", "id": ""}, "/messages/2/id"),
        ({"role": "user", "content": "x", "id": "a\x00"}, "/messages/2/id"),
        ({"role": "user", "content": "x", "timestamp": []}, "/messages/2/timestamp"),
        ({"role": "tool", "tool_call_id": "\ud800", "content": ""}, "/messages/2"),
        ({"role": "tool", "content": ""}, "/messages/2/tool_call_id"),
    ],
)
def test_an_invalid_message_is_refused_with_its_pointer(raw: Any, pointer: str) -> None:
    """It is a VALIDATION_ERROR with the pointer."""
    with pytest.raises(ValidationError) as refused:
        make_drafts(raw, CHAT, third, "/messages/2")
    assert [problem.pointer for problem in refused.value.problems] == [pointer]


def test_results_of_one_message_have_numbered_ids() -> None:
    """The results of one Anthropic message become several messages with numbered ids."""
    block = {"type": "tool_result", "content": "x"}
    raw = {
        "role": "user",
        "id": "m1",
        "content": [block | {"tool_use_id": "a"}, block | {"tool_use_id": "b"}],
    }
    made_ = make_drafts(raw, ANTHROPIC, third, "")
    assert [entry.id for entry in made_] == ["m1", "m1#1"]
    assert [entry.continues for entry in made_] == [False, True]
    assert [entry.call_ids for entry in made_] == [("a",), ("b",)]


def test_grouped_items_have_the_id_and_time_of_the_first() -> None:
    """Several Responses items are one message."""
    first = {"type": "reasoning", "id": "rs_1", "summary": [], "timestamp": "2026-01-01T00:00:00Z"}
    call = {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}"}
    (made_,) = make_drafts({"role": "assistant", "output": [first, call]}, RESPONSES, third, "")
    assert (made_.id, made_.timestamp) == ("rs_1", "2026-01-01T00:00:00Z")
    assert (made_.role, made_.call_ids, made_.call_names) == (A, ("c",), ("f",))
    again = make_drafts(
        {"role": "assistant", "output": [first, call], "id": "m1"}, RESPONSES, third, ""
    )
    assert again[0].id == "m1"
    (nameless,) = make_drafts({**call, "id": "x" * 300}, RESPONSES, third, "")
    assert nameless.id is None


def test_stored_gemini_responses_keep_their_calls() -> None:
    """The parts of a Gemini content answer the same calls after they are stored [log.pairing]."""
    parts = [{"functionResponse": {"name": "f", "response": {"output": said}}} for said in "ab"]
    made_ = make_drafts({"role": "user", "parts": parts}, GEMINI, third, "/messages/0")
    assert [entry.call_ids for entry in made_] == [("f",), ("f#2",)]
    assert made_[1].pointer == "/messages/0/parts/1/functionResponse"
    entry = made_[1]
    row = LogRow("m", 2, T, entry.tokens, 0, entry.call_ids, False, GEMINI, entry.body)
    assert (row.message().tool_call_id, row.message().text) == ("f#2", "b")
