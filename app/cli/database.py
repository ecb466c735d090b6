"""Shared by the commands: their options, the settings, the database, and the command `migrate`."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from urllib.parse import parse_qs, urlsplit

import click

from app.common.environment import SettingsError, variable

if TYPE_CHECKING:
    from app.composition import Services
    from app.settings import Settings

T = TypeVar("T")
Command = Callable[..., Any]
QUIET_SECONDS = 1.0
"""How long commands work before they show on a terminal that they do."""


class Misconfigured(click.ClickException):
    """A setting is invalid, or names a database that cannot be used."""

    exit_code = 2


class DatabaseLost(click.ClickException):
    """The private PostgreSQL was lost while the process ran."""

    exit_code = 3


class Group(click.Group):
    """A group whose list of commands shows their whole summaries."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command, with the first paragraph of its help as its summary."""
        cmd.short_help = (cmd.help or "").partition("\n\n")[0]
        super().add_command(cmd, name)


class SettingOption(click.Option):
    """A flag that sets the environment variable of a setting.

    Its help is the setting's description, loaded when it is shown because the import is slow.
    """

    def __init__(self, declarations: list[str], **attributes: Any) -> None:
        self.setting = declarations[0].removeprefix("--").replace("-", "_")
        name = variable(self.setting)

        def export(_context: click.Context, _option: click.Parameter, value: str | None) -> None:
            if value is not None:
                os.environ[name] = value

        options = {"callback": export, "envvar": name, "expose_value": False, "show_envvar": True}
        super().__init__(declarations, **(attributes | options))

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the flag with the setting's description and default."""
        from app.settings import Settings, description_of

        field = Settings.model_fields[self.setting]
        self.help = description_of(self.setting)
        self.show_default = str(field.default) if field.default is not None else False
        return super().get_help_record(ctx)


def setting(name: str) -> Callable[[Command], Command]:
    """Return the option of the setting `name`."""
    return click.option(f"--{name.replace('_', '-')}", cls=SettingOption)


def on_database(command: Command) -> Command:
    """Give a command the options that select the database."""
    return setting("database_url")(setting("data_dir")(command))


def read_settings(*, existing: bool = False, warns: bool = True) -> Settings:
    """Return the settings, and warn of variables that no setting reads.

    With `existing` a database that does not exist yet is an error.
    """
    from app.settings import read_settings, unknown_variables

    for name in unknown_variables(os.environ) if warns else ():
        click.echo(f"Warning: {name} is not a setting of this service.", err=True)
    try:
        settings = read_settings()
    except SettingsError as exc:
        raise Misconfigured(str(exc)) from exc
    if existing and not has_database(settings):
        raise Misconfigured(
            f"There is no database in {settings.data_dir}: run this in the directory in which the"
            " service was started, or give --data-dir or --database-url."
        )
    return settings


@contextmanager
def exiting_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that `finally` blocks and context managers run.

    A closed terminal sends SIGHUP, which does what SIGTERM does, unless `nohup` ignores it.
    """

    def exit_cleanly(_signal: int, _frame: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise SystemExit(0)

    previous = signal.signal(signal.SIGTERM, exit_cleanly)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def waiting(label: str) -> Iterator[None]:
    """Show on a terminal, after a second, that the work of the block goes on."""
    if not sys.stderr.isatty():
        yield
        return
    ended = threading.Event()

    def show() -> None:
        ticks = iter(partial(ended.wait, QUIET_SECONDS / 10), True)
        if not ended.wait(QUIET_SECONDS):
            with click.progressbar(ticks, label=label, file=sys.stderr) as bar:
                list(bar)

    showing = threading.Thread(target=show)
    showing.start()
    try:
        yield
    finally:
        ended.set()
        showing.join()


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
        with ExitStack() as stack:
            with waiting("Starting PostgreSQL"):
                on_lost = stop_process if supervised else None
                url = stack.enter_context(running(settings.data_dir, on_lost))
            os.environ[variable("database_url")] = url
            yield url
    except EmbeddedPostgresError as exc:
        raise Misconfigured(str(exc)) from exc
    finally:
        if lost_reasons:
            raise DatabaseLost(f"{lost_reasons[0]}.")


def migrated(settings: Settings, url: str, *, apart: bool = False) -> bool:
    """Migrate the database if its schema is not current; returns whether it was migrated.

    With `apart` a child process does it: the libraries of migrations would take 30 MB of memory in
    this one for as long as it runs.
    """
    from app.database.migrate import DatabaseUnusable, MigrationError, is_current, migrate

    url = settings.direct_database_url or url
    try:
        if is_current(url):
            return False
        if apart:  # a child shows that it waits
            if code := subprocess.call((sys.executable, "-m", "app.cli", "migrate", "--quiet")):
                raise SystemExit(code)  # it has said why
            return True
        with waiting("Migrating the database"):
            migrate(url)
    except DatabaseUnusable as exc:
        raise Misconfigured(f"{exc}.") from exc
    except MigrationError as exc:
        raise click.ClickException(str(exc)) from exc
    return True


def run_migrated(settings: Settings, work: Callable[[Services], Awaitable[T]]) -> T:
    """Run a command's work in the database of the settings, after the missing migrations."""
    with exiting_on_sigterm(), database(settings) as url:
        migrated(settings, url)
        return run_in(settings, url, work)


def run_in(settings: Settings, url: str, work: Callable[[Services], Awaitable[T]]) -> T:
    """Run work with services in the database at `url`; its errors become one line."""
    from app.common.errors import ContextError
    from app.composition import Services

    async def run() -> T:
        services = Services(settings.model_copy(update={"database_url": url}))
        await services.store.open()
        try:
            return await work(services)
        finally:
            await services.store.close()
            await services.gateway.close()

    try:
        with waiting("Working"):
            return asyncio.run(run())
    except ContextError as exc:
        raise click.ClickException(f"{exc}.") from exc


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
@click.option("--quiet", is_flag=True, hidden=True)
@on_database
def migrate(quiet: bool) -> None:
    """Migrate the database to this version's schema; `serve` does it as well."""
    settings = read_settings(warns=not quiet)
    with exiting_on_sigterm(), database(settings) as url:
        changed = migrated(settings, url)
        asyncio.run(_place_functions(settings.direct_database_url or url))
    if not quiet:
        click.echo("The schema is up to date." if changed else "The schema was up to date.")


async def _place_functions(url: str) -> None:
    """Make on Citus what appends and builds run on the shards."""
    from app.database.citus import place
    from app.database.migrate import migration_lock
    from app.repositories import FREQUENT

    async with migration_lock(url) as connection:
        await place(connection, FREQUENT)
