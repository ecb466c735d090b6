"""The checks that benchmarks and crash tests rest on can fail: what is lost or doubled is told."""

from __future__ import annotations

from typing import Any

import pytest

from app.cli.demo import Answer
from tests.replay import Build, Tally, judge_delta, judge_log
from tests.writers import Difference, Message

SENT: list[Message] = [
    {"role": "user", "content": "Go on."},
    {"role": "assistant", "content": "Done.", "name": "agent"},
    {"role": "user", "content": "Go on."},
]


def log_of(messages: list[Message]) -> list[Message]:
    """Return messages as a log shows them: with ids and seqs of its own."""
    return [
        {**message, "id": f"new-{seq}", "seq": seq, "token_count": 5}
        for seq, message in enumerate(messages, 1)
    ]


OTHER: Message = {"role": "user", "content": "Stop."}
LOGS: list[tuple[list[Message], Difference]] = [
    (SENT, Difference()),
    (SENT[::-1], Difference()),
    (SENT[:2], Difference(lost=1)),
    ([], Difference(lost=3)),
    ([*SENT, SENT[1]], Difference(doubled=1)),
    ([*SENT, *SENT], Difference(doubled=3)),
    ([SENT[0], SENT[2], SENT[2], SENT[2]], Difference(lost=1, doubled=2)),
    ([*SENT[:2], OTHER], Difference(lost=1, unknown=1)),
    ([*SENT, OTHER], Difference(unknown=1)),
]


@pytest.mark.parametrize(("log", "told"), LOGS)
def test_a_replay_counts_what_its_transcript_lost_and_doubled(
    log: list[Message], told: Difference
) -> None:
    """A transcript that holds anything more or less often, or elsewhere, is a fault."""
    tally = Tally()
    judge_log("trace", SENT, log_of(log), tally)
    assert (tally.lost, tally.doubled, tally.read_back) == (told.lost, told.doubled, len(log))
    assert bool(tally.faults) is (log != SENT)
    total = Tally(lost=1, doubled=1)
    total.add(tally)
    assert (total.lost, total.doubled) == (1 + told.lost, 1 + told.doubled)


def built(epoch: int, *items: str, prefix_hash: str = "hash", **others: Any) -> dict[str, Any]:
    """Return the answer to a build with these messages."""
    messages = [{"role": "user", "content": text} for text in items]
    answer = {
        "epoch": epoch,
        "payload": {"messages": messages},
        "diagnostics": {"format": "openai_chat", "prefix_hash": prefix_hash},
        "cache_break_reason": "compaction" if epoch > 1 else None,
        "base_items": 0,
        "delta": False,
        "tail": [],
    }
    return answer | others


@pytest.mark.parametrize(
    ("answer", "is_compacted", "overtaken", "wrong"),
    [
        (built(1, "c", delta=True, base_items=2), False, 0, ""),
        (built(1, "c", delta=True, base_items=2, prefix_hash="x"), False, 0, "the whole payload"),
        (built(1, "c", "c", delta=True, base_items=2), False, 0, "the whole payload"),
        (built(1, delta=True, base_items=2), True, 0, "the whole payload"),
        (built(1, "a", "b", "c"), True, 0, "no delta inside epoch 1"),
        (built(2, "s", "c"), True, 1, ""),
        (built(2, "s", "c"), False, 0, "a new epoch by compaction, without a receipt"),
        (built(2, "c", delta=True, base_items=2), True, 0, "a new epoch"),
    ],
)
def test_a_delta_is_overtaken_by_a_compaction_alone(
    answer: dict[str, Any], is_compacted: bool, overtaken: int, wrong: str
) -> None:
    """A whole payload of another epoch is excused by a receipt, nothing else is [epochs.extend]."""
    tally = Tally()
    build = Build(built(1, "a", "b", "c"), 8_000, "copy", "place")
    judge_delta(built(1, "a", "b"), build, Answer(200, answer, 0.1), lambda: is_compacted, tally)
    assert tally.overtaken == overtaken
    assert [wrong in fault for fault in tally.faults] == [True] * bool(wrong)
