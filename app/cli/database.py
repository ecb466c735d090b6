"""The database of a command, configured or private, and the command `migrate`."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qs, urlsplit

import click

from app.cli.options import Misconfigured, exiting_on_sigterm, on_database, read_settings
from app.environment import variable

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from app.database.migrate import MigrationError
    from app.settings import Settings

T = TypeVar("T")


class DatabaseLost(click.ClickException):
    """The private PostgreSQL was lost while the process ran."""

    exit_code = 3


@contextmanager
def database(settings: Settings, *, supervised: bool = False) -> Iterator[str]:
    """Yield the URL of the database; runs the private one if no URL is configured.

    With `supervised` the private one is restarted when it ends. If it cannot be restarted, the
    process receives SIGTERM and exits with the code of DatabaseLost.
    """
    from app.common import logs

    logs.configure(settings.log_level)
    if settings.database_url:
        yield settings.database_url
        return
    from app.database.embedded import EmbeddedPostgresError, running

    lost_reasons: list[str] = []

    def stop_process(reason: str) -> None:
        lost_reasons.append(reason)
        os.kill(os.getpid(), signal.SIGTERM)

    try:
        with running(settings.data_dir, stop_process if supervised else None) as url:
            os.environ[variable("database_url")] = url
            yield url
    except EmbeddedPostgresError as exc:
        raise click.ClickException(str(exc)) from exc
    finally:
        if lost_reasons:
            raise DatabaseLost(f"{lost_reasons[0]}.")


def migrated(url: str, *, apart: bool = False) -> bool:
    """Migrate the database if its schema is not current; returns whether it was migrated.

    With `apart` a child process does it: the libraries of migrations would take 30 MB of memory in
    this one for as long as it runs.
    """
    from app.database.migrate import DatabaseUnusable, MigrationError, is_current, migrate

    try:
        if is_current(url):
            return False
        if apart:
            _migrate_apart(url)
        else:
            migrate(url)
    except DatabaseUnusable as exc:
        raise Misconfigured(f"{exc}.") from exc
    except MigrationError as exc:
        raise click.ClickException(str(exc)) from exc
    return True


def _migrate_apart(url: str) -> None:
    """Migrate in a child process and raise its error; a signal to this process ends it."""
    import multiprocessing

    from app.database.migrate import MigrationError

    context = multiprocessing.get_context("spawn")
    results, sender = context.Pipe(duplex=False)
    child = context.Process(target=_report_migration, args=(url, sender), daemon=True)
    child.start()
    sender.close()
    try:
        error = results.recv()
    except EOFError:
        error = MigrationError("The process of the migration ended without a result")
    finally:
        child.terminate()
        child.join()
    if error is not None:
        raise error


def _report_migration(url: str, sender: Connection[MigrationError | None, Any]) -> None:
    """Migrate and send the error, None without one."""
    from app.database.migrate import MigrationError, migrate

    error = None
    try:
        migrate(url)
    except MigrationError as exc:
        error = type(exc)(str(exc))  # without its cause, which another process may not know
    sender.send(error)


def run_migrated(settings: Settings, work: Callable[[Settings], Coroutine[Any, Any, T]]) -> T:
    """Run a command's work in the database of the settings, after the missing migrations."""
    with exiting_on_sigterm(), database(settings) as url:
        migrated(settings.direct_database_url or url)
        return run_in(settings, url, work)


def run_in(settings: Settings, url: str, work: Callable[[Settings], Coroutine[Any, Any, T]]) -> T:
    """Run work of `app.cli.api_keys` in the database at `url`; its errors become one line."""
    from app.common.errors import ContextError

    try:
        return asyncio.run(work(settings.model_copy(update={"database_url": url})))
    except ContextError as exc:
        raise click.ClickException(f"{exc}.") from exc


def existing_settings() -> Settings:
    """Return the settings; raises ClickException if their database does not exist yet."""
    settings = read_settings()
    if not has_database(settings):
        raise click.ClickException(
            f"There is no database in {settings.data_dir}: run this in the directory in which the"
            " service was started, or give --data-dir or --database-url."
        )
    return settings


def has_database(settings: Settings) -> bool:
    """Return whether the database exists; a configured one always counts as existing."""
    return bool(settings.database_url) or (settings.data_dir / "postgres").exists()


def location(settings: Settings) -> str:
    """Return a description of where the database is, without user and password."""
    if not settings.database_url:
        return f"the private PostgreSQL of {settings.data_dir}"
    parts = urlsplit(settings.database_url)
    sockets = parse_qs(parts.query).get("host", ["this machine"])
    host = parts.netloc.rpartition("@")[2] or ", ".join(sockets)
    return f"the database {parts.path.strip('/')} at {host}"


@click.command()
@on_database
def migrate() -> None:
    """Migrate the database to this version's schema; `serve` does it as well."""
    settings = read_settings()
    with exiting_on_sigterm(), database(settings) as url:
        changed = migrated(settings.direct_database_url or url)
    click.echo("The schema is up to date." if changed else "The schema was up to date.")
