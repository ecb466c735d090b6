"""The settings as Markdown, made from the settings class and the policy's schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import Any

from app.environment import variable
from app.policy.policy import DEFAULT_POLICY, POLICY_VARIABLES, Policy
from app.settings import GROUPS, Settings, description_of, secret_files

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
_TYPES = {"array": "list", "object": "JSON object"}


def markdown() -> str:
    """Return the page."""
    properties = Settings.model_json_schema(by_alias=False)["properties"]
    header: tuple[str, ...] = ("variable", "type", "default", "bounds", "description")
    secrets = ",\n".join(map(_code, secret_files().values()))
    parts = [_HEAD.format(secrets=secrets)]
    for group in GROUPS:
        rows = [_setting_row(name, properties[name]) for name in group.model_fields]
        parts.append(f"## {(group.__doc__ or '').rstrip('.')}\n\n{_table(header, rows)}")
    schema = Policy.model_json_schema()
    policy_rows = [_policy_row(name, path, schema) for name, path in POLICY_VARIABLES.items()]
    parts.append(f"{_POLICY}\n{_table(('value', *header), policy_rows)}")
    return "\n".join(parts)


def _setting_row(name: str, schema: Mapping[str, Any]) -> tuple[str, ...]:
    default = Settings.model_fields[name].default
    shown = _code(default) if default is not None and default != () else "unset"
    pattern = [_code(kind["pattern"]) for kind in _alternatives(schema, {}) if "pattern" in kind]
    bounds = _bounds(schema, {}) or ", ".join(pattern)
    return (_code(variable(name)), _type(schema, {}), shown, bounds, description_of(name))


def _policy_row(name: str, path: Sequence[str], root: Mapping[str, Any]) -> tuple[str, ...]:
    schema, definitions = root, root["$defs"]
    for key in path:
        (group,) = _alternatives(schema, definitions)
        schema = group["properties"][key]
    default: Any = reduce(getitem, path, DEFAULT_POLICY)
    shown = _code(default if isinstance(default, str) else json.dumps(default))
    kind, bounds = _type(schema, definitions), _bounds(schema, definitions)
    return (_code(".".join(path)), _code(name), kind, shown, bounds, schema["description"])


def _alternatives(
    schema: Mapping[str, Any], definitions: Mapping[str, Any]
) -> Iterator[Mapping[str, Any]]:
    """Yield the alternatives of a schema, without null and with references resolved."""
    if "$ref" in schema:
        yield from _alternatives(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    elif "anyOf" in schema:
        for kind in schema["anyOf"]:
            yield from _alternatives(kind, definitions)
    elif schema.get("type") != "null":
        yield schema


def _type(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    words: list[str] = []
    for kind in _alternatives(schema, definitions):
        if "enum" in kind or "const" in kind:
            words += map(_code, kind.get("enum") or [kind["const"]])
        else:
            words.append(_TYPES.get(kind["type"], kind["type"]))
    return ", ".join(words)


def _bounds(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
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
