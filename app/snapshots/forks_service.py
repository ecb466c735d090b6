"""Forks: conversations created as a copy of another one up to a seq.

1. The database copies the rows in one transaction. Afterwards neither conversation needs the other
   [forks.independent].
2. The source is not locked, and appends to it do not wait: its rows up to a seq never change.
3. Blobs in an object store are copied before the transaction, with no session open. The collection
   of orphans deletes copies that no row refers to [tool-output.orphans].
4. If a blob was collected meanwhile, the agent was cleared or replaced, or the key was taken by
   another tenant, the fork is planned again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.blobs.blobs import Blob
from app.common import json_text
from app.common.concurrency import for_each
from app.common.errors import Conflict, NotFound, ServiceUnavailable, ValidationError
from app.conversations.compaction_receipt import Compaction
from app.conversations.configurable_resources import claim_idempotency_key
from app.conversations.conversation import Conversation, ConversationState
from app.conversations.keys import creation_deleted, find_key, free_key, id_taken, own_id_of
from app.conversations.ports import BlobStore
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.view import spans_through
from app.conversations.windows.active_window import ActiveWindow
from app.conversations.windows.service import ActiveWindows, view_state_of, with_window
from app.prompt.resolved_settings import digest
from app.repositories import Database, Repositories
from app.snapshots.fork_views import (
    blob_batches,
    covers_only,
    kept_seqs_at,
    oldest_before,
    restores_log,
    state_at,
    window_at,
)

BATCH_MESSAGES = 20_000
"""Messages that one statement copies, well within its timeout."""
COPIES_AT_ONCE = 8
"""Objects of one fork that are copied concurrently."""
_RECEIPTS_PER_PAGE = 50
_MAX_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class NewFork:
    """A fork to create, at the source's head by default.

    `request` is the body of the request, which a repeated idempotency key must match.
    """

    at_seq: int | None = None
    public_id: str | None = None
    metadata: Mapping[str, Any] | None = None
    idempotency_key: str | None = None
    request: Any = None


@dataclass(frozen=True, slots=True)
class Fork:
    """A created fork, and its source."""

    conversation_id: str
    public_id: str
    source_id: str
    at_seq: int


@dataclass(frozen=True, slots=True)
class _Plan:
    """The source, the blobs and the compaction that a fork copies."""

    fork: Fork
    source: Conversation
    receipt: Compaction | None
    blobs: tuple[Blob, ...]


class _SourceChanged(Exception):
    """The source has changed since it was read, or the key was taken (rule 4)."""


@dataclass(eq=False, repr=False)
class ForkService:
    """Creates forks."""

    _database: Database
    _resolver: SettingsResolver
    _active: ActiveWindows
    _store: BlobStore
    _new_id: Callable[[], str]

    async def fork(self, tenant_id: str, conversation_id: str, new: NewFork) -> Fork:
        """Create a fork; a repeated idempotency key returns the first one.

        Raises NotFound, ValidationError for a seq beyond the head, Conflict when the id is taken.
        """
        existing = await self._existing_fork(tenant_id, conversation_id, new)
        if existing is not None:
            return existing
        public_id = new.public_id or self._new_id()
        for _ in range(_MAX_ATTEMPTS):
            try:
                plan = await self._make_plan(tenant_id, conversation_id, public_id, new.at_seq)
                return await self._copy(tenant_id, plan, new)
            except _SourceChanged:
                continue
            except Conflict:
                # The id may be taken by the fork of an earlier request with this idempotency key.
                existing = await self._existing_fork(tenant_id, conversation_id, new)
                if existing is None:
                    raise
                return existing
        raise Conflict(
            f"Conversation {conversation_id} changes too fast to be forked",
            {"conversation_id": conversation_id},
        )

    # --- planning ---------------------------------------------------------------------------

    async def _existing_fork(
        self, tenant_id: str, conversation_id: str, new: NewFork
    ) -> Fork | None:
        """Return the fork of a repeated idempotency key, whose source may be deleted."""
        if new.idempotency_key is None:
            return None
        async with self._database.session() as session:
            creation = await session.tenants.find_creation(tenant_id, new.idempotency_key)
            request_hash = digest(json_text.dumps(_request(conversation_id, new)))
            if creation is None or creation[0] != request_hash:
                return None
            return await self._fork_of_key(session, tenant_id, conversation_id, creation[1])

    async def _fork_of_key(
        self, session: Repositories, tenant_id: str, conversation_id: str, resource_id: str
    ) -> Fork:
        """Return the fork that an idempotency key created; `resource_id` is its id and its seq."""
        public_id, at_seq = resource_id.rsplit(maxsplit=1)
        fork_id = await find_key(session, tenant_id, public_id)
        if fork_id is None:
            raise creation_deleted(public_id)
        return Fork(fork_id, public_id, conversation_id, int(at_seq))

    async def _make_plan(
        self, tenant_id: str, conversation_id: str, public_id: str, at_seq: int | None
    ) -> _Plan:
        """Read the source, and copy its blobs in the object store (rule 3)."""
        async with self._database.session() as session:
            source = await self._resolver.find_conversation(session, tenant_id, conversation_id)
        source = await self._active.updated(tenant_id, source)
        at_seq = _seq_in(source.state, at_seq)
        async with self._database.session() as session:
            fork_id = await free_key(session, tenant_id, public_id)
            fork = Fork(fork_id, public_id, conversation_id, at_seq)
            receipt = await self._receipt_to_copy(session, source, fork.at_seq)
            refs = await session.forks.refs(conversation_id, fork.at_seq)
            blobs = await session.blobs.find_all(conversation_id, refs)
        copies = await self._copy_objects(tenant_id, fork, blobs)
        return _Plan(fork, source, receipt, tuple(copies))

    async def _receipt_to_copy(
        self, session: Repositories, source: Conversation, at_seq: int
    ) -> Compaction | None:
        """Return the newest compaction that covers no message after a seq.

        It is one of those that led to the source's view. If the fork restores the whole log, it
        may be any that was not undone.
        """
        if restores_log(source.state, at_seq):
            return await self._newest_receipt(session, source, at_seq)
        compaction_id = source.state.compaction_id
        while compaction_id is not None:
            receipt = await session.contexts.find_compaction(source.conversation_id, compaction_id)
            if receipt is None or covers_only(receipt.view, at_seq):
                return receipt
            compaction_id = receipt.parent_id
        return None

    async def _newest_receipt(
        self, session: Repositories, source: Conversation, at_seq: int
    ) -> Compaction | None:
        strategy = self._resolver.policy_of(source).strategy
        before: str | None = None
        while page := await session.contexts.compactions(
            source.conversation_id, _RECEIPTS_PER_PAGE, before
        ):
            for receipt in page:
                is_valid = receipt.undone_at is None and receipt.is_shown_with(strategy)
                if is_valid and covers_only(receipt.view, at_seq):
                    return receipt
            before = page[-1].compaction_id
        return None

    async def _copy_objects(self, tenant_id: str, fork: Fork, blobs: Sequence[Blob]) -> list[Blob]:
        """Return the blobs with the object keys of the fork's copies."""

        async def copied(blob: Blob) -> Blob:
            if blob.object_key is None or blob.collected_at is not None:
                return blob
            try:
                key = await self._store.copy(
                    tenant_id, fork.conversation_id, blob.content_id, blob.object_key
                )
            except ServiceUnavailable:
                async with self._database.session() as session:
                    if await session.blobs.holds_content(fork.source_id, blob.content_id):
                        raise
                raise _SourceChanged from None
            return replace(blob, object_key=key)

        return await for_each(blobs, copied, COPIES_AT_ONCE)

    # --- the copy -------------------------------------------------------------------------

    async def _copy(self, tenant_id: str, plan: _Plan, new: NewFork) -> Fork:
        fork, source = plan.fork, plan.source
        async with self._database.transaction() as session:
            if new.idempotency_key is not None:
                existing = await claim_idempotency_key(
                    session,
                    tenant_id,
                    new.idempotency_key,
                    _request(fork.source_id, new),
                    f"{fork.public_id} {fork.at_seq}",
                )
                if existing is not None:
                    return await self._fork_of_key(session, tenant_id, fork.source_id, existing)
            metadata = json_text.dumps(new.metadata) if new.metadata is not None else None
            if new.public_id is not None:
                await session.conversations.lock_id(tenant_id, fork.public_id)
                if await find_key(session, tenant_id, fork.public_id) is not None:
                    raise id_taken(fork.public_id)
            own_id = own_id_of(fork.conversation_id, fork.public_id)
            if not await session.forks.add(
                tenant_id, fork.source_id, fork.conversation_id, metadata, own_id
            ):
                raise _SourceChanged  # another tenant has created one with this UUID
            await self._copy_rows(session, plan)
            await self._set_state(session, tenant_id, plan)
            await _check_agent(session, tenant_id, source)
            version = await session.forks.lock_source(fork.source_id)
            if version not in (None, source.state.redacted_version):
                raise _SourceChanged  # a copied message was redacted meanwhile
        return fork

    async def _copy_rows(self, session: Repositories, plan: _Plan) -> None:
        fork, forks = plan.fork, session.forks
        ids = (fork.source_id, fork.conversation_id)
        for batch in blob_batches(plan.blobs):
            if not await forks.copy_blobs(*ids, batch):
                raise _SourceChanged
        compaction_id = plan.receipt.compaction_id if plan.receipt is not None else None
        await forks.copy_pins_and_compactions(*ids, fork.at_seq, compaction_id)
        copied = 0
        for after in range(0, fork.at_seq, BATCH_MESSAGES):
            through = min(after + BATCH_MESSAGES, fork.at_seq)
            copied += await forks.copy_messages(*ids, after, through)
        if copied < fork.at_seq:
            raise NotFound.conversation(fork.source_id)

    async def _set_state(self, session: Repositories, tenant_id: str, plan: _Plan) -> None:
        """Set the state of the fork: the sums of its log, its window and its view."""
        source_state, fork_id, at_seq = (
            plan.source.state,
            plan.fork.conversation_id,
            plan.fork.at_seq,
        )
        await session.forks.set_head(fork_id, state_at(source_state, at_seq))
        conversation = await self._resolver.find_conversation(session, tenant_id, fork_id)
        if conversation.agent_id != plan.source.agent_id:
            raise _SourceChanged
        window = window_at(source_state, at_seq, self._active.now())
        state = await _state_in_window(session, fork_id, conversation.state, window, source_state)
        await session.windows.move(fork_id, state)
        if plan.receipt is not None:
            await self._apply_compaction(
                session, replace(conversation, state=state), source_state, plan.receipt
            )

    async def _apply_compaction(
        self,
        session: Repositories,
        conversation: Conversation,
        source_state: ConversationState,
        receipt: Compaction,
    ) -> None:
        """Apply this compaction to the fork's view."""
        fork_id, state = conversation.conversation_id, conversation.state
        pinned = await session.contexts.pinned(fork_id)
        kept = kept_seqs_at(source_state, state.head_seq, receipt, pinned)
        with_kept = replace(conversation, state=replace(state, kept_seqs=kept))
        visible = await view_state_of(session, self._resolver, with_kept, receipt)
        if visible.compaction_id is None:
            return
        applied = await session.contexts.show(
            fork_id,
            visible,
            view_version=state.view_version,
            cause="compaction",
            resume_at_tokens=state.resume_at_tokens,
        )
        assert applied, "no other transaction sees the fork, and the view shows every pin"


def _request(conversation_id: str, new: NewFork) -> list[Any]:
    return ["fork", conversation_id, new.request]


def _seq_in(state: ConversationState, at_seq: int | None) -> int:
    if at_seq is None:
        return state.head_seq
    if at_seq > state.head_seq:
        raise ValidationError.at("/at_seq", f"The log's head is {state.head_seq}")
    return at_seq


async def _state_in_window(
    session: Repositories,
    fork_id: str,
    state: ConversationState,
    window: ActiveWindow,
    source_state: ConversationState,
) -> ConversationState:
    """Return the state of a fork with its window and the messages in it."""
    state = await with_window(session, fork_id, state, window)
    oldest_at, mentions = source_state.oldest_at, source_state.mentions
    if (state.head_seq, window) != (source_state.head_seq, source_state.window):
        times = [item.at for item in window.restored]
        oldest_appended = await session.windows.oldest_at(
            fork_id, window.since, oldest_before(source_state)
        )
        oldest_at = min(
            [*times, oldest_appended] if oldest_appended is not None else times, default=None
        )
        spans = spans_through(window.spans, state.head_seq)
        mentions = tuple(sorted(await session.windows.mentions_in(fork_id, spans)))
    return replace(
        state,
        oldest_at=oldest_at,
        mentions=mentions,
        hidden_tokens=state.outside_tokens,
        hidden_messages=state.outside_messages,
    )


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
