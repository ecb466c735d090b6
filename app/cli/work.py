"""The command `worker`."""

from __future__ import annotations

import signal

import click

from app.cli.database import database, migrated
from app.cli.options import exiting_on_sigterm, on_database, read_settings, setting
from app.cli.warm_up import warm_up
from app.heap import return_freed_memory


@click.command()
@on_database
@setting("worker_concurrency")
def worker() -> None:
    """Run background jobs, such as compactions, in a process of its own.

    Any number of workers and services may use one database. SIGTERM lets running jobs finish for
    3 s, returns the others to the queue, and ends the process within 10 s.
    """
    return_freed_memory()
    settings = read_settings()
    with exiting_on_sigterm():
        warming = warm_up("app.worker", "uvloop")
        with database(settings, supervised=True) as url:
            migrated(settings.direct_database_url or url, apart=True)
            warming.join()

            import uvloop

            from app.worker import work

            click.echo("Context Service worker", err=True)
            uvloop.run(work(settings.model_copy(update={"database_url": url})))
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the process is ending already
