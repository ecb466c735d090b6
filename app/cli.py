"""The command line: `context-service serve | worker | migrate | keys | tenants | demo | openapi`.

1. A flag is another way to set its environment variable, and wins over it; so the processes
   started from here see the same settings.
2. What a user can mend is one sentence on stderr, never a traceback. The exit code is 2 where a
   setting is wrong or the database that it names cannot be used, 3 where the private database is
   lost meanwhile, and 1 otherwise.
3. Imports that cost something happen inside the commands, and while the database starts.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn, TypeVar, cast
from urllib.parse import parse_qs, urlsplit

import click

from app.settings import Settings, SettingsError, about, unknown_variables, variable

GRACE_SECONDS = 3
"""How long running requests may take to finish after SIGTERM; the database then has 6 s."""


T = TypeVar("T")


class Misconfigured(click.ClickException):
    """A setting is wrong, or names a database that cannot be used."""

    exit_code = 2


class DatabaseLost(click.ClickException):
    """The private PostgreSQL is gone for good while the process runs."""

    exit_code = 3


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="context-service")
def cli() -> None:
    """Keep every message of an LLM agent, and build the exact payload for its next call.

    Every setting is a CONTEXT_… environment variable. The README's table has them all; --help of
    a command tells which of them are flags as well.
    """


def setting(name: str, default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option that sets the variable of the setting `name` (rule 1)."""

    def put(_context: click.Context, _option: click.Parameter, value: str | None) -> None:
        if value is not None:
            os.environ[variable(name)] = value

    return click.option(
        f"--{name.replace('_', '-')}",
        callback=put,
        envvar=variable(name),
        expose_value=False,
        help=about(name),
        show_default=default,
        show_envvar=True,
    )


def on_database(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that say where the database is."""
    command = setting("data_dir", "./data")(command)
    return setting("database_url", "the private PostgreSQL of the data directory")(command)


def no_worker(_context: click.Context, _option: click.Parameter, is_set: bool) -> None:
    """Set the variable of the setting `worker` to false (rule 1)."""
    if is_set:
        os.environ[variable("worker")] = "false"


@cli.command()
@setting("host", "127.0.0.1")
@setting("port", "8080")
@setting("database_url", "a private PostgreSQL")
@setting("data_dir", "./data")
@setting("workers", "1")
@click.option(
    "--no-worker",
    is_flag=True,
    callback=no_worker,
    expose_value=False,
    help="leave background jobs to `context-service worker`; as CONTEXT_WORKER=false",
)
def serve() -> None:
    """Start the service: the database if none is given, its migrations, then HTTP.

    Without --database-url a private PostgreSQL runs in the data directory for as long as the
    service does. Each process does background jobs as well. SIGTERM lets running requests
    finish and stops everything within 10 s.
    """
    settings = read_settings()
    is_public = not settings.allow_unauthenticated and not is_loopback(settings.host)
    if is_public and not has_database(settings):
        refuse_public_bind(settings)
    with leaving_on_sigterm(), ExitStack() as stack:
        listener = None if is_public else stack.enter_context(bound(settings))
        warming = warm_up("app.main", "uvicorn.supervisors", "uvloop")
        url = stack.enter_context(database(settings, supervised=True))
        bring_up_to_date(settings.direct_database_url or url)
        warming.join()
        if listener is None:
            if not has_any_key(replace(settings, database_url=url)):
                refuse_public_bind(settings)
            listener = stack.enter_context(bound(settings))
        answer(settings, listener)


@cli.command()
@on_database
@setting("worker_concurrency", "4")
def worker() -> None:
    """Do background jobs, such as compactions, in a process of its own.

    Any number of them may run beside any number of services on one database. SIGTERM lets
    running jobs finish for 3 s and gives the others back, within 10 s.
    """
    settings = read_settings()
    with leaving_on_sigterm():
        warming = warm_up("app.worker", "app.adapters.postgres.compaction.queue", "uvloop")
        with database(settings, supervised=True) as url:
            bring_up_to_date(settings.direct_database_url or url)
            warming.join()
            do_jobs(replace(settings, database_url=url))


@cli.command()
@on_database
def migrate() -> None:
    """Bring the database to this version's schema; `serve` does it as well."""
    settings = read_settings()
    with leaving_on_sigterm(), database(settings) as url:
        changed = bring_up_to_date(settings.direct_database_url or url)
    click.echo("The schema is up to date." if changed else "The schema was up to date.")


@cli.group()
def keys() -> None:
    """Make, list and revoke API keys.

    The first key ends the time in which nobody is asked for one. Requests bring theirs as
    `Authorization: Bearer ctx_...`.
    """


@keys.command("create")
@click.option("--tenant", required=True, help="whose key it is; made when there is none")
@click.option("--name", default="", help="what the key is for, shown in lists")
@click.option("--expires-in-days", type=click.IntRange(1, 36_500), help="never, unless given")
@on_database
def create_key(tenant: str, name: str, expires_in_days: int | None) -> None:
    """Make a key and print it; it is the last word of the output, and cannot be shown again.

    What is printed before it on stderr says in which database. A private one is made when missing.
    """
    from app.keys import create

    settings = read_settings()
    is_there = has_database(settings)
    text = in_database(settings, partial(create, tenant, name, expires_in_days))
    made = f"Made a key of tenant {tenant} in {place_of(settings)}"
    if not is_there:
        made += ", which is new: services of other directories do not know it"
    click.echo(f"{made}. Keep the key: it is not stored.", err=True)
    click.echo(text)


@keys.command("list")
@click.option("--tenant", help="only this tenant's")
@on_database
def list_keys(tenant: str | None) -> None:
    """List keys with their tenant, age, last use and state; secrets are not among it."""
    from app.keys import table_of_keys

    click.echo(in_database(existing(), partial(table_of_keys, tenant)))


@keys.command("revoke")
@click.argument("key_id")
@on_database
def revoke_key(key_id: str) -> None:
    """End a key for good; KEY_ID is what `keys list` shows. Takes effect within 10 s."""
    from app.keys import revoke

    click.echo(in_database(existing(), partial(revoke, key_id)))


@keys.command("uses")
@click.argument("key_id")
@click.option("--days", type=click.IntRange(1, 3650), default=7, show_default=True)
@on_database
def list_uses(key_id: str, days: int) -> None:
    """Show how often a key came, hour by hour, from where, and how often it was refused."""
    from app.keys import table_of_uses

    click.echo(in_database(existing(), partial(table_of_uses, key_id, days)))


@cli.group()
def tenants() -> None:
    """List tenants, and set what each of them may do."""


@tenants.command("list")
@on_database
def list_tenants() -> None:
    """List tenants with the limits that are their own."""
    from app.keys import table_of_tenants

    click.echo(in_database(existing(), table_of_tenants))


@tenants.command("limit")
@click.argument("tenant")
@click.option("--requests-per-minute", type=click.IntRange(1), help="over all processes")
@click.option("--bytes-per-day", type=click.IntRange(1), help="of request bodies")
@click.option("--summarizer-calls-per-hour", type=click.IntRange(0))
@click.option("--storage-bytes", type=click.IntRange(1), help="of messages and tool outputs")
@click.option("--create", is_flag=True, help="make TENANT when there is none")
@on_database
def limit_tenant(
    tenant: str,
    requests_per_minute: int | None,
    bytes_per_day: int | None,
    summarizer_calls_per_hour: int | None,
    storage_bytes: int | None,
    create: bool,
) -> None:
    """Give TENANT these limits; those left out are the settings' again. Takes effect in 10 s."""
    from app.domain.tenancy.quotas import TenantLimits
    from app.keys import set_limits, set_limits_of_known

    limits = TenantLimits(
        requests_per_minute, bytes_per_day, summarizer_calls_per_hour, storage_bytes
    )
    work = set_limits if create else set_limits_of_known
    in_database(existing(), partial(work, tenant, limits))
    click.echo(f"Set the limits of tenant {tenant}.")


@cli.command()
@click.argument(
    "traces", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--url",
    default="http://127.0.0.1:8080",
    envvar="CONTEXT_URL",
    help="service to replay against",
    show_default=True,
    show_envvar=True,
)
@click.option(
    "--key",
    envvar="CONTEXT_API_KEY",
    help="API key, where the service asks for one",
    show_envvar=True,
)
def demo(traces: Path | None, url: str, key: str | None) -> None:
    """Replay conversations against a running service and show what came of each.

    TRACES is a file with one conversation a line; without it, the samples of the project. The exit
    code is 1 when the service refused anything.
    """
    from app.demo import run

    run(traces, url, key)


@cli.command()
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="file to write instead"
)
@click.option(
    "--check",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="file to compare with; exit code 1 when it differs",
)
def openapi(output: Path | None, check: Path | None) -> None:
    """Print the OpenAPI description of this version."""
    import json

    from app.main import create_app

    text = json.dumps(create_app(Settings()).openapi(), indent=2) + "\n"
    if output:
        output.write_text(text, encoding="utf-8")
    elif not check:
        click.echo(text, nl=False)
    if check and check.read_text(encoding="utf-8") != text:
        raise click.ClickException(f"{check} differs from the app: run `make openapi`.")


def main() -> None:
    """Run the command line; the console script `context-service`."""
    cli(prog_name="context-service")


def read_settings() -> Settings:
    """Return the settings of the environment, and warn of variables that none reads."""
    for name in unknown_variables(os.environ):
        click.echo(f"Warning: {name} is no setting of this service.", err=True)
    try:
        return Settings.from_env(os.environ)
    except SettingsError as exc:
        raise Misconfigured(str(exc)) from exc


def has_any_key(settings: Settings) -> bool:
    """Tell whether requests need a key."""
    from app.keys import has_keys

    return with_database(settings, has_keys)


def refuse_public_bind(settings: Settings) -> NoReturn:
    """Refuse to answer where others can reach a service that asks nobody for a key (34)."""
    raise click.ClickException(
        f"Refusing to listen on {settings.host}: no API key is configured, so whoever reaches it"
        " could read every conversation. Make one with `context-service keys create --tenant"
        " NAME`, listen on 127.0.0.1, or set CONTEXT_ALLOW_UNAUTHENTICATED=true where something"
        " else keeps strangers out."
    )


def is_loopback(host: str) -> bool:
    """Tell whether every address of `host` is reachable from this machine only."""
    import ipaddress

    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as exc:
        raise click.ClickException(f"Cannot listen on {host}: {exc.strerror or exc}.") from exc
    return all(ipaddress.ip_address(address[4][0]).is_loopback for address in found)


def existing() -> Settings:
    """Return the settings; refuses where their database would be a new one, with nothing in it."""
    settings = read_settings()
    if not has_database(settings):
        raise click.ClickException(
            f"There is no database in {settings.data_dir.absolute()}: go to the directory in which"
            " the service was started, or name its database with --data-dir or --database-url."
        )
    return settings


def in_database(settings: Settings, work: Callable[[Settings], Coroutine[Any, Any, T]]) -> T:
    """Run a command's work in the database of the settings, which is brought up to date first."""
    with leaving_on_sigterm(), database(settings) as url:
        bring_up_to_date(settings.direct_database_url or url)
        return with_database(replace(settings, database_url=url), work)


def with_database(settings: Settings, work: Callable[[Settings], Coroutine[Any, Any, T]]) -> T:
    """Run work of `app.keys`, whose errors end in a sentence (rule 2)."""
    import asyncio

    from app.domain.common.errors import ContextError

    try:
        return asyncio.run(work(settings))
    except ContextError as exc:
        raise click.ClickException(f"{exc}.") from exc


@contextmanager
def bound(settings: Settings) -> Iterator[socket.socket]:
    """Listen from the start on: a busy port is said before anything else runs, and a client that
    comes early waits for its answer instead of being refused.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
            listener.listen(2048)
        except OSError as exc:
            raise click.ClickException(
                f"Cannot listen on {settings.host} port {settings.port}: {exc.strerror}."
                " Choose another with --port or CONTEXT_PORT."
            ) from exc
        yield listener


@contextmanager
def leaving_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that whatever runs here is left in good order."""

    def leave(_signal: int, _frame: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise SystemExit(0)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def warm_up(*modules: str) -> threading.Thread:
    """Import `modules` beside the main thread, which meanwhile waits for the database.

    It joins the thread before it imports any of them: where two threads import modules that
    import each other, one may be handed a module that is not whole yet.
    """

    def warm() -> None:
        with suppress(Exception):  # the main thread imports them again and sees for itself
            for module in modules:
                import_module(module)

    thread = threading.Thread(target=warm, name="warm-up", daemon=True)
    thread.start()
    return thread


@contextmanager
def database(settings: Settings, *, supervised: bool = False) -> Iterator[str]:
    """Yield the URL of the database, with the private one running if none is configured.

    With `supervised` the private one is started again when it ends. Where it is gone for good,
    the process is told to stop, and leaves with the exit code of DatabaseLost.
    """
    if settings.database_url:
        yield settings.database_url
        return
    from app import logs
    from app.adapters.postgres.embedded import EmbeddedPostgresError, running

    logs.configure(settings.log_level)
    lost: list[str] = []

    def leave(reason: str) -> None:
        lost.append(reason)
        os.kill(os.getpid(), signal.SIGTERM)

    try:
        with running(settings.data_dir, leave if supervised else None) as url:
            os.environ[variable("database_url")] = url
            yield url
    except EmbeddedPostgresError as exc:
        raise click.ClickException(str(exc)) from exc
    finally:
        if lost:
            raise DatabaseLost(f"{lost[0]}.")


def has_database(settings: Settings) -> bool:
    """Tell whether there is a database, or would be a new and empty one."""
    return bool(settings.database_url) or (settings.data_dir / "postgres").exists()


def place_of(settings: Settings) -> str:
    """Return where the database is, in words without user and password."""
    if not settings.database_url:
        return f"the private PostgreSQL of {settings.data_dir.absolute()}"
    parts = urlsplit(settings.database_url)
    sockets = parse_qs(parts.query).get("host", ["this machine"])
    host = parts.netloc.rpartition("@")[2] or ", ".join(sockets)
    return f"the database {parts.path.strip('/')} at {host}"


def bring_up_to_date(url: str) -> bool:
    """Migrate the database unless its schema is current; return whether there was need."""
    from app.adapters.postgres.migrate import DatabaseUnusable, MigrationError, is_current, migrate

    try:
        if is_current(url):
            return False
        migrate(url)
    except DatabaseUnusable as exc:
        raise Misconfigured(f"{exc}.") from exc
    except MigrationError as exc:
        raise click.ClickException(str(exc)) from exc
    return True


def answer(settings: Settings, listener: socket.socket) -> None:
    """Answer requests until a signal says to stop, here or in several processes below."""
    import uvicorn
    from uvicorn.supervisors import Multiprocess

    from app import logs
    from app.api.middleware.connections import BoundedProtocol, ConnectionLimits, most_connections

    limits = ConnectionLimits(
        most_connections(settings.max_connections),
        settings.max_head_bytes,
        settings.head_seconds,
        settings.body_stall_seconds,
    )

    config = uvicorn.Config(
        "app.main:build",
        factory=True,
        loop="uvloop",
        http=cast("type[asyncio.Protocol]", partial(BoundedProtocol, limits=limits)),
        ws="none",
        access_log=False,
        log_level=settings.log_level,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
        # uvicorn would believe whoever is on this machine.
        forwarded_allow_ips=os.environ.get("FORWARDED_ALLOW_IPS", ""),
        workers=settings.workers,
    )
    logs.configure(settings.log_level)
    host, port = listener.getsockname()[:2]
    click.echo(f"Context Service on http://{host}:{port} (docs at /docs)", err=True)
    with suppress(KeyboardInterrupt):
        if config.workers == 1:
            uvicorn.Server(config).run(sockets=[listener])
        else:
            with shared_metrics():
                Multiprocess(config, sockets=[listener]).run()


@contextmanager
def shared_metrics() -> Iterator[None]:
    """Have the processes started in the block keep their metrics in one directory."""
    with TemporaryDirectory(prefix="context-metrics-") as directory:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = directory
        yield


def do_jobs(settings: Settings) -> None:
    """Do background jobs until a signal says to stop."""
    import uvloop

    from app.worker import work

    click.echo("Context Service worker", err=True)
    uvloop.run(work(settings))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is ending already
