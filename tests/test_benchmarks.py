"""The parts of the benchmarks that decide what their figures mean."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from app.demo import Trace
from app.domain.summaries import SummaryAsk, summary_request
from benchmarks.model_server import summary_of
from benchmarks.prefix import shared_prefix
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
