"""Reading of snapshots: messages of logs and entries of imports, a page at a time.

No session is open between pages. A read that cannot be completed ends in ServiceUnavailable.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import asdict
from functools import partial

from app.domain.common import json_text
from app.domain.common.errors import ServiceUnavailable
from app.domain.common.pages import Bound, Page
from app.domain.conversations.stored_message import StoredMessage
from app.domain.snapshots.entries import entry_of
from app.domain.snapshots.snapshots import Snapshot, SnapshotPart
from app.services.common.read_permits import ReadPermit
from app.services.ports import Database
from app.services.tool_output.stored_results import Content, Original, StoredResults

PAGE_MESSAGES = 200


async def complete(
    snapshot: Snapshot, pages: AsyncGenerator[list[bytes]]
) -> AsyncGenerator[list[bytes]]:
    """Yield the pages of entries; raise ServiceUnavailable if entries are missing at the end."""
    missing = snapshot.message_count
    async for page in pages:
        missing -= len(page)
        yield page
    if missing:
        raise _changed_meanwhile()


async def log_entries(
    database: Database,
    outputs: StoredResults,
    parts: Sequence[SnapshotPart],
    content: Content,
    read: ReadPermit,
) -> AsyncGenerator[list[bytes]]:
    """Yield the messages of the parts as entries."""
    for part in parts:
        async for page in originals_of(database, outputs, part, content, read):
            entries = [_entry(original, part.conversation_id) for original in page]
            page.clear()
            yield entries


async def imported_entries(
    database: Database, tenant_id: str, session_id: str, source_id: str | None, read: ReadPermit
) -> AsyncGenerator[list[bytes]]:
    """Yield the stored entries of an import, or those of one source conversation."""
    after = 0

    async def read_page(bound: Bound) -> Page[tuple[int, str]]:
        async with database.session() as session:
            return await session.snapshots.messages(
                tenant_id, session_id, after, PAGE_MESSAGES, source_id, bound
            )

    while page := await read.page(read_page):
        after = page[-1][0]
        entries = [body.encode() for _, body in page]
        page.clear()
        yield entries
        await read.release_large()


async def originals_of(
    database: Database,
    outputs: StoredResults,
    part: SnapshotPart,
    content: Content,
    read: ReadPermit,
) -> AsyncIterator[list[Original]]:
    """Yield the messages of a part in batches; raise ServiceUnavailable if one was deleted."""
    for span in part.spans:
        next_seq = span.start
        while next_seq < span.end:
            page = await read.page(
                partial(_messages, database, part.conversation_id, next_seq, span.end)
            )
            seqs = [message.seq for message in page]
            if not seqs or seqs != list(range(next_seq, next_seq + len(seqs))):
                raise _changed_meanwhile()
            next_seq += len(seqs)
            while page:
                batch = await outputs.originals(part.conversation_id, page, content, read)
                del page[: len(batch)]
                yield batch
                batch.clear()  # frees this batch before the next one is read
                await read.release_large()


async def _messages(
    database: Database, conversation_id: str, start: int, end: int, bound: Bound
) -> Page[StoredMessage]:
    async with database.session() as session:
        return await session.log.page(conversation_id, start - 1, end, "asc", PAGE_MESSAGES, bound)


def _entry(original: Original, conversation_id: str) -> bytes:
    message, ref = original.message, original.message.output_ref
    own = {
        "id": message.id,
        "conversation_id": conversation_id,
        "seq": message.seq,
        "format": message.format,
        "created_at": message.created_at.isoformat(),
        "output_ref": asdict(ref) if ref is not None else None,
        "content_truncated": original.is_truncated,
        "content_collected": original.is_collected,
    }
    return json_text.dump_stored(entry_of(original.raw_message, own))


def _changed_meanwhile() -> ServiceUnavailable:
    return ServiceUnavailable("The snapshot changed while it was read", {"reason": "changed"})
