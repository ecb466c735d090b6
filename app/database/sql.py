"""Parts of statements that name each column once, and rows as the dataclasses of the domain."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeVar
from uuid import UUID

from app.database.tables import TABLES

_Kind = TypeVar("_Kind")


def placeholders(columns: str) -> str:
    """Return a placeholder for each column of a list, named like the column."""
    return re.sub(r'"?(\w+)"?', r":\1", columns)


def equal(*names: str) -> str:
    """Return the condition that columns equal the parameters of their names."""
    return " AND ".join(f"{name} = :{name}" for name in names)


def assigned(*names: str) -> str:
    """Return what SET says of columns that get the parameters of their names."""
    return ", ".join(f"{name} = :{name}" for name in names)


def insert(table: str, *names: str, **others: str) -> str:
    """Return an INSERT of one row: parameters for the names, terms for the others."""
    columns = ", ".join((*names, *others))
    return f"INSERT INTO {table} ({columns}) VALUES ({values(*names, **others)})"


def values(*names: str, **others: str) -> str:
    """Return these values alone, for an INSERT that selects them."""
    return ", ".join((*(f":{name}" for name in names), *others.values()))


def delete_some(table: str, where: str) -> str:
    """Return a DELETE of up to `:limit` rows."""
    key = ", ".join(TABLES[table].key)
    rows = f"SELECT {key} FROM {table} WHERE {where} LIMIT :limit"
    return f"DELETE FROM {table} WHERE ({key}) IN ({rows})"


def arrays(table: str, *names: str, prefix: str = "") -> str:
    """Return parameters with arrays of values of columns, for `unnest`."""
    types = TABLES[table].columns
    return ", ".join(f"CAST(:{prefix}{name} AS {types[name]}[])" for name in names)


def edges(spans: Sequence[Any]) -> dict[str, list[int]]:
    """Return the parameters `:starts` and `:ends` of spans."""
    return {"starts": [span.start for span in spans], "ends": [span.end for span in spans]}


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass with slots, as values for placeholders of these names."""
    return {name: getattr(value, name) for name in value.__slots__}


def read(kind: type[_Kind], row: Any, **given: Any) -> _Kind:
    """Return a dataclass whose fields are the columns of their names, but for those given.

    Ids become text and arrays tuples.
    """
    for name in kind.__dataclass_fields__:  # type: ignore[attr-defined]
        if name not in given:
            value = row[name]
            given[name] = tuple(value) if type(value) is list else plain(value)
    return kind(**given)


def plain(value: Any) -> Any:
    """Return a value of a row as JSON has it: ids as text."""
    return str(value) if isinstance(value, UUID) else value
