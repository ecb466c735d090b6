"""The commands `demo`, and `openapi` and `settings`, which print generated documents."""

from __future__ import annotations

from pathlib import Path

import click

from app.cli.options import Command


def _document(command: Command) -> Command:
    """Give a command the options of a generated document."""
    output = click.option(
        "--output",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Write this file instead of stdout.",
    )
    check = click.option(
        "--check",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Compare with this file; exit code 1 if it differs.",
    )
    return output(check(command))


@click.command()
@_document
def openapi(output: Path | None, check: Path | None) -> None:
    """Print the OpenAPI description of this version."""
    import json

    from app.main import create_app
    from app.settings import Settings

    app = create_app(Settings.model_construct())  # the defaults, whatever the environment holds
    _emit(json.dumps(app.openapi(), indent=2) + "\n", output, check, "make openapi")


@click.command(hidden=True)
@_document
def settings(output: Path | None, check: Path | None) -> None:
    """Print the settings as Markdown: docs/configuration.md."""
    from app.cli.configuration import markdown

    _emit(markdown(), output, check, "make docs")


def _emit(text: str, output: Path | None, check: Path | None, remedy: str) -> None:
    if output:
        output.write_text(text, encoding="utf-8")
    elif not check:
        click.echo(text, nl=False)
    if check and check.read_text(encoding="utf-8") != text:
        raise click.ClickException(f"{check} is out of date: run `{remedy}`.")


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
