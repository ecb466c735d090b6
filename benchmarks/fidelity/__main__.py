"""Run `python -m benchmarks.fidelity [--quick] [--set tune|report]`; prints Markdown."""

from __future__ import annotations

from pathlib import Path

import click

from benchmarks.fidelity.measurement import (
    BUDGETS,
    RECORDED,
    ROOT,
    SESSIONS,
    STRATEGIES,
    Choice,
    section_of,
)

PARTS = ("extractive", "models", "updates", "latency")


@click.command()
@click.option("--set", "wording", type=click.Choice(("tune", "report")), default="tune")
@click.option("--quick", is_flag=True, help="two generated sessions without a model")
@click.option("--sessions", type=int, default=SESSIONS, help="generated sessions")
@click.option("--recorded", type=int, default=RECORDED, help="recorded conversations")
@click.option("--strategy", multiple=True, default=STRATEGIES, type=click.Choice(STRATEGIES))
@click.option("--budget", multiple=True, default=BUDGETS, type=float, help="such as 0.2")
@click.option("--part", multiple=True, default=PARTS, type=click.Choice(PARTS))
@click.option("--checkout", type=Path, default=ROOT, help="folder of the service, with app/ in it")
@click.option("--lost", type=Path, help="file for what was lost or wrong, a line each")
def main(
    wording: str,
    quick: bool,
    sessions: int,
    recorded: int,
    strategy: tuple[str, ...],
    budget: tuple[float, ...],
    part: tuple[str, ...],
    checkout: Path,
    lost: Path | None,
) -> None:
    """Plant statements, compact five times, and print what is left of them."""
    choice = Choice(wording, quick, sessions, recorded, strategy, budget, part, checkout, lost)
    click.echo("\n\n".join(section_of(choice).parts))


if __name__ == "__main__":
    main()
