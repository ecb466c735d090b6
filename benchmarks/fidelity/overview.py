"""The figures of a run in one table: a row for each strategy and writer, all sessions together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.fidelity.drive import Results, Seen
from benchmarks.fidelity.planted.wording import Kind
from benchmarks.figures import Section

BUDGET = 0.2
"""The budget of all columns but those that name theirs; the smallest one where it was not run."""
STANDING = (Kind.STANDING, Kind.STANDING_OTHER)
TYPED = (Kind.SAFETY, Kind.CONSTRAINT, Kind.FACT, Kind.GOAL, Kind.PREFERENCE)
"""The kinds whose mean is the share of typed facts that survive."""


def add_overview(section: Section, results: Results) -> None:
    """Add the table, and say what its columns are about."""
    budgets = sorted({share for _, _, share in results.rows})
    if not budgets:
        return
    middle = BUDGET if BUDGET in budgets else budgets[0]
    section.add_text(
        "All sessions together. Survival is given for each budget"
        f" ({' · '.join(f'{share:.0%}' for share in budgets)}), the other columns at {middle:.0%}."
    )
    section.add_table(
        (
            "summaries by",
            "strategy",
            "typed facts",
            "standing instructions",
            "newest of updated",
            "stale",
            "within target",
            "over, and said",
            "longer than half of the source",
            "todo items",
            "first request whole",
            "false errors",
            "no whole decision",
            "duplicate paths",
            "tokens sent, of the conversation's",
        ),
        _rows(results, budgets, middle),
    )


def _rows(results: Results, budgets: list[float], middle: float) -> Iterator[list[str]]:
    merged: dict[tuple[str, str], dict[float, Seen]] = {}
    for (writer, strategy, share), seen in results.rows.items():
        merged.setdefault((writer, strategy), {})[share] = seen
    for (writer, strategy), by_budget in sorted(merged.items()):
        found = [by_budget[share] for share in budgets if share in by_budget]
        yield [
            writer,
            strategy,
            " · ".join(share_of(seen, TYPED) for seen in found),
            " · ".join(share_of(seen, STANDING) for seen in found),
            " · ".join(share_of(seen, (Kind.UPDATE,)) for seen in found),
            *_checks(by_budget.get(middle, found[0])),
        ]


def share_of(seen: Seen, kinds: Sequence[Kind]) -> str:
    """Return the share of the statements of some kinds that survive."""
    planted = sum(seen.planted[kind] for kind in kinds)
    return f"{sum(seen.survived[kind] for kind in kinds) / planted:.0%}" if planted else "-"


def lost_lines(results: Results) -> Iterator[str]:
    """Yield what was lost or wrong, by row."""
    for (writer, strategy, share), seen in sorted(results.rows.items()):
        yield from (f"{writer} {strategy} {share:.0%}: {text}" for text in seen.lost)


def _checks(seen: Seen) -> Iterator[str]:
    yield f"{seen.stale} of {seen.old_values}"
    yield f"{seen.within} of {seen.compactions}"
    yield f"{seen.said}"
    yield f"{sum(ratio > 0.5 for ratio in seen.of_source)} of {len(seen.of_source)}"
    yield f"{seen.todos_kept} of {seen.todos}"
    yield f"{seen.whole_requests} of {seen.runs}"
    yield f"{seen.false_errors} of {seen.errors_listed}"
    yield f"{seen.fragments} of {seen.decisions_listed}"
    yield f"{seen.duplicate_paths} of {seen.paths_listed}"
    yield f"{seen.sent_tokens / seen.conversation_tokens:.2f}" if seen.sent_tokens else "-"
