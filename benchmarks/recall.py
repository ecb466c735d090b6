"""How well `recall` finds the messages that answer natural questions, and how fast.

1. The dialogues are appended by the service itself, each message with its own time, and asked as a
   model asks: over a real PostgreSQL, with the index that the service made.
2. A question counts where one of its messages is among the first 1, 5 or 10. The share of all its
   messages among the first 10 is given beside it.
3. For comparison, BM25 ranks the same messages: alone, and each with its two neighbours.
4. Latency is measured in logs of three lengths, made of dialogues one after the other, each
   question asked once before.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain, count, islice
from math import log
from time import perf_counter

import uvloop

from app.composition import Services, new_id
from app.conversations.conversation import StoredSettings
from app.conversations.messages.row import RawBatch
from app.conversations.messages.service import LogService
from app.conversations.search.index import index_all
from app.database.migrate import migrate
from app.settings import Settings
from benchmarks.dialogues import FOLDER, TUNING, Asked, Dialogue, made, recorded
from benchmarks.figures import Section, ms, p50, p95
from benchmarks.stage import MODEL, database, report

TENANT = "default"
FIRST = (1, 5, 10)
GOAL = (0.40, 0.64, 0.73)
SEEDS, QUICK_SEEDS = range(101, 106), range(101, 102)
SIZES, QUICK_SIZES = (1_000, 10_000, 100_000), (1_000,)
QUESTIONS = 100
BATCH = 500
_K1, _B = 1.2, 0.75
_WORD = re.compile(r"\w+")

_Ranked = Callable[[str], Sequence[int]]
_Results = list[tuple[Sequence[int], Asked]]


def measure(quick: bool) -> Section:
    """Ask every question of every dialogue."""
    with database() as (_, url, _):
        migrate(url)
        return uvloop.run(_measure(url, quick))


async def _measure(url: str, quick: bool) -> Section:
    known = recorded()
    made_ones = [made(seed) for seed in (QUICK_SEEDS if quick else SEEDS)]
    section = Section("recall", "natural questions over long dialogues of two people")
    parts = Services(Settings(database_url=url))
    async with parts.opened():
        rows, reported = [], [0.0]
        for named in (True, False):
            found = await _by_ranking(parts, [*known, *made_ones], named)
            for group, names in (
                ("LoCoMo, all", [each.name for each in known]),
                ("LoCoMo, not tuned on", [each.name for each in known if each.name not in TUNING]),
                ("made", [each.name for each in made_ones]),
            ):
                title = f"{group}, {'with' if named else 'without'} speakers"
                for ranking, results in found.items():
                    if chosen := [item for name in names for item in results[name]]:
                        rows.append(_row(title, ranking, chosen))
                        if (title, ranking) == ("LoCoMo, not tuned on, with speakers", "recall"):
                            reported = _shares(chosen)
        section.add_table(["dialogues", "ranking", "questions", "@1", "@5", "@10", "all @10"], rows)
        if known:
            section.goal(
                "search.recall",
                "≥ " + "/".join(f"{goal:.2f}" for goal in GOAL),
                "/".join(f"{share:.3f}" for share in reported[:3]),
                all(share >= goal for share, goal in zip(reported, GOAL, strict=False)),
            )
        else:
            section.add_text(f"Without LoCoMo: {FOLDER} names no folder with `locomo10.json`.")
        section.add_text(f"{QUESTIONS} questions in logs of dialogues in a row; times in ms.")
        section.add_table(
            ["messages", "p50", "p95", "longest"],
            [await _timed(parts, size) for size in (QUICK_SIZES if quick else SIZES)],
        )
    return section


async def _by_ranking(
    parts: Services, dialogues: Sequence[Dialogue], named: bool
) -> dict[str, dict[str, _Results]]:
    """Return the results of each ranking, by the name of a dialogue."""
    recalled = {each.name: await _asked(parts, each, named) for each in dialogues}
    alone, beside = [
        {each.name: _by_bm25(each, named, width) for each in dialogues} for width in (0, 1)
    ]
    return {"recall": recalled, "BM25": alone, "BM25 with neighbours": beside}


async def _asked(parts: Services, dialogue: Dialogue, named: bool) -> _Results:
    """Return what `recall` finds for each question of a dialogue."""
    report(f"recall: {dialogue.name}")
    messages = dialogue.sent(named=named)
    conversation_id = await _appended(parts, messages)
    results: _Results = []
    for asked in dialogue.questions:
        seqs, _ = await parts.search.recall(TENANT, conversation_id, asked.text)
        results.append(([seq - 1 for seq in seqs], asked))
    return results


async def _appended(parts: Services, messages: Sequence[dict[str, object]]) -> str:
    made_id = new_id()
    async with parts.database.transaction() as session:
        await session.conversations.add(TENANT, made_id, None, "tokenizer", StoredSettings(MODEL))
    appending = LogService(
        parts.database, parts.resolver, parts.outputs, parts.active, new_id, BATCH
    )
    for start in range(0, len(messages), BATCH):
        await appending.append(TENANT, made_id, RawBatch(list(messages[start : start + BATCH])))
    await index_all(parts.database, 0)
    return made_id


def _by_bm25(dialogue: Dialogue, named: bool, width: int) -> _Results:
    ranked = _bm25([str(message["content"]) for message in dialogue.sent(named=named)], width)
    return [(ranked(asked.text), asked) for asked in dialogue.questions]


def _bm25(texts: Sequence[str], width: int) -> _Ranked:
    """Return a ranking of texts, each with so many neighbours on both sides."""
    counted = [
        Counter(_WORD.findall(" ".join(texts[max(0, at - width) : at + width + 1]).lower()))
        for at in range(len(texts))
    ]
    frequency = Counter(chain.from_iterable(counted))
    sizes = [sum(words.values()) for words in counted]
    mean = sum(sizes) / len(sizes)

    def ranked(question: str) -> Sequence[int]:
        scores = [0.0] * len(texts)
        for word in set(_WORD.findall(question.lower())):
            weight = log(1 + (len(texts) - frequency[word] + 0.5) / (frequency[word] + 0.5))
            for at, words in enumerate(counted):
                if found := words[word]:
                    norm = _K1 * (1 - _B + _B * sizes[at] / mean)
                    scores[at] += weight * found * (_K1 + 1) / (found + norm)
        return sorted(range(len(texts)), key=lambda at: -scores[at])[: FIRST[-1]]

    return ranked


def _shares(results: _Results) -> list[float]:
    """Return the shares of rule 2."""
    found = [
        sum(not asked.evidence.isdisjoint(places[:first]) for places, asked in results)
        for first in FIRST
    ]
    whole = sum(
        len(asked.evidence.intersection(places[: FIRST[-1]])) / len(asked.evidence)
        for places, asked in results
    )
    return [number / len(results) for number in (*found, whole)]


def _row(name: str, ranking: str, results: _Results) -> list[str]:
    return [name, ranking, f"{len(results):,}", *(f"{share:.3f}" for share in _shares(results))]


async def _timed(parts: Services, size: int) -> list[str]:
    """Ask questions in a log of this many messages, all kinds of words among them."""
    report(f"recall: {size:,} messages")
    dialogues = (made(seed) for seed in count(1_000))
    messages = [*islice((item for each in dialogues for item in each.sent(named=True)), size)]
    conversation_id = await _appended(parts, messages)
    asked = [question.text for question in made(1_000).questions[:QUESTIONS]]
    await parts.search.recall(TENANT, conversation_id, asked[0])
    spent = []
    for text in asked:
        begun = perf_counter()
        await parts.search.recall(TENANT, conversation_id, text)
        spent.append(perf_counter() - begun)
    return [f"{size:,}", ms(p50(spent)), ms(p95(spent)), ms(max(spent))]
