"""Transcripts: messages as they came, each with how the current context shows it (A6).

1. Reading brings the active windows of the conversations on a page up to date, as a build does.
2. What it costs depends on the page: heads, active receipts and pins come for all of its
   conversations at once, older receipts only where those do not tell who hid a message.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby

from app.domain.common.errors import NotFound
from app.domain.common.messages import Role
from app.domain.common.pages import Bound, Page
from app.domain.common.policy import StrategyName
from app.domain.compaction.planning import base_view
from app.domain.conversations.compaction_receipt import Compaction
from app.domain.conversations.conversation import Conversation
from app.domain.conversations.stored_message import StoredMessage
from app.domain.conversations.turns import Entry, entry
from app.domain.conversations.view import Span, View
from app.domain.conversations.visibility import NOT_SLID, Slid, Visibility, last_from, visibilities
from app.services.common.read_permits import UNLIMITED, Read
from app.services.conversations.active_windows import ActiveWindows
from app.services.ports import Database, Repositories
from app.services.prompt.settings_resolver import SettingsResolver
from app.services.tool_output.stored_results import Content, Original

LOOKED_BACK = (16, 512)
"""How many receipts are read at a time, before the active one, to find out who hid a message.

Of what an older one hid it is not told which one did: the cost must not grow with the log.
"""

Originals = Callable[[str, Sequence[StoredMessage], Content, Read], Awaitable[list[Original]]]
"""Returns messages of a conversation as they came; fewer where a page would become too large."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A message on a page, and its conversation; `at` is its time where a page goes by that."""

    conversation: Conversation
    message: StoredMessage
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Shown:
    """A message as it came, and what the current context makes of it."""

    listed: Listed
    original: Original
    visibility: Visibility
    pinned: bool


@dataclass(slots=True)
class _ConversationPage:
    """One conversation of a page: its messages there, and what tells how they are shown."""

    conversation: Conversation
    entries: list[Entry]
    receipts: list[Compaction] = field(default_factory=list)
    view: View = field(default_factory=View)
    slid: Slid = NOT_SLID

    @property
    def conversation_id(self) -> str:
        """The conversation's id."""
        return self.conversation.conversation_id

    def visibilities(self) -> dict[int, Visibility]:
        """Return how its messages are shown, as far as the receipts read so far tell."""
        restored = self.conversation.state.window.restored
        return visibilities(self.entries, self.view, self.receipts, restored, self.slid)


class TranscriptService:
    """Tells how messages are shown, and reads those of an agent's conversations by time."""

    def __init__(
        self,
        database: Database,
        resolver: SettingsResolver,
        active: ActiveWindows,
        originals: Originals,
    ) -> None:
        self._database = database
        self._frames = resolver
        self._active = active
        self._originals = originals

    async def of_agent(
        self,
        tenant_id: str,
        agent_id: str,
        after: tuple[datetime, str, int] | None,
        order: str,
        limit: int,
        read: Read = UNLIMITED,
    ) -> Page[Listed]:
        """Return messages of all the agent's conversations by time; raises NotFound.

        `after` are the time, conversation and seq of the message that the page starts after.
        """
        async with self._database.session() as records:
            if await records.agents.find(tenant_id, agent_id) is None:
                raise NotFound.agent(agent_id)

        async def ask(bound: Bound) -> Page[tuple[str, datetime, StoredMessage]]:
            async with self._database.session() as records:
                return await records.transcripts.of_agent(
                    tenant_id, agent_id, after, order, limit, bound
                )

        while True:
            page = await read.page(ask)
            ids = {conversation_id for conversation_id, _, _ in page}
            async with self._database.session() as records:
                found = await records.transcripts.conversations(
                    tenant_id, ids, self._frames.default_model
                )
            if len(found) == len(ids):
                break  # or else one was deleted in between, and its messages with it
        talks = {talk.conversation_id: talk for talk in found}
        listed = (Listed(talks[known_id], message, at) for known_id, at, message in page)
        return Page(listed, has_more=page.has_more)

    async def shown(
        self,
        tenant_id: str,
        page: Sequence[Listed],
        content: Content,
        read: Read = UNLIMITED,
    ) -> list[Shown]:
        """Return the messages of a page as they came and as they are shown.

        There may be fewer than were given, at least one: a page with large results ends early.
        Raises NotFound for a conversation that is deleted meanwhile.
        """
        if not page:
            return []
        found = await self._as_they_came(page, content, read)
        talks = await self._talks(tenant_id, [listed for listed, _ in found])
        async with self._database.session() as records:
            pinned = await self._with_pins(records, talks)
            await self._explain(records, talks)
        marks = {talk.conversation_id: talk.visibilities() for talk in talks}
        shown = []
        for listed, original in found:
            conversation_id, seq = listed.conversation.conversation_id, listed.message.seq
            is_pinned = (conversation_id, seq) in pinned
            shown.append(Shown(listed, original, marks[conversation_id][seq], is_pinned))
        return shown

    async def _as_they_came(
        self, page: Sequence[Listed], content: Content, read: Read
    ) -> list[tuple[Listed, Original]]:
        """Return messages with their originals, up to what one page may hold."""
        found: list[tuple[Listed, Original]] = []
        size = 0
        for conversation_id, part in groupby(page, lambda item: item.conversation.conversation_id):
            run = list(part)
            wanted = [item.message for item in run]
            originals = await self._originals(conversation_id, wanted, content, read)
            found += zip(run, originals, strict=False)
            size += sum(map(_shown_bytes, originals))
            if len(originals) < len(run) or size > read.max_bytes:
                break
        return found

    async def _talks(self, tenant_id: str, page: Iterable[Listed]) -> list[_ConversationPage]:
        """Return the conversations of a page, their windows as they are now (rule 1)."""
        talks: dict[str, _ConversationPage] = {}
        for listed in page:
            conversation, message = listed.conversation, listed.message
            if conversation.conversation_id not in talks:
                settled = await self._active.settled(tenant_id, conversation)
                talks[conversation.conversation_id] = _ConversationPage(settled, [])
            item = entry(message.seq, Role(message.role), message.token_count)
            talks[conversation.conversation_id].entries.append(item)
        return list(talks.values())

    async def _with_pins(
        self, records: Repositories, talks: Sequence[_ConversationPage]
    ) -> frozenset[tuple[str, int]]:
        """Mark the entries that pins hold, and return which they are."""
        places = [(talk.conversation_id, item.seq) for talk in talks for item in talk.entries]
        pinned = await records.transcripts.pinned(places)
        for talk in talks:
            talk.entries = [
                entry(item.seq, item.role, item.tokens, (talk.conversation_id, item.seq) in pinned)
                for item in talk.entries
            ]
        return pinned

    async def _explain(self, records: Repositories, talks: Sequence[_ConversationPage]) -> None:
        """Find out what conversations show, and read the receipts that led to it (rule 2)."""
        heads = {talk.conversation_id: talk.conversation.state for talk in talks}
        newest = {key: state.compaction_id for key, state in heads.items() if state.compaction_id}
        await _read_back(records, talks, newest, 1)
        for talk in talks:
            await self._look(records, talk)
        for limit in LOOKED_BACK:
            parents = {
                talk.conversation_id: parent_id
                for talk in talks
                if talk.receipts and (parent_id := talk.receipts[-1].parent_id) is not None
                if not all(mark.is_explained for mark in talk.visibilities().values())
            }
            await _read_back(records, talks, parents, limit)

    async def _look(self, records: Repositories, talk: _ConversationPage) -> None:
        """Find out what a conversation shows, its active receipt at hand."""
        conversation, policy = talk.conversation, self._frames.policy_of(talk.conversation)
        if talk.receipts and talk.receipts[0].policy_strategy != policy.strategy:
            talk.receipts.clear()  # another strategy's: the next build starts from the log (D6)
        active = talk.receipts[0].view if talk.receipts else None
        talk.view = base_view(conversation.state, active, policy)
        if policy.strategy is StrategyName.SLIDING_WINDOW:
            count = policy.sliding_window.keep_last_n
            shown_from = await _slid_to(records, conversation, talk.view.spans, count)
            whole_from = await _slid_to(records, conversation, talk.view.window, count)
            talk.slid = Slid(shown_from, whole_from)


async def _read_back(
    records: Repositories, talks: Sequence[_ConversationPage], newest: Mapping[str, str], limit: int
) -> None:
    """Read receipts of conversations, `newest` and what they were based on."""
    if not newest:
        return
    chains = await records.transcripts.chains(newest, limit)
    for talk in talks:
        talk.receipts += chains.get(talk.conversation_id, ())


async def _slid_to(
    records: Repositories, conversation: Conversation, spans: Sequence[Span], count: int
) -> int:
    """Return where the last messages of these spans begin, with their whole call group (D2)."""
    seq = last_from(spans, conversation.state.head_seq, count)
    group = await records.contexts.around(conversation.conversation_id, seq, whole_turn=False)
    return group[0].seq if group else seq


def _shown_bytes(original: Original) -> int:
    """Return what a message takes on a page, with the result that is shown whole in it."""
    size = original.message.byte_size
    if original.message.stored_output is None or original.is_truncated:
        return size
    output = original.message.output
    return size + (output.byte_size if output is not None and output.is_cut else 0)
