"""The log in Postgres: one statement appends, one reads a page (A2, A6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from asyncpg import UniqueViolationError

from app.adapters.postgres.common.connections import Session, Statement
from app.adapters.postgres.common.paging import bounded, lengths, limits, page_of
from app.adapters.postgres.common.rows import (
    CONVERSATION_COLUMNS,
    HEAD_COLUMNS,
    LAYER_JOINS,
    Layers,
    stored_message_from,
)
from app.adapters.postgres.tool_output.blobs import BLOB_CTES, append_parameters
from app.domain.common import json_text
from app.domain.common.messages import Role
from app.domain.common.pages import UNBOUNDED, Bound, Page
from app.domain.compaction.planning import CompactionThreshold
from app.domain.conversations.active_window import OUT_OF_DATE
from app.domain.conversations.conversation import Conversation
from app.domain.conversations.log.batch import BatchShape, Times, batch_times
from app.domain.conversations.log.draft import Draft
from app.domain.conversations.stored_message import StoredMessage
from app.domain.conversations.turns import Entry, entry, pinned_seqs
from app.domain.tool_output.blobs import Blob, StoredChunk

_STORED = (
    *("message_id", "seq", "turn", "role", "format", "tokens", "reasoning_tokens"),
    *("body", "output", "created_at"),
)
STORED_COLUMNS = ", ".join(_STORED)

# Results are offloaded by the settings in hand, so these must be those of now: no change by
# another process may come between.
_AS_HELD = """(
    c.updated_at = CAST(:known_at AS timestamptz)
    AND (c.agent_id IS NULL OR EXISTS (
        SELECT FROM agents held
        WHERE held.tenant_id = c.tenant_id AND held.agent_id = c.agent_id
            AND held.updated_at = CAST(:known_agent_at AS timestamptz)
    ))
)"""

# The results that a batch begins with answer calls of before. Where those are outside the active
# window, their results stay outside as well (B2). Most times the window then begins after them;
# where it has begun before, it is out of date until somebody moves it.
_BEGINS_AFTER = "h.open_outside AND h.since > h.head_seq"
_OUTSIDE = f"CASE WHEN {_BEGINS_AFTER} THEN CAST(:{{what}} AS bigint) ELSE 0 END"

_WINDOW = f"""newest_before = h.newest_at,
                newest_at = greatest(h.newest_at, CAST(:newest_at AS timestamptz)),
                oldest_at = CASE
                    WHEN NOT h.open_outside THEN least(
                        h.oldest_at, CAST(:oldest_given AS timestamptz),
                        greatest(CAST(:now AS timestamptz), h.newest_at))
                    WHEN CAST(:only_answers AS boolean) THEN h.oldest_at
                    ELSE least(
                        h.oldest_at, CAST(:oldest_given_after AS timestamptz),
                        greatest(CAST(:now AS timestamptz), h.newest_at))
                END,
                window_seconds = CASE
                    WHEN h.open_outside AND h.since <= h.head_seq
                        AND CAST(:answering AS bigint) > 0 THEN {OUT_OF_DATE}
                    ELSE h.window_seconds
                END,
                open_outside = h.open_outside AND NOT CAST(:resets AS boolean),
                since = h.since + {_OUTSIDE.format(what="answering")},
                outside_messages = h.outside_messages + {_OUTSIDE.format(what="answering")},
                outside_tokens = h.outside_tokens + {_OUTSIDE.format(what="answering_tokens")},
                hidden_messages = h.hidden_messages + {_OUTSIDE.format(what="answering")},
                hidden_tokens = h.hidden_tokens + {_OUTSIDE.format(what="answering_tokens")},"""

# Bodies come as bytes: what orjson wrote is sent as it is, with no text made of it in between.
# The head row is the guard: the update finds it only in the state the batch was made for, and
# its lock orders concurrent writers (decision 9). Nothing matches, nothing is stored.
_APPEND = f"""
        WITH moved AS (
            UPDATE heads h
            SET head_seq = h.head_seq + cardinality(CAST(:ids AS text[])),
                turns = h.turns + CAST(:turns AS bigint),
                tokens = h.tokens + CAST(:tokens AS bigint),
                due_at = CASE
                    WHEN h.due_at IS NULL
                        AND h.tokens + CAST(:tokens AS bigint) >= h.resume_at
                        AND (
                            h.tokens + CAST(:tokens AS bigint) - h.hidden_tokens
                                + h.summary_tokens >= CAST(:due_tokens AS bigint)
                            OR h.head_seq + cardinality(CAST(:ids AS text[]))
                                - h.hidden_messages > CAST(:due_messages AS bigint)
                        ) THEN now()
                    ELSE h.due_at
                END,
                mentions = CASE
                    WHEN CAST(:mentions AS text[]) <@ h.mentions THEN h.mentions
                    ELSE h.mentions || CAST(:mentions AS text[])
                END,
                {{window}}
                open_calls = CASE
                    WHEN CAST(:resets AS boolean) THEN CAST(:leaves AS text[])
                    ELSE ARRAY(
                        SELECT call FROM unnest(h.open_calls) AS call
                        WHERE call <> ALL (CAST(:needs AS text[]))
                    )
                END
            FROM conversations c
            WHERE h.conversation_id = CAST(:conversation_id AS uuid)
                AND c.conversation_id = CAST(:conversation_id AS uuid)
                AND c.tenant_id = CAST(:tenant_id AS text)
                AND h.counter = CAST(:counter AS text)
                AND h.open_calls @> CAST(:needs AS text[])
                AND (CAST(:expected_seq AS bigint) IS NULL
                    OR h.head_seq = CAST(:expected_seq AS bigint))
                AND NOT EXISTS (
                    SELECT FROM messages known
                    WHERE known.conversation_id = CAST(:conversation_id AS uuid)
                        AND known.message_id = ANY (CAST(:given_ids AS text[]))
                )
                AND (NOT CAST(:as_held AS boolean) OR {_AS_HELD})
            RETURNING {HEAD_COLUMNS}, h.newest_at, h.newest_before
        ), stored AS (
            INSERT INTO messages (
                conversation_id, seq, message_id, turn, role, format, tokens, reasoning_tokens,
                total_tokens, call_ids, call_names, has_media, continues, body, fragment,
                output, timestamp, at, late_at
            )
            SELECT
                CAST(:conversation_id AS uuid),
                moved.head_seq - cardinality(CAST(:ids AS text[])) + item.position,
                item.id,
                moved.turns - CAST(:turns AS bigint) + item.turn,
                item.role,
                CAST(:format AS text),
                item.tokens,
                item.reasoning_tokens,
                moved.tokens - CAST(:tokens AS bigint) + item.total_tokens,
                item.call_ids, item.call_names, item.has_media, item.continues,
                convert_from(item.body, 'UTF8'), convert_from(item.fragment, 'UTF8'),
                item.output, item.timestamp, {{times}}
            FROM moved, unnest(
                CAST(:ids AS text[]), CAST(:row_turns AS bigint[]), CAST(:roles AS text[]),
                CAST(:row_tokens AS integer[]), CAST(:row_reasoning AS integer[]),
                CAST(:row_totals AS bigint[]), CAST(:call_ids AS text[]),
                CAST(:call_names AS text[]), CAST(:has_media AS boolean[]),
                CAST(:continues AS boolean[]), CAST(:bodies AS bytea[]),
                CAST(:fragments AS bytea[]), CAST(:outputs AS text[]),
                CAST(:timestamps AS text[]){{arrays}}
            ) WITH ORDINALITY AS item (
                id, turn, role, tokens, reasoning_tokens, total_tokens, call_ids, call_names,
                has_media, continues, body, fragment, output, timestamp{{columns}}, position
            )
        ){{blobs}}
        SELECT {CONVERSATION_COLUMNS}, {HEAD_COLUMNS}, h.due_at = now() AS became_due
        FROM moved h
        JOIN conversations c ON c.conversation_id = CAST(:conversation_id AS uuid)
        {LAYER_JOINS}
        """
# Most batches begin with no result, and their messages give no times of their own: then the window
# asks for little, and every expression less is time saved.
_USUAL_WINDOW = """newest_at = greatest(h.newest_at, CAST(:newest_at AS timestamptz)),
                oldest_at = least(
                    h.oldest_at, greatest(CAST(:newest_at AS timestamptz), h.newest_at)),
                open_outside = false,"""
_NO_TIMES = {"times": "moved.newest_at, NULL", "arrays": "", "columns": ""}
_TIMES = {
    "times": """greatest(item.newest_at, moved.newest_before),
                CASE WHEN item.given_at < greatest(item.newest_at, moved.newest_before)
                    THEN item.given_at END""",
    "arrays": """, CAST(:given_times AS timestamptz[]),
                CAST(:newest_times AS timestamptz[])""",
    "columns": ", given_at, newest_at",
}


def _statement(is_usual: bool, is_timed: bool, has_blobs: bool) -> Statement:
    return Statement(
        _APPEND.format(
            window=_USUAL_WINDOW if is_usual else _WINDOW,
            # Blobs go with their messages or not at all (decision 29).
            blobs=f", {BLOB_CTES}" if has_blobs else "",
            **(_TIMES if is_timed else _NO_TIMES),
        )
    )


APPENDS = {
    (is_usual, is_timed, has_blobs): _statement(is_usual, is_timed, has_blobs)
    for is_usual, is_timed in ((True, False), (False, False), (False, True))
    for has_blobs in (False, True)
}
"""By whether a batch is usual, whether its messages give times, and whether it has blobs."""

# Both rows are locked, because only locked rows are read anew after a wait for the lock.
LOCK = Statement(
    f"""
        SELECT {CONVERSATION_COLUMNS}, {HEAD_COLUMNS}
        FROM heads h
        JOIN conversations c ON c.conversation_id = h.conversation_id
        {LAYER_JOINS}
        WHERE h.conversation_id = CAST(:conversation_id AS uuid)
            AND c.tenant_id = CAST(:tenant_id AS text)
        FOR UPDATE OF h, c
        """
)


def bounded_messages(rows: str, order: str, *also: str) -> str:
    """Return a query for a page of stored messages, with other columns of the rows as well."""
    return bounded(rows, (*_STORED, *also), lengths("body", "output"), order)


IDS = Statement(
    """
        SELECT seq, message_id FROM messages
        WHERE conversation_id = CAST(:conversation_id AS uuid)
            AND seq = ANY (CAST(:seqs AS bigint[]))
        """
)

_PAGE = f"""
    SELECT {STORED_COLUMNS}
    FROM messages
    WHERE conversation_id = CAST(:conversation_id AS uuid)
        AND seq > CAST(:after_seq AS bigint) AND seq < CAST(:before_seq AS bigint)
    ORDER BY seq {{order}}
    LIMIT CAST(:limit AS bigint)
"""
PAGE = {
    order.lower(): Statement(bounded_messages(_PAGE.format(order=order), f"seq {order}"))
    for order in ("ASC", "DESC")
}

BY_IDS = Statement(
    bounded_messages(
        f"""
            SELECT {STORED_COLUMNS}
            FROM messages
            WHERE conversation_id = CAST(:conversation_id AS uuid)
                AND message_id = ANY (CAST(:ids AS text[])) AND seq > CAST(:after_seq AS bigint)
            ORDER BY seq
            LIMIT CAST(:limit AS bigint)
        """,
        "seq",
    )
)

# What a build or a summariser reads of a message is its body or its fragment.
SIZES = Statement(
    """
        SELECT seq, greatest(octet_length(body), coalesce(octet_length(fragment), 0)) AS size
        FROM messages
        WHERE conversation_id = CAST(:conversation_id AS uuid)
            AND seq >= CAST(:start AS bigint) AND seq < CAST(:end AS bigint)
        ORDER BY seq
        """
)

ENTRIES = Statement(
    """
        SELECT m.seq, m.role, m.tokens, p.seq IS NOT NULL AS pinned
        FROM messages m
        LEFT JOIN pins p ON p.conversation_id = m.conversation_id AND p.seq = m.seq
        WHERE m.conversation_id = CAST(:conversation_id AS uuid)
            AND m.seq >= CAST(:start AS bigint) AND m.seq < CAST(:end AS bigint)
        ORDER BY m.seq
        """
)

# A result follows its call; the message before the first results of a range has theirs.
TOOL_NAMES = Statement(
    """
        SELECT seq, role, call_ids, call_names FROM messages
        WHERE conversation_id = CAST(:conversation_id AS uuid)
            AND seq >= coalesce((
                SELECT starts.seq FROM messages starts
                WHERE starts.conversation_id = CAST(:conversation_id AS uuid)
                    AND starts.seq <= CAST(:start AS bigint) AND starts.role <> 'tool'
                ORDER BY starts.seq DESC LIMIT 1), 1)
            AND seq < CAST(:end AS bigint) AND call_ids IS NOT NULL
        ORDER BY seq
        """
)

OPEN_CALLS = Statement(
    """
        SELECT call_ids, call_names FROM messages
        WHERE conversation_id = CAST(:conversation_id AS uuid) AND role <> 'tool'
        ORDER BY seq DESC LIMIT 1
        """
)

MAX_LOOKED_AT = 5_000
"""Messages in which the last use of tools is looked for: its cost must not grow with the log."""

LAST_USED = Statement(
    f"""
        SELECT call_names, max(seq) AS seq FROM (
            SELECT seq, call_names FROM messages
            WHERE conversation_id = CAST(:conversation_id AS uuid)
            ORDER BY seq DESC LIMIT {MAX_LOOKED_AT}
        ) AS newest
        WHERE call_names IS NOT NULL
        GROUP BY call_names
        """
)

PROMOTE = Statement(
    """
        UPDATE heads
        SET promoted = CASE
                WHEN promoted_turn = turns THEN promoted || ARRAY(
                    SELECT item.name
                    FROM unnest(CAST(:names AS text[])) WITH ORDINALITY AS item (name, position)
                    WHERE item.name <> ALL (promoted)
                    ORDER BY item.position
                )
                ELSE CAST(:names AS text[])
            END,
            promoted_turn = turns
        WHERE conversation_id = CAST(:conversation_id AS uuid)
        RETURNING promoted
        """
)

TOTAL_AT = Statement(
    """
        SELECT total_tokens FROM messages
        WHERE conversation_id = CAST(:conversation_id AS uuid)
            AND seq <= CAST(:seq AS bigint)
        ORDER BY seq DESC LIMIT 1
        """
)

KEPT_ANSWER = Statement(
    """
        SELECT request_hash, answer FROM idempotency_keys
        WHERE conversation_id = CAST(:conversation_id AS uuid) AND key = CAST(:key AS text)
            AND created_at > now() - interval '24 hours'
        """
)

KEEP_ANSWER = Statement(
    """
        INSERT INTO idempotency_keys (conversation_id, key, request_hash, answer)
        VALUES (CAST(:conversation_id AS uuid), CAST(:key AS text),
                CAST(:request_hash AS text), CAST(:answer AS text))
        ON CONFLICT (conversation_id, key) DO UPDATE
        SET request_hash = excluded.request_hash, answer = excluded.answer, created_at = now()
        """
)


class LogRepository:
    """Sentences about the log of one conversation."""

    def __init__(self, session: Session, layers: Layers) -> None:
        self._session = session
        self._layers = layers

    async def append(
        self,
        tenant_id: str,
        conversation_id: str,
        format: str,
        drafts: Sequence[Draft],
        ids: Sequence[str],
        shape: BatchShape,
        *,
        counter: str,
        now: datetime,
        expected_seq: int | None,
        default_model: str | None,
        due: CompactionThreshold,
        blobs: Sequence[tuple[Blob, Sequence[StoredChunk]]] = (),
        as_held: bool = False,
    ) -> Conversation | None:
        """Store a batch if the head still allows it, and return the conversation after it.

        Makes a compaction due where the batch takes the head over the line. A message
        that gives no time is from `now` (B2). `blobs` are stored with it; with `as_held` only if
        the settings are still those this process holds.

        None means that nothing was stored; the caller finds out why under the head's lock.
        """
        totals, turns = _running(drafts)
        times = batch_times(drafts, now)
        held = self._layers.held(tenant_id, conversation_id)
        has_outputs = any(draft.output is not None for draft in drafts)
        row = await self._append(
            blobs,
            [draft.blob_ids for draft in drafts] if has_outputs else (),
            times,
            tenant_id=tenant_id,
            conversation_id=UUID(conversation_id),
            model=None,
            default_model=default_model,
            due_tokens=due.tokens,
            due_messages=due.messages,
            counter=counter,
            expected_seq=expected_seq,
            as_held=as_held,
            format=format,
            needs=list(shape.required_calls),
            resets=shape.closes_group,
            leaves=list(shape.open_calls),
            turns=shape.turns,
            mentions=_mentions(drafts) if has_outputs else (),
            tokens=totals[-1],
            ids=list(ids),
            given_ids=[draft.id for draft in drafts if draft.id is not None],
            row_turns=turns,
            roles=[str(draft.role) for draft in drafts],
            row_tokens=[draft.tokens for draft in drafts],
            row_reasoning=[draft.reasoning_tokens for draft in drafts],
            row_totals=totals,
            call_ids=[
                json_text.dumps(draft.call_ids) if draft.call_ids else None for draft in drafts
            ],
            call_names=[
                json_text.dumps(draft.call_names) if draft.call_names else None for draft in drafts
            ],
            has_media=[draft.has_media for draft in drafts],
            continues=[draft.continues for draft in drafts],
            bodies=[draft.body for draft in drafts],
            fragments=[draft.fragment for draft in drafts],
            outputs=[_output_of(draft) for draft in drafts] if has_outputs else [None] * len(ids),
            timestamps=[draft.timestamp for draft in drafts],
            newest_at=times.newest[-1],
            now=times.now,
            oldest_given=times.oldest_given,
            oldest_given_after=times.oldest_given_after,
            only_answers=times.only_answers,
            given_times=times.given,
            newest_times=times.newest,
            answering=times.answering,
            answering_tokens=totals[times.answering - 1] if times.answering else 0,
            **held.parameters,
        )
        if row is None:
            return None
        after = self._layers.conversation_from(row, tenant_id, held)
        return (
            replace(after, state=replace(after.state, became_due=True))
            if row["became_due"]
            else after
        )

    async def _append(
        self,
        blobs: Sequence[tuple[Blob, Sequence[StoredChunk]]],
        uses: Sequence[Sequence[str]],
        times: Times,
        **values: Any,
    ) -> Any | None:
        if has_blobs := any(uses):
            values |= append_parameters(blobs, uses)
        is_timed = times.oldest_given is not None
        statement = APPENDS[not (is_timed or times.answering), is_timed, has_blobs]
        try:
            return await self._session.first(statement, **values)
        except UniqueViolationError:
            # An equal message came in while this one waited for the head.
            return None

    async def lock(
        self, tenant_id: str, conversation_id: str, default_model: str | None
    ) -> Conversation | None:
        """Lock the head until the transaction ends, and return the conversation."""
        held = self._layers.held(tenant_id, conversation_id)
        row = await self._session.first(
            LOCK,
            tenant_id=tenant_id,
            conversation_id=UUID(conversation_id),
            model=None,
            default_model=default_model,
            **held.parameters,
        )
        return self._layers.conversation_from(row, tenant_id, held) if row is not None else None

    async def by_ids(
        self,
        conversation_id: str,
        ids: Sequence[str],
        after_seq: int = 0,
        bound: Bound = UNBOUNDED,
    ) -> Page[StoredMessage]:
        """Return the stored messages with these ids, in log order, those after a seq."""
        rows = await self._session.all(
            BY_IDS,
            conversation_id=UUID(conversation_id),
            ids=list(ids),
            after_seq=after_seq,
            **limits(len(ids), bound),
        )
        return page_of(rows, stored_message_from)

    async def ids(self, conversation_id: str, seqs: Sequence[int]) -> Mapping[int, str]:
        """Return the ids of the messages with these seqs."""
        rows = await self._session.all(IDS, conversation_id=UUID(conversation_id), seqs=list(seqs))
        return {row["seq"]: row["message_id"] for row in rows}

    async def page(
        self,
        conversation_id: str,
        after_seq: int,
        before_seq: int,
        order: str,
        limit: int,
        bound: Bound = UNBOUNDED,
    ) -> Page[StoredMessage]:
        """Return up to `limit` messages between two seqs, both exclusive (decision 1)."""
        rows = await self._session.all(
            PAGE[order],
            conversation_id=UUID(conversation_id),
            after_seq=after_seq,
            before_seq=before_seq,
            **limits(limit, bound),
        )
        return page_of(rows, stored_message_from)

    async def sizes(self, conversation_id: str, start: int, end: int) -> dict[int, int]:
        """Return the bytes of the messages in `[start, end)` by seq, without reading them."""
        rows = await self._session.all(
            SIZES, conversation_id=UUID(conversation_id), start=start, end=end
        )
        return {row["seq"]: row["size"] for row in rows}

    async def entries(self, conversation_id: str, start: int, end: int) -> list[Entry]:
        """Return what planning needs of the messages in `[start, end)`."""
        rows = await self._session.all(
            ENTRIES, conversation_id=UUID(conversation_id), start=start, end=end
        )
        found = [entry(row["seq"], Role(row["role"]), row["tokens"], row["pinned"]) for row in rows]
        held = pinned_seqs(
            found
        )  # results that came in after the pin on their group are among them
        if not held:
            return found
        return [entry(item.seq, item.role, item.tokens, item.seq in held) for item in found]

    async def tool_names(self, conversation_id: str, start: int, end: int) -> dict[int, str]:
        """Return the name of the tool that each result in `[start, end)` comes from, by seq."""
        rows = await self._session.all(
            TOOL_NAMES, conversation_id=UUID(conversation_id), start=start, end=end
        )
        found: dict[int, str] = {}
        names: dict[str, str] = {}
        for row in rows:
            if row["role"] != Role.TOOL:
                names = _named_calls(row)
            elif row["seq"] >= start and (name := names.get(json_text.loads(row["call_ids"])[0])):
                found[row["seq"]] = name
        return found

    async def open_calls(self, conversation_id: str) -> dict[str, str]:
        """Return the names of the tools that the newest message but results calls, by call id."""
        row = await self._session.first(OPEN_CALLS, conversation_id=UUID(conversation_id))
        return _named_calls(row) if row is not None else {}

    async def last_used(self, conversation_id: str) -> dict[str, int]:
        """Return the seq at which each tool was last called, as the newest messages tell (H1)."""
        rows = await self._session.all(LAST_USED, conversation_id=UUID(conversation_id))
        found: dict[str, int] = {}
        for row in rows:
            for name in json_text.loads(row["call_names"]):
                found[name] = max(row["seq"], found.get(name, 0))
        return found

    async def promote(self, conversation_id: str, names: Sequence[str]) -> tuple[str, ...]:
        """Promote tools for the current turn, and return all that are promoted in it (H2).

        Those of an earlier turn are not any more. For a deleted conversation there are none.
        """
        row = await self._session.first(
            PROMOTE, conversation_id=UUID(conversation_id), names=list(names)
        )
        return tuple(row["promoted"]) if row is not None else ()

    async def total_at(self, conversation_id: str, seq: int) -> int:
        """Return the running sum of tokens up to and including this seq."""
        row = await self._session.first(TOTAL_AT, conversation_id=UUID(conversation_id), seq=seq)
        return row["total_tokens"] if row is not None else 0

    async def kept_answer(self, conversation_id: str, key: str) -> tuple[str, str] | None:
        """Return the request hash and the answer kept under an idempotency key."""
        row = await self._session.first(KEPT_ANSWER, conversation_id=UUID(conversation_id), key=key)
        return (row["request_hash"], row["answer"]) if row is not None else None

    async def keep_answer(
        self, conversation_id: str, key: str, request_hash: str, answer: str
    ) -> None:
        """Keep an answer for 24 hours (decision 8)."""
        await self._session.run(
            KEEP_ANSWER,
            conversation_id=UUID(conversation_id),
            key=key,
            request_hash=request_hash,
            answer=answer,
        )


def _output_of(draft: Draft) -> str | None:
    output = draft.kept_output
    return output.as_json() if output is not None else None


def _mentions(drafts: Sequence[Draft]) -> list[str]:
    """Return the tools that the views of a batch name."""
    outputs = (draft.output for draft in drafts if draft.output is not None)
    return sorted({name for output in outputs for name in output.mentions})


def _named_calls(row: Any) -> dict[str, str]:
    if row["call_names"] is None:  # no calls, or stored by an earlier version
        return {}
    ids, names = json_text.loads(row["call_ids"]), json_text.loads(row["call_names"])
    return dict(zip(ids, names, strict=True))


def _running(drafts: Sequence[Draft]) -> tuple[list[int], list[int]]:
    """Return each draft's running token sum and turn number, counted from the batch's start."""
    totals, turns, total, turn = [], [], 0, 0
    for draft in drafts:
        total += draft.tokens
        turn += draft.role is Role.USER
        totals.append(total)
        turns.append(turn)
    return totals, turns
