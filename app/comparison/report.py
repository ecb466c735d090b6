"""The results of a comparison: a table for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from app.comparison.judge import JUDGED
from app.comparison.replay import Kept, Options, Outcome, Source
from app.demo import aligned

MAX_LOST = 200
"""How many statements that do not survive the JSON names of each strategy."""
_NONE = "-"


def table(source: Source, options: Options, outcomes: Sequence[Outcome]) -> list[str]:
    """Return the lines of the table: a row for each measure, a column for each strategy."""
    rows = [("", *(outcome.strategy for outcome in outcomes)), *_rows(source, outcomes)]
    lines = aligned(rows)
    rule = "-" * max(map(len, lines))
    rounds = max(len(outcome.rounds) for outcome in outcomes)
    head = (
        f"{source.recorded.name}: {source.messages:,} messages, {source.whole_tokens:,} tokens,"
        f" {source.recorded.format.value}; {rounds} {'rounds' if rounds > 1 else 'round'},"
        f" target {options.target}"
    )
    return [head, "", lines[0], rule, *lines[1:], "", *_notes(outcomes)]


def as_json(source: Source, options: Options, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the same as a JSON object, with the statements that do not survive."""
    return {
        "conversation": source.recorded.name,
        "format": source.recorded.format.value,
        "messages": source.messages,
        "tokens": source.whole_tokens,
        "context_window": options.context_window,
        "target": str(options.target),
        "model": options.model,
        "strategies": [
            {
                **asdict(outcome),
                "statements": {
                    kind.name.lower(): asdict(kept) for kind, kept in outcome.statements.items()
                },
                "lost": outcome.lost[:MAX_LOST],
                "lost_total": len(outcome.lost),
            }
            for outcome in outcomes
        ],
    }


def _rows(source: Source, outcomes: Sequence[Outcome]) -> Iterator[tuple[str, ...]]:
    last = [item.rounds[-1] for item in outcomes]
    met = [sum(ended.is_met for ended in item.rounds) for item in outcomes]
    yield _row("payload before, tokens", [_number(ended.before_tokens) for ended in last])
    yield _row("payload after, tokens", [_number(ended.after_tokens) for ended in last])
    yield _row("target, tokens", [_number(ended.target_tokens) for ended in last])
    within = [f"{many} of {len(item.rounds)}" for many, item in zip(met, outcomes, strict=True)]
    yield _row("rounds within target", within)
    yield _row("compactions", [str(item.compactions) for item in outcomes])
    if any(item.refused_builds for item in outcomes):
        yield _row("builds refused", [str(item.refused_builds) for item in outcomes])
    if any(item.pinned.of for item in outcomes):
        yield _row("pinned messages", [_kept(item.pinned) for item in outcomes])
    for kind in JUDGED:
        if kind in source.statements:
            kept = [_kept(item.statements.get(kind, Kept(0, 0))) for item in outcomes]
            yield _row(kind.value.lower(), kept)
    yield _row("all statements", [_kept(_sum(item)) for item in outcomes])
    if any(item.model_calls for item in outcomes):
        yield _row("calls of the model", [str(item.model_calls) for item in outcomes])
        yield _row("tokens sent to it", [_number(item.model_input_tokens) for item in outcomes])
        yield _row("cost, USD", [_cost(item.model_cost_usd) for item in outcomes])
    yield _row("cacheable share", [_share(item.cacheable) for item in outcomes])
    yield _row("all compactions", [_milliseconds(item.compaction_seconds) for item in outcomes])
    yield _row("build, median", [_milliseconds(item.build_seconds) for item in outcomes])


def _row(name: str, cells: Sequence[str]) -> tuple[str, ...]:
    return name, *cells


def _notes(outcomes: Sequence[Outcome]) -> Iterator[str]:
    yield "Statements survive where the last payload has their text, or their values and words near"
    yield "each other. Payloads are those of the last round."
    if any(item.estimated for item in outcomes):
        yield "What the model is sent and costs is estimated by dry runs; it was not called."
    for item in outcomes:
        told: dict[str, list[str]] = {}
        for number, ended in enumerate(item.rounds, 1):
            if text := ", ".join(filter(None, (ended.reason, *ended.over))):
                told.setdefault(text, []).append(str(number))
        for text, numbers in told.items():
            yield f"{item.strategy}, round {', '.join(numbers)}: {text}."
        if item.failures:
            yield f"{item.strategy}: {len(item.failures)} failed; the last: {item.failures[-1]}."


def _sum(outcome: Outcome) -> Kept:
    found = outcome.statements.values()
    return Kept(sum(item.kept for item in found), sum(item.of for item in found))


def _kept(kept: Kept) -> str:
    return f"{kept.kept} of {kept.of}" if kept.of else _NONE


def _number(value: int | None) -> str:
    return f"{value:,}" if value is not None else _NONE


def _cost(value: float | None) -> str:
    return f"{value:.4f}" if value is not None else "unknown"


def _share(value: float | None) -> str:
    return f"{value:.3f}" if value is not None else _NONE


def _milliseconds(seconds: float | None) -> str:
    return f"{1000 * seconds:,.1f} ms" if seconds is not None else _NONE
