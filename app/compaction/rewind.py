"""Rewinds: later messages leave the active window, and a new branch goes on. [rewind.window]

1. A rewind changes the active window, not the log: its messages are outside, as after a clear. What
   comes later is shown after those that stay.
2. It cuts between call groups. Inside one, the whole group leaves, as a call without its results
   would mislead the model. [rewind.call-groups]
3. Its view is that of the newest compaction that covers no message that leaves. Its receipt makes
   it undoable, as any other.
4. Calls that leave are open no longer, because their results belong to no shown branch. An undo
   opens them again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Final

from app.common.answer_schemas import answer
from app.common.errors import Conflict, ValidationError
from app.conversations.conversation import Conversation
from app.conversations.events import EventType
from app.conversations.moving_window import ActiveWindows
from app.conversations.receipt import Receipt, Trigger
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.stored_receipts import store_view
from app.conversations.view import Span, count_in, overlap
from app.conversations.view_changes import base_view, covers_only, protected_in
from app.repositories import Database, Repositories

REWOUND: Final = "rewound"
"""The cause of a view without later messages."""


@answer()
@dataclass(frozen=True, slots=True)
class Rewound:
    """What a rewind did; a repeated one is answered alike while the receipt is the newest."""

    to_seq: int
    """The seq up to which messages stay: before `to_seq` of the request where that is inside a
    call group, which leaves as a whole."""
    message_count: int
    """How many messages left the window."""
    compaction_id: str | None
    """Id of the receipt, to undo it; null where nothing left."""


@dataclass(eq=False, repr=False)
class RewindService:
    """Rewinds conversations."""

    _database: Database
    _resolver: SettingsResolver
    _active: ActiveWindows
    _new_id: Callable[[], str]

    async def rewind(
        self, tenant_id: str, conversation_id: str, to_seq: int, expected_seq: int | None = None
    ) -> Rewound:
        """Take the messages after a seq out of the window.

        Raises NotFound, ValidationError for a seq beyond the head, Conflict where the head is not
        the expected one.
        """
        async with self._database.transaction() as session:
            before = await session.conversations.get(tenant_id, conversation_id, lock=True)
            head_seq = before.state.head_seq
            if expected_seq not in (None, head_seq):
                detail = f"The newest seq is {head_seq}, not {expected_seq}"
                raise Conflict(detail, {"head_seq": head_seq})
            if to_seq > head_seq:
                raise ValidationError.at("/to_seq", f"The log's head is {head_seq}")
            before = await self._active.update_locked(session, before)
            if to_seq < head_seq:
                group = await session.log.around(conversation_id, to_seq + 1, whole_turn=False)
                to_seq = group[0].seq - 1
            leaving = Span(to_seq + 1, head_seq + 1)
            count = count_in(overlap((leaving,), before.state.window.spans))
            active = await self._active_receipt(session, before)
            if not count:
                return _repeated(to_seq, before, active)
            return await self._store(session, before, active, leaving, count)

    async def _active_receipt(
        self, session: Repositories, conversation: Conversation
    ) -> Receipt | None:
        key, active_id = conversation.conversation_id, conversation.state.compaction_id
        receipt = await session.contexts.find_receipt(key, active_id)
        strategy = self._resolver.policy_of(conversation).strategy
        return receipt if receipt is not None and receipt.is_shown_with(strategy) else None

    async def _store(
        self,
        session: Repositories,
        before: Conversation,
        active: Receipt | None,
        leaving: Span,
        count: int,
    ) -> Rewound:
        key, to_seq = before.conversation_id, leaving.start - 1
        shown = active
        while shown is not None and not covers_only(shown.view, to_seq):
            shown = await session.contexts.find_receipt(key, shown.parent_id)
        conversation = await self._active.rewind(session, before, leaving)
        state, policy = conversation.state, self._resolver.policy_of(conversation)
        kept = state.protected_seqs
        if shown is not active:
            kept = protected_in(shown.view) if shown is not None else ()
        kept = tuple(seq for seq in kept if seq <= to_seq)
        conversation = replace(conversation, state=replace(state, protected_seqs=kept))
        view = base_view(conversation.state, shown.view if shown is not None else None, policy)
        left = base_view(before.state, active.view if active is not None else None, policy)
        receipt = Receipt(
            compaction_id=self._new_id(),
            parent_id=active.compaction_id if active is not None else None,
            trigger=Trigger.REWIND,
            strategy=Trigger.REWIND,
            policy_strategy=shown.policy_strategy if shown is not None else Trigger.REWIND,
            stages=(Trigger.REWIND,),
            hidden_span=leaving,
            view=view,
            before_messages=before.state.shown_messages + len(left.summary_texts()),
        )
        await store_view(session, self._resolver, before, conversation, receipt, REWOUND)
        done = Rewound(to_seq, count, receipt.compaction_id)
        await session.events.add(key, EventType.REWOUND, **asdict(done))
        return done


def _repeated(to_seq: int, conversation: Conversation, active: Receipt | None) -> Rewound:
    """Return the answer where nothing leaves: that of the rewind that did this already, if any."""
    if active is None or active.trigger != Trigger.REWIND or active.hidden_span.start != to_seq + 1:
        return Rewound(to_seq, 0, None)
    span = active.hidden_span
    before = conversation.state.window.unrewind(span).spans
    return Rewound(to_seq, count_in(overlap((span,), before)), active.compaction_id)
