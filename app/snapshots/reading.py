"""Reading of snapshots: messages of logs, a page at a time.

No session is open between pages. A read that cannot be completed ends in ServiceUnavailable.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import asdict, dataclass

from app.common import json_text
from app.common.errors import ServiceUnavailable
from app.common.pages import UNBOUNDED, Bound
from app.conversations.messages.stored_results import Content, Original, StoredResults
from app.repositories import Database
from app.snapshots.copies import entry_of
from app.snapshots.snapshot import SnapshotPart

PAGE_MESSAGES = 200


@dataclass(frozen=True, slots=True)
class SnapshotReader:
    """Reads the entries of snapshots."""

    database: Database
    outputs: StoredResults

    async def entries(
        self, part: SnapshotPart, content: Content, bound: Bound = UNBOUNDED
    ) -> AsyncGenerator[list[bytes]]:
        """Yield the messages of a part as JSON; raise ServiceUnavailable if one was deleted."""
        for span in part.spans:
            next_seq = span.start
            while next_seq < span.end:
                async with self.database.session() as session:
                    page = await session.log.page(
                        part.conversation_id, next_seq - 1, span.end, "asc", PAGE_MESSAGES, bound
                    )
                seqs = [message.seq for message in page]
                if not seqs or seqs != list(range(next_seq, next_seq + len(seqs))):
                    raise changed_meanwhile()
                next_seq += len(seqs)
                while page:
                    batch = await self.outputs.originals(part.conversation_id, page, content, bound)
                    del page[: len(batch)]
                    entries = [_entry(original, part.public_id) for original in batch]
                    batch.clear()
                    yield entries


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


def changed_meanwhile() -> ServiceUnavailable:
    """Return the error of a read that misses messages."""
    return ServiceUnavailable("The snapshot changed while it was read", {"reason": "changed"})
