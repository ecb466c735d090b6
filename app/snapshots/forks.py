"""Forks: conversations created as a copy of another one up to a seq [forks.open-calls].

1. A fork has the log up to and including that seq. Calls that are open there are closed.
2. A fork has the active window of its source, cut at that seq. If that is empty at an earlier seq,
   because of a clear or a rolling window, the whole log is restored into the fork's window. A fork
   at the head has the window of its source, even an empty one.
3. A fork shows the newest compaction of its source that covers no later message and leaves at
   least one message of the fork visible. It has the earlier ones too, so that the compaction can
   be undone.
4. The database copies the rows in one transaction. Afterwards neither conversation needs the other
   [forks.independent]. The source is not locked: its rows up to a seq never change, except blobs,
   which one statement copies with their chunks. Messages are copied last: their number shows
   whether the source was deleted meanwhile.
5. Blobs in an object store are copied after their rows. The collection of orphans deletes copies
   that no row refers to [tool-output.orphans].
6. If an object was deleted meanwhile, the agent was cleared, a message was redacted, or the key was
   taken by another tenant, the fork is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from app.blobs.store import BlobStore
from app.common import json_text
from app.common.concurrency import for_each
from app.common.errors import Conflict, NotFound, ServiceUnavailable, ValidationError
from app.conversations.compaction_receipt import Compaction
from app.conversations.conversation import Conversation, ConversationState
from app.conversations.messages.repository import REDACTION_LOCK
from app.conversations.repository import own_id_of
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.view import Span, View, overlap, spans_through
from app.conversations.views import kept_seqs
from app.conversations.windows.active_window import TICK, ActiveWindow, Restored, time_after_clear
from app.conversations.windows.service import ActiveWindows, find_oldest_at, mentions_in
from app.database.connections import Session, Statement
from app.database.tables import NOT_EXPIRED, TABLES
from app.repositories import Database, Repositories
from app.snapshots.rows import Shown, set_head, show

BATCH_MESSAGES = 5_000
"""Messages that one statement copies, or whose blobs it copies, well within its timeout."""
COPIES_AT_ONCE = 8
"""Objects of one fork that are copied concurrently."""
_RECEIPTS_PER_PAGE = 50
_MAX_ATTEMPTS = 3

COPIED = {
    table: tuple(TABLES[table].without("conversation_id", *own))
    for table, own in {
        "conversations": ("metadata", "own_id", "origin_id", "created_at", "updated_at"),
        "conversation_versions": (),
        "messages": (),
        "pins": (),
        "redactions": (),
        "compactions": ("undone_at",),
        "blobs": (),
        "blob_uses": (),
        "blob_chunks": (),
    }.items()
}
"""The columns that are copied to a fork, by table: all but those that a fork has of its own."""


def _copied(table: str, rows: str, **others: str) -> str:
    """Return an INSERT of copies; `rows` begins with FROM, and names the table `source`."""
    columns = ", ".join((*COPIED[table], *others))
    values = ", ".join((*(f"source.{name}" for name in COPIED[table]), *others.values()))
    return f"""INSERT INTO {table} (conversation_id, {columns})
        SELECT CAST(:fork_id AS uuid), {values} {rows}"""


def _from(table: str) -> str:
    return f"FROM {table} source WHERE source.conversation_id = CAST(:source_id AS uuid)"


_ORIGIN = "coalesce(source.origin_id, source.conversation_id)"
_METADATA = "coalesce(:metadata, source.metadata)"
_OWN = {"metadata": _METADATA, "own_id": ":own_id", "origin_id": _ORIGIN}
_VERSIONS = """
    FROM added
    JOIN conversation_versions source ON source.conversation_id = CAST(:source_id AS uuid)
"""
ADD = Statement(
    f"""
        WITH source AS (
            SELECT * FROM conversations c
            WHERE c.conversation_id = CAST(:source_id AS uuid) AND c.tenant_id = :tenant_id
                AND {NOT_EXPIRED}
        ), added AS (
            {_copied("conversations", "FROM source", **_OWN)}
            ON CONFLICT (conversation_id) DO NOTHING
            RETURNING conversation_id
        ), versions AS (
            {_copied("conversation_versions", _VERSIONS)}
        ), head AS (
            INSERT INTO heads (conversation_id, counter)
            SELECT added.conversation_id, 'tokenizer' FROM added
        )
        SELECT EXISTS (SELECT FROM source) AS is_there, EXISTS (SELECT FROM added) AS is_added
        """
)
# An advisory lock orders the end of a fork and a redaction of a message that it has copied: a fork
# waits for no lock on its source's rows.
LOCK_REDACTIONS = Statement(f"SELECT pg_advisory_xact_lock_shared({REDACTION_LOCK})")
REDACTED_VERSION = Statement(
    "SELECT redacted_version FROM heads WHERE conversation_id = :conversation_id"
)
_USED = f"""{_from("blobs")} AND source.blob_id IN (
        SELECT blob_id FROM blob_uses WHERE conversation_id = CAST(:source_id AS uuid)
            AND seq > :after_seq AND seq <= :through_seq
    ) ON CONFLICT DO NOTHING"""
_CHUNKS = """
    FROM copied
    JOIN blob_chunks source ON source.conversation_id = CAST(:source_id AS uuid)
        AND source.content_id = copied.content_id
"""
COPY_BLOBS = Statement(
    f"""
        WITH copied AS (
            {_copied("blobs", _USED)}
            RETURNING content_id, object_key, collected_at
        ), chunks AS ({_copied("blob_chunks", _CHUNKS)})
        SELECT content_id, object_key FROM copied
        WHERE object_key IS NOT NULL AND collected_at IS NULL
        """,
    is_long=True,
)
SET_OBJECT_KEYS = Statement(
    """
        UPDATE blobs SET object_key = item.copy
        FROM unnest(CAST(:keys AS text[]), CAST(:copies AS text[])) AS item (object_key, copy)
        WHERE blobs.conversation_id = CAST(:fork_id AS uuid) AND blobs.object_key = item.object_key
        """
)
# Of compactions a fork has those that were not undone, up to the one that it shows. That one is
# copied as well if it is undone meanwhile.
_ROWS = {
    **dict.fromkeys(("pins", "redactions", "blob_uses"), "source.seq <= :through_seq"),
    "compactions": "source.created_at <= :created_at AND source.span_end <= :through_seq + 1"
    " AND (source.undone_at IS NULL OR source.compaction_id = :compaction_id)",
    "messages": "source.seq > :after_seq AND source.seq <= :through_seq ORDER BY source.seq",
}
COPIES = {
    table: Statement(_copied(table, f"{_from(table)} AND {rows}"), is_long=True)
    for table, rows in _ROWS.items()
}


class _SourceChanged(Exception):
    """The source has changed since it was read, or the key was taken (rule 6)."""


@dataclass(eq=False, repr=False)
class ForkService:
    """Creates forks."""

    _database: Database
    _resolver: SettingsResolver
    _active: ActiveWindows
    _store: BlobStore
    _new_id: Callable[[], str]

    async def fork(
        self,
        tenant_id: str,
        conversation_id: str,
        at_seq: int | None = None,
        public_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> str:
        """Create a fork, at the source's head by default, and return its key.

        Raises NotFound, ValidationError for a seq beyond the head, Conflict when the id is taken.
        """
        public_id = public_id or self._new_id()
        text = json_text.dumps(metadata) if metadata is not None else None
        for _ in range(_MAX_ATTEMPTS):
            async with self._database.session() as session:
                source = await session.conversations.get(tenant_id, conversation_id)
            source = await self._active.updated(tenant_id, source)
            head_seq = source.state.head_seq
            if at_seq is not None and at_seq > head_seq:
                raise ValidationError.at("/at_seq", f"The log's head is {head_seq}")
            end = head_seq if at_seq is None else at_seq
            with suppress(_SourceChanged):
                return await self._copy(tenant_id, source, end, public_id, text)
        raise Conflict(
            f"Conversation {conversation_id} changes too fast to be forked",
            {"conversation_id": conversation_id},
        )

    async def _copy(
        self,
        tenant_id: str,
        source: Conversation,
        at_seq: int,
        public_id: str,
        metadata: str | None,
    ) -> str:
        source_id = source.conversation_id
        async with self._database.transaction() as session:
            key = await session.conversations.free_key(tenant_id, public_id)
            ids = {"source_id": source_id, "fork_id": key}
            own = {"own_id": own_id_of(key, public_id), "metadata": metadata}
            added = await session.session.first(ADD, tenant_id=tenant_id, **ids, **own)
            if added is None or not added["is_there"]:
                raise NotFound.conversation(source_id)
            if not added["is_added"]:
                raise _SourceChanged  # another tenant has created one with this UUID
            receipt = await self._receipt_to_copy(session, source, at_seq)
            objects = await _copy_rows(session.session, ids, at_seq, receipt)
            await self._copy_objects(session, tenant_id, ids, objects)
            await self._show(session, tenant_id, key, source, at_seq, receipt)
            await _check_agent(session, tenant_id, source)
            # Redactions in the source wait from here on; its rows are not locked.
            at_source = {"conversation_id": source_id}
            await session.session.first(LOCK_REDACTIONS, **at_source)
            version = await session.session.value(REDACTED_VERSION, **at_source)
            if version not in (None, source.state.redacted_version):
                raise _SourceChanged  # a copied message was redacted meanwhile
        return key

    async def _receipt_to_copy(
        self, session: Repositories, source: Conversation, at_seq: int
    ) -> Compaction | None:
        """Return the newest compaction that covers no message after a seq (rule 3).

        Without an active one there is none, unless the fork restores the whole log.
        """
        if source.state.compaction_id is None and not restores_log(source.state, at_seq):
            return None
        strategy, before = self._resolver.policy_of(source).strategy, None
        while page := await session.contexts.compactions(
            source.conversation_id, _RECEIPTS_PER_PAGE, before
        ):
            for receipt in page:
                is_valid = receipt.undone_at is None and receipt.is_shown_with(strategy)
                if is_valid and covers_only(receipt.view, at_seq):
                    return receipt
            before = page[-1].compaction_id
        return None

    async def _copy_objects(
        self, session: Repositories, tenant_id: str, ids: Mapping[str, str], objects: Sequence[Any]
    ) -> None:
        """Copy the objects of the fork's blobs, which then refer to the copies (rule 5)."""

        async def copied(row: Any) -> str:
            content_id = str(row["content_id"])
            try:
                return await self._store.copy(
                    tenant_id, ids["fork_id"], content_id, row["object_key"]
                )
            except ServiceUnavailable:
                async with self._database.session() as other:
                    if await other.blobs.holds_content(ids["source_id"], content_id):
                        raise
                raise _SourceChanged from None

        if objects:
            copies = await for_each(objects, copied, COPIES_AT_ONCE)
            keys = [row["object_key"] for row in objects]
            await session.session.run(
                SET_OBJECT_KEYS, fork_id=ids["fork_id"], keys=keys, copies=copies
            )

    async def _show(
        self,
        session: Repositories,
        tenant_id: str,
        key: str,
        source: Conversation,
        at_seq: int,
        receipt: Compaction | None,
    ) -> None:
        """Set the state of the fork: the sums of its log, its window and its view.

        When a compaction is tried again holds for all of a log.
        """
        state = source.state
        head = {
            **dict.fromkeys(("open_calls", "open_seqs", "provider_calls"), ()),
            **{"counter": source.counter, "head_seq": at_seq, "group_seq": 1},
            "is_answering": False,
            "resume_at": state.resume_at_tokens if at_seq == state.head_seq else 0,
            "promoted": list(state.promoted),
            "promoted_turn": state.promoted_turn,
            "window_seconds": state.window_seconds,
            "cleared_at": state.cleared_at,
            "cleared_seq": min(state.cleared_seq, at_seq),
        }
        await set_head(session, key, head)
        window = window_at(state, at_seq, self._active.now())
        oldest_at, mentions = state.oldest_at, state.mentions
        if (at_seq, window) != (state.head_seq, state.window):
            before = oldest_at - TICK if oldest_at is not None else None
            appended = await find_oldest_at(session, key, window.since, before)
            times = (appended, *(item.at for item in window.restored))
            oldest_at = min(filter(None, times), default=None)
            spans = spans_through(window.spans, at_seq)
            mentions = tuple(sorted(await mentions_in(session, key, spans)))
        kept: set[int] = set()
        if receipt is not None:
            # Those that the source keeps, if the compaction is active there, and all pins.
            is_active = state.compaction_id == receipt.compaction_id
            kept.update(state.kept_seqs if is_active else kept_seqs(receipt.view))
            kept.update(item.seq for item in await session.log.pinned(key))
        through = tuple(sorted(seq for seq in kept if seq <= at_seq))
        shown = Shown(window, oldest_at, mentions, receipt, through)
        await show(session, self._resolver, tenant_id, key, shown)


async def _copy_rows(
    session: Session, ids: Mapping[str, str], at_seq: int, receipt: Compaction | None
) -> Sequence[Any]:
    """Copy the rows up to a seq, and return the blobs that are in an object store."""
    for table in ("pins", "redactions", "blob_uses"):
        await session.run(COPIES[table], **ids, through_seq=at_seq)
    if receipt is not None:
        last = {"compaction_id": receipt.compaction_id, "created_at": receipt.created_at}
        await session.run(COPIES["compactions"], **ids, through_seq=at_seq, **last)
    objects: list[Any] = []
    batches = [
        {"after_seq": after, "through_seq": min(after + BATCH_MESSAGES, at_seq)}
        for after in range(0, at_seq, BATCH_MESSAGES)
    ]
    for seqs in batches:
        objects += await session.all(COPY_BLOBS, **ids, **seqs)
    if sum([await session.run(COPIES["messages"], **ids, **seqs) for seqs in batches]) < at_seq:
        raise NotFound.conversation(ids["source_id"])
    return objects


async def _check_agent(session: Repositories, tenant_id: str, source: Conversation) -> None:
    """Lock the source's agent, which orders this transaction and its deletion or clear.

    This is the last step, so that other requests do not wait for the copy of a long log.
    """
    if source.agent_id is None:
        return
    agent = await session.agents.find(tenant_id, source.agent_id, lock=True)
    if agent is None:
        raise NotFound.conversation(source.conversation_id)
    cleared_at = source.state.cleared_at
    if agent.cleared_at is not None and (cleared_at is None or cleared_at < agent.cleared_at):
        raise _SourceChanged


def restores_log(state: ConversationState, at_seq: int) -> bool:
    """Return whether a fork at a seq restores the whole log into its window (rule 2)."""
    return 0 < at_seq < state.head_seq and not spans_through(state.window.spans, at_seq)


def window_at(state: ConversationState, at_seq: int, now: datetime) -> ActiveWindow:
    """Return the active window of a fork that is created now (rule 2)."""
    log = (Span(1, at_seq + 1),)
    window = ActiveWindow(
        min(state.window.since, at_seq + 1),
        tuple(span for gap in state.window.gaps for span in overlap((gap,), log)),
        tuple(
            Restored(span, item.at)
            for item in state.window.restored
            for span in overlap((item.span,), log)
        ),
    )
    if not restores_log(state, at_seq):
        return window
    # Restored after the clear, which would remove the log from the window otherwise.
    return window.with_restored(log, time_after_clear(now, state.cleared_at))


def covers_only(view: View, at_seq: int) -> bool:
    """Return whether a view covers no message after a seq, and shows one up to it (rule 3)."""
    hidden = view.hidden
    if view.provider_item is not None and view.provider_item.seq > at_seq:
        return False
    shows = any(span.start <= at_seq for span in view.spans)
    return view.results_cleared_through <= at_seq and (
        hidden is None or (hidden.end <= at_seq + 1 and shows)
    )
