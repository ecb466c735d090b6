"""What builds read and record: the select that a build starts with, messages, and epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.common.errors import NotFound
from app.compaction.repository import PINS_RESULT, ReceiptQueries
from app.conversations.conversation import Conversation
from app.conversations.epoch import Epoch, requested_context_window
from app.conversations.from_rows import (
    AGENT_JOIN,
    CONVERSATION_COLUMNS,
    STATE_COLUMNS,
    changes_from,
    epoch_from,
    log_rows_from,
    versions_of,
    view_from,
)
from app.conversations.messages.row import LogRow
from app.conversations.turns import MAX_PLACEHOLDER_TOKENS
from app.conversations.view import Span, View
from app.database.connections import Statement
from app.database.sql import edges, equal, fields_of, placeholders
from app.database.tables import NOT_EXPIRED, TABLES
from app.formats import PROVIDERS
from app.prompt.resolved_settings import RequestSettings

_LONG_BYTES = 4 * 2**20
_EPOCH_FIELDS = (*TABLES["epochs"].without("conversation_id", "created_at"),)
_EPOCH_COLUMNS = ", ".join(f'"{name}"' for name in ("conversation_id", *_EPOCH_FIELDS))


def _epoch_columns(alias: str) -> str:
    plain = ", ".join(
        f"{alias}.{name} AS {alias}_{name}" for name in _EPOCH_FIELDS if name != "start_json"
    )
    # A caller that has the epoch in its payload cache has its start as well.
    is_cached = f"{alias}.epoch_id = CAST(:cached_epoch_id AS uuid)"
    start = f"{alias}.start_json"
    return f"{plain}, CASE WHEN {is_cached} THEN NULL ELSE {start} END AS {alias}_start_json"


# An aggregate copies a value several times: long messages, which have media, are read apart.
# Of a cleared result only the `output` is read: its placeholder needs no more. An array per column
# is decoded several times faster than a record per message. A chat build reads the rendered item,
# except where that lacks media of results, labels or reasoning.
_ROW_ARRAYS = f"""
    array_agg(r.message_id ORDER BY r.seq) AS ids,
    array_agg(r.seq ORDER BY r.seq) AS seqs,
    array_agg(r.role ORDER BY r.seq) AS roles,
    array_agg(r.tokens ORDER BY r.seq) AS row_tokens,
    array_agg(r.reasoning_tokens ORDER BY r.seq) AS row_reasoning,
    array_agg(r.call_ids ORDER BY r.seq) AS row_calls,
    array_agg(r.needs_body ORDER BY r.seq) AS row_media,
    array_agg(CASE WHEN CAST(:as_chat AS boolean) AND NOT r.needs_body AND r.reasoning_tokens = 0
            THEN 'openai_chat' ELSE r.format END ORDER BY r.seq) AS row_formats,
    array_agg(CASE WHEN r.role = 'tool' AND r.output IS NOT NULL
            AND r.seq <= :cleared_through AND r.tokens > {MAX_PLACEHOLDER_TOKENS}
            AND r.seq <> ALL (CAST(:uncleared AS bigint[])) THEN ''
        WHEN octet_length(r.body) > {_LONG_BYTES} THEN NULL
        ELSE convert_to(CASE WHEN CAST(:as_chat AS boolean) AND NOT r.needs_body
                AND r.reasoning_tokens = 0
            THEN coalesce(r.chat_item, r.body) ELSE r.body END, 'UTF8') END
        ORDER BY r.seq) AS bodies,
    array_agg(r.output ORDER BY r.seq) AS outputs,
    array_agg(r.joins ORDER BY r.seq) AS row_joins
"""


_PAYLOAD_STREAM = """:format || ':'
    || coalesce(:model, c.model, a.model, CAST(:default_model AS text), '')"""

# Where a caller has the newest epoch in its payload cache, the messages since then are read, too.
# They are ordered by the index. Without that, a plan made before there are statistics may use
# another index, which costs the same while the table is small, and keep it while the table grows.
READ = Statement(
    f"""
        SELECT {CONVERSATION_COLUMNS}, {STATE_COLUMNS},
            {_epoch_columns("e")}, {_epoch_columns("w")},
            CASE WHEN cached.is_current THEN NULL ELSE k.view END AS view,
            k.policy_strategy AS compaction_strategy,
            ARRAY(
                SELECT pin.seq FROM pins pin
                WHERE pin.conversation_id = :conversation_id
                ORDER BY pin.seq
            ) AS pins,
            ARRAY(
                SELECT pins.seq FROM pins
                WHERE pins.conversation_id = :conversation_id AND {PINS_RESULT}
            ) AS pinned_results,
            CASE WHEN e.epoch IS NULL THEN ARRAY(
                SELECT DISTINCT other.payload_stream FROM epochs other
                WHERE other.conversation_id = :conversation_id AND other.format = :format
            ) ELSE '{{}}'::text[] END AS other_streams,
            rows.*
        FROM conversations c
        JOIN states h ON h.conversation_id = c.conversation_id
        {AGENT_JOIN}
        LEFT JOIN LATERAL (
            SELECT * FROM compactions active
            WHERE active.conversation_id = :conversation_id
                AND active.compaction_id = h.compaction_id
            LIMIT 1
        ) k ON true
        LEFT JOIN LATERAL (
            SELECT * FROM epochs newest
            WHERE newest.conversation_id = :conversation_id
                AND newest.payload_stream = {_PAYLOAD_STREAM}
            ORDER BY newest.epoch DESC LIMIT 1
        ) e ON true
        LEFT JOIN LATERAL (
            SELECT * FROM epochs same_window
            WHERE same_window.conversation_id = :conversation_id
                AND same_window.payload_stream = {_PAYLOAD_STREAM}
                AND same_window.requested_context_window = :requested_context_window
                AND e.requested_context_window <> :requested_context_window
            ORDER BY same_window.epoch DESC LIMIT 1
        ) w ON true
        CROSS JOIN LATERAL (
            SELECT coalesce(w.epoch_id, e.epoch_id) = CAST(:cached_epoch_id AS uuid)
                AND coalesce(w.view_version, e.view_version) = h.view_version AS is_current
        ) cached
        LEFT JOIN LATERAL (
            SELECT {_ROW_ARRAYS}
            FROM (
                SELECT * FROM messages appended
                WHERE appended.conversation_id = :conversation_id AND cached.is_current
                    AND appended.seq > CAST(:cached_through AS bigint)
                    AND appended.seq <= h.head_seq
                ORDER BY appended.seq
            ) r
        ) rows ON true
        WHERE c.conversation_id = :conversation_id AND c.tenant_id = :tenant_id AND {NOT_EXPIRED}
        """,
    is_read=True,
)

ROWS = Statement(
    f"""
        SELECT {_ROW_ARRAYS}
        FROM unnest(:starts, :ends) AS span (first, past)
        CROSS JOIN LATERAL (
            SELECT * FROM messages
            WHERE conversation_id = :conversation_id AND seq >= span.first AND seq < span.past
            ORDER BY seq
        ) r
        """
)

LONG_TEXT = Statement(
    """
        SELECT convert_to(CASE WHEN CAST(:as_chat AS boolean) AND NOT needs_body
                AND reasoning_tokens = 0
            THEN coalesce(chat_item, body) ELSE body END, 'UTF8') AS text
        FROM messages WHERE conversation_id = :conversation_id AND seq = :seq
        """
)

# The lock orders it with a deletion, so that no row stays for a later conversation with this id,
# and with a redaction. A change is added while the message that it follows is the newest: no build
# has later ones without it.
ADD_EPOCH = Statement(
    f"""
        WITH alive AS (
            UPDATE states SET input_version = input_version + 1,
                extra_tokens = coalesce(CAST(:extra AS bigint), extra_tokens),
                extra_version = CASE WHEN CAST(:extra AS bigint) IS NULL
                    THEN extra_version ELSE :view_version END
            WHERE conversation_id = :conversation_id AND redacted_version <= :view_version
                AND head_seq = coalesce(CAST(:after AS bigint), head_seq)
            RETURNING conversation_id, input_version
        ), texts AS (
            INSERT INTO prompt_texts (conversation_id, hash, body)
            SELECT alive.conversation_id, item.hash, item.body
            FROM alive, unnest(CAST(:hashes AS text[]), CAST(:texts AS text[])) AS item (hash, body)
            ON CONFLICT (conversation_id, hash) DO NOTHING
        ), added AS (
            INSERT INTO epochs ({_EPOCH_COLUMNS})
            SELECT {placeholders(_EPOCH_COLUMNS)} FROM alive
            ON CONFLICT (conversation_id, payload_stream, epoch) DO UPDATE
                SET changes = excluded.changes
                WHERE epochs.changes = :before AND epochs.epoch_id = excluded.epoch_id
            RETURNING conversation_id
        )
        SELECT alive.input_version FROM added JOIN alive USING (conversation_id)
        """
)
SET_UNSTORED = Statement(
    """
        UPDATE states SET extra_tokens = CAST(:tokens AS bigint), extra_version = view_version
        WHERE conversation_id = :conversation_id AND view_version = :view_version
        """
)
# An epoch's id is a UUIDv7: the largest is the newest.
NEWEST_TOOLS = Statement(
    """
        SELECT t.body FROM epochs e
        JOIN prompt_texts t ON t.conversation_id = e.conversation_id AND t.hash = e.tools_hash
        WHERE e.conversation_id = :conversation_id
        ORDER BY e.epoch_id DESC LIMIT 1
        """
)

ADD_TEXT = Statement(
    """
        INSERT INTO prompt_texts (conversation_id, hash, body)
        SELECT conversation_id, :hash, :body FROM states
        WHERE conversation_id = :conversation_id FOR KEY SHARE
        ON CONFLICT (conversation_id, hash) DO NOTHING
        """
)

TEXTS = Statement(
    """
        SELECT hash, body FROM prompt_texts
        WHERE conversation_id = :conversation_id AND hash = ANY (CAST(:hashes AS text[]))
        """
)

FIND_EPOCH = Statement(f"SELECT * FROM epochs WHERE {equal('conversation_id', 'epoch_id')}")


@dataclass(frozen=True, slots=True)
class BuildInput:
    """The stored values that a build starts from, read in one statement.

    `epoch` is the newest of the payload stream; `request_epoch` the newest with this request's
    context window, if that is another one. `view` is that of the active compaction, None without
    one or if the cached epoch has it. That compaction ran when the policy had the strategy
    `compaction_strategy`. `other_streams` are the payload streams of the same format,
    if this one has no epoch yet. `pins` are the pinned seqs, `pinned_results` those of tool
    results. `rows` are the messages that came since the cached payload of the newest epoch.
    """

    conversation: Conversation
    epoch: Epoch | None
    request_epoch: Epoch | None
    view: View | None
    compaction_strategy: str | None
    other_streams: tuple[str, ...]
    pins: tuple[int, ...]
    pinned_results: frozenset[int]
    rows: list[LogRow]

    def lacks_pin(self, view: View) -> bool:
        """Whether a view hides a pinned message, or clears a pinned result."""
        return any(
            not view.shows(seq) or (seq in self.pinned_results and view.clears_result(seq))
            for seq in self.pins
        )


class ContextRepository(ReceiptQueries):
    """Queries about builds, epochs and compactions of one conversation."""

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

        Of an epoch in the caller's payload cache its start is not read again, nor the active
        summary, which that contains; rows are read from the seq on that the cache lacks.
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
            requested_context_window=requested_context_window(settings),
            cached_epoch_id=cached_epoch_id,
            cached_through=cached_through,
            cleared_through=0,
            uncleared=(),
            as_chat=PROVIDERS[settings.format].stores_items,
            **versions_of(cached),
        )
        if row is None:
            return None
        conversation = self._settings_cache.conversation_from(row, tenant_id, cached, model)
        return BuildInput(
            conversation=conversation,
            epoch=epoch_from(row, "e_", cached_start),
            request_epoch=epoch_from(row, "w_", cached_start),
            view=view_from(row["view"]) if row["view"] else None,
            compaction_strategy=row["compaction_strategy"],
            other_streams=tuple(row["other_streams"]),
            pins=tuple(filter(conversation.state.window.holds, row["pins"])),
            pinned_results=frozenset(row["pinned_results"]),
            rows=await self._rows(conversation_id, row, PROVIDERS[settings.format].stores_items),
        )

    async def rows(
        self,
        conversation_id: str,
        spans: Sequence[Span],
        *,
        as_chat: bool,
        results_cleared_through: int = 0,
        uncleared_results: Sequence[int] = (),
    ) -> list[LogRow]:
        """Return the messages in these spans as a build or a summariser reads them.

        Results up to `results_cleared_through` have no text, except the seqs in
        `uncleared_results`.
        """
        row = await self._session.first(
            ROWS,
            conversation_id=conversation_id,
            **edges(spans),
            as_chat=as_chat,
            cleared_through=results_cleared_through,
            uncleared=uncleared_results,
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
        self,
        conversation_id: str,
        epoch: Epoch,
        texts: Mapping[str, str],
        extra: int | None,
        before: str | None = None,
    ) -> int | None:
        """Store an epoch, and return the conversation's input version with it.

        `extra` is as in `set_extra_tokens`, None where that stays. With the changes `before`
        the epoch gets one more. None when another build stored the epoch or a change first, the
        conversation is gone, or a message was redacted since or follows the change.
        """
        values = fields_of(epoch) | {
            "conversation_id": conversation_id,
            "hashes": [*texts],
            "texts": [*texts.values()],
            "extra": extra,
            "before": before,
            "after": changes_from(epoch.changes)[-1].after_seq if before is not None else None,
        }
        version: int | None = await self._session.value(ADD_EPOCH, **values)
        return version

    async def set_extra_tokens(self, conversation_id: str, view_version: int, tokens: int) -> None:
        """Store what the newest payload has beyond the state, while the view is the same."""
        await self._session.run(
            SET_UNSTORED, conversation_id=conversation_id, view_version=view_version, tokens=tokens
        )

    async def find_epoch(self, conversation_id: str, epoch_id: str) -> Epoch | None:
        """Return an epoch by its id, or None."""
        row = await self._session.first(
            FIND_EPOCH, conversation_id=conversation_id, epoch_id=epoch_id
        )
        return epoch_from(row, "", None) if row is not None else None

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
