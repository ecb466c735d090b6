"""The commands `demo`, and `openapi` and `settings`, which print generated documents."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

from app.cli.database import Command

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

`CONTEXT_POLICY` is the default policy as one JSON object; the variables of single values
override it.
"""
_TYPES = {"array": "list", "object": "JSON object"}


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
    from app.main import create_app
    from app.settings import Settings

    app = create_app(Settings.model_construct())  # the defaults, whatever the environment holds
    _emit(json.dumps(app.openapi(), indent=2) + "\n", output, check, "make openapi")


@click.command(hidden=True)
@_document
def settings(output: Path | None, check: Path | None) -> None:
    """Print the settings as Markdown: docs/configuration.md."""
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


def markdown() -> str:
    """Return the settings as Markdown, made from the settings class and the policy's schema."""
    from app.environment import variable
    from app.policy.policy import DEFAULT_POLICY, POLICY_VARIABLES, Policy
    from app.settings import GROUPS, Settings, description_of, secret_files

    properties = Settings.model_json_schema(by_alias=False)["properties"]
    header: tuple[str, ...] = ("variable", "type", "default", "bounds", "description")
    secrets = ",\n".join(map(_code, secret_files().values()))
    parts = [_HEAD.format(secrets=secrets)]
    for group in GROUPS:
        rows: list[tuple[str, ...]] = []
        for name in group.model_fields:
            schema, default = properties[name], Settings.model_fields[name].default
            shown = _code(default) if default is not None and default != () else "unset"
            pattern = [
                _code(kind["pattern"]) for kind in _alternatives(schema) if "pattern" in kind
            ]
            bounds = _bounds(schema) or ", ".join(pattern)
            rows.append((_code(variable(name)), _type(schema), shown, bounds, description_of(name)))
        parts.append(f"## {(group.__doc__ or '').rstrip('.')}\n\n{_table(header, rows)}")
    root, rows = Policy.model_json_schema(), []
    for name, path in POLICY_VARIABLES.items():
        schema = root
        for key in path:
            (inner,) = _alternatives(schema, root["$defs"])
            schema = inner["properties"][key]
        value: Any = reduce(getitem, path, DEFAULT_POLICY)
        shown = _code(value if isinstance(value, str) else json.dumps(value))
        kind, bounds = _type(schema, root["$defs"]), _bounds(schema, root["$defs"])
        leaf = _code(".".join(path))
        rows.append((leaf, _code(name), kind, shown, bounds, schema["description"]))
    parts.append(f"{_POLICY}\n{_table(('value', *header), rows)}")
    return "\n".join(parts)


def _alternatives(
    schema: Mapping[str, Any], definitions: Mapping[str, Any] = MappingProxyType({})
) -> Iterator[Mapping[str, Any]]:
    """Yield the alternatives of a schema, without null and with references resolved."""
    if "$ref" in schema:
        yield from _alternatives(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    elif "anyOf" in schema:
        for kind in schema["anyOf"]:
            yield from _alternatives(kind, definitions)
    elif schema.get("type") != "null":
        yield schema


def _type(schema: Mapping[str, Any], definitions: Mapping[str, Any] = MappingProxyType({})) -> str:
    words: list[str] = []
    for kind in _alternatives(schema, definitions):
        if "enum" in kind or "const" in kind:
            words += map(_code, kind.get("enum") or [kind["const"]])
        else:
            words.append(_TYPES.get(kind["type"], kind["type"]))
    return ", ".join(words)


def _bounds(
    schema: Mapping[str, Any], definitions: Mapping[str, Any] = MappingProxyType({})
) -> str:
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    return ", ".join(
        f"{sign} {kind[name]}"
        for kind in _alternatives(schema, definitions)
        for name, sign in signs.items()
        if name in kind
    )


def _code(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{text}`"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [
        header,
        ["---"] * len(header),
        *([cell.replace("|", "\\|") for cell in r] for r in rows),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
