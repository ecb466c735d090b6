"""What builds read and record: one select for a whole build, epochs, compactions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from uuid import UUID

from app.adapters.postgres.common.connections import Session, Statement
from app.adapters.postgres.common.paging import bounded, lengths, limits, page_of
from app.adapters.postgres.common.rows import (
    CONVERSATION_COLUMNS,
    HEAD_COLUMNS,
    LAYER_JOINS,
    Layers,
    compaction_from,
    epoch_from,
    log_rows_from,
)
from app.domain.common import json_text
from app.domain.common.messages import Role
from app.domain.common.pages import UNBOUNDED, Bound, Page
from app.domain.compaction.planning import kept_of
from app.domain.conversations.compaction_receipt import Compaction, VisibleState
from app.domain.conversations.epoch import ContextRead, Epoch
from app.domain.conversations.log.row import LogRow
from app.domain.conversations.turns import TRIMMED_TOKENS, Entry, entry
from app.domain.conversations.view import Span, View, view_from

_EPOCH_FIELDS = (
    "epoch",
    "epoch_id",
    "lane",
    "format",
    "window",
    "reason",
    "start_seq",
    "view_version",
    "frame",
    "sections_hash",
    "tools_hash",
    "policy_hash",
)


def _epoch_columns(alias: str) -> str:
    plain = ", ".join(
        f"{alias}.{name} AS {alias}_{name}" for name in _EPOCH_FIELDS if name != "frame"
    )
    # The caller that holds an epoch's window holds its frame as well.
    held = f"{alias}.epoch_id = CAST(:have_epoch_id AS uuid)"
    return f"{plain}, CASE WHEN {held} THEN NULL ELSE {alias}.frame END AS {alias}_frame"


# Of a result that gives way to its placeholder only the output is read, which says all of it.
# An array per column is decoded several times faster than a record per message. A chat build takes
# the ready item, but for what that item does not say: media of results, labels, and reasoning.
_ROW_ARRAYS = """
    array_agg(r.message_id ORDER BY r.seq) AS ids,
    array_agg(r.seq ORDER BY r.seq) AS seqs,
    array_agg(r.role ORDER BY r.seq) AS roles,
    array_agg(r.tokens ORDER BY r.seq) AS row_tokens,
    array_agg(r.reasoning_tokens ORDER BY r.seq) AS row_reasoning,
    array_agg(r.call_ids ORDER BY r.seq) AS row_calls,
    array_agg(r.has_media ORDER BY r.seq) AS row_media,
    array_agg(CASE WHEN CAST(:as_chat AS boolean) AND NOT r.has_media AND r.reasoning_tokens = 0
            THEN 'openai_chat' ELSE r.format END ORDER BY r.seq) AS row_formats,
    array_agg(CASE WHEN r.seq <= {trimmed} AND r.role = 'tool' AND r.output IS NOT NULL
            AND r.tokens > {least} AND r.seq <> ALL ({kept}) THEN ''
        ELSE convert_to(CASE WHEN CAST(:as_chat AS boolean) AND NOT r.has_media
                AND r.reasoning_tokens = 0
            THEN coalesce(r.fragment, r.body) ELSE r.body END, 'UTF8') END
        ORDER BY r.seq) AS bodies,
    array_agg(r.output ORDER BY r.seq) AS outputs
"""


def _row_arrays(trimmed: str, kept: str) -> str:
    return _ROW_ARRAYS.format(trimmed=trimmed, kept=kept, least=TRIMMED_TOKENS)


_LANE = """CAST(:format AS text) || ':'
    || coalesce(CAST(:model AS text), c.model, a.model, CAST(:default_model AS text), '')"""

# Which rows a build will show is known from the lane's newest epoch, or else from the active
# compaction; where neither bounds them, none are read here and the caller asks for what it needs.
# Top, kept and tail are ranges of the index: one condition over all would walk what is between.
# Each is ordered by it, or a plan made before there are statistics may take another index, which
# costs as much while the table is small, and is kept while it grows.
READ = Statement(
    f"""
        SELECT {CONVERSATION_COLUMNS}, {HEAD_COLUMNS},
            {_epoch_columns("e")}, {_epoch_columns("w")},
            CASE WHEN bounds.held THEN NULL ELSE k.view END AS view,
            k.created_at AS compacted_at,
            coalesce(nullif(k.policy_strategy, ''), k.strategy) AS compacted_for,
            ARRAY(
                SELECT pin.seq FROM pins pin WHERE pin.conversation_id = h.conversation_id
                ORDER BY pin.seq
            ) AS pins,
            bounds.known AS rows_read,
            CASE WHEN e.epoch IS NULL THEN ARRAY(
                SELECT DISTINCT other.lane FROM epochs other
                WHERE other.conversation_id = CAST(:conversation_id AS uuid)
                    AND other.format = CAST(:format AS text)
            ) ELSE '{{}}'::text[] END AS other_lanes,
            rows.*
        FROM conversations c
        JOIN heads h ON h.conversation_id = c.conversation_id
        {LAYER_JOINS}
        LEFT JOIN LATERAL (
            SELECT * FROM compactions active
            WHERE active.conversation_id = CAST(:conversation_id AS uuid)
                AND active.compaction_id = h.compaction_id
            LIMIT 1
        ) k ON true
        LEFT JOIN LATERAL (
            SELECT * FROM epochs newest
            WHERE newest.conversation_id = h.conversation_id AND newest.lane = {_LANE}
            ORDER BY newest.epoch DESC LIMIT 1
        ) e ON true
        LEFT JOIN LATERAL (
            SELECT * FROM epochs same_window
            WHERE same_window.conversation_id = h.conversation_id AND same_window.lane = {_LANE}
                AND same_window."window" = CAST(:window AS bigint)
                AND e."window" <> CAST(:window AS bigint)
            ORDER BY same_window.epoch DESC LIMIT 1
        ) w ON true
        CROSS JOIN LATERAL (
            SELECT
                CASE WHEN v.bounded THEN v.top_start ELSE h.since END AS top_start,
                CASE WHEN v.bounded THEN v.top_end ELSE coalesce(h.span_start, h.since) END
                    AS top_end,
                CASE WHEN v.bounded THEN v.tail_start
                    ELSE greatest(coalesce(h.span_end, 1), h.since) END AS tail_start,
                CASE WHEN v.bounded THEN v.kept ELSE h.kept END AS kept,
                CASE WHEN v.bounded THEN v.trimmed_through ELSE h.trimmed_through END
                    AS trimmed_through,
                coalesce(v.bounded, false)
                    OR h.tokens - h.hidden_tokens <= CAST(:most_tokens AS bigint) AS known,
                CASE WHEN v.bounded AND v.epoch_id = CAST(:have_epoch_id AS uuid)
                    THEN CAST(:have_through AS bigint) ELSE 0 END AS have_through,
                coalesce(v.bounded AND v.epoch_id = CAST(:have_epoch_id AS uuid), false) AS held
            FROM (
                SELECT
                    coalesce(w.epoch_id, e.epoch_id) AS epoch_id,
                    coalesce(w.top_start, e.top_start) AS top_start,
                    coalesce(w.top_end, e.top_end) AS top_end,
                    coalesce(w.tail_start, e.tail_start) AS tail_start,
                    coalesce(w.kept, e.kept) AS kept,
                    coalesce(w.trimmed_through, e.trimmed_through) AS trimmed_through,
                    coalesce(w.view_version, e.view_version) = h.view_version
                        AND coalesce(w."window", e."window") = CAST(:window AS bigint)
                        AS bounded
            ) v
        ) bounds
        LEFT JOIN LATERAL (
            SELECT {_row_arrays("bounds.trimmed_through", "bounds.kept")}
            FROM (
                (SELECT * FROM messages top
                WHERE top.conversation_id = h.conversation_id
                    AND bounds.known
                    AND top.seq >= bounds.top_start AND top.seq < bounds.top_end
                    AND top.seq > bounds.have_through AND top.seq <= h.head_seq
                ORDER BY top.seq)
                UNION ALL
                (SELECT * FROM messages inside
                WHERE inside.conversation_id = h.conversation_id
                    AND bounds.known
                    AND inside.seq = ANY (bounds.kept)
                    AND inside.seq >= bounds.top_end AND inside.seq < bounds.tail_start
                    AND inside.seq > bounds.have_through
                ORDER BY inside.seq)
                UNION ALL
                (SELECT * FROM messages tail
                WHERE tail.conversation_id = h.conversation_id
                    AND bounds.known
                    AND tail.seq >= greatest(bounds.tail_start, bounds.top_end)
                    AND tail.seq > bounds.have_through AND tail.seq <= h.head_seq
                ORDER BY tail.seq)
            ) r
        ) rows ON true
        WHERE c.conversation_id = CAST(:conversation_id AS uuid)
            AND c.tenant_id = CAST(:tenant_id AS text)
        """
)

ROWS = Statement(
    f"""
        SELECT {_row_arrays("CAST(:trimmed_through AS bigint)", "CAST(:untrimmed AS bigint[])")}
        FROM (
            SELECT * FROM messages
            WHERE conversation_id = CAST(:conversation_id AS uuid)
                AND seq >= CAST(:start AS bigint) AND seq < CAST(:end AS bigint)
            ORDER BY seq
        ) r
        """
)

# The lock orders it with a deletion: nothing is left behind for a later conversation of the id.
ADD_EPOCH = Statement(
    """
        WITH alive AS (
            SELECT conversation_id FROM heads
            WHERE conversation_id = CAST(:conversation_id AS uuid) FOR KEY SHARE
        ), texts AS (
            INSERT INTO prompt_texts (conversation_id, hash, body)
            SELECT alive.conversation_id, item.hash, item.body
            FROM alive, unnest(CAST(:hashes AS text[]), CAST(:texts AS text[])) AS item (hash, body)
            ON CONFLICT (conversation_id, hash) DO NOTHING
        )
        INSERT INTO epochs (
            conversation_id, lane, epoch, epoch_id, format, "window", reason, start_seq,
            view_version, top_start, top_end, tail_start, kept, trimmed_through, frame,
            sections_hash, tools_hash, policy_hash
        )
        SELECT CAST(:conversation_id AS uuid), CAST(:lane AS text), CAST(:epoch AS bigint),
            CAST(:epoch_id AS uuid), CAST(:format AS text), CAST(:window AS bigint),
            CAST(:reason AS text), CAST(:start_seq AS bigint), CAST(:view_version AS bigint),
            CAST(:top_start AS bigint), CAST(:top_end AS bigint), CAST(:tail_start AS bigint),
            CAST(:kept AS bigint[]), CAST(:trimmed_through AS bigint),
            CAST(:frame AS text), CAST(:sections_hash AS text), CAST(:tools_hash AS text),
            CAST(:policy_hash AS text)
        FROM alive
        ON CONFLICT (conversation_id, lane, epoch) DO NOTHING
        """
)

# An epoch's id is a UUIDv7: the last one began last.
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
        SELECT {", ".join(f'e."{name}" AS e_{name}' for name in _EPOCH_FIELDS)}
        FROM epochs e
        WHERE e.conversation_id = CAST(:conversation_id AS uuid)
            AND e.epoch_id = CAST(:epoch_id AS uuid)
        """
)

ADD_COMPACTION = Statement(
    """
        INSERT INTO compactions (
            conversation_id, compaction_id, parent_id, trigger, strategy, policy_strategy,
            strategies_run, span_start, span_end, summary, view, made, summary_tokens,
            hidden_tokens, hidden_messages, before_tokens, after_tokens, before_msg_count,
            after_msg_count, model, prompt_hash, calls, input_tokens, output_tokens, cost_usd,
            duration_ms, degraded
        ) VALUES (
            CAST(:conversation_id AS uuid), CAST(:compaction_id AS uuid),
            CAST(:parent_id AS uuid), CAST(:trigger AS text), CAST(:strategy AS text),
            CAST(:policy_strategy AS text), CAST(:strategies_run AS text[]),
            CAST(:span_start AS bigint), CAST(:span_end AS bigint), CAST(:summary AS text),
            CAST(:view AS text), CAST(:made AS text), CAST(:summary_tokens AS integer),
            CAST(:hidden_tokens AS bigint), CAST(:hidden_messages AS bigint),
            CAST(:before_tokens AS bigint), CAST(:after_tokens AS bigint),
            CAST(:before_msg_count AS bigint), CAST(:after_msg_count AS bigint),
            CAST(:model AS text), CAST(:prompt_hash AS text), CAST(:calls AS integer),
            CAST(:input_tokens AS bigint), CAST(:output_tokens AS bigint),
            CAST(:cost_usd AS double precision), CAST(:duration_ms AS integer),
            CAST(:degraded AS text[])
        )
        """
)

_NO_NEW_PIN = """NOT EXISTS (
    SELECT FROM pins
    WHERE pins.conversation_id = CAST(:conversation_id AS uuid)
        AND (pins.seq >= CAST(:span_start AS bigint) AND pins.seq < CAST(:span_end AS bigint)
            OR pins.seq <= CAST(:trimmed_through AS bigint))
        AND pins.seq <> ALL (CAST(:kept AS bigint[]))
        AND EXISTS (
            SELECT FROM unnest(CAST(:window_starts AS bigint[]), CAST(:window_ends AS bigint[]))
                AS part (first, past)
            WHERE pins.seq >= part.first AND pins.seq < part.past
        )
)"""

# Run under the head's lock: then a pin that came first is seen.
SHOW_VIEW = Statement(
    f"""
        UPDATE heads
        SET view_version = view_version + 1, view_cause = CAST(:cause AS text),
            compaction_id = CAST(:compaction_id AS uuid),
            span_start = CAST(:span_start AS bigint), span_end = CAST(:span_end AS bigint),
            kept = CAST(:kept AS bigint[]), trimmed_through = CAST(:trimmed_through AS bigint),
            summary_tokens = CAST(:summary_tokens AS integer),
            hidden_tokens = CAST(:hidden_tokens AS bigint),
            hidden_messages = CAST(:hidden_messages AS bigint),
            resume_at = CAST(:resume_at AS bigint),
            failures = CASE WHEN CAST(:cause AS text) = 'tool_results_cleared' THEN failures
                ELSE 0 END,
            last_failure = CASE WHEN CAST(:cause AS text) = 'tool_results_cleared'
                THEN last_failure END,
            failed_at = CASE WHEN CAST(:cause AS text) = 'tool_results_cleared'
                THEN failed_at END,
            due_at = CASE WHEN CAST(:cause AS text) = 'tool_results_cleared' THEN due_at END
        WHERE conversation_id = CAST(:conversation_id AS uuid)
            AND view_version = CAST(:view_version AS bigint)
            AND {_NO_NEW_PIN}
        """
)

HIDE_COMPACTION = Statement(
    """
        UPDATE heads
        SET view_version = view_version + 1, view_cause = 'policy_changed', compaction_id = NULL,
            span_start = NULL, span_end = NULL, kept = '{}', trimmed_through = 0,
            summary_tokens = 0, hidden_tokens = outside_tokens,
            hidden_messages = outside_messages, resume_at = 0, failures = 0,
            last_failure = NULL, failed_at = NULL
        WHERE conversation_id = CAST(:conversation_id AS uuid)
            AND view_version = CAST(:view_version AS bigint)
        """
)

LET_GROW = Statement(
    """
        UPDATE heads SET resume_at = CAST(:resume_at AS bigint)
        WHERE conversation_id = CAST(:conversation_id AS uuid)
        """
)

MARK_UNDONE = Statement(
    """
        UPDATE compactions SET undone_at = now()
        WHERE conversation_id = CAST(:conversation_id AS uuid)
            AND compaction_id = CAST(:compaction_id AS uuid)
        """
)

FIND_COMPACTION = Statement(
    """
        SELECT * FROM compactions
        WHERE conversation_id = CAST(:conversation_id AS uuid)
            AND compaction_id = CAST(:compaction_id AS uuid)
        """
)

LIST_COMPACTIONS = Statement(
    bounded(
        """
            SELECT * FROM compactions
            WHERE conversation_id = CAST(:conversation_id AS uuid)
                AND (CAST(:before AS uuid) IS NULL OR compaction_id < CAST(:before AS uuid))
            ORDER BY compaction_id DESC
            LIMIT CAST(:limit AS bigint)
        """,
        ("*",),
        lengths("summary", "view", "made"),
        "compaction_id DESC",
    )
)

# Results follow their call directly, so a group reaches from one message that is no result to
# the next one; a turn from one user message to the next.
GROUP_OF = """
    SELECT seq, role, tokens FROM messages
    WHERE conversation_id = CAST(:conversation_id AS uuid)
        AND seq >= coalesce((
            SELECT starts.seq FROM messages starts
            WHERE starts.conversation_id = CAST(:conversation_id AS uuid)
                AND starts.seq <= CAST(:seq AS bigint) AND {starts}
            ORDER BY starts.seq DESC LIMIT 1), 1)
        AND seq < coalesce((
            SELECT ends.seq FROM messages ends
            WHERE ends.conversation_id = CAST(:conversation_id AS uuid)
                AND ends.seq > CAST(:seq AS bigint) AND {ends}
            ORDER BY ends.seq LIMIT 1), 9223372036854775807)
    ORDER BY seq
"""
GROUP = Statement(GROUP_OF.format(starts="starts.role <> 'tool'", ends="ends.role <> 'tool'"))
TURN = Statement(GROUP_OF.format(starts="starts.role = 'user'", ends="ends.role = 'user'"))

PINNED = Statement(
    """
        SELECT m.seq, m.role, m.tokens FROM pins p
        JOIN messages m ON m.conversation_id = p.conversation_id AND m.seq = p.seq
        WHERE p.conversation_id = CAST(:conversation_id AS uuid)
        ORDER BY m.seq
        """
)
PIN = Statement(
    """
        INSERT INTO pins (conversation_id, seq)
        SELECT CAST(:conversation_id AS uuid), seq FROM unnest(CAST(:seqs AS bigint[])) AS seq
        ON CONFLICT (conversation_id, seq) DO NOTHING
        """
)
UNPIN = Statement(
    """
        DELETE FROM pins
        WHERE conversation_id = CAST(:conversation_id AS uuid)
            AND seq = ANY (CAST(:seqs AS bigint[]))
        """
)
KEEP = Statement(
    """
        UPDATE heads
        SET view_version = view_version + 1, view_cause = 'pinned',
            kept = CAST(:kept AS bigint[]),
            hidden_tokens = hidden_tokens - CAST(:tokens AS bigint),
            hidden_messages = hidden_messages - CAST(:messages AS bigint)
        WHERE conversation_id = CAST(:conversation_id AS uuid)
        """
)


class ContextRepository:
    """Sentences about builds, epochs and compactions of one conversation."""

    def __init__(self, session: Session, layers: Layers) -> None:
        self._session = session
        self._layers = layers

    async def read(
        self,
        tenant_id: str,
        conversation_id: str,
        *,
        format: str,
        model: str | None,
        default_model: str | None,
        window: int,
        have_epoch_id: str | None,
        have_start: str | None,
        have_through: int,
        most_tokens: int,
    ) -> ContextRead | None:
        """Return all a build needs, None for an unknown conversation.

        What the caller has of an epoch, its frame and its rows up to a seq, is not read again;
        nor is the summary, which that frame holds.
        """
        held = self._layers.held(tenant_id, conversation_id, model)
        row = await self._session.first(
            READ,
            tenant_id=tenant_id,
            conversation_id=UUID(conversation_id),
            format=format,
            model=model,
            default_model=default_model,
            window=window,
            have_epoch_id=UUID(have_epoch_id) if have_epoch_id else None,
            have_through=have_through,
            most_tokens=most_tokens,
            as_chat=format == "openai_chat",
            **held.parameters,
        )
        if row is None:
            return None
        conversation = self._layers.conversation_from(row, tenant_id, held, model)
        return ContextRead(
            conversation=conversation,
            epoch=epoch_from(row, "e_", have_start),
            window_epoch=epoch_from(row, "w_", have_start),
            view=view_from(json_text.loads(row["view"])) if row["view"] else None,
            compacted_for=row["compacted_for"],
            compacted_at=row["compacted_at"],
            other_lanes=tuple(row["other_lanes"]),
            pins=tuple(filter(conversation.state.window.holds, row["pins"])),
            rows_read=row["rows_read"],
            rows=log_rows_from(row),
        )

    async def rows(
        self,
        conversation_id: str,
        start: int,
        end: int,
        *,
        as_chat: bool,
        trimmed_through: int = 0,
        untrimmed: Sequence[int] = (),
    ) -> list[LogRow]:
        """Return the messages in `[start, end)` as a build or a summariser reads them.

        Results up to `trimmed_through`, but for the seqs in `untrimmed`, come without their text.
        """
        row = await self._session.first(
            ROWS,
            conversation_id=UUID(conversation_id),
            start=start,
            end=end,
            as_chat=as_chat,
            trimmed_through=trimmed_through,
            untrimmed=list(untrimmed),
        )
        return log_rows_from(row)

    async def add_epoch(
        self, conversation_id: str, epoch: Epoch, view: View, texts: Mapping[str, str]
    ) -> bool:
        """Record an epoch's start; False when another build was first, or all is deleted."""
        top_start, hidden = _bounds(view)
        added = await self._session.run(
            ADD_EPOCH,
            conversation_id=UUID(conversation_id),
            lane=epoch.payload_stream,
            epoch=epoch.epoch,
            epoch_id=UUID(epoch.epoch_id),
            format=epoch.format,
            window=epoch.window,
            reason=epoch.reason,
            start_seq=epoch.start_seq,
            view_version=epoch.view_version,
            top_start=top_start,
            top_end=hidden.start,
            tail_start=hidden.end,
            kept=list(kept_of(view)),
            trimmed_through=view.trimmed_through,
            frame=epoch.start_json,
            sections_hash=epoch.sections_hash,
            tools_hash=epoch.tools_hash,
            policy_hash=epoch.policy_hash,
            hashes=list(texts),
            texts=list(texts.values()),
        )
        return added == 1

    async def find_epoch(self, conversation_id: str, epoch_id: str) -> Epoch | None:
        """Return an epoch by its id, or None."""
        row = await self._session.first(
            FIND_EPOCH, conversation_id=UUID(conversation_id), epoch_id=UUID(epoch_id)
        )
        return epoch_from(row, "e_", None) if row is not None else None

    async def newest_tools(self, conversation_id: str) -> str | None:
        """Return the tools of the epoch that began last, as JSON; None before any build."""
        row = await self._session.first(NEWEST_TOOLS, conversation_id=UUID(conversation_id))
        return row["body"] if row is not None else None

    async def add_text(self, conversation_id: str, hash: str, body: str) -> None:
        """Keep a text under its hash, once."""
        await self._session.run(
            ADD_TEXT, conversation_id=UUID(conversation_id), hash=hash, body=body
        )

    async def texts(self, conversation_id: str, hashes: Sequence[str]) -> Mapping[str, str]:
        """Return those of the texts that are kept, by their hashes."""
        rows = await self._session.all(
            TEXTS, conversation_id=UUID(conversation_id), hashes=list(hashes)
        )
        return {row["hash"]: row["body"] for row in rows}

    async def add_compaction(self, conversation_id: str, compaction: Compaction) -> None:
        """Store a receipt."""
        await self._session.run(
            ADD_COMPACTION,
            conversation_id=UUID(conversation_id),
            compaction_id=UUID(compaction.compaction_id),
            parent_id=UUID(compaction.parent_id) if compaction.parent_id else None,
            trigger=compaction.trigger,
            strategy=compaction.strategy,
            policy_strategy=compaction.policy_strategy,
            strategies_run=list(compaction.strategies_run),
            span_start=compaction.span.start,
            span_end=compaction.span.end,
            summary=compaction.summary or "",
            view=compaction.view.as_json(),
            made=json_text.dumps([asdict(summary) for summary in compaction.made]),
            summary_tokens=compaction.summary_tokens,
            hidden_tokens=compaction.hidden_tokens,
            hidden_messages=compaction.hidden_messages,
            before_tokens=compaction.before_tokens,
            after_tokens=compaction.after_tokens,
            before_msg_count=compaction.before_msg_count,
            after_msg_count=compaction.after_msg_count,
            model=compaction.model,
            prompt_hash=compaction.prompt_hash,
            calls=compaction.calls,
            input_tokens=compaction.input_tokens,
            output_tokens=compaction.output_tokens,
            cost_usd=compaction.cost_usd,
            duration_ms=compaction.duration_ms,
            degraded=list(compaction.degraded),
        )

    async def show(
        self,
        conversation_id: str,
        shown: VisibleState,
        *,
        view_version: int,
        cause: str,
        resume_at: int = 0,
    ) -> bool:
        """Change what is shown, if the view is still this version and no new pin is hidden.

        Call it in a transaction that holds the head's lock.
        """
        view = shown.view
        hidden = view.hidden
        changed = await self._session.run(
            SHOW_VIEW,
            conversation_id=UUID(conversation_id),
            compaction_id=UUID(shown.compaction_id) if shown.compaction_id else None,
            span_start=hidden.start if hidden is not None else None,
            span_end=hidden.end if hidden is not None else None,
            kept=list(shown.kept),
            trimmed_through=view.trimmed_through,
            window_starts=[span.start for span in view.window],
            window_ends=[span.end for span in view.window],
            summary_tokens=shown.summary_tokens,
            hidden_tokens=shown.hidden_tokens,
            hidden_messages=shown.hidden_messages,
            view_version=view_version,
            cause=cause,
            resume_at=resume_at,
        )
        return changed == 1

    async def hide_compaction(self, conversation_id: str, view_version: int) -> None:
        """Show the log as it is again, if the view is still this one."""
        await self._session.run(
            HIDE_COMPACTION, conversation_id=UUID(conversation_id), view_version=view_version
        )

    async def let_grow(self, conversation_id: str, resume_at: int) -> None:
        """Leave the conversation alone until its log has so many tokens (decision 24)."""
        await self._session.run(
            LET_GROW, conversation_id=UUID(conversation_id), resume_at=resume_at
        )

    async def mark_undone(self, conversation_id: str, compaction_id: str) -> None:
        """Note on a receipt that it was undone."""
        await self._session.run(
            MARK_UNDONE,
            conversation_id=UUID(conversation_id),
            compaction_id=UUID(compaction_id),
        )

    async def compactions(
        self,
        conversation_id: str,
        limit: int,
        before: str | None,
        bound: Bound = UNBOUNDED,
    ) -> Page[Compaction]:
        """Return receipts, the newest first, starting after the one with the id `before`."""
        rows = await self._session.all(
            LIST_COMPACTIONS,
            conversation_id=UUID(conversation_id),
            before=UUID(before) if before else None,
            **limits(limit, bound),
        )
        return page_of(rows, compaction_from)

    async def around(self, conversation_id: str, seq: int, *, whole_turn: bool) -> list[Entry]:
        """Return the entries of the call group, or of the whole turn, that a seq stands in."""
        rows = await self._session.all(
            TURN if whole_turn else GROUP, conversation_id=UUID(conversation_id), seq=seq
        )
        return [entry(row["seq"], Role(row["role"]), row["tokens"]) for row in rows]

    async def pinned(self, conversation_id: str) -> list[Entry]:
        """Return the entries of all pinned messages."""
        rows = await self._session.all(PINNED, conversation_id=UUID(conversation_id))
        return [entry(row["seq"], Role(row["role"]), row["tokens"], True) for row in rows]

    async def pin(self, conversation_id: str, seqs: Sequence[int]) -> None:
        """Pin messages; those that are pinned already stay so."""
        await self._session.run(PIN, conversation_id=UUID(conversation_id), seqs=list(seqs))

    async def unpin(self, conversation_id: str, seqs: Sequence[int]) -> int:
        """Unpin messages, and return how many were pinned."""
        return await self._session.run(
            UNPIN, conversation_id=UUID(conversation_id), seqs=list(seqs)
        )

    async def keep(
        self, conversation_id: str, kept: Sequence[int], tokens: int, messages: int
    ) -> None:
        """Show messages again that were hidden or cleared: so many more, for so many tokens."""
        await self._session.run(
            KEEP,
            conversation_id=UUID(conversation_id),
            kept=list(kept),
            tokens=tokens,
            messages=messages,
        )

    async def find_compaction(self, conversation_id: str, compaction_id: str) -> Compaction | None:
        """Return a receipt, or None."""
        row = await self._session.first(
            FIND_COMPACTION,
            conversation_id=UUID(conversation_id),
            compaction_id=UUID(compaction_id),
        )
        return compaction_from(row) if row is not None else None


def _bounds(view: View) -> tuple[int, Span]:
    """Return where what an epoch shows begins, and the range hidden in it, empty without one.

    Of a window in several parts only the newest is bound: a build that has to read the rest, which
    is rare, asks for it.
    """
    if len(view.window) > 1:
        start = view.spans[-1].start
        return start, Span(start, start)
    start = view.window[0].start
    return start, view.hidden or Span(start, start)
