"""The log in PostgreSQL: one statement appends a batch, one reads a page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from itertools import accumulate
from typing import NamedTuple

from app.common import json_text
from app.common.concurrency import THREAD_BYTES, in_thread_if
from app.common.pages import UNBOUNDED, Bound, Page
from app.conversations.conversation import Conversation
from app.conversations.due import CompactionThreshold
from app.conversations.from_rows import (
    CALIBRATION,
    STATE_COLUMNS,
    CachedSettings,
    entry_from,
    stored_message_from,
)
from app.conversations.messages.row import (
    MAX_OPEN_CALLS,
    BatchShape,
    RawBatch,
    StoredMessage,
    parse_stored,
)
from app.conversations.turns import Entry, with_pins
from app.conversations.view import marker_of
from app.database.connections import Repository, Statement
from app.database.sql import bounded, equal, fields_of, insert, lengths, limits, page_of
from app.database.tables import APPEND as APPEND_FUNCTION
from app.formats.message import LOG_FORMAT, FormatName, Role, ToolCall

_STORED = (
    *("message_id", "seq", "turn", "role", "format", "tokens", "reasoning_tokens"),
    *("body", "output", "created_at"),
)
STORED_COLUMNS = ", ".join(_STORED)
_CONVERSATION = equal("conversation_id")
_IN_RANGE = f"m.{_CONVERSATION} AND m.seq >= :start AND m.seq < CAST(:end AS bigint)"
REDACTION_LOCK = "hashtextextended('redaction:' || CAST(CAST(:conversation_id AS uuid) AS text), 0)"
"""The key of the advisory lock that a redaction takes against forks that end."""
MESSAGE_TIME = "coalesce(m.at, m.created_at)"
"""The time of a message `m`, which never decreases with the seqs of its conversation."""
MAX_MESSAGES_READ = 5_000
"""Newest messages that are searched for the last use of tools: a bound of the cost."""
MAX_CALL_BYTES = 16_384
"""Messages with calls up to this size are read for the arguments of these."""


def seq_search(conversation_id: str, low: str, high: str, is_before: str) -> str:
    """Return a query for the first seq of `[low, high]` whose message `m` is not `is_before`.

    It is a binary search by the primary key; a scan would be the plan for an empty log.
    """
    return f"""
        WITH RECURSIVE search (low, high) AS (
            SELECT {low}, {high}
            UNION ALL
            SELECT
                CASE WHEN is_before THEN middle + 1 ELSE low END,
                CASE WHEN is_before THEN high ELSE middle END
            FROM (
                SELECT part.low, part.high, part.middle, {is_before} AS is_before
                FROM (
                    SELECT low, high, (low + high) / 2 AS middle FROM search WHERE low < high
                ) part
                CROSS JOIN LATERAL (
                    SELECT conversation_id, seq, at, created_at FROM messages
                    WHERE conversation_id = {conversation_id} AND seq >= part.middle
                    ORDER BY seq LIMIT 1
                ) m
            ) probe
        )
        SELECT low FROM search WHERE low = high
    """


def bounded_messages(rows: str, order: str, *also: str) -> str:
    """Return a query for a page of stored messages, with further columns of the rows."""
    return bounded(rows, (*_STORED, *also), lengths("body", "output"), order)


def _page(where: str, order: str) -> Statement:
    rows = f"""
        SELECT {STORED_COLUMNS} FROM messages
        WHERE {_CONVERSATION} AND seq > :after_seq AND {where} ORDER BY {order} LIMIT :limit
    """
    return Statement(bounded_messages(rows, order))


def _edge(starts: str, compared: str, order: str, otherwise: int) -> str:
    """Return the seq of the message nearest to `:seq` that starts a group or turn."""
    return f"""coalesce((
        SELECT s.seq FROM messages s
        WHERE s.{_CONVERSATION} AND s.seq {compared} :seq AND {starts}
        ORDER BY s.seq {order} LIMIT 1), {otherwise})"""


def _around(starts: str) -> Statement:
    return Statement(f"""
        SELECT seq, role, tokens, joins FROM messages
        WHERE {_CONVERSATION} AND seq >= {_edge(starts, "<=", "DESC", 1)}
            AND seq < {_edge(starts, ">", "ASC", 2**63 - 1)}
        ORDER BY seq
    """)


PAGE = {order: _page("seq < :before_seq", f"seq {order}") for order in ("asc", "desc")}
BY_IDS = _page("message_id = ANY (CAST(:ids AS text[]))", "seq")
# A call group lasts from one message that does not join the one before to the next, and a turn from
# one such message of the user to the next.
GROUP = _around("NOT s.joins")
TURN = _around("s.role = 'user' AND NOT s.joins")
# Builds and summarisers read the body or the chat item of a message.
SIZES = Statement(f"""
    SELECT seq, greatest(octet_length(body), coalesce(octet_length(chat_item), 0)) AS size
    FROM messages m WHERE {_IN_RANGE} ORDER BY seq
""")
ENTRIES = Statement(f"""
    SELECT m.seq, m.role, m.tokens, m.joins, p.seq IS NOT NULL AS pinned
    FROM messages m LEFT JOIN pins p ON p.conversation_id = m.conversation_id AND p.seq = m.seq
    WHERE {_IN_RANGE} ORDER BY m.seq
""")
PINNED = Statement(f"""
    SELECT m.seq, m.role, m.tokens, m.joins
    FROM pins p JOIN messages m ON m.conversation_id = p.conversation_id AND m.seq = p.seq
    WHERE p.{_CONVERSATION} ORDER BY m.seq
""")
_OTHER_INPUT = f"""UPDATE states SET input_version = input_version + 1
    WHERE {_CONVERSATION} AND EXISTS (SELECT FROM changed)"""
PIN = Statement(f"""
    WITH changed AS (
        INSERT INTO pins (conversation_id, seq)
        SELECT :conversation_id, seq FROM unnest(:seqs) AS seq
        ON CONFLICT (conversation_id, seq) DO NOTHING RETURNING seq
    ) {_OTHER_INPUT}
""")
UNPIN = Statement(f"""
    WITH changed AS (
        DELETE FROM pins WHERE {_CONVERSATION} AND seq = ANY (:seqs) RETURNING seq
    ) {_OTHER_INPUT}
""")
"""Both change the state if they change a pin, and otherwise none."""
# The call group in which a range begins has the calls of its first results.
TOOL_NAMES = Statement(f"""
    SELECT seq, role, call_ids, call_names FROM messages
    WHERE {_CONVERSATION} AND seq >= {_edge("NOT s.joins", "<=", "DESC", 1)}
        AND seq < CAST(:end AS bigint) AND call_ids IS NOT NULL
    ORDER BY seq
""")
# A call with long arguments writes something.
CALLS_AT = Statement(f"""
    SELECT seq, call_ids, coalesce(chat_item, body) AS text,
        CASE WHEN chat_item IS NULL THEN format ELSE '{LOG_FORMAT}' END AS format
    FROM messages
    WHERE {_CONVERSATION} AND seq = ANY (CAST(:seqs AS bigint[]))
        AND octet_length(coalesce(chat_item, body)) <= {MAX_CALL_BYTES}
""")
OPEN_CALLS = Statement(f"""
    SELECT m.call_ids, m.call_names, h.open_calls
    FROM states h
    JOIN messages m ON m.conversation_id = h.conversation_id AND m.seq = ANY (h.open_seqs)
    WHERE h.{_CONVERSATION} ORDER BY m.seq
""")
LAST_USED = Statement(f"""
    SELECT call_names, max(seq) AS seq FROM (
        SELECT seq, call_names FROM messages
        WHERE {_CONVERSATION} ORDER BY seq DESC LIMIT {MAX_MESSAGES_READ}
    ) AS newest
    WHERE call_names IS NOT NULL GROUP BY call_names
""")
PROMOTE = Statement(f"""
    UPDATE states
    SET promoted_turn = turns, promoted = CASE
        WHEN promoted_turn = turns THEN promoted || ARRAY(
            SELECT item.name
            FROM unnest(CAST(:names AS text[])) WITH ORDINALITY AS item (name, position)
            WHERE item.name <> ALL (promoted) ORDER BY item.position
        )
        ELSE CAST(:names AS text[])
    END
    WHERE {_CONVERSATION} RETURNING promoted
""")
TOTAL_AT = Statement(f"""
    SELECT total_tokens FROM messages
    WHERE {_CONVERSATION} AND seq <= :seq ORDER BY seq DESC LIMIT 1
""")
FIND_ANSWER = Statement(f"""
    SELECT request_hash, answer FROM idempotency_keys
    WHERE {equal("conversation_id", "key")} AND created_at > now() - interval '24 hours'
""")
_KEY = ("conversation_id", "key", "request_hash")
ADD_ANSWER = Statement(f"""
    {insert("idempotency_keys", *_KEY, "answer", created_at="now()")}
    ON CONFLICT (conversation_id, key) DO UPDATE
    SET request_hash = excluded.request_hash, answer = excluded.answer,
        created_at = excluded.created_at
""")
# The insert waits for a concurrent request with the key, and changes no row of the last 24 hours.
CLAIM_KEY = Statement(f"""
    {insert("idempotency_keys AS old", *_KEY, answer="''", created_at="now()")}
    ON CONFLICT (conversation_id, key) DO UPDATE
    SET request_hash = excluded.request_hash, created_at = excluded.created_at
    WHERE excluded.created_at - old.created_at >= interval '24 hours'
""")
_SIGNATURE = re.search(r"append\((.*?)\)\n", APPEND_FUNCTION, re.DOTALL)
assert _SIGNATURE is not None
_PARAMETERS = re.findall(r"(\w+) \w+(?:\[\])?[,\n]", _SIGNATURE[1])
APPEND = Statement(f"""
    SELECT {STATE_COLUMNS}, true AS is_cached, h.due_at = now() AS became_due,
        (SELECT {CALIBRATION} FROM calibrations cal WHERE cal.tenant_id = :tenant_id
            AND cal.model = :model AND cal.counter = h.counter) AS calibration
    FROM append({", ".join(f"{name} => :{name}" for name in _PARAMETERS)}) AS h
""")
"""It calls the function of `database/append.sql` [log.one-statement]."""


class _Answered(NamedTuple):
    """A call that a result answers: the seq of its message, its id, its tool."""

    seq: int
    id: str
    name: str


class LogRepository(Repository):
    """Appends to the log of one conversation, and reads it."""

    async def append(
        self,
        tenant_id: str,
        known: CachedSettings,
        request: RawBatch,
        shape: BatchShape,
        ids: Sequence[str],
        *,
        due: CompactionThreshold,
        now: datetime,
    ) -> Conversation | None:
        """Store a batch if log and settings still allow it, and return the conversation after it.

        The settings have to be the `known` ones. A compaction becomes due when the batch reaches
        the threshold `due`. The time of a message without a timestamp is `now`.

        None means that nothing was stored. The caller finds the reason under the state's lock.
        """
        conversation, drafts, opened = known.conversation, shape.drafts, shape.opened_calls
        window_seconds = conversation.rolling_window_seconds
        # A time in the future counts as now.
        times = [draft.sent_at for draft in drafts]
        sent = [at if at is not None and at < now else None for at in times]
        newest = list(accumulate((at or now for at in sent), max))
        is_long = sum(len(draft.body) for draft in drafts) > THREAD_BYTES
        rows = await in_thread_if(is_long, _rows, shape, ids, sent, newest)
        row = await self._session.first(
            APPEND,
            **fields_of(shape) | {"opened_calls": [*opened], "opened_indices": [*opened.values()]},
            conversation_id=conversation.conversation_id,
            tenant_id=tenant_id,
            counter=conversation.counter,
            model=conversation.model or self._settings_cache.default_model,
            expected_seq=request.expected_seq,
            client_ids=[draft.id for draft in drafts if draft.id is not None],
            settings_at=conversation.updated_at,
            agent_at=known.agent_updated_at,
            model_at=known.model_updated_at,
            due_tokens=due.tokens,
            due_messages=due.messages,
            named_tools=sorted(
                {name for each in drafts if each.output for name in each.output.preview.mentions}
            ),
            window_seconds=window_seconds,
            window_start=marker_of(None, window_seconds, now),
            max_open_calls=MAX_OPEN_CALLS,
            received_at=now,
            oldest_sent=min(filter(None, sent), default=None),
            format=request.format,
            new_messages=len(drafts),
            new_turns=shape.turns[-1],
            new_tokens=sum(draft.tokens for draft in drafts),
            newest_at=newest[-1],
            rows=rows,
        )
        if row is None:
            return None
        after = self._settings_cache.conversation_from(row, tenant_id, known)
        return replace(after, state=replace(after.state, became_due=row["became_due"] or False))

    async def by_ids(
        self, conversation_id: str, ids: Sequence[str], after_seq: int = 0, bound: Bound = UNBOUNDED
    ) -> Page[StoredMessage]:
        """Return the stored messages with these ids after a seq, in log order."""
        where = {"conversation_id": conversation_id, "ids": list(ids), "after_seq": after_seq}
        rows = await self._session.all(BY_IDS, **where, **limits(len(ids), bound))
        return page_of(rows, stored_message_from)

    async def page(
        self,
        conversation_id: str,
        after_seq: int,
        before_seq: int,
        order: str,
        limit: int,
        bound: Bound = UNBOUNDED,
    ) -> Page[StoredMessage]:
        """Return up to `limit` messages between two seqs, both exclusive."""
        between = {"after_seq": after_seq, "before_seq": before_seq}
        rows = await self._session.all(
            PAGE[order], conversation_id=conversation_id, **between, **limits(limit, bound)
        )
        return page_of(rows, stored_message_from)

    async def sizes(self, conversation_id: str, start: int, end: int) -> dict[int, int]:
        """Return the size of the messages in `[start, end)` by seq, without reading them."""
        rows = await self._session.all(SIZES, conversation_id=conversation_id, start=start, end=end)
        return {row["seq"]: row["size"] for row in rows}

    async def entries(self, conversation_id: str, start: int, end: int) -> list[Entry]:
        """Return the messages in `[start, end)` as compaction planning reads them."""
        between = {"start": start, "end": end}
        rows = await self._session.all(ENTRIES, conversation_id=conversation_id, **between)
        # With results that came after their group was pinned.
        return with_pins([entry_from(row, pinned=row["pinned"]) for row in rows])

    async def around(self, conversation_id: str, seq: int, *, whole_turn: bool) -> list[Entry]:
        """Return the entries of the call group, or of the turn, that contains a seq."""
        statement = TURN if whole_turn else GROUP
        rows = await self._session.all(statement, conversation_id=conversation_id, seq=seq)
        return list(map(entry_from, rows))

    async def pinned(self, conversation_id: str) -> list[Entry]:
        """Return the entries of all pinned messages."""
        rows = await self._session.all(PINNED, conversation_id=conversation_id)
        return [entry_from(row, pinned=True) for row in rows]

    async def pin(self, conversation_id: str, seqs: Sequence[int]) -> None:
        """Pin messages; pinned ones stay pinned."""
        await self._session.run(PIN, conversation_id=conversation_id, seqs=seqs)

    async def tool_names(self, conversation_id: str, start: int, end: int) -> dict[int, str]:
        """Return the tool of each result in `[start, end)` by seq."""
        answered = await self._answered(conversation_id, start, end)
        return {seq: call.name for seq, call in answered.items()}

    async def calls(self, conversation_id: str, start: int, end: int) -> dict[int, ToolCall]:
        """Return the call of each result in `[start, end)` by the result's seq.

        Those of messages larger than `MAX_CALL_BYTES` are left out.
        """
        answered = await self._answered(conversation_id, start, end)
        seqs = sorted({call.seq for call in answered.values()})
        rows = await self._session.all(CALLS_AT, conversation_id=conversation_id, seqs=seqs)
        called = {
            (row["seq"], call_id): call
            for row in rows
            for call_id, call in zip(
                json_text.loads(row["call_ids"]),
                parse_stored(row["text"].encode(), FormatName(row["format"])).calls,
                strict=False,
            )
        }
        found = ((seq, called.get((call.seq, call.id))) for seq, call in answered.items())
        return {seq: call for seq, call in found if call is not None}

    async def _answered(self, conversation_id: str, start: int, end: int) -> dict[int, _Answered]:
        """Return the call that each result in `[start, end)` answers, by the result's seq."""
        between = {"seq": start, "end": end}
        rows = await self._session.all(TOOL_NAMES, conversation_id=conversation_id, **between)
        found: dict[int, _Answered] = {}
        calls: dict[str, _Answered] = {}
        for row in rows:
            if row["role"] != Role.TOOL:
                named = named_calls(row["call_ids"], row["call_names"]).items()
                calls |= {call_id: _Answered(row["seq"], call_id, name) for call_id, name in named}
            elif row["seq"] >= start and (call := calls.get(json_text.loads(row["call_ids"])[0])):
                found[row["seq"]] = call
        return found

    async def open_calls(self, conversation_id: str) -> dict[str, str]:
        """Return the tools of the calls that have no result yet, by call id."""
        rows = await self._session.all(OPEN_CALLS, conversation_id=conversation_id)
        return {
            call_id: name
            for row in rows
            for call_id, name in named_calls(row["call_ids"], row["call_names"]).items()
            if call_id in row["open_calls"]
        }

    async def last_used(self, conversation_id: str) -> dict[str, int]:
        """Return the seq at which each tool was last called, within the newest messages."""
        rows = await self._session.all(LAST_USED, conversation_id=conversation_id)
        uses = [(row["seq"], name) for row in rows for name in json_text.loads(row["call_names"])]
        return {name: seq for seq, name in sorted(uses)}

    async def promote(self, conversation_id: str, names: Sequence[str]) -> tuple[str, ...]:
        """Promote tools for the current turn, and return all promoted tools of this turn.

        The result is empty for a deleted conversation.
        """
        row = await self._session.first(PROMOTE, conversation_id=conversation_id, names=list(names))
        return tuple(row["promoted"]) if row is not None else ()

    async def total_at(self, conversation_id: str, seq: int) -> int:
        """Return the running sum of tokens up to and including this seq."""
        total = await self._session.value(TOTAL_AT, conversation_id=conversation_id, seq=seq)
        return total or 0

    async def find_stored_answer(self, conversation_id: str, key: str) -> tuple[str, str] | None:
        """Return the request hash and the answer stored for an idempotency key."""
        row = await self._session.first(FIND_ANSWER, conversation_id=conversation_id, key=key)
        return (row["request_hash"], row["answer"]) if row is not None else None

    async def claim_key(self, conversation_id: str, key: str, request_hash: str) -> bool:
        """Claim an idempotency key for 24 hours; False when it is claimed already."""
        claim = {"conversation_id": conversation_id, "key": key, "request_hash": request_hash}
        return await self._session.run(CLAIM_KEY, **claim) == 1


def _rows(
    shape: BatchShape,
    ids: Sequence[str],
    sent: Sequence[datetime | None],
    newest: Sequence[datetime],
) -> str:
    """Return the JSON of a batch's rows, as `database/append.sql` counts them from the batch."""
    totals = accumulate(draft.tokens for draft in shape.drafts)
    placed = zip(shape.drafts, ids, shape.turns, totals, newest, sent, strict=True)
    rows = [
        {
            **draft.columns,
            "seq": seq,
            "message_id": message_id,
            "turn": turn,
            "total_tokens": total,
            "timestamp": draft.timestamp,
            "output": draft.stored_output,
            "at": newest_at,
            "late_at": sent_at,
        }
        for seq, (draft, message_id, turn, total, newest_at, sent_at) in enumerate(placed, start=1)
    ]
    return json_text.dumps(rows)


def named_calls(ids: str | None, names: str | None) -> dict[str, str]:
    """Return the tools that a message calls by call id."""
    if ids is None or names is None:
        return {}
    return dict(zip(json_text.loads(ids), json_text.loads(names), strict=True))
