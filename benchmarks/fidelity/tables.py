"""The figures of a run as Markdown tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from benchmarks.fidelity.drive import Results, Seen
from benchmarks.fidelity.planted.wording import Kind
from benchmarks.figures import Section

TYPED = (Kind.SAFETY, Kind.CONSTRAINT, Kind.FACT, Kind.GOAL, Kind.PREFERENCE)
"""The kinds whose mean is the share of typed facts that survive."""
_SHORT = {
    Kind.SAFETY: "safety",
    Kind.CONSTRAINT: "constraints",
    Kind.FACT: "facts",
    Kind.GOAL: "goals",
    Kind.PREFERENCE: "preferences",
    Kind.STANDING: "standing, English",
    Kind.STANDING_OTHER: "standing, 8 languages",
    Kind.DECISION: "decisions",
    Kind.UPDATE: "newest of updated",
}
_ROW = ("sessions", "summaries by", "budget", "strategy")
Row = tuple[str, str, float, str]


def add_tables(section: Section, results: Results) -> None:
    """Add the tables of survival and of the other checks."""
    rows = sorted(results.rows.items(), key=_order)
    section.add_table(
        (*_ROW, "payload of target", "typed facts", *_SHORT.values(), "stale"),
        ([*_names(row), *_survival(seen)] for row, seen in rows),
    )
    section.add_table(
        (
            *_ROW,
            "within target",
            "over, and said",
            "failed",
            "payload of target, median · worst",
            "payload grew",
            "short payload grew",
            "summary of source, median · worst",
            "longer than half",
            "todo items",
            "last failure",
            "first request whole",
            "false errors",
            "no whole decision",
            "duplicate paths",
        ),
        ([*_names(row), *_checks(seen)] for row, seen in rows),
    )
    called = [(row, seen) for row, seen in rows if seen.sent_tokens]
    if called:
        section.add_table(
            (
                *_ROW,
                "tokens sent, of the conversation's",
                "compactions that sent more than the payload held",
            ),
            (
                [
                    *_names(row),
                    f"{seen.sent_tokens / seen.conversation_tokens:.2f}",
                    f"{seen.sent_above_payload} of {seen.compactions}",
                ]
                for row, seen in called
            ),
        )


def lost_lines(results: Results) -> Iterator[str]:
    """Yield what was lost or wrong, by row."""
    for row, seen in sorted(results.rows.items(), key=_order):
        yield from (f"{' '.join(_names(row))}: {text}" for text in seen.lost)


def _order(item: tuple[Row, Seen]) -> tuple[object, ...]:
    (source, writer, share, strategy), _ = item
    return writer != "extractive", source, writer, share, strategy


def _names(row: Row) -> list[str]:
    source, writer, share, strategy = row
    return [source, writer, f"{share:.0%}", strategy]


def _survival(seen: Seen) -> Iterator[str]:
    yield f"{median(seen.last_of_target):.2f}"
    yield share_of(seen, TYPED)
    for kind in _SHORT:
        yield share_of(seen, (kind,))
    yield f"{seen.stale} of {seen.old_values}"


def share_of(seen: Seen, kinds: Sequence[Kind]) -> str:
    """Return the share of the statements of some kinds that survive."""
    planted = sum(seen.planted[kind] for kind in kinds)
    return f"{sum(seen.survived[kind] for kind in kinds) / planted:.0%}" if planted else "-"


def _checks(seen: Seen) -> Iterator[str]:
    yield f"{seen.within} of {seen.compactions}"
    yield f"{seen.said}"
    yield f"{seen.failed}"
    yield _spread(seen.of_target)
    yield f"{seen.grown}"
    yield f"{seen.small_grown} of {seen.small}"
    yield _spread(seen.of_source)
    yield f"{sum(ratio > 0.5 for ratio in seen.of_source)} of {len(seen.of_source)}"
    yield f"{seen.todos_kept} of {seen.todos}"
    yield f"{seen.failures_kept} of {seen.failures}"
    yield f"{seen.whole_requests} of {seen.runs}"
    yield f"{seen.false_errors} of {seen.errors_listed}"
    yield f"{seen.fragments} of {seen.decisions_listed}"
    yield f"{seen.duplicate_paths} of {seen.paths_listed}"


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    ordered = sorted(values)
    return f"{ordered[len(ordered) // 2]:.2f} · {ordered[-1]:.2f}"
