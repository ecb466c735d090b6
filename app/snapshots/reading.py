"""Reading of snapshots: messages of logs and entries of imports, a page at a time.

No session is open between pages. A read that cannot be completed ends in ServiceUnavailable.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import asdict

from app.common import json_text
from app.common.errors import ServiceUnavailable
from app.common.pages import Bound
from app.conversations.messages.stored_results import Content, Original, StoredResults
from app.repositories import Database
from app.snapshots.entries import entry_of
from app.snapshots.snapshot import Snapshot, SnapshotPart

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
    bound: Bound,
) -> AsyncGenerator[list[bytes]]:
    """Yield the messages of the parts as entries."""
    for part in parts:
        async for page in originals_of(database, outputs, part, content, bound):
            entries = [_entry(original, part.public_id) for original in page]
            page.clear()
            yield entries


async def imported_entries(
    database: Database, tenant_id: str, session_id: str, source_id: str | None, bound: Bound
) -> AsyncGenerator[list[bytes]]:
    """Yield the stored entries of an import, or those of one source conversation."""
    after = 0
    while True:
        async with database.session() as session:
            page = await session.snapshots.messages(
                tenant_id, session_id, after, PAGE_MESSAGES, source_id, bound
            )
        if not page:
            return
        after = page[-1][0]
        entries = [body.encode() for _, body in page]
        page.clear()
        yield entries


async def originals_of(
    database: Database,
    outputs: StoredResults,
    part: SnapshotPart,
    content: Content,
    bound: Bound,
) -> AsyncIterator[list[Original]]:
    """Yield the messages of a part in batches; raise ServiceUnavailable if one was deleted."""
    for span in part.spans:
        next_seq = span.start
        while next_seq < span.end:
            async with database.session() as session:
                page = await session.log.page(
                    part.conversation_id, next_seq - 1, span.end, "asc", PAGE_MESSAGES, bound
                )
            seqs = [message.seq for message in page]
            if not seqs or seqs != list(range(next_seq, next_seq + len(seqs))):
                raise _changed_meanwhile()
            next_seq += len(seqs)
            while page:
                batch = await outputs.originals(part.conversation_id, page, content, bound)
                del page[: len(batch)]
                yield batch
                batch.clear()  # frees this batch before the next one is read


def _entry(original: Original, public_id: str) -> bytes:
    message, ref = original.message, original.message.output_ref
    own = {
        "id": message.id,
        "conversation_id": public_id,
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
