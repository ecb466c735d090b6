"""The commands `serve` and `worker`: the database, its migrations, then HTTP or jobs."""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NoReturn

import click

from app.cli.database import (
    database,
    exiting_on_sigterm,
    has_database,
    migrated,
    on_database,
    read_settings,
    run_in,
    setting,
)
from app.common.environment import variable
from app.operation.heap import return_freed_memory

if TYPE_CHECKING:
    from app.settings import Settings

METRICS_DIR = "PROMETHEUS_MULTIPROC_DIR"
SHUTDOWN_SECONDS = 3
"""How long running requests may take to finish after SIGTERM; the database then has 6 s."""


def _disable_worker(_context: click.Context, _option: click.Parameter, is_set: bool) -> None:
    if is_set:
        os.environ[variable("worker")] = "false"


@click.command()
@setting("host")
@setting("port")
@setting("database_url")
@setting("data_dir")
@setting("workers")
@click.option(
    "--no-worker",
    is_flag=True,
    callback=_disable_worker,
    expose_value=False,
    help="Leave background jobs to `context-service worker`; the same as CONTEXT_WORKER=false.",
)
def serve() -> None:
    """Start the service: the database if no URL is given, its migrations, then HTTP.

    Without --database-url a private PostgreSQL runs in the data directory while the service runs.
    Each process runs background jobs as well. SIGTERM lets running requests finish and stops
    everything within 10 s.
    """
    return_freed_memory()
    settings = read_settings()
    needs_key = not settings.allow_unauthenticated and not is_loopback(settings.host)
    if needs_key and not has_database(settings):
        _refuse_public_address(settings)
    with exiting_on_sigterm(), ExitStack() as stack:
        listener = None if needs_key else stack.enter_context(_listening(settings))
        warming = _warm_up("app.main", "uvicorn.supervisors", "uvloop")
        url = stack.enter_context(database(settings, supervised=True))
        migrated(settings, url, apart=True)
        warming.join()
        if listener is None:
            if not run_in(settings, url, lambda services: services.keys.has_keys()):
                _refuse_public_address(settings)
            listener = stack.enter_context(_listening(settings))
        _serve_http(settings, listener)


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
        warming = _warm_up("app.worker", "uvloop")
        with database(settings, supervised=True) as url:
            migrated(settings, url, apart=True)
            warming.join()

            import uvloop

            from app.worker import work

            click.echo("Context Service worker", err=True)
            uvloop.run(work(settings.model_copy(update={"database_url": url})))
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the process is ending already


def _warm_up(*modules: str) -> threading.Thread:
    """Import `modules` in a thread.

    The caller joins the thread before it imports any of them: two threads that import modules in
    a cycle can see a partially initialised module.
    """

    def warm() -> None:
        gc.disable()  # it would be a seventh of the time, and what imports make is kept
        try:
            with suppress(Exception):  # the caller imports them again and sees the error
                for module in modules:
                    import_module(module)
        finally:
            gc.enable()

    thread = threading.Thread(target=warm, name="warm-up", daemon=True)
    thread.start()
    return thread


def is_loopback(host: str) -> bool:
    """Return whether every address of `host` is a loopback address."""
    import ipaddress

    try:
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as exc:
        raise click.ClickException(f"Cannot listen on {host}: {exc.strerror or exc}.") from exc
    return all(ipaddress.ip_address(address[4][0]).is_loopback for address in addresses)


def _refuse_public_address(settings: Settings) -> NoReturn:
    raise click.ClickException(
        f"Refusing to listen on {settings.host}: no API key exists, so every client that reaches"
        " the service could read every conversation. Create a key with `context-service keys"
        " create --tenant NAME`, listen on 127.0.0.1, or set CONTEXT_ALLOW_UNAUTHENTICATED=true if"
        " a proxy or firewall controls access."
    )


@contextmanager
def _listening(settings: Settings) -> Iterator[socket.socket]:
    """Listen before anything else starts.

    A busy port is reported at once, and early clients wait instead of being refused.
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


def _serve_http(settings: Settings, listener: socket.socket) -> None:
    """Serve HTTP until a signal arrives, in this process or in several child processes."""
    import uvicorn
    from uvicorn.supervisors import Multiprocess

    from app.common import logs
    from app.http.middleware import BoundedProtocol

    # The default would trust every client on this machine.
    trusted_proxies = os.environ.get("FORWARDED_ALLOW_IPS", "")
    config = uvicorn.Config(
        "app.main:build",
        factory=True,
        loop="uvloop",
        http=BoundedProtocol,
        limit_concurrency=settings.max_connections,
        ws="none",
        access_log=False,
        log_level=settings.log_level,
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=trusted_proxies,
        workers=settings.workers,
    )
    logs.configure(settings.log_level)
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    click.echo(f"Context Service on {url}, with {url}/inspector and {url}/docs", err=True)
    with suppress(KeyboardInterrupt):
        if config.workers == 1:
            uvicorn.Server(config).run(sockets=[listener])
        else:
            # The processes share their metrics in this directory.
            with TemporaryDirectory(prefix="context-metrics-") as os.environ[METRICS_DIR]:
                Multiprocess(config, sockets=[listener]).run()
