"""`python -m tests.torture --minutes 10 --seed 7`: torture of the service."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count, takewhile
from pathlib import Path

import click

GAP = (20, 120)
"""Operations between two faults."""


@click.command()
@click.option("--seed", type=int, default=7, show_default=True, help="Decides lives and faults.")
@click.option("--minutes", type=float, default=10.0, show_default=True)
@click.option("--lives", type=int, help="Live so many lives instead of some minutes.")
@click.option("--operations", type=int, default=60, show_default=True, help="Of each life.")
@click.option("--threads", type=int, default=3, show_default=True, help="Lives at once.")
@click.option("--only", type=int, help="Live this life of the seed alone.")
@click.option("--calm", is_flag=True, help="Without faults.")
def main(
    seed: int,
    minutes: float,
    lives: int | None,
    operations: int,
    threads: int,
    only: int | None,
    calm: bool,
) -> None:
    """Torture the service; the exit code is 1 if it breaks a promise."""
    from tests.torture.run import run  # not in the processes that are forked

    folder = Path(tempfile.mkdtemp(prefix="torture-"))
    folder.chmod(0o755)
    click.echo(f"The logs of all processes are in {folder}", err=True)
    numbers: Iterator[int] = count()
    if only is not None:
        numbers = iter([only])
    elif lives is not None:
        numbers = iter(range(lives))
    else:
        until = time.monotonic() + minutes * 60
        numbers = takewhile(lambda _: time.monotonic() < until, numbers)
    report = run(
        folder,
        seed,
        numbers,
        operations=operations,
        threads=threads,
        gap=None if calm else GAP,
        tell=lambda line: click.echo(line, err=True),
    )
    for line in report.lines():
        click.echo(line)
    sys.exit(1 if report.failures else 0)


if __name__ == "__main__":  # the fork server imports this module as well
    main()
