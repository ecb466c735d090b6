"""What commands print: rows as a table for people, or as JSON for scripts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import click

as_json = click.option("--json", "is_json", is_flag=True, help="Print the result as JSON.")


def print_json(value: Any, *, err: bool = False) -> None:
    """Print a value as one line of JSON, with times in ISO 8601."""
    click.echo(json.dumps(value, default=lambda at: at.isoformat()), err=err)


def print_rows(
    rows: Sequence[Mapping[str, Any]], heads: Sequence[str], *, is_json: bool = False
) -> None:
    """Print rows with these columns."""
    if is_json:
        print_json(rows)
        return
    cells = [[head.upper() for head in heads]]
    cells += [[_shown(row[head]) for head in heads] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%MZ")
    return str(value)
