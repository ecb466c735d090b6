"""The commands `demo`, and `openapi` and `settings`, which print generated documents."""

from __future__ import annotations

import json
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import IO, Any

import click

_HEAD = """\
# Configuration

Every setting is an environment variable, with its default in parentheses; an empty one counts as
unset. At startup an invalid value ends the process with a line that names the variable. Lists are
separated by commas. Flags of `serve` and `worker` override some variables: see `--help`. `make
docs` generates this page.

Secrets can also be in files, as Docker and Kubernetes mount them, which are named by
{secrets}.
The variable without `_FILE` overrides its file.

The service's clients, such as `context-service demo`, read `CONTEXT_URL` and `CONTEXT_API_KEY`, the
service neither.
"""
_POLICY = """\
## Policy

A policy sets how a conversation's context is managed. The conversation's values override its
agent's, these the service's default, which variables set: `compaction.target` is
`CONTEXT_COMPACTION_TARGET`. `GET` shows the effective values. The effective window is the context
window minus `max_output_tokens`.
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
    envvar="CONTEXT_URL",
    help="Address of the service; default: the one on port 8080, or one started for the demo.",
    show_envvar=True,
)
@click.option(
    "--key",
    envvar="CONTEXT_API_KEY",
    help="API key, if the service requires one.",
    show_envvar=True,
)
@click.option("--messages", type=click.IntRange(20, 700), default=500, help="Its length; 500.")
@click.option("--open", "opens", is_flag=True, help="Show it in a browser as it happens.")
def demo(traces: Path | None, url: str | None, key: str | None, messages: int, opens: bool) -> None:
    """Replay a long session in a small window, live, and print what it cost.

    Beside it the same session is kept append-only, and as its last messages. TRACES is a file with
    a conversation of your own per line. The exit code is 1 if the service refused a request.
    """
    from app.cli.demo import run

    run(traces, url, key, messages, opens=opens)


def markdown() -> str:
    """Return the settings as Markdown, made from the settings class and the policy's schema."""
    from app.common.environment import variable
    from app.policy.policy import DEFAULT_POLICY, POLICY_VARIABLES, Policy
    from app.settings import GROUPS, Settings, description_of, secret_files

    parts = [_HEAD.format(secrets=",\n".join(map(_code, secret_files().values())))]
    for group in GROUPS:
        lines: list[str] = []
        for name in group.model_fields:
            default = Settings.model_fields[name].default
            is_set = default is not None and default != ()
            lines.append(_line(variable(name), default if is_set else None, description_of(name)))
        title = (group.__doc__ or "").rstrip(".")
        parts.append(f"## {title}\n\n{''.join(lines)}")
    root, lines = Policy.model_json_schema(), []
    for path in POLICY_VARIABLES.values():
        schema: dict[str, Any] = root
        for key in path:
            kinds = (schema, *schema.get("anyOf", ()))
            references = [kind["$ref"] for kind in kinds if "$ref" in kind]
            schema = root["$defs"][references[0].rpartition("/")[2]] if references else schema
            schema = schema["properties"][key]
        value: Any = reduce(getitem, path, DEFAULT_POLICY)
        shown = value if isinstance(value, str) else json.dumps(value)
        lines.append(_line(".".join(path), shown, schema["description"]))
    return "\n".join((*parts, f"{_POLICY}\n{''.join(lines)}"))


def _line(name: str, default: object, description: str) -> str:
    shown = "" if default is None else f" ({_code(default)})"
    return f"- {_code(name)}{shown}: {description}\n"


def _code(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{text}`"
