"""The prompt's items: valid for their provider, stable in an epoch, counted exactly.

[breakpoints.listed, payload.valid]
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from app.conversations.view import ENDLESS, RETAIN_PREFIX, SUMMARY_PREFIX, Span, View
from app.formats import PROVIDERS
from app.formats.media import clean
from app.formats.message import EMPTY_MESSAGE, NO_RESULT, FormatName, Message, Reasoning, Role, Text
from app.formats.tools import own_id
from app.models.tokens import count_payload_messages
from app.payload.assembler import CONTINUE_NOTE, START_NOTE, WINDOW_NOTE, Assembler
from app.payload.format_assemblers import assembler_of
from app.payload.items import MAX_BREAKPOINTS, PayloadItems, breakpoint_json, with_breakpoints
from app.prompt.sections import DynamicTexts
from tests.domain.histories import (
    ANTHROPIC,
    CHAT,
    INTERACTIONS,
    QUICK,
    RESPONSES,
    RawLog,
    rows_of,
    third,
)
from tests.domain.payload.builders import (
    EVERYTHING,
    RICH_LOG,
    RICH_VIEW,
    Case,
    cases,
    folded,
    result,
    row,
    user,
)
from tests.judge import refusals
from tests.judge.epochs import ITEMS

THINKING = ("thinking", "redacted_thinking")


def parsed(items: PayloadItems) -> list[dict[str, Any]]:
    """Return the items as a provider reads them."""
    return [json.loads(item) for item in items.wire_items]


def issues(case: Case, wire: list[dict[str, Any]]) -> list[str]:
    """Return what the provider's types and rules say against a payload."""
    return refusals(case.format, {ITEMS[case.format]: wire})


def messages_of(format: FormatName, wire: Sequence[dict[str, Any]]) -> list[Message]:
    """Read items back into neutral messages; system text as a user's."""
    found: list[Message] = []
    for _, raw in PROVIDERS[format].group_items(wire):
        is_system = raw.get("role") in ("system", "developer")
        answered: set[str] = set()
        for read in PROVIDERS[format].parse({**raw, "role": "user"} if is_system else raw, ""):
            if read.role is not Role.TOOL:
                found.append(read)
                continue
            call_id = own_id(read.tool_call_id or "", answered)  # Gemini's are known by their order
            found.append(replace(read, tool_call_id=call_id))
            answered.add(call_id)
    return found


def items_of(
    format: FormatName, *raws: dict[str, Any], view: View = EVERYTHING
) -> list[dict[str, Any]]:
    """Fold raw chat messages and return the items."""
    rows = rows_of(RawLog([(CHAT, raw) for raw in raws]), format)
    assembler = assembler_of(format)(view, third)
    for made in rows:
        if view.shows(made.seq):
            assembler.add(made)
    assembler.finish()
    return parsed(assembler.items())


def assembled(log: RawLog, format: FormatName, view: View = EVERYTHING) -> Assembler:
    """Fold a log for a format."""
    assembler = assembler_of(format)(view, third)
    rows = rows_of(log, format)
    assembler.expect(rows)
    for made in rows:
        assembler.add(made)
    assembler.finish()
    return assembler


# --- validity -------------------------------------------------------------------------------


@given(cases())
@QUICK
def test_every_payload_is_valid_for_its_provider(case: Case) -> None:
    """Any view of any log, at any point of it, satisfies the provider's types and rules.

    [neutral.results-refer-to-calls, neutral.calls-have-results, neutral.unique-call-ids,
     payload.call-ids]
    """
    assembler = assembler_of(case.format)(case.view, third)
    for shown in case.shown:
        assembler.add(shown)
        assert issues(case, parsed(assembler.items())) == []
    assembler.finish()
    assert issues(case, parsed(assembler.items())) == []


# --- stability ------------------------------------------------------------------------------


@given(cases())
@QUICK
def test_each_build_extends_the_one_before_byte_for_byte(case: Case) -> None:
    """The stable items of every build are a byte-identical prefix of all later ones."""
    assembler = folded(case, [])
    builds = [assembler.items()]
    for shown in case.shown:
        assembler.add(shown)
        builds.append(assembler.items())
    last = builds[-1]
    for build in builds:
        assert build.stable_items <= len(build.wire_items)
        assert last.wire_items[: build.stable_items] == build.wire_items[: build.stable_items]
    assert [b.stable_items for b in builds] == sorted(b.stable_items for b in builds)
    digests = {build.stable_items: build.prefix_digest for build in builds}
    assert all(digests[build.stable_items] == build.prefix_digest for build in builds)


@given(cases(), st.data())
@QUICK
def test_warm_and_cold_builds_are_identical(case: Case, data: st.DataObject) -> None:
    """Folding on from an earlier build equals folding everything at once. [neutral.same-bytes]"""
    first = sum(made.seq <= case.state for made in case.shown)
    cut = data.draw(st.integers(first, len(case.shown)))
    warm = folded(case, case.shown[:cut])
    warm.items()
    for shown in case.shown[cut:]:
        warm.add(shown)
    assert warm.items() == folded(case).items()


@given(cases())
@QUICK
def test_synthetic_results_of_open_calls_are_not_stable(case: Case) -> None:
    """What closes a call at the end of the log may yet give way to its result.

    [payload.synthetic-results]
    """
    open_calls = set(case.log.open_calls)
    shown = {call_id for made in case.shown for call_id in made.call_ids}
    items = folded(case).items()
    if not open_calls & shown or not case.shown[-1].call_ids:
        return
    if case.shown[-1] is not case.rows[-1] or case.view.results_cleared_through:
        return
    before = folded(case).items()
    answer = row(case.rows[-1].seq + 1, result(case.log.open_calls[0], "the late result"))
    later = folded(case)
    later.add(answer)
    after = later.items()
    assert after.wire_items[: before.stable_items] == before.wire_items[: before.stable_items]
    assert items.stable_items < len(items.wire_items)
    assert "the late result" in b"".join(after.wire_items).decode()


# --- counting -------------------------------------------------------------------------------


# --- what is shown --------------------------------------------------------------------------


def essence(message: Message) -> tuple[Any, ...]:
    """Return what a message says, apart from ids, names and media's spelling."""
    return (message.role, *(part.text for part in message.parts if isinstance(part, Text)))


@given(cases(st.just(CHAT)))
@QUICK
def test_items_are_a_subsequence_of_the_log(case: Case) -> None:
    """Only log messages in their order, summaries, notes and synthetic results are sent."""
    sources = [PROVIDERS[CHAT].adapt(clean(made.message())) for made in case.shown]
    own = {*case.view.summary_texts(), WINDOW_NOTE, START_NOTE, CONTINUE_NOTE, NO_RESULT}
    labels = ("[media from tool call ", "[result of tool call ", "[tool output trimmed; ref=")
    users = [essence(source) for source in sources if source.role is Role.USER]
    results = [essence(source) for source in sources if source.role is Role.TOOL]
    said = "\n".join(source.text for source in sources if source.role is Role.ASSISTANT)
    for item in messages_of(CHAT, parsed(folded(case).items())):
        if item.text in own or item.text.startswith(labels) or item.text == "[media follows]":
            continue
        match item.role:
            case Role.USER:
                assert essence(item) == users.pop(0)
            case Role.ASSISTANT:
                assert item.text in said or item.text in said.replace(f"\n{EMPTY_MESSAGE}", "")
            case Role.TOOL:
                assert essence(item) in results
    assert users == []


def texts_in(format: FormatName, items: PayloadItems) -> list[str]:
    """Return every text of a payload, in order, whatever message it stands in."""
    messages = messages_of(format, parsed(items))
    return [part.text for made in messages for part in made.parts if isinstance(part, Text)]


@given(cases())
@QUICK
def test_summaries_of_the_hidden_range_appear_once_in_order(case: Case) -> None:
    """Retain, summaries and note occur once, side by side, each in its place."""
    expected = list(case.view.summary_texts())
    found = texts_in(case.format, folded(case).items())
    labels = (SUMMARY_PREFIX, RETAIN_PREFIX)
    assert [text for text in found if text.startswith(labels)] == [
        text for text in expected if text.startswith(labels)
    ]
    if expected:
        at = found.index(expected[0])
        assert found[at : at + len(expected)] == expected


def test_a_result_has_the_type_of_its_call() -> None:
    """A result in another format, a placeholder, a synthetic one: all answer in kind."""
    custom = {"type": "custom_tool_call", "call_id": "c", "name": "g", "input": "free"}
    search = {"type": "tool_search_call", "call_id": "d", "execution": "client", "arguments": {}}
    asked = {"role": "assistant", "output": [custom, search]}
    log = RawLog([(CHAT, user("hi")), (RESPONSES, asked), (CHAT, result("c", "x" * 900))])
    for view, said in (
        (EVERYTHING, "x" * 900),
        (View(results_cleared_through=3), "[tool output trimmed"),
    ):
        items = assembled(log, RESPONSES, view).items()
        wire = parsed(items)
        assert [item["type"] for item in wire[3:]] == [
            "custom_tool_call_output",
            "tool_search_output",
        ]
        assert wire[3]["output"].startswith(said)
        assert wire[4]["tools"] == []
        assert items.tokens == count_payload_messages(RESPONSES, wire, third)


def answered(part: dict[str, Any]) -> Any:
    """Return the id and the output of a function response, or the kind of another part."""
    answer = part.get("functionResponse")
    return next(iter(part)) if answer is None else (answer["id"], answer["response"]["output"])


SYSTEM_ROLES = {CHAT: "system", RESPONSES: "developer", ANTHROPIC: "system"}


@pytest.mark.parametrize("format", FormatName)
@pytest.mark.parametrize("as_system", [True, False])
def test_the_tail_is_behind_the_history(format: FormatName, as_system: bool) -> None:
    """As text of the system, where the format takes it there. [sections.dynamic-position]"""
    assembler = assembled(RawLog([(CHAT, user("hi"))]), format)
    before = assembler.items()
    items = assembler.items(DynamicTexts(("one", "two"), as_system=as_system))
    assert items.wire_items[: before.stable_items] == before.wire_items[: before.stable_items]
    last = parsed(items)[-1]
    role = SYSTEM_ROLES.get(format, "user") if as_system else "user"
    assert last.get("role", last.get("type")) == ("user_input" if format is INTERACTIONS else role)
    assert "one" in json.dumps(last) and "two" in json.dumps(last)
    counted = count_payload_messages(format, parsed(items), third)
    assert (items.tail_items, items.tokens + items.tail_tokens) == (1, counted)


LOOKBACK_BLOCKS = 19
"""Anthropic finds an earlier cache entry at most this many blocks before a mark."""

# --- cache marks ----------------------------------------------------------------------------


@given(cases(st.just(ANTHROPIC)))
@QUICK
def test_breakpoints_are_few_near_the_end_and_on_blocks_of_the_log(case: Case) -> None:
    """At most four breakpoints, at most 19 blocks apart except for thinking between them."""
    items = folded(case).items()
    assert len(items.breakpoints) <= MAX_BREAKPOINTS
    assert list(items.breakpoints) == sorted(set(items.breakpoints), reverse=True)
    wire = parsed(items)
    places = []
    for mark in items.breakpoints:
        marked = json.loads(
            with_breakpoints(
                items.wire_items[mark.item_index],
                breakpoint_json(PROVIDERS[FormatName.ANTHROPIC]),
                [mark.byte_offset],
            )
        )
        (at,) = [n for n, block in enumerate(marked["content"]) if "cache_control" in block]
        assert marked["content"][at].pop("cache_control") == {"type": "ephemeral"}
        assert marked == wire[mark.item_index]
        assert wire[mark.item_index]["content"][at]["type"] not in THINKING
        places.append(sum(len(item["content"]) for item in wire[: mark.item_index]) + at)
    thoughts = sum(block["type"] in THINKING for item in wire for block in item["content"])
    for newer, older in pairwise(places):
        assert newer - older <= LOOKBACK_BLOCKS + thoughts


def test_the_newest_block_of_the_log_is_marked() -> None:
    """The prefix that the next build shares is the one to cache; older marks stay.

    [breakpoints.fixed-grid]
    """
    raws = [raw for n in range(60) for raw in (user(f"q{n}"), {**user("a"), "role": "assistant"})]
    rows = rows_of(RawLog([(ANTHROPIC, raw) for raw in raws]), ANTHROPIC)
    assembler = assembler_of(ANTHROPIC)(EVERYTHING, third)
    for made in rows:
        assembler.add(made)
    items = assembler.items()
    assert [mark.item_index for mark in items.breakpoints] == [119, 104, 89, 74]
    assert items.stable_items == 119


# --- single rules ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("view", "note"), [(EVERYTHING, START_NOTE), (View(spans=(Span(2, ENDLESS),)), WINDOW_NOTE)]
)
def test_a_note_precedes_a_payload_that_would_start_with_an_assistant(
    view: View, note: str
) -> None:
    """The first item is a user message, a note where the log has none there.

    [payload.starts-with-user]
    """
    says = {"role": "assistant", "content": "hello"}
    for format in FormatName:
        wire = items_of(format, says, says, view=view)
        assert messages_of(format, wire[:1])[0].text == note


COMPACTED = {"type": "compaction", "encrypted_content": "Y29tcGFjdA=="}
FAILED = {"role": "assistant", "content": [{"type": "compaction", "content": None}]}


@pytest.mark.parametrize("format", FormatName)
@pytest.mark.parametrize(
    ("made_in", "first", "note"),
    [
        (RESPONSES, COMPACTED, WINDOW_NOTE),
        (RESPONSES, {"role": "assistant", "output": [COMPACTED]}, WINDOW_NOTE),
        (ANTHROPIC, FAILED, START_NOTE),
    ],
)
def test_a_note_stands_for_a_first_item_that_is_not_sent(
    format: FormatName, made_in: FormatName, first: dict[str, Any], note: str
) -> None:
    """What only a left out item stands for is not lost silently, nor is the payload empty.

    [payload.valid, payload.starts-with-user, compaction.provider-family]
    """
    says = {"role": "assistant", "content": "hello"}
    alone = assembled(RawLog([(made_in, first)]), format).items()
    assert issues(Case(RawLog(), format, EVERYTHING, 1), parsed(alone)) == []
    items = assembled(RawLog([(made_in, first), (CHAT, says)]), format).items()
    for found in (alone, items):
        assert messages_of(format, parsed(found)[:1])[0].text.startswith(note)
    assert "hello" in texts_in(format, items)
    late = assembled(RawLog([(CHAT, user("hi")), (made_in, first)]), format).items()
    assert texts_in(format, late)[:1] == ["hi"]


def test_several_summaries_have_the_requested_role() -> None:
    """With `summary_role: system` each of them is a system message, the kept ones not.

    [summary.role]
    """
    wire = items_of(CHAT, *RICH_LOG, view=replace(RICH_VIEW, summary_as_system=True))
    assert [item["role"] for item in wire[:5]] == ["user", "system", "system", "system", "user"]
    assert "system" not in {item["role"] for item in wire[5:]}


@given(cases(st.just(ANTHROPIC)))
@QUICK
def test_thinking_is_replayed_only_after_its_epoch_began(case: Case) -> None:
    """Signed thinking goes back verbatim after `reasoning_after`, and never before.

    At the end of a message it goes with the next one of the assistant, or not at all.
    """
    makers: set[FormatName] = set()
    for made in case.shown:
        if made.role is Role.ASSISTANT:
            makers = {made.format} | (makers if made.joins else set())
            assume(len(makers) == 1 or ANTHROPIC not in makers)  # thinking cannot follow a call
    wanted: list[Any] = []
    held: list[Any] = []
    for made in case.shown:
        if made.role is not Role.ASSISTANT or made.format is not ANTHROPIC:
            held = []
        if made.seq <= case.view.reasoning_after or made.role is not Role.ASSISTANT:
            continue
        parts = made.message().parts
        said = max((i for i, p in enumerate(parts) if not isinstance(p, Reasoning)), default=-1)
        blocks = [
            (i < said, p.block)
            for i, p in enumerate(parts)
            if isinstance(p, Reasoning) and p.format is ANTHROPIC
        ]
        wanted += held if said >= 0 else []
        wanted += [block for is_inside, block in blocks if is_inside]
        held = (held if said < 0 else []) + [block for is_inside, block in blocks if not is_inside]
    sent = [
        block
        for item in parsed(folded(case).items())
        for block in item["content"]
        if block["type"] in THINKING
    ]
    assert sent == wanted
