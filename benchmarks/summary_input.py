"""What a summary costs from a transcript, and from the agent's payload with a warm or a cold cache.

`CONTEXT_TRACES_DIR=… python -m benchmarks.summary_input --limit 5` takes five conversations of each
file.

1. Messages of a recorded conversation are appended until the window is full enough for a
   compaction; one that is too short goes on from its start. Then a payload is built.
2. Two dry runs show the calls with each input. No model is called: tokens are counted, and an
   answer has half of the tokens that it may have, the same number with each input.
3. Prices are those of the bundled registry, for the same model with each input. A warm cache has
   the whole payload. A cold one has none of it, and is written where the provider has a price for
   that.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean, median
from typing import Any

import click

from app.demo import Client, Trace
from app.models.limits import ModelInfo
from app.models.registry import ModelRegistry
from benchmarks.figures import Section
from benchmarks.processes import service
from benchmarks.recorded import Conversation, budget_of, recorded, without_end
from benchmarks.stage import MODEL

STRATEGIES = ("sandwich", "retain_summary", "chain")
WINDOWS = (32_768, 128_000)
FILLED = 0.8
"""The share of the effective window at which the compaction is planned."""
PRICED = ("gpt-4o", "gpt-5", "claude-sonnet-4-5", "deepseek/deepseek-chat")
SMALL = "gpt-4o-mini"
"""A small model that summarises the transcripts of another."""
BATCH = 6


@dataclass(frozen=True, slots=True)
class Planned:
    """The tokens of the calls of one compaction, with each input."""

    payload: int
    summarised: int
    transcript: int
    transcript_answers: int
    prefix: int
    instruction: int
    answer: int


def planned(client: Client, trace: Trace, strategy: str, window: int) -> Planned | None:
    """Return what the two dry runs say, None where the payload was not used."""
    policy = {
        "strategy": strategy,
        "budget": budget_of(window),
        "compaction": {"auto": False, "summary_input": "prefix"},
    }
    conversation = Conversation(client, trace, policy)
    messages = without_end(trace)
    tokens = 0
    while tokens < FILLED * window:
        batch = [next(messages)]
        while len(batch) < BATCH or batch[-1]["role"] == "assistant":
            batch.append(next(messages))
        conversation.append(batch)
        tokens = conversation.ask("POST", "/context", {"format": "openai_chat"})["tokens_used"]
    with_prefix = conversation.ask("POST", "/compact", {"dry_run": True})
    conversation.set_policy(summary_input="transcript")
    as_transcript = conversation.ask("POST", "/compact", {"dry_run": True})
    calls: list[dict[str, Any]] = with_prefix["calls"]
    if len(calls) != 1 or calls[0]["summary_input"] != "prefix":
        return None
    call = calls[0]
    summarised = with_prefix["before_tokens"] - with_prefix["after_tokens"]
    return Planned(
        with_prefix["before_tokens"],
        summarised + with_prefix["summary_tokens"],
        as_transcript["input_tokens"],
        as_transcript["output_tokens"] // 2,
        call["prefix_tokens"],
        call["input_tokens"] - call["prefix_tokens"],
        call["max_output_tokens"] // 2,
    )


def costs(item: Planned, info: ModelInfo) -> tuple[float, float, float, float]:
    """Return the prices of the whole payload uncached, a transcript, a warm and a cold cache."""

    def price(new: int, output: int, written: int = 0, read: int = 0) -> float:
        cost = info.cost(new, output, written, read)
        assert cost is not None
        return cost

    uncached = price(item.prefix + item.instruction, item.answer)
    return (
        uncached,
        price(item.transcript, item.transcript_answers),
        price(item.instruction, item.answer, 0, item.prefix),
        max(uncached, price(item.instruction, item.answer, item.prefix)),
    )


def rows(found: list[Planned], model: str, small: ModelInfo) -> Iterator[str]:
    """Yield the cells of one model: prices in US cents, and how they compare."""
    info = ModelRegistry().find(model)
    assert info is not None
    each = [costs(item, info) for item in found]
    small_costs = [costs(item, small)[1] for item in found]
    _, transcript, warm, cold = (mean(column) * 100 for column in zip(*each, strict=True))
    yield model
    yield f"{transcript:.2f}"
    yield f"{warm:.2f}"
    yield f"{cold:.2f}"
    answers = [(info.output_price or 0.0) * item.answer for item in found]
    inputs = [(row[0] - out, row[2] - out) for row, out in zip(each, answers, strict=True)]
    yield f"{median(row[0] / row[2] for row in each):.1f}x"
    yield f"{median(uncached / warm for uncached, warm in inputs):.1f}x"
    yield f"{median(row[1] / row[2] for row in each):.2f}x"
    yield f"{median(row[3] / row[1] for row in each):.1f}x"
    yield f"{mean(small_costs) * 100:.2f}"


@click.command()
@click.option("--limit", type=int, help="so many conversations of each file")
@click.option("--strategy", multiple=True, default=STRATEGIES, type=click.Choice(STRATEGIES))
@click.option("--window", multiple=True, default=WINDOWS, type=int)
def main(limit: int | None, strategy: tuple[str, ...], window: tuple[int, ...]) -> None:
    """Print tokens and prices of both inputs for recorded conversations."""
    traces = recorded(limit)
    section = Section("summary_input", "Summaries from a transcript and from the prompt cache")
    environ = {"CONTEXT_SUMMARIZER_ALLOWED_MODELS": MODEL}
    small = ModelRegistry().find(SMALL)
    assert small is not None
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "service.log"
        with (
            service(Path(folder) / "data", environ=environ, log=log) as served,
            closing(Client(f"http://127.0.0.1:{served.port}")) as client,
        ):
            for size, name in product(window, strategy):
                runs = [planned(client, trace, name, size) for trace in traces]
                found = [item for item in runs if item is not None]
                _add(section, name, size, len(runs), found, small)
    click.echo("\n\n".join(section.parts))


def _add(
    section: Section,
    strategy: str,
    window: int,
    runs: int,
    found: list[Planned],
    small: ModelInfo,
) -> None:
    def average(field: str) -> str:
        return f"{mean(getattr(item, field) for item in found):,.0f}"

    section.add_text(
        f"{strategy}, {window:,}: {len(found)} of {runs} compactions; tokens of the payload"
        f" {average('payload')}, summarised {average('summarised')}, sent as a transcript"
        f" {average('transcript')}, with the payload {average('prefix')} and an instruction of"
        f" {average('instruction')}; answers of {average('answer')}"
    )
    header = (
        *("model", "transcript, ¢", "warm, ¢", "cold, ¢", "uncached / warm", "… input alone"),
        *("transcript / warm", "cold / transcript", f"transcript with {SMALL}, ¢"),
    )
    section.add_table(header, (tuple(rows(found, model, small)) for model in PRICED))


if __name__ == "__main__":
    main()
