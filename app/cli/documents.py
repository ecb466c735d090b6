"""The commands `demo`, and `openapi` and `settings`, which print generated documents."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import IO, Any

import click

_HEAD = """\
# Configuration

Every setting is an environment variable. `context-service settings` prints this page from the
settings class; `make docs` writes it. An empty variable counts as unset. At startup an invalid
value ends the process with exit code 2 and a line that names the variable. Lists are separated by
commas. Some settings are also flags of `serve` and `worker`, which override the variable; `--help`
shows them.

A secret can also come from a file, as Docker and Kubernetes mount it. These variables name such
files, and the variable without `_FILE` overrides its file:
{secrets}.

Clients of the service, such as `context-service demo`, read `CONTEXT_URL` and `CONTEXT_API_KEY`.
The service reads neither.
"""
_POLICY = """\
## Policy

A policy sets how a conversation's context is managed. Each value is inherited: the conversation's
policy overrides its agent's, which overrides the service's default. `GET` shows the effective
values. Ratios are shares of the effective window: the context window minus `max_output_tokens`.
"""


_output = click.option(
    "--output",
    type=click.File("w", encoding="utf-8"),
    default="-",
    help="Write this file instead of stdout.",
)


@click.command()
@_output
def openapi(output: IO[str]) -> None:
    """Print the OpenAPI description of this version."""
    from app.main import create_app
    from app.settings import Settings

    app = create_app(Settings.model_construct())  # the defaults, whatever the environment holds
    output.write(json.dumps(app.openapi(), indent=2) + "\n")


@click.command(hidden=True)
@_output
def settings(output: IO[str]) -> None:
    """Print the settings as Markdown: docs/configuration.md."""
    output.write(markdown())


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
    from app.cli.demo import run

    page = run(traces, url, key)
    if opens:
        import webbrowser

        if not webbrowser.open(page):
            click.echo(f"No browser was found: open {page} in one.")


def markdown() -> str:
    """Return the settings as Markdown, made from the settings class and the policy's schema."""
    from app.common.environment import variable
    from app.policy.policy import DEFAULT_POLICY, POLICY_VARIABLES, Policy
    from app.settings import GROUPS, Settings, description_of, secret_files

    parts = [_HEAD.format(secrets=",\n".join(map(_code, secret_files().values())))]
    for group in GROUPS:
        rows: list[tuple[str, ...]] = []
        for name in group.model_fields:
            default = Settings.model_fields[name].default
            shown = _code(default) if default is not None and default != () else "unset"
            rows.append((_code(variable(name)), shown, description_of(name)))
        title = (group.__doc__ or "").rstrip(".")
        parts.append(f"## {title}\n\n{_table(('variable', 'default', 'description'), rows)}")
    root, rows = Policy.model_json_schema(), []
    for name, path in POLICY_VARIABLES.items():
        schema: dict[str, Any] = root
        for key in path:
            kinds = (schema, *schema.get("anyOf", ()))
            references = [kind["$ref"] for kind in kinds if "$ref" in kind]
            schema = root["$defs"][references[0].rpartition("/")[2]] if references else schema
            schema = schema["properties"][key]
        value: Any = reduce(getitem, path, DEFAULT_POLICY)
        shown = _code(value if isinstance(value, str) else json.dumps(value))
        rows.append((_code(".".join(path)), _code(name), shown, schema["description"]))
    header = ("value", "variable", "default", "description")
    return "\n".join((*parts, f"{_POLICY}\n{_table(header, rows)}"))


def _code(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{text}`"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header)]
    lines += [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
