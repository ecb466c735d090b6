"""What builds read and record: one select for a whole build, and epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.common import json_text
from app.common.errors import NotFound
from app.compaction.repository import CompactionQueries
from app.context.build_reads import EPOCH_FIELDS, LONG_TEXT, READ, ROWS
from app.conversations.epoch import BuildInput, Epoch
from app.conversations.epochs import requested_window
from app.conversations.messages.pins_repository import PinQueries
from app.conversations.messages.row import LogRow
from app.conversations.rows import epoch_from, log_rows_from, versions_of
from app.conversations.view import Span, View, view_from
from app.conversations.views import kept_seqs
from app.database.connections import Statement
from app.database.sql import fields_of, placeholders
from app.formats import PROVIDERS
from app.prompt.resolved_settings import RequestSettings

_EPOCH_COLUMNS = """
    conversation_id, lane, epoch, epoch_id, format, "window", reason, start_seq, view_version,
    top_start, top_end, tail_start, kept, trimmed_through, frame, sections_hash, tools_hash,
    policy_hash
"""
# The lock orders it with a deletion, so that no row stays for a later conversation with this id,
# and with a redaction.
ADD_EPOCH = Statement(
    f"""
        WITH alive AS (
            SELECT conversation_id FROM heads
            WHERE conversation_id = CAST(:conversation_id AS uuid)
                AND redacted_version <= CAST(:view_version AS bigint)
            FOR NO KEY UPDATE
        ), texts AS (
            INSERT INTO prompt_texts (conversation_id, hash, body)
            SELECT alive.conversation_id, item.hash, item.body
            FROM alive, unnest(CAST(:hashes AS text[]), CAST(:texts AS text[])) AS item (hash, body)
            ON CONFLICT (conversation_id, hash) DO NOTHING
        ), added AS (
            INSERT INTO epochs ({_EPOCH_COLUMNS})
            SELECT {placeholders(_EPOCH_COLUMNS)} FROM alive
            ON CONFLICT (conversation_id, lane, epoch) DO NOTHING
            RETURNING conversation_id
        )
        SELECT conversation_id FROM added
        """
)
SET_UNSTORED = Statement(
    """
        UPDATE heads SET unstored_tokens = CAST(:tokens AS bigint), unstored_version = view_version
        WHERE conversation_id = CAST(:conversation_id AS uuid)
            AND view_version = CAST(:view_version AS bigint)
        """
)
# An epoch's id is a UUIDv7: the largest is the newest.
NEWEST_TOOLS = Statement(
    """
        SELECT t.body FROM epochs e
        JOIN prompt_texts t ON t.conversation_id = e.conversation_id AND t.hash = e.tools_hash
        WHERE e.conversation_id = CAST(:conversation_id AS uuid)
        ORDER BY e.epoch_id DESC LIMIT 1
        """
)

ADD_TEXT = Statement(
    """
        INSERT INTO prompt_texts (conversation_id, hash, body)
        SELECT conversation_id, CAST(:hash AS text), CAST(:body AS text) FROM heads
        WHERE conversation_id = CAST(:conversation_id AS uuid) FOR KEY SHARE
        ON CONFLICT (conversation_id, hash) DO NOTHING
        """
)

TEXTS = Statement(
    """
        SELECT hash, body FROM prompt_texts
        WHERE conversation_id = CAST(:conversation_id AS uuid)
            AND hash = ANY (CAST(:hashes AS text[]))
        """
)

FIND_EPOCH = Statement(
    f"""
        SELECT {", ".join(f'e."{name}" AS e_{name}' for name in EPOCH_FIELDS)}
        FROM epochs e
        WHERE e.conversation_id = CAST(:conversation_id AS uuid)
            AND e.epoch_id = CAST(:epoch_id AS uuid)
        """
)


class ContextRepository(CompactionQueries, PinQueries):
    """Queries about builds, epochs, compactions and pins of one conversation."""

    async def read_build_input(
        self,
        tenant_id: str,
        conversation_id: str,
        settings: RequestSettings,
        default_model: str | None,
        *,
        cached_epoch_id: str | None,
        cached_start: str | None,
        cached_through: int,
    ) -> BuildInput | None:
        """Return all a build needs, None for an unknown conversation.

        The start of an epoch and the rows up to a seq that the caller has in its payload cache are
        not read again, nor is the active summary, which that start contains.
        """
        model = settings.model
        cached = self._settings_cache.get(tenant_id, conversation_id, model)
        row = await self._session.first(
            READ,
            tenant_id=tenant_id,
            conversation_id=conversation_id,
            format=settings.format,
            model=model,
            default_model=default_model,
            window=requested_window(settings),
            cached_epoch_id=cached_epoch_id,
            cached_through=cached_through,
            as_chat=PROVIDERS[settings.format].is_stored,
            **versions_of(cached),
        )
        if row is None:
            return None
        conversation = self._settings_cache.conversation_from(row, tenant_id, cached, model)
        return BuildInput(
            conversation=conversation,
            epoch=epoch_from(row, "e_", cached_start),
            window_epoch=epoch_from(row, "w_", cached_start),
            view=view_from(json_text.loads(row["view"])) if row["view"] else None,
            compaction_strategy=row["compaction_strategy"],
            compacted_at=row["compacted_at"],
            other_streams=tuple(row["other_streams"]),
            pins=tuple(filter(conversation.state.window.holds, row["pins"])),
            has_rows=row["has_rows"],
            rows=await self._rows(conversation_id, row, PROVIDERS[settings.format].is_stored),
        )

    async def rows(
        self,
        conversation_id: str,
        start: int,
        end: int,
        *,
        as_chat: bool,
        results_cleared_through: int = 0,
        uncleared_results: Sequence[int] = (),
    ) -> list[LogRow]:
        """Return the messages in `[start, end)` as a build or a summariser reads them.

        Results up to `results_cleared_through` have no text, except the seqs in
        `uncleared_results`.
        """
        row = await self._session.first(
            ROWS,
            conversation_id=conversation_id,
            start=start,
            end=end,
            as_chat=as_chat,
            trimmed_through=results_cleared_through,
            untrimmed=uncleared_results,
        )
        return await self._rows(conversation_id, row, as_chat)

    async def _rows(self, conversation_id: str, row: Any, as_chat: bool) -> list[LogRow]:
        """Return log rows, with the texts of long messages, which are read one by one."""
        rows = log_rows_from(row)
        for item, body in zip(rows, row["bodies"] or (), strict=True):
            if body is not None:
                continue
            async with self._session.reading_long:
                found = await self._session.first(
                    LONG_TEXT, conversation_id=conversation_id, seq=item.seq, as_chat=as_chat
                )
            if found is None:
                raise NotFound.conversation(conversation_id)  # it was deleted meanwhile
            item.text = found["text"]
        return rows

    async def add_epoch(
        self, conversation_id: str, epoch: Epoch, view: View, texts: Mapping[str, str]
    ) -> bool:
        """Store an epoch.

        False when another build stored it first, the conversation is gone, or a message was
        redacted since.
        """
        top_start, hidden = _bounds(view)
        values = fields_of(epoch) | {
            "conversation_id": conversation_id,
            "lane": epoch.payload_stream,
            "top_start": top_start,
            "top_end": hidden.start,
            "tail_start": hidden.end,
            "kept": kept_seqs(view),
            "trimmed_through": view.results_cleared_through,
            "frame": epoch.start_json,
            "hashes": [*texts],
            "texts": [*texts.values()],
        }
        return await self._session.first(ADD_EPOCH, **values) is not None

    async def set_unstored_tokens(
        self, conversation_id: str, view_version: int, tokens: int
    ) -> None:
        """Store what the newest payload has beyond the state, while the view is the same."""
        await self._session.run(
            SET_UNSTORED,
            conversation_id=conversation_id,
            view_version=view_version,
            tokens=tokens,
        )

    async def find_epoch(self, conversation_id: str, epoch_id: str) -> Epoch | None:
        """Return an epoch by its id, or None."""
        row = await self._session.first(
            FIND_EPOCH, conversation_id=conversation_id, epoch_id=epoch_id
        )
        return epoch_from(row, "e_", None) if row is not None else None

    async def newest_tools(self, conversation_id: str) -> str | None:
        """Return the tools of the newest epoch as JSON, None before any build."""
        row = await self._session.first(NEWEST_TOOLS, conversation_id=conversation_id)
        return row["body"] if row is not None else None

    async def add_text(self, conversation_id: str, hash: str, body: str) -> None:
        """Store a text under its hash, unless it is stored already."""
        await self._session.run(ADD_TEXT, conversation_id=conversation_id, hash=hash, body=body)

    async def texts(self, conversation_id: str, hashes: Sequence[str]) -> Mapping[str, str]:
        """Return the stored texts among these, by their hashes."""
        rows = await self._session.all(TEXTS, conversation_id=conversation_id, hashes=hashes)
        return {row["hash"]: row["body"] for row in rows}


def _bounds(view: View) -> tuple[int, Span]:
    """Return the first seq that an epoch shows, and the range hidden in it, empty without one.

    Of an active window in several parts only the newest is stored. A build that needs the others,
    which is rare, reads them.
    """
    if len(view.window) > 1:
        start = view.spans[-1].start
        return start, Span(start, start)
    start = view.window[0].start
    return start, view.hidden or Span(start, start)
