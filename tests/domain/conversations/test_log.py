"""Rows of the log: pairing judged by batch, pieces counted and kept.

[log.identical-strings, log.atomic-batch, log.pairing, formats.round-trip, tokens.what-counts]
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.blobs.offloading import restore_result
from app.common import json_text
from app.common.errors import UnpairedToolResult
from app.conversations.messages.draft import Draft
from app.conversations.messages.row import NO_CALLS, BatchShape, Calls, batch_shape, parse_stored
from app.formats import LOG_PROVIDER
from app.formats.media import clean
from app.formats.message import EMPTY_MESSAGE, FormatName, Role, Text
from app.formats.reasoning import is_compaction, without_compactions
from app.models.tokens import count_payload_messages
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


def made(role: Role, *call_ids: str, runs: str = "", resolves: str = "") -> Draft:
    """Return a draft with these ids of the client's calls and of the provider's."""
    draft = Draft(role, b"{}", 1, call_ids=call_ids)
    return replace(draft, provider_calls=tuple(runs), resolves=tuple(resolves))


def is_usual(shape: BatchShape, before: Calls) -> bool:
    """Whether an append takes a shape without knowing the calls: what its statement asks."""
    required, start = set(shape.answered_calls), before.group_seq
    others = [seq for id, seq in before.open.items() if id not in required]
    return (
        required <= before.open.keys()
        and all(before.open[id] >= start for id in required)
        and not (shape.begins_answer and (before.provider or any(seq >= start for seq in others)))
    )


@st.composite
def batches(draw: st.DrawFn) -> list[Draft]:
    """Draw a batch of any messages; its results are paired only by chance."""
    ids, some = st.sampled_from("abc"), st.text("xy", max_size=1)
    message = st.one_of(
        st.builds(made, st.just(U), resolves=st.just("") | some),
        st.lists(ids, max_size=3, unique=True).map(lambda calls: made(A, *calls)),
        st.builds(made, st.just(A), runs=some, resolves=some),
        ids.map(lambda call_id: made(T, call_id)),
        ids.map(lambda call_id: made(T, call_id)),
    )
    return draw(st.lists(message, min_size=1, max_size=6))


@given(st.lists(batches(), max_size=8))
def test_a_batch_is_stored_as_its_messages_one_by_one_are(given_: list[list[Draft]]) -> None:
    """Known or not, the calls before a batch make no difference but to what is refused."""
    calls, head_seq = NO_CALLS, 0
    for batch in given_:
        after: Calls | None = calls
        drafts: list[Draft] = []
        for index, draft in enumerate(batch):
            try:
                one = batch_shape([draft], after, head_seq + index)
            except UnpairedToolResult:
                after = None
                break
            assert one is not None and after is not None
            after, drafts = one.after(after, head_seq + index), [*drafts, *one.drafts]
        usual = batch_shape(batch)
        if usual is not None and is_usual(usual, calls):
            assert (usual.after(calls, head_seq), list(usual.drafts)) == (after, drafts)
        if after is None:
            with pytest.raises(UnpairedToolResult):
                batch_shape(batch, calls, head_seq)
            continue
        whole = batch_shape(batch, calls, head_seq)
        assert whole is not None
        assert (whole.after(calls, head_seq), list(whole.drafts)) == (after, drafts)
        assert list(whole.after(calls, head_seq).open) == list(after.open)
        calls, head_seq = after, head_seq + len(batch)


def joins(*batch: Draft) -> str:
    """Return which messages of a new log join the group before them, as 0 and 1."""
    shape = batch_shape(batch, NO_CALLS)
    assert shape is not None
    return "".join(str(int(draft.joins)) for draft in shape.drafts)


def test_groups_come_of_ids() -> None:
    """An answer goes on until a result comes, and while its provider runs a call [log.groups]."""
    assert (
        joins(made(U), made(A, "a"), made(A, "b"), made(A), made(T, "a"), made(T, "b")) == "001111"
    )
    assert joins(made(A, "a"), made(T, "a"), made(A, "b"), made(T, "b")) == "0101"
    assert joins(made(A, "a", "b"), made(T, "a"), made(A), made(T, "b"), made(U)) == "01000"
    assert joins(made(A, "a", runs="x"), made(T, "a"), made(A, resolves="x"), made(A)) == "0110"
    assert joins(made(A, runs="x"), made(U, resolves="x"), made(A), made(U)) == "0100"
    assert joins(made(A, "a"), made(U), made(A, "b"), made(T, "a"), made(T, "b")) == "00011"


def test_a_result_answers_an_open_call_once() -> None:
    """The error names the id of its call. Equal ids are numbered in order [log.pairing]."""
    with pytest.raises(UnpairedToolResult) as refused:
        batch_shape([made(A, "a"), made(T, "a"), made(T, "a")], NO_CALLS)
    assert refused.value.facts == {"tool_call_id": "a"}
    twice = batch_shape([made(A, "a", "a#2"), made(T, "a"), made(U), made(T, "a")], NO_CALLS)
    assert twice is not None
    assert [draft.call_ids for draft in twice.drafts[1::2]] == [("a",), ("a#2",)]


def original_of(entry: Draft, format: FormatName) -> Any:
    """Return the message of a draft, from its body and its blobs."""
    body = entry.body.decode()
    if entry.output is None or not entry.output.is_cut:
        return json.loads(body)
    (content,) = (
        b"".join(chunk.data or b"" for chunk in chunks)
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
        if message.parts == (Text(EMPTY_MESSAGE),) and message.role is Role.ASSISTANT:
            continue  # of reasoning alone nothing is sent
        items = LOG_PROVIDER.render(LOG_PROVIDER.for_payload(message))
        assert count_payload_messages(CHAT, items, third) == row.tokens
        assert row.needs_body or len(items) == 1
        if not row.needs_body:
            shown = {"role", "content", "tool_calls", "tool_call_id", "name"}
            assert {k: v for k, v in json_text.loads(row.text).items() if k in shown} == items[0]


ANSWER = {"functionResponse": {"name": "read_file", "response": {"output": ""}}}


@given(raw_logs())
@example(RawLog([(FormatName.GEMINI, {"role": "user", "parts": [ANSWER, ANSWER]})]))
def test_a_chat_item_is_stored_exactly_where_the_body_cannot_be_sent(log: RawLog) -> None:
    """A chat_item is stored exactly where the body itself cannot be sent as it is."""
    for format, made_ in drafts_of(log):
        message = clean(parse_stored(made_.body, format))
        sent = LOG_PROVIDER.wire(LOG_PROVIDER.for_payload(message))
        if format is GEMINI:  # an answer without an id is known by its place
            continue
        if made_.chat_item is None:
            assert format is CHAT
            assert json_text.loads(made_.body) == sent
        else:
            assert json_text.loads(made_.chat_item) == json.loads(json_text.dump_payload(sent))
