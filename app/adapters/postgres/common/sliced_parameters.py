"""Parameters of megabytes, sent in slices before the statement that uses them.

1. asyncpg copies a parameter several times while it encodes a statement, all in one step: 10 MB
   stop the event loop for up to 15 ms, a slice for less than one.
2. Slices are kept on the server in settings of the transaction (`set_config` with `is_local`),
   whose end removes them. So they need no table and no session, and work through a transaction
   pooler.
3. Items are UTF-8 texts without NUL, as all stored JSON is. A slice ends between two characters.
4. Settings are numbered through a statement, so that a connection has few names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

LONG_BYTES = 1 << 20
"""The length of an item from which it is sent in slices."""
SLICE_BYTES = 1 << 18
SEND_SLICE = "SELECT set_config('context.slice_' || CAST($1 AS integer), CAST($2 AS text), true)"

# The items in order. Each has its first slice and their number, 0 for one sent in the array.
_JOINED = """ARRAY(
    SELECT CASE WHEN item.slices = 0 THEN item.value ELSE convert_to((
        SELECT string_agg(current_setting('context.slice_' || number), '' ORDER BY number)
        FROM generate_series(item.first, item.first + item.slices - 1) AS number
    ), 'UTF8') END
    FROM unnest(
        CAST(${items} AS bytea[]), CAST(${starts} AS integer[]), CAST(${counts} AS integer[])
    ) WITH ORDINALITY AS item (value, first, slices, place)
    ORDER BY item.place
)"""


def sliced_sql(sql: str, numbers: Sequence[int]) -> str:
    """Return a statement that joins the slices of these parameters.

    It has two more parameters for each of them: the first slices and their numbers.
    """
    count = max((int(found) for found in re.findall(r"\$(\d+)", sql)), default=0)
    for offset, number in enumerate(numbers):
        starts = count + 2 * offset + 1
        joined = _JOINED.format(items=number, starts=starts, counts=starts + 1)
        before, after = re.split(rf"\${number}(?!\d)", sql)  # its one use
        sql = before + joined + after
    return sql


def long_items(items: Sequence[bytes | None] | None) -> list[int]:
    """Return the indexes of the items that are sent in slices."""
    return [index for index, item in enumerate(items or ()) if item and len(item) >= LONG_BYTES]


def text_slices(item: bytes) -> Iterator[str]:
    """Yield an item in slices (rule 3)."""
    start = 0
    while start < len(item):
        end = start + SLICE_BYTES
        while end < len(item) and item[end] & 0xC0 == 0x80:
            end -= 1
        yield item[start:end].decode()
        start = end
