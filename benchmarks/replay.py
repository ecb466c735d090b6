"""Replays every recorded conversation through the served API, and judges every payload.

`python -m benchmarks.replay` starts the service on a fresh data directory, replays all
conversations of `CONTEXT_TRACES_DIR` or, without it, of `tests/conversations`, prints what was
seen, and exits with 1 when anything was wrong.
What is checked, and what came of it: `CONTRIBUTING.md`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from multiprocessing import get_context
from pathlib import Path
from statistics import quantiles
from time import perf_counter

import click

from app.cli.demo import Client, Trace
from benchmarks.figures import counts
from tests.recorded import named_traces, source, trace_files, traces_dir
from tests.replay import Judge, Replay, Served, Tally

_MAX_SHOWN = 40
_RARE = 10_000


@click.command()
@click.option(
    "--traces",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=traces_dir,
    help="folder of the conversations",
)
@click.option("--url", help="service to replay against; without it one is started")
@click.option("--every", default=10, show_default=True, help="build after so many messages")
@click.option("--limit", default=_RARE, help="replay so many conversations of each file")
@click.option("--only", default="", help="replay only files whose name holds this")
@click.option("--workers", default=2, show_default=True, help="processes that send requests")
def main(traces: Path, url: str | None, every: int, limit: int, only: str, workers: int) -> None:
    """Replay the recorded conversations and judge every payload."""
    files = [path for path in trace_files(traces) if only in path.name]
    found = [trace for path in files for trace in named_traces(path)[:limit]]
    found.sort(key=lambda trace: len(trace.messages), reverse=True)
    started = perf_counter()
    with served(url) as address:
        total = replay_all(found, address, every, workers)
    click.echo(f"read from           {source() if traces == traces_dir() else traces}")
    for line in report(total, perf_counter() - started):
        click.echo(line)
    sys.exit(1 if total.faults else 0)


@contextmanager
def served(url: str | None) -> Iterator[str]:
    """Yield the address of a service: the one given, or one started for this run."""
    if url is not None:
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="context-replay-") as folder:
        service = Served(Path(folder) / "data")
        try:
            service.start()
            yield service.url
        finally:
            service.stop()


def replay_all(traces: Sequence[Trace], url: str, every: int, workers: int) -> Tally:
    """Replay conversations in several processes, longest first; a line on stderr for each."""
    total = Tally()
    context = get_context("spawn")
    with ProcessPoolExecutor(workers, context, _begin, (url, every)) as pool:
        futures = [pool.submit(_replay, trace) for trace in traces]
        with click.progressbar(futures, label="Replaying", file=sys.stderr) as bar:
            for future in bar:
                total.add(future.result())
    return total


def report(total: Tally, seconds: float) -> list[str]:
    """Return the totals as lines to print."""
    lines = [
        f"conversations       {total.conversations:,}, each stored four times",
        f"messages            {total.messages:,} accepted, {len(total.refused):,} refused",
        f"read back           {total.read_back:,} messages of all copies,"
        f" {len(total.altered):,} lost or altered, {total.doubled:,} doubled",
        f"builds              {sum(total.builds.values()):,}",
        *(f"  {kind:<34}{count:>7,}" for kind, count in sorted(total.builds.items())),
        f"complete payloads   {total.complete:,} at the ends, every text and image found in them",
        f"violations          {len(total.violations):,}",
        f"over their window   {len(total.over_window):,}"
        f" (the fullest used {total.largest_share:.1%} of it)",
        f"miscounted          {len(total.miscounted):,}"
        f" (tokens_used against a count from scratch differs by {total.largest_miscount:.3%}"
        f" at most; the text of a payload exceeds it by {total.largest_undercount:.3%} at most)",
        f"consecutive builds  {consecutive(total):,} of one epoch, each compared byte for byte with"
        f" what the one before it promised: {len(total.broken_prefixes):,} broken prefixes",
        f"deltas              {total.deltas:,} put together and compared with the whole payload:"
        f" {len(total.wrong_deltas):,} wrong, {total.overtaken:,} overtaken by a compaction; they"
        f" sent {total.delta_items:,} of {total.whole_items:,} items",
        f"epochs              {sum(total.epochs.values()):,}: {counts(total.epochs)}",
        f"compactions         {total.compactions:,} freed {total.compacted_tokens:,} tokens",
        f"degraded            {counts(total.degraded)}",
        f"warnings            {counts(total.warnings)}",
        f"refused builds      {len(total.excused):,} with too large a system prompt or tools,"
        f" {len(total.unexcused):,} others",
        f"append p50/p95      {_latency(total.append_seconds)} of one message;"
        f" {total.appends:,} requests",
        f"build p50/p95       {_latency(total.build_seconds)} judged by the client meanwhile",
        f"time                {seconds:.0f} s",
    ]
    lines += _listed("Refused by the service", total.refused)
    lines += _listed("No room beside system prompt and tools", total.excused)
    return lines + _listed("WRONG", total.faults)


def consecutive(total: Tally) -> int:
    """Return how many builds had one before them in their epoch: all but those that began one."""
    return sum(total.builds.values()) - sum(total.epochs.values())


def _listed(title: str, entries: Sequence[str]) -> list[str]:
    if not entries:
        return []
    more = len(entries) - _MAX_SHOWN
    shown = [f"  {entry[:300]}" for entry in entries[:_MAX_SHOWN]]
    return ["", f"{title}:", *shown, *([f"  … and {more:,} more"] if more > 0 else [])]


def _latency(seconds: Sequence[float]) -> str:
    if len(seconds) < 2:
        return "-"
    cuts = quantiles(seconds, n=20)
    return f"{1000 * cuts[9]:.1f} / {1000 * cuts[18]:.1f} ms"


def _begin(url: str, every: int) -> None:
    global _worker  # noqa: PLW0603  # one per process of the pool, made when it starts
    _worker = (url, Judge(), every)


def _replay(trace: Trace) -> Tally:
    url, judge, every = _worker
    with closing(Client(url)) as client:
        return Replay(client, judge, every).run(trace)


_worker: tuple[str, Judge, int]

if __name__ == "__main__":
    main()
