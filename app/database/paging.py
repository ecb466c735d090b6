"""Pages in PostgreSQL: the database limits the rows of a page by their size.

`octet_length` reads the length of a large value without the value itself. So the rows after the
end of a page cost an index entry each, and no memory of this process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from app.common.pages import Bound, Page

SMALL_COLUMNS_BYTES = 512
"""The assumed size of an item without its large columns, in bytes of JSON."""

_Item = TypeVar("_Item")


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
    return {
        "limit": limit + 1,
        "max_bytes": bound.max_bytes,
        "whole_first": bound.whole_first,
    }


def page_of(rows: Sequence[Any], read: Callable[[Any], _Item]) -> Page[_Item]:
    """Return the page of the rows of a `bounded` query."""
    items = [read(row) for row in rows if row["fits"]]
    return Page(items, has_more=bool(rows) and rows[0]["row_count"] > len(items))
