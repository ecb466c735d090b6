"""Forks: a conversation copied up to a seq, which then goes on by itself (I6).

1. Everything is copied inside the database, in one transaction: a fork is there as a whole or not
   at all, and neither of the two needs the other any more (A7).
2. The source is read once, for its head. Its rows up to there never change, so nothing of it is
   locked, and whoever appends to it need not wait.
3. What lies in an object store is copied before that, with no session open. Copies that no row
   comes to name are orphans, which the sweep deletes (decision 29).
4. Where a blob was collected in between, or its agent was cleared, the fork is made anew.
5. What is copied counts as if the tenant had sent it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.domain.common import json_text
from app.domain.common.errors import Conflict, NotFound, ServiceUnavailable, ValidationError
from app.domain.conversations.active_window import ActiveWindow
from app.domain.conversations.compaction_receipt import Compaction
from app.domain.conversations.conversation import Conversation, ConversationState
from app.domain.conversations.view import spans_through
from app.domain.prompt.resolved_settings import digest
from app.domain.snapshots.forks import (
    batches,
    fits,
    head_at,
    kept_at,
    oldest_before,
    puts_back,
    window_at,
)
from app.domain.tool_output.blobs import Blob
from app.services.conversations.active_windows import ActiveWindows, shown_of, with_window
from app.services.conversations.idempotent_creation import claim_key
from app.services.ports import BlobStore, Database, Repositories
from app.services.prompt.settings_resolver import SettingsResolver

PIECE_MESSAGES = 20_000
"""Messages that one statement copies, well within the time that a statement may take."""
COPIES_AT_ONCE = 8
"""Objects of one fork that are copied at the same time."""
_RECEIPTS = 50
_MAX_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class NewFork:
    """A fork that is asked for, at the source's head by default.

    `request` is the body as it came, which an idempotency key stands for.
    """

    at_seq: int | None = None
    conversation_id: str | None = None
    metadata: Mapping[str, Any] | None = None
    idempotency_key: str | None = None
    request: Any = None


@dataclass(frozen=True, slots=True)
class Fork:
    """A fork that was made: its own id, and what it is a copy of."""

    conversation_id: str
    source_id: str
    at_seq: int


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is copied: the source as it was read, up to a seq, and a receipt it may go on with."""

    fork: Fork
    source: Conversation
    receipt: Compaction | None
    blobs: tuple[Blob, ...]


CountBytes = Callable[[str, int], Awaitable[None]]
"""Counts bytes that a tenant has copied; raises RateLimited where they are too many."""


async def _uncounted(_tenant_id: str, _size: int) -> None:
    """Count nothing."""


class _Changed(Exception):
    """Tells that the source is not any more as it was read (rule 4)."""


class ForkService:
    """Copies conversations."""

    def __init__(
        self,
        database: Database,
        resolver: SettingsResolver,
        active: ActiveWindows,
        store: BlobStore,
        new_id: Callable[[], str],
        count_bytes: CountBytes = _uncounted,
    ) -> None:
        self._database = database
        self._frames = resolver
        self._active = active
        self._store = store
        self._new_id = new_id
        self._count_bytes = count_bytes

    async def fork(self, tenant_id: str, conversation_id: str, new: NewFork) -> Fork:
        """Make a fork; a repeated idempotency key returns the first.

        Raises NotFound, ValidationError for a seq beyond the head, Conflict when the id is taken.
        """
        made = await self._made_before(tenant_id, conversation_id, new)
        if made is not None:
            return made
        fork_id = new.conversation_id or self._new_id()
        await self._count(tenant_id, conversation_id, new.at_seq)
        for _ in range(_MAX_ROUNDS):
            try:
                plan = await self._planned(tenant_id, conversation_id, fork_id, new.at_seq)
                return await self._make(tenant_id, plan, new)
            except _Changed:
                continue
        raise Conflict(
            f"Conversation {conversation_id} changes too fast to be forked",
            {"conversation_id": conversation_id},
        )

    # --- before anything is copied --------------------------------------------------------

    async def _count(self, tenant_id: str, conversation_id: str, at_seq: int | None) -> None:
        """Count what will be copied among the bytes that the tenant sends (rule 5)."""
        async with self._database.session() as records:
            found = await self._find(records, tenant_id, conversation_id)
            if found is None:
                raise NotFound.conversation(conversation_id)
            through = _seq_in(found.state, at_seq)
            size = await records.forks.size(conversation_id, through)
        await self._count_bytes(tenant_id, size)

    async def _made_before(self, tenant_id: str, conversation_id: str, new: NewFork) -> Fork | None:
        """Return what the key stands for already, though its source may be gone by now."""
        if new.idempotency_key is None:
            return None
        async with self._database.session() as records:
            kept = await records.tenants.find_creation(tenant_id, new.idempotency_key)
            if kept is None or kept[0] != digest(json_text.dumps(_asked(conversation_id, new))):
                return None
            return await self._replayed(records, tenant_id, conversation_id, kept[1])

    async def _replayed(
        self, records: Repositories, tenant_id: str, conversation_id: str, resource: str
    ) -> Fork:
        fork_id, at_seq = resource.split()
        if await self._find(records, tenant_id, fork_id) is None:
            raise Conflict(
                "What the Idempotency-Key created has been deleted", {"conversation_id": fork_id}
            )
        return Fork(fork_id, conversation_id, int(at_seq))

    async def _planned(
        self, tenant_id: str, conversation_id: str, fork_id: str, at_seq: int | None
    ) -> _Plan:
        """Read what is to be copied, and copy what lies in the object store (rule 3)."""
        async with self._database.session() as records:
            found = await self._find(records, tenant_id, conversation_id)
        if found is None:
            raise NotFound.conversation(conversation_id)
        source = await self._active.settled(tenant_id, found)
        fork = Fork(fork_id, conversation_id, _seq_in(source.state, at_seq))
        async with self._database.session() as records:
            if await self._find(records, tenant_id, fork_id) is not None:
                raise _taken(fork_id)
            receipt = await self._receipt(records, source, fork.at_seq)
            refs = await records.forks.refs(conversation_id, fork.at_seq)
            blobs = await records.blobs.find_all(conversation_id, refs)
        copies = await self._copy_objects(tenant_id, fork, blobs)
        return _Plan(fork, source, receipt, tuple(copies))

    async def _receipt(
        self, records: Repositories, source: Conversation, at_seq: int
    ) -> Compaction | None:
        """Return the newest receipt that says nothing of what comes after a seq (I5).

        It is one of those that led to what the source shows. Where nothing of the source's window
        is left, it may be any that was not undone: what led to them is not shown any more.
        """
        if puts_back(source.state, at_seq):
            return await self._receipt_of_before(records, source, at_seq)
        compaction_id = source.state.compaction_id
        while compaction_id is not None:
            receipt = await records.contexts.find_compaction(source.conversation_id, compaction_id)
            if receipt is None or fits(receipt.view, at_seq):
                return receipt
            compaction_id = receipt.parent_id
        return None

    async def _receipt_of_before(
        self, records: Repositories, source: Conversation, at_seq: int
    ) -> Compaction | None:
        strategy = self._frames.policy_of(source).strategy
        before: str | None = None
        while page := await records.contexts.compactions(source.conversation_id, _RECEIPTS, before):
            for receipt in page:
                is_valid = receipt.undone_at is None and receipt.policy_strategy == strategy
                if is_valid and fits(receipt.view, at_seq):
                    return receipt
            before = page[-1].compaction_id
        return None

    async def _copy_objects(self, tenant_id: str, fork: Fork, blobs: Sequence[Blob]) -> list[Blob]:
        """Return the blobs as the fork has them, those in the object store copied there."""
        some = asyncio.Semaphore(COPIES_AT_ONCE)

        async def copied(blob: Blob) -> Blob:
            if blob.object_key is None or blob.collected_at is not None:
                return blob
            async with some:
                return await self._copied(tenant_id, fork, blob, blob.object_key)

        # All end before one's failure is told: nothing is written behind the caller's back.
        done = await asyncio.gather(*map(copied, blobs), return_exceptions=True)
        failures = [item for item in done if isinstance(item, BaseException)]
        if failures:
            raise failures[0]
        return [item for item in done if isinstance(item, Blob)]

    async def _copied(self, tenant_id: str, fork: Fork, blob: Blob, object_key: str) -> Blob:
        try:
            key = await self._store.copy(
                tenant_id, fork.conversation_id, blob.content_id, object_key
            )
        except ServiceUnavailable:
            async with self._database.session() as records:
                if await records.blobs.holds_content(fork.source_id, blob.content_id):
                    raise
            raise _Changed from None
        return replace(blob, object_key=key)

    # --- the copy -------------------------------------------------------------------------

    async def _make(self, tenant_id: str, plan: _Plan, new: NewFork) -> Fork:
        fork, source = plan.fork, plan.source
        async with self._database.transaction() as records:
            if new.idempotency_key is not None:
                first = await claim_key(
                    records,
                    tenant_id,
                    new.idempotency_key,
                    _asked(fork.source_id, new),
                    f"{fork.conversation_id} {fork.at_seq}",
                )
                if first is not None:
                    return await self._replayed(records, tenant_id, fork.source_id, first)
            metadata = json_text.dumps(new.metadata) if new.metadata is not None else None
            if not await records.forks.add(
                tenant_id, fork.source_id, fork.conversation_id, metadata
            ):
                raise _taken(fork.conversation_id)
            await self._copy_rows(records, plan)
            await self._show(records, tenant_id, plan)
            await _check_agent(records, tenant_id, source)
        return fork

    async def _copy_rows(self, records: Repositories, plan: _Plan) -> None:
        fork, forks = plan.fork, records.forks
        ids = (fork.source_id, fork.conversation_id)
        for batch in batches(plan.blobs):
            if not await forks.copy_blobs(*ids, batch):
                raise _Changed
        compaction_id = plan.receipt.compaction_id if plan.receipt is not None else None
        await forks.copy_marks(*ids, fork.at_seq, compaction_id)
        copied = 0
        for after in range(0, fork.at_seq, PIECE_MESSAGES):
            through = min(after + PIECE_MESSAGES, fork.at_seq)
            copied += await forks.copy_messages(*ids, after, through)
        if copied < fork.at_seq:
            raise NotFound.conversation(fork.source_id)

    async def _show(self, records: Repositories, tenant_id: str, plan: _Plan) -> None:
        """Set the fork's head: its log's sums, its window, and what is shown of that."""
        before, fork_id, at_seq = plan.source.state, plan.fork.conversation_id, plan.fork.at_seq
        await records.forks.set_head(fork_id, head_at(before, at_seq))
        made = await self._find(records, tenant_id, fork_id)
        assert made is not None, "it was added in this transaction"
        window = window_at(before, at_seq, self._active.now())
        state = await _in_window(records, fork_id, made.state, window, before)
        await records.windows.move(fork_id, state)
        if plan.receipt is not None:
            await self._compact(records, replace(made, state=state), before, plan.receipt)

    async def _compact(
        self,
        records: Repositories,
        made: Conversation,
        before: ConversationState,
        receipt: Compaction,
    ) -> None:
        """Show the fork as this receipt has it."""
        fork_id, state = made.conversation_id, made.state
        pinned = await records.contexts.pinned(fork_id)
        kept = kept_at(before, state.head_seq, receipt, pinned)
        ground = replace(made, state=replace(state, kept=kept))
        shown = await shown_of(records, self._frames, ground, receipt)
        if shown.compaction_id is None:
            return
        applied = await records.contexts.show(
            fork_id,
            shown,
            view_version=state.view_version,
            cause="compaction",
            resume_at=state.resume_at,
        )
        assert applied, "nobody else knows the fork yet, and the view shows every pin"

    async def _find(
        self, records: Repositories, tenant_id: str, conversation_id: str
    ) -> Conversation | None:
        return await records.conversations.find(
            tenant_id, conversation_id, self._frames.default_model
        )


def _asked(conversation_id: str, new: NewFork) -> list[Any]:
    return ["fork", conversation_id, new.request]


def _seq_in(state: ConversationState, at_seq: int | None) -> int:
    if at_seq is None:
        return state.head_seq
    if at_seq > state.head_seq:
        raise ValidationError.at("/at_seq", f"The log's head is {state.head_seq}")
    return at_seq


def _taken(conversation_id: str) -> Conflict:
    return Conflict(f"The id {conversation_id} is taken", {"conversation_id": conversation_id})


async def _in_window(
    records: Repositories,
    fork_id: str,
    state: ConversationState,
    window: ActiveWindow,
    before: ConversationState,
) -> ConversationState:
    """Return a fork's head with its window, and what is known of what that shows."""
    state = await with_window(records, fork_id, state, window)
    oldest_at, mentions = before.oldest_at, before.mentions
    if (state.head_seq, window) != (before.head_seq, before.window):
        times = [item.at for item in window.restored]
        first = await records.windows.oldest_at(fork_id, window.since, oldest_before(before))
        oldest_at = min([*times, first] if first is not None else times, default=None)
        spans = spans_through(window.spans, state.head_seq)
        mentions = tuple(sorted(await records.windows.mentions_in(fork_id, spans)))
    return replace(
        state,
        oldest_at=oldest_at,
        mentions=mentions,
        hidden_tokens=state.outside_tokens,
        hidden_messages=state.outside_messages,
    )


async def _check_agent(records: Repositories, tenant_id: str, source: Conversation) -> None:
    """Lock the source's agent, so that its deletion or clear sees the fork, or this sees them.

    Last of all: whoever needs the agent does not wait for a long log to be copied.
    """
    if source.agent_id is None:
        return
    agent = await records.agents.find(tenant_id, source.agent_id, lock=True)
    if agent is None:
        raise NotFound.conversation(source.conversation_id)
    known = source.state.cleared_at
    if agent.cleared_at is not None and (known is None or known < agent.cleared_at):
        raise _Changed
