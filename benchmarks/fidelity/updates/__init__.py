"""Pairs of statements by a user: whether a summary knows that the newer replaces the older.

Each set has 282 pairs in nine languages, written apart from the product: 172 `replaces` and 110
`keeps`, in which the newer is about something related and the older still holds.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

from app.demo import Client
from benchmarks.fidelity.client import Conversation
from benchmarks.fidelity.drive import EXTRACTIVE
from benchmarks.fidelity.judge import flat, lines_under

POLICY = {
    "budget": {"context_window": 100_000},
    "tool_output": {"enabled": False},
    "compaction": {"auto": False, "model": EXTRACTIVE},
}
OTHERS = 30
QUICK_PAIRS = 40
LATER = 12
"""Messages after the pair, so that it is in the summary."""
TARGET_TOKENS = 2_200
REPLY = "Done, I went through it line by line and nothing else had to move there. " * 6
BEGIN_CHARS = 40
_END = re.compile(r"(?<=[.!?;])\s+|(?<=[\u3002\uff01\uff1f])")
OUTCOMES = ("replaced", "beside the newer one", "apart")
Pair = Mapping[str, str]


def rows(url: str, wording: str, quick: bool) -> Iterator[list[str]]:
    """Yield a row for each label: in how many summaries the older statement ended how."""
    lines = (Path(__file__).parent / f"{wording}.jsonl").read_text(encoding="utf-8").splitlines()
    pairs: list[Pair] = [json.loads(line) for line in lines]
    chosen = Random(wording).sample(pairs, QUICK_PAIRS) if quick else pairs
    with closing(Client(url)) as client:
        seen = Counter((pair["label"], _outcome(client, pair, pairs)) for pair in chosen)
    for label in ("replaces", "keeps"):
        count = sum(pair["label"] == label for pair in chosen)
        yield [label, str(count), *(str(seen[label, outcome]) for outcome in OUTCOMES)]


def _outcome(client: Client, pair: Pair, pairs: Sequence[Pair]) -> str:
    random = Random(pair["old"])
    others = [other["old"] for other in pairs if other["lang"] == pair["lang"]]
    others.remove(pair["old"])
    random.shuffle(others)
    half = OTHERS // 2
    stated = [*others[:half], pair["old"], *others[half:OTHERS], pair["new"]]
    stated += ["Go on, please."] * LATER
    messages: list[dict[str, Any]] = []
    for text in stated:
        messages += (
            {"role": "user", "content": text},
            {"role": "assistant", "content": REPLY},
        )
    conversation = Conversation(client, POLICY)
    conversation.append(messages)
    result = conversation.ask("POST", "/compact", {"target_tokens": TARGET_TOKENS})
    receipt = conversation.ask("GET", f"/compactions/{result['compaction_id']}")
    summary = receipt["summaries"][-1]["text"]
    history = set(map(flat, lines_under(summary, "replaced")))
    old, *_ = _sentences(pair["old"])
    lines = [line for line in map(flat, summary.splitlines()) if old in line]
    stating = [line for line in lines if line.removeprefix("- ") not in history]
    if not stating:
        return "replaced"
    new = _sentences(pair["new"])
    is_beside = all(any(part in line for part in new) for line in stating)
    return "beside the newer one" if is_beside else "apart"


def _sentences(text: str) -> list[str]:
    """Return how the sentences of a text begin, flat."""
    parts = _END.split(text)
    return [flat(part).strip(" .!?\u3002")[:BEGIN_CHARS] for part in parts if part.strip()]
