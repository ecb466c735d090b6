"""The command `demo`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument(
    "traces", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--url",
    default="http://127.0.0.1:8080",
    envvar="CONTEXT_URL",
    help="Address of the service.",
    show_default=True,
    show_envvar=True,
)
@click.option(
    "--key",
    envvar="CONTEXT_API_KEY",
    help="API key, if the service requires one.",
    show_envvar=True,
)
@click.option("--open", "opens", is_flag=True, help="Open the inspector in a browser.")
def demo(traces: Path | None, url: str, key: str | None, opens: bool) -> None:
    """Replay conversations against a running service and print the result of each.

    TRACES is a file with one conversation per line; default: the samples of the project. The exit
    code is 1 if the service refused a request.
    """
    from app.demo import run

    page = run(traces, url, key)
    if opens:
        import webbrowser

        if not webbrowser.open(page):
            click.echo(f"No browser was found: open {page} in one.")
