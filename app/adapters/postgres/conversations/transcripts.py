"""Transcripts in PostgreSQL: an agent's messages by time, and the inputs of their visibility."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from app.adapters.postgres.common.connections import Session, Statement
from app.adapters.postgres.common.paging import limits, page_of
from app.adapters.postgres.common.rows import (
    NOT_EXPIRED,
    POLICY_COLUMNS,
    SETTINGS_JOINS,
    STATE_COLUMNS,
    compaction_from,
    conversation_from,
    stored_message_from,
)
from app.adapters.postgres.conversations.log_statements import (
    MESSAGE_TIME,
    STORED_COLUMNS,
    bounded_messages,
    seq_search,
)
from app.domain.common.ids import ConversationId
from app.domain.common.pages import UNBOUNDED, Bound, Page
from app.domain.conversations.compaction_receipt import Compaction
from app.domain.conversations.conversation import Conversation
from app.domain.conversations.rolling_window import WindowDefaults
from app.domain.conversations.stored_message import StoredMessage

_AFTER = "(CAST(:at AS timestamptz), CAST(:after_id AS uuid), CAST(:after_seq AS bigint))"

# A binary search finds where a page continues in a conversation. A page of n messages has messages
# of at most n conversations: those whose next message is first. Each row is read as the first of an
# ordered range: a plan without statistics for an equality with its seq would use another index, and
# scan the log.
_OF_AGENT = f"""
    WITH nearest AS (
        SELECT conversation.conversation_id, m.seq, {MESSAGE_TIME} AS at
        FROM (
            SELECT c.conversation_id, h.head_seq
            FROM conversations c
            JOIN heads h ON h.conversation_id = c.conversation_id
            WHERE c.tenant_id = CAST(:tenant_id AS text) AND {NOT_EXPIRED}
                AND c.agent_id BETWEEN CAST(:agent_id AS text) AND CAST(:agent_id AS text)
            ORDER BY c.agent_id, c.created_at OFFSET 0
        ) conversation
        CROSS JOIN LATERAL (
            {{first}}
        ) cut
        CROSS JOIN LATERAL (
            SELECT seq, at, created_at FROM messages
            WHERE conversation_id = conversation.conversation_id AND seq {{beyond}} cut.low
            ORDER BY seq {{order}} LIMIT 1
        ) m
        ORDER BY at {{order}}, conversation_id {{order}} LIMIT CAST(:limit AS bigint)
    ), page AS (
        SELECT nearest.conversation_id, item.seq, item.at
        FROM nearest
        CROSS JOIN LATERAL (
            SELECT m.seq, {MESSAGE_TIME} AS at FROM messages m
            WHERE m.conversation_id = nearest.conversation_id
                AND m.seq {{from_there}} nearest.seq
            ORDER BY m.seq {{order}} LIMIT CAST(:limit AS bigint)
        ) item
        ORDER BY at {{order}}, conversation_id {{order}}, seq {{order}}
        LIMIT CAST(:limit AS bigint)
    )
    SELECT page.conversation_id, page.at AS shown_at, m.*
    FROM page
    CROSS JOIN LATERAL (
        SELECT {STORED_COLUMNS} FROM messages
        WHERE conversation_id = page.conversation_id AND seq >= page.seq
        ORDER BY seq LIMIT 1
    ) m
    ORDER BY page.at {{order}}, page.conversation_id {{order}}, page.seq {{order}}
"""
_FIRST = "CAST(1 AS bigint)"


def _unless_first_page(bound: str, otherwise: str) -> str:
    """Return a bound of the search that makes it empty on the first page."""
    return f"CASE WHEN CAST(:at AS timestamptz) IS NULL THEN {otherwise} ELSE {bound} END"


def page_start(
    order: str,
    conversation_id: str = "conversation.conversation_id",
    head_seq: str = "conversation.head_seq",
) -> str:
    """Return a search for the seq at which a page by time starts in a conversation.

    It is the first seq of the page in ascending order, and the seq after it in descending order.
    """
    past = f"{head_seq} + 1"
    low, high, before = (
        (_FIRST, _unless_first_page(past, _FIRST), "<=")
        if order == "asc"
        else (_unless_first_page(_FIRST, past), past, "<")
    )
    is_before = f"({MESSAGE_TIME}, m.conversation_id, m.seq) {before} {_AFTER}"
    return seq_search(conversation_id, low, high, is_before)


def _of_agent(order: str, **words: str) -> Statement:
    """Return the statement for a page in this order."""
    rows = _OF_AGENT.format(order=order, first=page_start(order), **words)
    by_time = f"shown_at {order}, conversation_id {order}, seq {order}"
    return Statement(bounded_messages(rows, by_time, "conversation_id", "shown_at"))


OF_AGENT = {
    "asc": _of_agent("asc", beyond=">=", from_there=">="),
    "desc": _of_agent("desc", beyond="<", from_there="<="),
}

# The tenant is compared as an expression, which leaves PostgreSQL the primary key alone.
CONVERSATIONS = Statement(f"""
    SELECT {POLICY_COLUMNS}, {STATE_COLUMNS}
    FROM conversations c
    JOIN heads h ON h.conversation_id = c.conversation_id
    {SETTINGS_JOINS}
    WHERE c.conversation_id = ANY (CAST(:conversation_ids AS uuid[]))
        AND h.conversation_id = ANY (CAST(:conversation_ids AS uuid[]))
        AND greatest(c.tenant_id) = CAST(:tenant_id AS text) AND {NOT_EXPIRED}
""")

REDACTED = Statement("""
    SELECT r.conversation_id, r.seq, r.created_at
    FROM unnest(CAST(:conversation_ids AS uuid[]), CAST(:seqs AS bigint[]))
        AS requested (conversation_id, seq)
    JOIN redactions r ON r.conversation_id = requested.conversation_id AND r.seq = requested.seq
        AND r.conversation_id = ANY (CAST(:conversation_ids AS uuid[]))
""")

# A pin protects its call group, with results that are appended later: up to `past`.
PINS = Statement("""
    SELECT p.conversation_id, p.seq, (
        SELECT m.seq FROM messages m
        WHERE m.conversation_id = p.conversation_id AND m.seq > p.seq AND m.role <> 'tool'
            AND m.conversation_id = ANY (CAST(:conversation_ids AS uuid[]))
        ORDER BY m.seq LIMIT 1
    ) AS past
    FROM pins p
    WHERE p.conversation_id = ANY (CAST(:conversation_ids AS uuid[]))
        AND p.seq <= CAST(:through_seq AS bigint)
""")

# Receipts are large: the recursion reads their ids alone.
CHAINS = Statement("""
    WITH RECURSIVE chain AS (
        SELECT newest.conversation_id, newest.compaction_id, 1 AS depth
        FROM unnest(CAST(:conversation_ids AS uuid[]), CAST(:compaction_ids AS uuid[]))
            AS newest (conversation_id, compaction_id)
        UNION ALL
        SELECT chain.conversation_id, this.parent_id, chain.depth + 1
        FROM chain
        CROSS JOIN LATERAL (
            SELECT parent_id FROM compactions
            WHERE conversation_id = chain.conversation_id
                AND compaction_id = chain.compaction_id
            LIMIT 1
        ) this
        WHERE this.parent_id IS NOT NULL AND chain.depth < CAST(:limit AS bigint)
    )
    SELECT receipt.*
    FROM chain
    CROSS JOIN LATERAL (
        SELECT * FROM compactions
        WHERE conversation_id = chain.conversation_id AND compaction_id = chain.compaction_id
        LIMIT 1
    ) receipt
    ORDER BY chain.conversation_id, chain.depth
""")


class TranscriptRepository:
    """Reads messages of several conversations at once."""

    def __init__(self, session: Session, window_defaults: WindowDefaults) -> None:
        self._session = session
        self._window_defaults = window_defaults

    async def of_agent(
        self,
        tenant_id: str,
        agent_id: str,
        after: tuple[datetime, str, int] | None,
        order: str,
        limit: int,
        bound: Bound = UNBOUNDED,
    ) -> Page[tuple[ConversationId, datetime, StoredMessage]]:
        at, after_id, after_seq = after or (None, None, None)
        place = {"at": at, "after_id": after_id, "after_seq": after_seq}
        names = {"tenant_id": tenant_id, "agent_id": agent_id}
        rows = await self._session.all(OF_AGENT[order], **names, **place, **limits(limit, bound))
        return page_of(
            rows,
            lambda row: (
                ConversationId(str(row["conversation_id"])),
                row["shown_at"],
                stored_message_from(row),
            ),
        )

    async def conversations(
        self, tenant_id: str, conversation_ids: Collection[str], default_model: str | None
    ) -> list[Conversation]:
        rows = await self._session.all(
            CONVERSATIONS,
            tenant_id=tenant_id,
            conversation_ids=list(conversation_ids),
            model=None,
            default_model=default_model,
        )
        return [conversation_from(row, self._window_defaults) for row in rows]

    async def redacted(
        self, messages: Sequence[tuple[str, int]]
    ) -> Mapping[tuple[str, int], datetime]:
        rows = await self._session.all(
            REDACTED,
            conversation_ids=[conversation_id for conversation_id, _ in messages],
            seqs=[seq for _, seq in messages],
        )
        return {(str(row["conversation_id"]), row["seq"]): row["created_at"] for row in rows}

    async def pinned(self, messages: Sequence[tuple[str, int]]) -> frozenset[tuple[str, int]]:
        if not messages:
            return frozenset()
        rows = await self._session.all(
            PINS,
            conversation_ids=list({conversation_id for conversation_id, _ in messages}),
            through_seq=max(seq for _, seq in messages),
        )
        groups: dict[str, list[tuple[int, int | None]]] = {}
        for row in rows:
            groups.setdefault(str(row["conversation_id"]), []).append((row["seq"], row["past"]))
        return frozenset(
            (conversation_id, seq)
            for conversation_id, seq in messages
            if any(
                start <= seq and (past is None or seq < past)
                for start, past in groups.get(conversation_id, ())
            )
        )

    async def chains(
        self, newest: Mapping[str, str], limit: int
    ) -> Mapping[str, Sequence[Compaction]]:
        rows = await self._session.all(
            CHAINS,
            conversation_ids=list(newest),
            compaction_ids=list(newest.values()),
            limit=limit,
        )
        chains: dict[str, list[Compaction]] = {}
        for row in rows:
            chains.setdefault(str(row["conversation_id"]), []).append(compaction_from(row))
        return chains
