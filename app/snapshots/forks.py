"""Forks: conversations created as a copy of another one up to a seq [forks.open-calls].

1. A fork has the log up to and including that seq. Calls that are open there are closed.
2. A fork has the active window of its source, cut at that seq. One inside a range that was rewound
   goes on with that branch: the range is in its window. If that is empty at an earlier seq,
   because of a clear or a rolling window, the whole log is restored into the fork's window. A fork
   at the head has the window of its source, even an empty one.
3. A fork shows the newest compaction of its source that covers no later message and leaves at
   least one message of the fork visible. It has the earlier ones too, so that the compaction can
   be undone.
4. The database copies the rows in one transaction. Afterwards neither conversation needs the other
   [forks.independent]. The source is not locked: of its rows up to a seq rule 7 names what
   changes, and one statement copies blobs with their chunks. Messages are copied last: their number
   shows whether the source was deleted meanwhile.
5. Blobs in an object store are copied after their rows. The collection of orphans deletes copies
   that no row refers to [tool-output.orphans].
6. The first payload of a fork has the bytes of its source's, since both follow from the log, the
   settings and the view. Where the source's has changes as items, a fork at the head has its epoch.
7. If an object was deleted meanwhile, the agent was cleared, a message was redacted, or the key was
   taken by another tenant, the fork is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from tenacity import retry, retry_if_exception_type, stop_after_attempt

from app.blobs.byte_store import BlobStore
from app.common import json_text
from app.common.concurrency import for_each
from app.common.errors import Conflict, NotFound, ServiceUnavailable, ValidationError
from app.conversations.conversation import Conversation, ConversationState
from app.conversations.from_rows import changes_from, current_hashes, epoch_start_from
from app.conversations.messages.repository import REDACTION_LOCK
from app.conversations.moving_window import ActiveWindows, find_oldest_at, mentions_in
from app.conversations.receipt import Receipt, Trigger
from app.conversations.repository import own_id_of
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.view import (
    TICK,
    ActiveWindow,
    Restored,
    Span,
    overlap,
    spans_through,
    time_after_clear,
)
from app.conversations.view_changes import covers_only, protected_in
from app.database.connections import Session, Statement
from app.database.tables import TABLES
from app.formats.message import FormatName
from app.repositories import Database, Repositories
from app.snapshots.copied_rows import ADD, Shown, end_copy, insert_rows, read_settings, rows_of

BATCH_MESSAGES = 5_000
"""Messages that one statement copies, or whose blobs it copies, well within its timeout."""
COPIES_AT_ONCE = 8
"""Objects of one fork that are copied concurrently."""
_RECEIPTS_PER_PAGE = 50

COPY_VERSIONS = Statement(insert_rows("version", rows_of("version")))
# Of compactions a fork has those that were not undone, up to the one that it shows. That one is
# copied as well if it is undone meanwhile.
_SHOWN = f"{rows_of('compaction')} AND (undone_at IS NULL OR compaction_id = :compaction_id)"
COPY_COMPACTIONS = Statement(insert_rows("compaction", _SHOWN, undone_at="NULL"), is_long=True)
COPIES = {
    kind: Statement(insert_rows(kind, f"{rows_of(kind)} AND seq > :after_seq"), is_long=True)
    for kind in ("pin", "redaction", "blob_use", "message")
}
# The worker indexes the rest.
COPY_WORDS = Statement(
    """
        INSERT INTO message_words (conversation_id, first_seq, sizes, words)
        SELECT CAST(:conversation_id AS uuid), first_seq, sizes, words FROM message_words
        WHERE conversation_id = CAST(:source_id AS uuid)
            AND first_seq + cardinality(sizes) <= :head_seq + 1
        """,
    is_long=True,
)
_USED = f"""{rows_of("blob")} AND blob_id IN (
        SELECT blob_id {rows_of("blob_use")} AND seq > :after_seq
    ) ON CONFLICT DO NOTHING"""
_CHUNK = TABLES["blob_chunks"].without("conversation_id")
COPY_BLOBS = Statement(
    f"""
        WITH copied AS (
            {insert_rows("blob", _USED)}
            RETURNING content_id, object_key, collected_at
        ), chunks AS (
            INSERT INTO blob_chunks (conversation_id, {", ".join(_CHUNK)})
            SELECT CAST(:conversation_id AS uuid), {", ".join(f"chunk.{name}" for name in _CHUNK)}
            FROM copied
            JOIN blob_chunks chunk ON chunk.conversation_id = CAST(:source_id AS uuid)
                AND chunk.content_id = copied.content_id
        )
        SELECT content_id, object_key FROM copied
        WHERE object_key IS NOT NULL AND collected_at IS NULL
        """,
    is_long=True,
)
SET_OBJECT_KEYS = Statement(
    """
        UPDATE blobs SET object_key = item.copy
        FROM unnest(CAST(:keys AS text[]), CAST(:copies AS text[])) AS item (object_key, copy)
        WHERE blobs.conversation_id = :conversation_id AND blobs.object_key = item.object_key
        """
)
# An advisory lock orders the end of a fork and a redaction of a message that it has copied: a fork
# waits for no lock on its source's rows.
LOCK_REDACTIONS = Statement(f"SELECT pg_advisory_xact_lock_shared({REDACTION_LOCK})")
REDACTED_VERSION = Statement(
    "SELECT redacted_version FROM states WHERE conversation_id = :conversation_id"
)


def _changed(source_id: str) -> Conflict:
    """Return the error of a source that has changed since it was read (rule 7)."""
    facts = {"conversation_id": source_id}
    return Conflict(f"Conversation {source_id} changes too fast to be forked", facts)


@dataclass(eq=False, repr=False)
class ForkService:
    """Creates forks."""

    _database: Database
    _resolver: SettingsResolver
    _active: ActiveWindows
    _store: BlobStore
    _new_id: Callable[[], str]

    @retry(retry=retry_if_exception_type(Conflict), stop=stop_after_attempt(3), reraise=True)
    async def fork(
        self,
        tenant_id: str,
        conversation_id: str,
        through_seq: int | None = None,
        public_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> str:
        """Create a fork, at the source's head by default, and return its key.

        Raises NotFound, ValidationError for a seq beyond the head, Conflict when the id is taken.
        """
        own: dict[str, Any] = {"tenant_id": tenant_id, "own_id": public_id or self._new_id()}
        if metadata is not None:
            own["metadata"] = json_text.dumps(metadata)
        async with self._database.session() as session:
            source = await session.conversations.get(tenant_id, conversation_id)
        source = await self._active.updated(tenant_id, source)
        head_seq = source.state.head_seq
        if through_seq is not None and through_seq > head_seq:
            raise ValidationError.at("/through_seq", f"The log's head is {head_seq}")
        return await self._copy(source, head_seq if through_seq is None else through_seq, own)

    async def _copy(self, source: Conversation, through_seq: int, own: Mapping[str, Any]) -> str:
        """Copy the source up to a seq; `own` are the tenant, the id and the metadata of the fork.

        Raises Conflict.
        """
        source_id, tenant_id, public_id = source.conversation_id, own["tenant_id"], own["own_id"]
        async with self._database.transaction() as session:
            sql = session.session
            key = await session.conversations.free_key(tenant_id, public_id)
            copied = await read_settings(sql, tenant_id, source_id)
            if copied is None:
                raise NotFound.conversation(source_id)
            copied |= {**own, "conversation_id": key, "own_id": own_id_of(key, public_id)}
            if not await sql.run(ADD, **copied):
                raise _changed(source_id)  # another tenant has created one with this UUID
            receipt = await self._receipt_to_copy(session, source, through_seq)
            copied |= {"compaction_id": receipt and receipt.compaction_id, "head_seq": through_seq}
            await self._copy_objects(session, copied, await _copy_rows(sql, copied))
            shown = await self._shown(session, key, source.state, through_seq, receipt)
            state = _state(source.state, through_seq)
            await end_copy(session, self._resolver, (tenant_id, key), state, shown)
            if through_seq == source.state.head_seq:
                await self._copy_changes(session, source, (tenant_id, key))
            await _check_agent(session, tenant_id, source)
            # Redactions in the source wait from here on; its rows are not locked.
            await sql.first(LOCK_REDACTIONS, conversation_id=source_id)
            version = await sql.value(REDACTED_VERSION, conversation_id=source_id)
            if version not in (None, source.state.redacted_version):
                raise _changed(source_id)  # a copied message was redacted meanwhile
        return key

    async def _copy_changes(
        self, session: Repositories, source: Conversation, owner: tuple[str, str]
    ) -> None:
        """Let a fork at the head go on with the newest epoch, if that has changes (rule 6)."""
        source_id, state = source.conversation_id, source.state
        epoch = await session.usage.last_epoch(source_id, tuple(FormatName))
        changes = changes_from(epoch.changes) if epoch is not None else ()
        if epoch is None or not changes or epoch.view_version != state.view_version:
            return
        if max(epoch.start_seq, changes[-1].after_seq) > state.head_seq:
            return
        fork = await session.conversations.get(*owner)
        dynamic_hash = epoch_start_from(epoch.start_json).dynamic_hash
        hashes = (epoch.sections_hash, epoch.tools_hash, epoch.policy_hash, dynamic_hash)
        texts = await session.contexts.texts(source_id, (*hashes, *current_hashes(epoch)))
        own = replace(epoch, epoch=1, epoch_id=self._new_id(), reason=None)
        own = replace(own, view_version=fork.state.view_version)
        await session.contexts.add_epoch(fork.conversation_id, own, texts, None)

    async def _receipt_to_copy(
        self, session: Repositories, source: Conversation, through_seq: int
    ) -> Receipt | None:
        """Return the newest receipt that covers no message after a seq (rule 3).

        Without an active one there is none, unless the fork restores the whole log.
        """
        if source.state.compaction_id is None and not restores_log(source.state, through_seq):
            return None
        strategy, before = self._resolver.policy_of(source).strategy, None
        while page := await session.contexts.receipts(
            source.conversation_id, _RECEIPTS_PER_PAGE, before
        ):
            for receipt in page:
                is_valid = receipt.undone_at is None and receipt.is_shown_with(strategy)
                if receipt.trigger == Trigger.REWIND:
                    head_seq, span = source.state.head_seq, receipt.hidden_span
                    is_valid = is_valid and is_rewound_before(span, through_seq, head_seq)
                if is_valid and covers_only(receipt.view, through_seq):
                    return receipt
            before = page[-1].compaction_id
        return None

    async def _copy_objects(
        self, session: Repositories, copied: Mapping[str, Any], objects: Sequence[Any]
    ) -> None:
        """Copy the objects of the fork's blobs, which then refer to the copies (rule 5)."""
        key = copied["conversation_id"]

        async def copy(row: Any) -> str:
            content_id = str(row["content_id"])
            try:
                return await self._store.copy(
                    copied["tenant_id"], key, content_id, row["object_key"]
                )
            except ServiceUnavailable:
                async with self._database.session() as other:
                    if await other.blobs.holds_content(copied["source_id"], content_id):
                        raise
                raise _changed(copied["source_id"]) from None

        if objects:
            copies = await for_each(objects, copy, COPIES_AT_ONCE)
            keys = [row["object_key"] for row in objects]
            await session.session.run(
                SET_OBJECT_KEYS, conversation_id=key, keys=keys, copies=copies
            )

    async def _shown(
        self,
        session: Repositories,
        key: str,
        state: ConversationState,
        through_seq: int,
        receipt: Receipt | None,
    ) -> Shown:
        """Return what the fork shows of a source with this state."""
        window = window_at(state, through_seq, self._active.now())
        oldest_at, mentions = state.oldest_at, state.named_tools
        if (through_seq, window) != (state.head_seq, state.window):
            before = oldest_at - TICK if oldest_at is not None else None
            appended = await find_oldest_at(session, key, window.since, before)
            times = (appended, *(item.at for item in window.restored))
            oldest_at = min(filter(None, times), default=None)
            spans = spans_through(window.spans, through_seq)
            mentions = tuple(sorted(await mentions_in(session, key, spans)))
        kept: set[int] = set()
        if receipt is not None:
            # Those that the source keeps, if the compaction is active there, and all pins.
            is_active = state.compaction_id == receipt.compaction_id
            kept.update(state.protected_seqs if is_active else protected_in(receipt.view))
            kept.update(item.seq for item in await session.log.pinned(key))
        through = tuple(sorted(seq for seq in kept if seq <= through_seq))
        return Shown(window, oldest_at, mentions, receipt, through)


async def _copy_rows(session: Session, copied: Mapping[str, Any]) -> Sequence[Any]:
    """Copy the rows up to the head, and return the blobs that are in an object store.

    `copied` are the settings and the state of the source, with what the fork has of its own.
    """
    await session.run(COPY_VERSIONS, **copied)
    await session.run(COPY_WORDS, **copied)
    if copied["compaction_id"] is not None:
        await session.run(COPY_COMPACTIONS, **copied)
    objects: list[Any] = []
    end, messages = copied["head_seq"], 0
    for after_seq in range(0, end, BATCH_MESSAGES):
        through = min(after_seq + BATCH_MESSAGES, end)
        seqs = {**copied, "after_seq": after_seq, "head_seq": through}
        objects += await session.all(COPY_BLOBS, **seqs)
        added = [await session.run(copy, **seqs) for copy in COPIES.values()]
        messages += added[-1]
    if messages < end:
        raise NotFound.conversation(copied["source_id"])
    return objects


def _state(state: ConversationState, through_seq: int) -> dict[str, Any]:
    """Return the state of a fork. When a compaction is tried again holds for all of a log."""
    return {
        **dict.fromkeys(("open_calls", "open_seqs", "provider_calls"), ()),
        **{"head_seq": through_seq, "group_seq": through_seq + 1, "is_answering": False},
        "resume_at_tokens": state.resume_at_tokens if through_seq == state.head_seq else 0,
        "promoted": list(state.promoted),
        "promoted_turn": state.promoted_turn,
        "window_seconds": state.window_seconds,
        "cleared_at": state.cleared_at,
        "cleared_seq": min(state.cleared_seq, through_seq),
    }


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
        raise _changed(source.conversation_id)


def restores_log(state: ConversationState, through_seq: int) -> bool:
    """Return whether a fork at a seq restores the whole log into its window (rule 2)."""
    return 0 < through_seq < state.head_seq and not spans_through(state.window.spans, through_seq)


def is_rewound_before(span: Span, through_seq: int, head_seq: int) -> bool:
    """Return whether a fork at a seq leaves this range out, which was rewound in its source."""
    return span.end <= through_seq or through_seq == head_seq


def window_at(state: ConversationState, through_seq: int, now: datetime) -> ActiveWindow:
    """Return the active window of a fork that is created now (rule 2)."""
    log = (Span(1, through_seq + 1),)
    window = ActiveWindow(
        min(state.window.since, through_seq + 1),
        tuple(span for gap in state.window.gaps for span in overlap((gap,), log)),
        tuple(
            Restored(span, item.at)
            for item in state.window.restored
            for span in overlap((item.span,), log)
        ),
        tuple(
            replace(item, calls=())
            for item in state.window.rewound
            if is_rewound_before(item.span, through_seq, state.head_seq)
        ),
    )
    if not restores_log(state, through_seq):
        return window
    # Restored after the clear, which would remove the log from the window otherwise.
    return window.with_restored(log, time_after_clear(now, state.cleared_at))
