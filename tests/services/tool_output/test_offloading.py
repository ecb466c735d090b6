"""Large results on append: by the policy of now, once, and inline when the store fails.

[tool-output.object-layout, tool-output.store-failure]
"""

from __future__ import annotations

import asyncpg
import pytest

from app.blobs.byte_store import ObjectStore
from app.common.errors import Conflict, ServiceUnavailable, UnpairedToolResult, ValidationError
from app.conversations.messages.batches import INLINE_WARNING
from app.conversations.messages.row import RawBatch
from app.conversations.messages.stored_results import Content
from app.repositories import Database
from tests.services.fakes import TENANT, asks, result, user
from tests.services.tool_output.builders import LARGE, Process, left, refused


@pytest.fixture
def rows(database: Database) -> Process:
    """One process's services whose bytes are in rows."""
    return Process(database)


# --- by the policy of now ---------------------------------------------------------------------


# --- kept once --------------------------------------------------------------------------------


# --- again ------------------------------------------------------------------------------------


# --- refs that are none -----------------------------------------------------------------------


async def test_a_refused_batch_stores_no_blob(
    process: Process, connection: asyncpg.Connection
) -> None:
    """A refused batch leaves no blob, attached or not. [tool-output.with-its-message]"""
    cid = await process.harness.conversation()
    await process.harness.append(cid, asks("c"))
    for error, batch in (
        (UnpairedToolResult, [result("c", LARGE), result("c", LARGE)]),
        (UnpairedToolResult, [result("unknown", LARGE)]),
        (ValidationError, [result("c", LARGE), {"role": "oracle", "content": "x"}]),
        (ValidationError, [result("c", LARGE), result("c", None) | {"output_ref": "blob_x"}]),
    ):
        with pytest.raises(error):
            await process.harness.append(cid, *batch)
    request = RawBatch([result("c", LARGE)], expected_seq=7)
    with pytest.raises(Conflict):
        await process.log.append(TENANT, cid, request)
    assert await left(connection) == (0, 0, 0)


# --- when the store fails ---------------------------------------------------------------------


async def test_results_stay_inline_while_the_store_is_unavailable(
    database: Database, connection: asyncpg.Connection
) -> None:
    """The append succeeds with a warning, and the result stays inline."""
    process = Process(database, ObjectStore("memory:///"))
    cid = await process.harness.conversation()
    earlier = await process.stored(cid, LARGE)
    process.store.is_away = True
    await process.harness.append(cid, asks("c"))
    message = {"id": "m", **result("c", LARGE * 2)}
    done = await process.harness.append(cid, message)
    assert done.warnings == (INLINE_WARNING,)
    ref = done.messages[0].output_ref
    assert ref is not None and (ref.id, ref.byte_size) == ("m", 2 * len(LARGE))
    assert await process.read(cid, ref.id) == (LARGE * 2).encode()
    lines = await process.blobs.read_lines(TENANT, cid, ref.id, 3999, 10)
    assert (lines.text, lines.line_count) == ("  4000\tline", 4000)
    shown = (await process.transcript(cid, Content.VIEW))[-1]
    assert (shown.raw_message["content"], shown.is_truncated) == (LARGE * 2, False)
    assert isinstance(await refused(process.read(cid, earlier.id)), ServiceUnavailable)
    assert (await left(connection))[0] == 1
    # Again, whether the store is there or not, it is the same message.
    assert (await process.harness.append(cid, message)).messages == done.messages
    process.store.is_away = False
    again = await process.harness.append(cid, message)
    assert (again.messages, again.warnings) == (done.messages, ())
    assert await process.read(cid, earlier.id) == LARGE.encode()
    small = await process.harness.append(cid, user("hi"))
    assert small.warnings == ()
