"""Judge summaries: `python -m benchmarks.fidelity --tuning --seed 20 --only planted --show`."""

from __future__ import annotations

from pathlib import Path

import click

from benchmarks.fidelity.measurement import PARTS, measured


@click.command()
@click.option("--tuning", is_flag=True, help="even seeds and sessions; odd ones otherwise")
@click.option("--seed", type=int, help="the first seed; without it the day chooses")
@click.option("--only", multiple=True, type=click.Choice(PARTS), help="repeatable")
@click.option("--quick", is_flag=True, help="fewer sessions")
@click.option("--show", is_flag=True, help="print each failure; with --tuning alone")
@click.option("--lists", type=click.Path(path_type=Path), help="folder for the reading lists")
def main(
    tuning: bool, seed: int | None, only: list[str], quick: bool, show: bool, lists: Path | None
) -> None:
    """Print the tables."""
    if show and not tuning:
        raise click.UsageError("What is shown is tuned on: --show needs --tuning.")
    section = measured(
        is_tuning=tuning, seed=seed, parts=only or PARTS, is_quick=quick, is_shown=show, lists=lists
    )
    print("\n\n".join(section.parts))


main()
