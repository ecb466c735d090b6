"""The parts of the benchmarks that decide what their figures mean."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from app.demo import Trace
from app.domain.policy import effective
from app.domain.summaries import SummaryAsk, summary_request
from benchmarks.model_server import summary_of
from benchmarks.offloading import MODES, OFF, Run, messages_shown, policy_of
from benchmarks.outputs import MARKS, log_text
from benchmarks.prefix import BEST, shared_prefix
from benchmarks.recorded import without_end
from tests.fake_llm import unpaired


def call(*ids: str) -> dict[str, Any]:
    """Return an assistant message that calls a tool once for each id."""
    function = {"name": "shell", "arguments": "{}"}
    calls = [{"id": call_id, "type": "function", "function": function} for call_id in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(call_id: str) -> dict[str, Any]:
    """Return the result of a call."""
    return {"role": "tool", "tool_call_id": call_id, "content": "done"}


def test_a_conversation_goes_on_from_its_start_with_new_call_ids() -> None:
    """A repeated conversation stays paired, and no id of the first time comes again (A3)."""
    messages = [{"role": "user", "content": "go"}, call("a", "b"), result("b"), result("a")]
    repeated = list(islice(without_end(Trace("t", [], [], messages)), 12))
    assert repeated[:4] == messages
    assert unpaired(repeated[1:4]) is unpaired(repeated[5:8]) is unpaired(repeated[9:]) is None
    ids = [entry["id"] for message in repeated for entry in message.get("tool_calls") or []]
    assert len(set(ids)) == len(ids) == 6


@pytest.mark.parametrize(
    ("before", "after", "shared"),
    [
        ([], [b"a"], 0),
        ([b"a", b"b"], [b"a", b"b", b"c"], 2),
        ([b"a", b"b", b"c"], [b"a", b"x", b"c"], 1),
        ([b"a", b"b"], [b"a"], 1),
        ([b"a"], [b"b"], 0),
    ],
)
def test_the_shared_prefix_ends_at_the_first_difference(
    before: list[bytes], after: list[bytes], shared: int
) -> None:
    """What a prefix cache could serve ends at the first item that differs (P8)."""
    assert shared_prefix(before, after) == shared


def test_the_model_summarises_the_transcript_alone_in_tags() -> None:
    """The model of the benchmarks answers in the tags asked for, shorter than its source (E3)."""
    text = " ".join(f"word{place}" for place in range(500))
    *_, last = summary_request(text, SummaryAsk())
    answer = summary_of(last["content"], 1000)
    assert answer.startswith("<summary>word0 word10 ") and answer.endswith("</summary>")
    assert len(answer) < len(text) / 5
    *_, last = summary_request(text, SummaryAsk(retain_directives=("paths",)))
    assert summary_of(last["content"], 1000).startswith("<retain>word0</retain>")


def test_a_searched_text_holds_each_marked_line_once() -> None:
    """A text has the size asked for, begins like a smaller one, and has one line per mark (F5)."""
    text = b"".join(log_text(8 * 2**20))
    assert len(text) == 8 * 2**20
    assert text.startswith(b"".join(log_text(2**20)))
    assert [text.count(mark) for mark in MARKS] == [1, 1]
    first, second = (text.index(mark) for mark in MARKS)
    assert len(text) / 4 < first < second


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_compares_the_same_window(mode: str) -> None:
    """What differs between two modes is how tool output is kept, and nothing else (F2, F3)."""
    policy = policy_of(Run(mode, Trace("t", [], [], []), 32_000))
    assert effective(policy).budget.context_window == 32_000
    assert {**policy, "tool_output": {}} == {
        **policy_of(Run(OFF, Trace("t", [], [], []), 32_000)),
        "tool_output": {},
    }


def test_the_best_possible_is_never_cut() -> None:
    """The history that only grows is neither offloaded, cleared nor compacted (P8)."""
    policy = effective(policy_of(Run(BEST, Trace("t", [], [], []), 32_000)))
    assert not policy.tool_output.enabled
    assert policy.strategy == "full_history"


def test_summaries_and_the_system_prompt_are_no_messages_shown() -> None:
    """Of a payload only what stands in the log counts as shown (A1)."""
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "go"},
        {"role": "user", "content": "[Earlier conversation summary: they went.]"},
        call("a"),
        result("a"),
    ]
    assert messages_shown({"messages": messages}) == 3
