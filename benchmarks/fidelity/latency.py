"""How long an extractive compaction takes at different lengths of a conversation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import chain, count, islice
from statistics import median
from time import perf_counter

from app.demo import Client
from benchmarks.fidelity.client import Conversation
from benchmarks.fidelity.drive import EXTRACTIVE
from benchmarks.fidelity.planted.generated import generated
from benchmarks.fidelity.planted.wording import Wording
from benchmarks.figures import ms
from tests.payload_tokens import payload_tokens

LENGTHS = (100, 1_000, 10_000)
QUICK_LENGTHS = (100, 1_000)
POLICY = {
    "budget": {"context_window": 4_000_000},
    "tool_output": {"enabled": False},
    "compaction": {"auto": False, "model": EXTRACTIVE},
}
SHARE = 0.2
DRY_RUNS = 3


def rows(url: str, words: Wording, strategies: Sequence[str], quick: bool) -> Iterator[list[str]]:
    """Yield a row for each length and strategy: the median time of a dry run, and of the call."""
    sessions = (generated(words, f"latency-{number}") for number in count())
    rounds = chain.from_iterable(session.rounds for session in sessions)
    lengths = QUICK_LENGTHS if quick else LENGTHS
    messages = list(islice(chain.from_iterable(rounds), lengths[-1]))
    with closing(Client(url)) as client:
        for length in lengths:
            conversation = Conversation(client, POLICY)
            conversation.append(messages[:length])
            tokens = payload_tokens({"messages": messages[:length]})
            for strategy in strategies:
                times = _times(conversation, strategy, int(SHARE * tokens))
                yield [strategy, f"{length:,}", f"{tokens:,}", *times]


def _times(conversation: Conversation, strategy: str, target: int) -> list[str]:
    """Return the times as text; the compaction is undone for the next strategy."""
    asked = {"strategy": strategy, "target_tokens": target}
    times = []
    for _ in range(DRY_RUNS):
        began = perf_counter()
        conversation.ask("POST", "/compact", {**asked, "dry_run": True})
        times.append(perf_counter() - began)
    began = perf_counter()
    result = conversation.ask("POST", "/compact", asked)
    taken = perf_counter() - began
    conversation.ask("POST", f"/compactions/{result['compaction_id']}/undo")
    return [ms(median(times)), ms(taken), str(result["duration_ms"])]
