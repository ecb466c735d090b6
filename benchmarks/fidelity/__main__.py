"""Run `python -m benchmarks.fidelity [--quick] [--checkout FOLDER] [--lost FILE]`."""

from __future__ import annotations

from pathlib import Path

import click

from benchmarks.fidelity.measurement import ROOT, measure


@click.command()
@click.option("--quick", is_flag=True, help="two sessions without a model")
@click.option("--checkout", type=Path, default=ROOT, help="folder of the service, with app/ in it")
@click.option("--lost", type=Path, help="file for what was lost or wrong, a line each")
def main(quick: bool, checkout: Path, lost: Path | None) -> None:
    """Plant statements, compact five times, and print what is left of them."""
    click.echo("\n\n".join(measure(quick, checkout, lost).parts))


if __name__ == "__main__":
    main()
