"""The longest time the event loop stands still while 10 MB is counted and stored.

A task that sleeps 1 ms again and again runs beside the append; the longest it overslept is the
stall. The append is the service's own, given the body already parsed, over a real PostgreSQL.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Any

import uuid_utils
import uvloop

from app.adapters.blobs.chunks import RowStore
from app.adapters.models.registry import ModelRegistry
from app.adapters.models.tokenizer import TiktokenTokenizer
from app.adapters.postgres.common.connections import Store
from app.adapters.postgres.database import PostgresDatabase
from app.adapters.postgres.migrate import migrate
from app.composition import utc_now
from app.domain.conversations.settings import StoredSettings
from app.services.conversations.active_windows import ActiveWindows
from app.services.conversations.batches import Append
from app.services.conversations.log import LogService
from app.services.prompt.settings_resolver import SettingsResolver
from app.services.tool_output.stored_results import StoredResults
from benchmarks.figures import Section, ms, p50
from benchmarks.stage import MODEL, database, report
from benchmarks.workload import pool

SIZE_BYTES = 10_000_000
TICK_SECONDS = 0.001
TENANT = "default"


def measure(quick: bool) -> Section:
    """Append each text several times and report the longest stalls."""
    rounds = 3 if quick else 5
    with database() as (_, url, _):
        migrate(url)
        return uvloop.run(_measure(url, rounds))


async def _measure(url: str, rounds: int) -> Section:
    section = Section("stall", "longest stall of the event loop while 10 MB is appended")
    section.add_text(
        f"One message of {SIZE_BYTES // 10**6} MB (UTF-8) given to the service's append with the"
        f" body already parsed; a task that sleeps 1 ms beside it; {rounds} rounds. The baseline"
        " is the same task beside nothing, for as long."
    )
    store = Store(url)
    await store.open()
    rows, worst = [], 0.0
    try:
        for name, text in _texts().items():
            report(f"stall: {name}")
            stalls, baselines, spent = [], [], []
            for _ in range(rounds):
                log, conversation_id = await _log(store)
                request = Append([{"role": "user", "content": text}])

                append = partial(log.append, TENANT, conversation_id, request)
                stall, seconds = await _longest_gap(append)
                baseline, _ = await _longest_gap(partial(asyncio.sleep, min(seconds, 1.0)))
                stalls.append(stall)
                baselines.append(baseline)
                spent.append(seconds)
            worst = max(worst, p50(stalls))
            rows.append(
                (name, ms(p50(stalls)), ms(max(stalls)), ms(p50(baselines)), ms(p50(spent)))
            )
    finally:
        await store.close()
    section.add_table(
        ("text", "longest stall, median ms", "worst round", "baseline", "append takes"), rows
    )
    section.goal("performance.no-stall", "longest stall ≤ 20 ms", f"{ms(worst)} ms", worst <= 0.020)
    return section


def _texts() -> dict[str, str]:
    rng = Random(7)
    english = pool("prose")
    chinese = "".join(chr(rng.randrange(0x4E00, 0x9FA5)) for _ in range(100_000))
    return {
        "English": (english * (SIZE_BYTES // len(english) + 1))[:SIZE_BYTES],
        "spaces": " " * SIZE_BYTES,
        "one letter": "a" * SIZE_BYTES,
        "emoji": "😀" * (SIZE_BYTES // 4),
        "base64": base64.b64encode(rng.randbytes(SIZE_BYTES * 3 // 4)).decode(),
        "Chinese": (chinese * (SIZE_BYTES // 300_000 + 1))[: SIZE_BYTES // 3],
    }


async def _log(store: Store) -> tuple[LogService, str]:
    """Return the service's log with a fresh conversation in it."""
    tokenizer = TiktokenTokenizer()
    tokenizer.load()
    records = PostgresDatabase(store)
    registry = ModelRegistry()
    registry.find(MODEL)  # the service loads it at its start, beside the event loop
    frames = SettingsResolver(registry, tokenizer, {}, None)
    conversation_id = _new_id()
    async with records.transaction() as session:
        await session.conversations.add(
            TENANT,
            conversation_id,
            None,
            "tokenizer",
            StoredSettings(MODEL, "{}", "[]", "[]"),
            "{}",
        )
    outputs = StoredResults(records, RowStore(), _new_id)
    active = ActiveWindows(records, frames, utc_now)
    return LogService(records, frames, outputs, active, _new_id, 1000), conversation_id


def _new_id() -> str:
    return str(uuid_utils.uuid7())


async def _longest_gap(work: Callable[[], Awaitable[Any]]) -> tuple[float, float]:
    """Return by how much the ticker overslept at worst beside the work, and the work's time."""
    longest = 0.0
    before = time.perf_counter()

    async def tick() -> None:
        nonlocal longest, before
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = time.perf_counter()
            longest = max(longest, now - before - TICK_SECONDS)
            before = now

    ticker = asyncio.create_task(tick())
    await asyncio.sleep(0.01)
    longest, began = 0.0, time.perf_counter()
    await work()
    seconds = time.perf_counter() - began
    await asyncio.sleep(2 * TICK_SECONDS)
    ticker.cancel()
    return longest, seconds
