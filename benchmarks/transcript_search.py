"""Full-text search over a long transcript: how fast it is indexed, searched and recalled.

1. The log is that of the other measurements, appended by the service itself, with one sentence
   planted in its first third. No compaction is made: a search does not ask what is shown.
2. Searches are the service's own, over a real PostgreSQL without statistics, each query asked
   again and again on a warm cache; a page has up to 50 messages, the newest first.
3. Appends index nothing. That they cost the same is shown by messages appended one by one to the
   indexed log and, in turns, to another one that was never searched.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any

import asyncpg
import uvloop

from app.composition import Parts, new_id
from app.conversations.messages.batch import Append
from app.conversations.messages.service import LogService
from app.conversations.settings import StoredSettings
from app.database.migrate import migrate
from app.settings import Settings
from benchmarks.figures import Section, ms, p50, p95, times
from benchmarks.stage import MODEL, database, report
from benchmarks.workload import conversation

TENANT = "default"
MESSAGES, QUICK_MESSAGES = 100_000, 5_000
ROUNDS, QUICK_ROUNDS = 100, 20
BATCH = 500
SEED = 11
GOAL_SECONDS = 0.020
PLANTED = "The zanzibar lighthouse keeper counts forty-two pelicans at dusk."

_Search = Callable[[Parts, str, str], Awaitable[Sequence[Any]]]

PAGES = (
    ("the planted sentence", "zanzibar lighthouse keeper counts forty-two pelicans at dusk"),
    ("the same, quoted", '"zanzibar lighthouse keeper counts"'),
    ("a rare word", "pelicans"),
    ("a word that is in no message", "quagga"),
    ("a common word", "server"),
    ("the beginning of many words", "ser"),
    ("three words", "invoice deadline timeout"),
    ("a common word without another", "server -request"),
)
QUESTIONS = (
    ("recall: of the planted sentence", "How many pelicans did the lighthouse keeper count?"),
    (
        "recall: long, mostly common words",
        "What did the user decide about the request timeout of the server, when the pelicans"
        " were in the lighthouse near the database?",
    ),
    ("recall: common words only", "server request timeout table"),
)


def measure(quick: bool) -> Section:
    """Append, index, and search one long log."""
    with database() as (_, url, _):
        migrate(url)
        return uvloop.run(_measure(url, quick))


async def _measure(url: str, quick: bool) -> Section:
    count, rounds = (QUICK_MESSAGES, QUICK_ROUNDS) if quick else (MESSAGES, ROUNDS)
    section = Section("transcript_search", f"full-text search over {count:,} messages")
    parts = Parts(Settings(database_url=url))
    async with parts.opened():
        log = _log(parts)
        other, searched = await _conversation(parts), await _conversation(parts)
        size = await _fill(log, searched, count)
        begun = perf_counter()
        await _page(parts, searched, PLANTED)
        seconds = perf_counter() - begun
        section.add_text(
            f"{size / 2**20:.0f} MiB of text, indexed by the first search in {seconds:.0f} s:"
            f" {count / seconds:,.0f} messages/s, {size / 2**20 / seconds:.1f} MiB/s."
            f" {await _sizes(url)}"
        )
        worst = await _say_searches(section, parts, searched, rounds)
        section.goal(
            "search.finds-compacted",
            f"p95 ≤ {ms(GOAL_SECONDS)} ms",
            f"{ms(worst)} ms for the slowest query",
            worst <= GOAL_SECONDS,
        )
        await _fill(log, other, min(count, QUICK_MESSAGES))
        await _say_appends(section, log, searched, other, rounds)
    return section


def _log(parts: Parts) -> LogService:
    return LogService(parts.database, parts.resolver, parts.outputs, parts.active, new_id, BATCH)


async def _conversation(parts: Parts) -> str:
    made = new_id()
    async with parts.database.transaction() as session:
        await session.conversations.add(
            TENANT, made, None, "tokenizer", StoredSettings(MODEL), "{}"
        )
    return made


async def _fill(log: LogService, conversation_id: str, count: int) -> int:
    """Append so many messages, the planted one among them; returns their size in bytes."""
    report(f"transcript_search: {count:,} messages")
    source, size, done = conversation(SEED), 0, 0
    while done < count:
        batch: list[Any] = [*islice(source, min(BATCH, count - done))]
        if done <= count // 3 < done + len(batch):
            place = next(at for at, item in enumerate(batch) if item["role"] == "user")
            batch[place] = {"role": "user", "content": PLANTED}
        size += sum(len(str(item["content"] or "")) for item in batch)
        await log.append(TENANT, conversation_id, Append(batch))
        done += len(batch)
    return size


async def _page(parts: Parts, conversation_id: str, query: str) -> Sequence[Any]:
    _, page = await parts.search.page(
        TENANT, conversation_id, query, after_seq=0, before_seq=2**60, order="desc", limit=50
    )
    return page


async def _say_searches(section: Section, parts: Parts, conversation_id: str, rounds: int) -> float:
    """Time every query, and return the slowest one's p95 in seconds."""
    rows, worst = [], 0.0
    asked: list[tuple[str, str, _Search]] = [(name, query, _page) for name, query in PAGES]
    asked += [(name, query, _recall) for name, query in QUESTIONS]
    for name, query, search in asked:
        report(f"transcript_search: {name}")
        found = await search(parts, conversation_id, query)
        spent = await _times(partial(search, parts, conversation_id, query), rounds)
        worst = max(worst, p95(spent))
        rows.append((name, str(len(found)), ms(p50(spent)), ms(p95(spent)), ms(max(spent))))
    section.add_text(f"Times in ms over {rounds} searches each.")
    section.add_table(("query", "found", "p50", "p95", "longest"), rows)
    return worst


async def _recall(parts: Parts, conversation_id: str, question: str) -> Sequence[Any]:
    return (await parts.search.recall(TENANT, conversation_id, question)).messages


async def _times(work: Callable[[], Awaitable[Any]], rounds: int) -> list[float]:
    spent = []
    for _ in range(rounds):
        begun = perf_counter()
        await work()
        spent.append(perf_counter() - begun)
    return spent


async def _sizes(url: str) -> str:
    connection = await asyncpg.connect(url)
    try:
        return str(
            await connection.fetchval(
                """
                SELECT format(
                    'Words take %s and their indexes %s, the messages %s.',
                    pg_size_pretty(pg_table_size('message_words')),
                    pg_size_pretty(pg_indexes_size('message_words')),
                    pg_size_pretty(pg_total_relation_size('messages'))
                )
                """
            )
        )
    finally:
        await connection.close()


async def _say_appends(
    section: Section, log: LogService, searched: str, other: str, rounds: int
) -> None:
    spent: dict[str, list[float]] = {searched: [], other: []}
    message = {"role": "user", "content": "one more message about the server " * 20}
    for _ in range(5 * rounds):
        for conversation_id, found in spent.items():
            append = partial(log.append, TENANT, conversation_id, Append([message]))
            found.extend(await _times(append, 1))
    mine, others = p50(spent[searched]), p50(spent[other])
    section.add_text(
        f"An append takes {ms(mine)} ms in the searched log and {ms(others)} ms in one that was"
        f" never searched ({times(mine / others)}, p50 of {5 * rounds} in turns)."
    )
