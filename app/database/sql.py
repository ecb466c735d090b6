"""Parts of statements that name each column once, pages, and rows as dataclasses of the domain.

The database limits the rows of a page by their size. `octet_length` reads the length of a large
value without the value itself. So the rows after the end of a page cost an index entry each, and no
memory of this process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID

from app.common.pages import Bound, Page
from app.database.tables import TABLES

SMALL_COLUMNS_BYTES = 512
"""The assumed size of an item without its large columns, in bytes of JSON."""
_Kind = TypeVar("_Kind")
_Item = TypeVar("_Item")


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


def lengths(*columns: str) -> dict[str, str]:
    """Return columns of text, each with the expression for its size."""
    return {name: f"coalesce(octet_length({name}), 0)" for name in columns}


def bounded(rows: str, columns: Sequence[str], large: Mapping[str, str], order: str) -> str:
    """Return a query for the first of these ordered rows, as many as `:max_bytes` allow.

    `rows` is a query with its own `LIMIT :limit`, one more than the items of a page, to detect
    further rows. `large` maps those of its `columns` that may be large to the expressions for their
    sizes. If the first row does not fit and `:whole_first` is false, its large columns are null and
    its `fits` is false. With the columns `*` nothing is set to null: use them for small items.
    """
    size = " + ".join(large.values())
    selected = ", ".join(
        f"CASE WHEN fits THEN {name} END AS {name}" if name in large else name for name in columns
    )
    return f"""
        SELECT {selected}{", fits, row_count" if selected != "*" else ""}
        FROM (
            SELECT *, page_position = 1 AND CAST(:whole_first AS boolean)
                OR total_bytes <= CAST(:max_bytes AS bigint) AS fits
            FROM (
                SELECT *, row_number() OVER in_order AS page_position,
                    count(*) OVER () AS row_count,
                    sum({size} + {SMALL_COLUMNS_BYTES}) OVER in_order AS total_bytes
                FROM ({rows}) AS paged
                WINDOW in_order AS (ORDER BY {order} ROWS UNBOUNDED PRECEDING)
            ) AS sized
        ) AS fitting
        WHERE (fits OR page_position = 1) AND page_position < :limit
        ORDER BY {order}
        """


def limits(limit: int, bound: Bound) -> dict[str, Any]:
    """Return the parameters that `bounded` adds to those of its rows."""
    bounds = {"max_bytes": bound.max_bytes, "whole_first": bound.whole_first}
    return {"limit": limit + 1, **bounds}


def page_of(rows: Sequence[Any], read: Callable[[Any], _Item]) -> Page[_Item]:
    """Return the page of the rows of a `bounded` query."""
    items = [read(row) for row in rows if row["fits"]]
    return Page(items, has_more=bool(rows) and rows[0]["row_count"] > len(items))
