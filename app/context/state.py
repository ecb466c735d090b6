"""The values that the stages of a build pass on, and the cache of rendered histories.

Values are immutable: a stage returns a new one. The exception is a `CachedPayload`, which builds
share and extend.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, Final, TypeVar

from cachetools import LRUCache

from app.common import json_text
from app.common.concurrency import in_thread_if
from app.compaction.reduction import tool_output_tokens, with_excluded
from app.compaction.run import DROPPED_WITHOUT_SUMMARY, SUMMARISER_UNAVAILABLE
from app.compaction.service import CompactionService
from app.compaction.summaries.summariser import Summariser
from app.context.repository import BuildInput
from app.context.schemas import Known
from app.conversations.conversation import BreakReason, ConversationState
from app.conversations.epoch import Epoch, PromptChange, model_in, requested_context_window
from app.conversations.from_rows import changes_from
from app.conversations.messages.row import LogRow
from app.conversations.messages.service import StoredBatch
from app.conversations.moving_window import ActiveWindows
from app.conversations.other_conversations import OtherConversations
from app.conversations.receipt import UNOBSERVED, CompactResult, Observer
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.turns import OPEN_CALLS_SHARE, Entry, entry, open_call_seqs, with_pins
from app.conversations.view import WHOLE_VIEW, View
from app.conversations.view_changes import (
    NO_PROVIDER_COMPACTION,
    agent_tools_tokens,
    shortened_entries,
    shown_entries,
    view_summary_tokens,
    with_shortened,
    with_shown_item,
)
from app.formats.message import FormatName
from app.models.budget import Limits, PayloadTokens
from app.payload.assembler import Assembler
from app.payload.items import PayloadItems
from app.policy.policy import StrategyName
from app.prompt.resolved_settings import (
    NO_PAYLOAD_TOOLS,
    PayloadTools,
    RequestSettings,
    ResolvedSettings,
    digest,
)
from app.prompt.sections import DynamicTexts, Notes
from app.repositories import Database

_Result = TypeVar("_Result")
LONG_BUILD_BYTES = 8 * 2**20
LONG_BYTES = 2**20
"""The length of rendered rows that only a thread copies; they are not shared while they grow."""
_ROW_BYTES = 400
"""Memory of a rendered row beside its text."""
SUMMARY_AS_USER = "summary_role_user"
"""`degraded`: the format cannot carry the summary as system text."""
REASONING_DROPPED: Final = "reasoning_dropped"
"""`degraded`: reasoning that its own family made is left out of a shown message."""
DEGRADED_ONE_BUILD = (
    SUMMARISER_UNAVAILABLE,
    DROPPED_WITHOUT_SUMMARY,
    "compaction_pending",
    "tool_uses_unread",
    "cache_breakpoints_left_out",
    SUMMARY_AS_USER,
    NO_PROVIDER_COMPACTION,
)
"""Values of `degraded` that a view does not keep for the next build."""


# --- rendered histories ---------------------------------------------------------------------------


@dataclass(slots=True)
class CachedPayload:
    """The rendered history of one payload stream: what its epoch shows of the log so far.

    The log never changes, so it is valid as long as its epoch lasts. `output_tokens` counts the
    shown tool output, `cut_seqs` are the results of which the log has a preview. `tail_hash` is
    that of the newest build's tail. `input` is what the newest build read, with its epoch and
    without rows, if nothing else has changed.
    """

    view: View
    assembler: Assembler
    epoch_id: str = ""
    start_json: str = ""
    entries: list[Entry] = field(default_factory=list)
    output_tokens: int = 0
    cut_seqs: list[int] = field(default_factory=list)
    tail_hash: str = ""
    input: BuildInput | None = None

    @property
    def size_bytes(self) -> int:
        """Roughly how much memory it takes."""
        return self.assembler.size_bytes + _ROW_BYTES * len(self.entries)

    async def call(self, work: Callable[..., _Result], *arguments: Any) -> _Result:
        """Call a function that copies what is rendered, in a thread if that is long."""
        return await in_thread_if(self.assembler.size_bytes > LONG_BYTES, work, *arguments)

    def copied(self) -> CachedPayload:
        """Return a copy to which rows can be added apart."""
        return replace(
            self,
            assembler=self.assembler.copied(),
            entries=[*self.entries],
            cut_seqs=[*self.cut_seqs],
        )

    def add(self, row: LogRow) -> None:
        """Render one more row that the view shows."""
        self.assembler.add(row)
        item = entry(row.seq, row.role, row.tokens, joins=row.joins)
        self.entries.append(item)
        self.output_tokens += tool_output_tokens(item, self.view)
        if (output := row.output) is not None and output.is_cut:
            self.cut_seqs.append(row.seq)


class PayloadCache:
    """Rendered histories by payload stream, bounded in bytes; the least recently used go first."""

    def __init__(self, max_bytes: int) -> None:
        self._cached: LRUCache[tuple[str, ...], CachedPayload] = LRUCache(
            max_bytes, getsizeof=attrgetter("size_bytes")
        )

    def find(self, key: tuple[str, ...]) -> CachedPayload | None:
        """Return the rendered history of a stream, None without one."""
        return self._cached.get(key)

    def of_epoch(self, tenant_id: str, conversation_id: str, epoch: Epoch) -> CachedPayload | None:
        """Return the rendered history of an epoch, None where this process has none."""
        for model in ("", model_in(epoch.payload_stream)):
            context_window = str(epoch.requested_context_window)
            key = (tenant_id, conversation_id, epoch.format, model, context_window)
            cached = self.find(key)
            if cached is not None and cached.epoch_id == epoch.epoch_id:
                return cached
        return None

    def put(self, key: tuple[str, ...], payload: CachedPayload) -> None:
        """Replace the rendered history of a stream; one that is too large is not kept."""
        self.drop(key)
        if payload.size_bytes <= self._cached.maxsize:
            self._cached[key] = payload

    def drop(self, key: tuple[str, ...]) -> None:
        """Remove the rendered history of a stream."""
        self._cached.pop(key, None)


# --- builds ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BuildDependencies:
    """The ports and services that the stages call.

    Few builds at once render long messages, each of which takes many times its memory.
    """

    database: Database
    resolver: SettingsResolver
    summariser: Summariser
    cache: PayloadCache
    active: ActiveWindows
    compaction: CompactionService
    statuses: OtherConversations
    new_id: Callable[[], str]
    observer: Observer = UNOBSERVED
    long_builds: asyncio.Semaphore = field(default_factory=partial(asyncio.Semaphore, 1))

    def place_for(self, rows: Iterable[LogRow]) -> AbstractAsyncContextManager[Any]:
        """Return what waits for a place to render these messages, if they are long."""
        is_long = sum(len(row.text) for row in rows) > LONG_BUILD_BYTES
        return self.long_builds if is_long else nullcontext()


@dataclass(frozen=True, slots=True)
class Attempt:
    """One pass through the stages: the request, and what earlier passes of the build did.

    A dry run neither compacts nor stores a payload. With `drops_reasoning` no reasoning so far is
    sent again. `break_reason` is why the last pass had to begin an epoch, before it cleared
    results. With `must_begin_epoch` changed sections and tools are the prompt of a new epoch, not
    items of the last.
    """

    tenant_id: str
    conversation_id: str
    settings: RequestSettings
    known: Known | None = None
    appended: StoredBatch | None = None
    degraded: tuple[str, ...] = ()
    compaction: CompactResult | None = None
    may_compact: bool = True
    is_dry_run: bool = False
    drops_reasoning: bool = False
    break_reason: BreakReason | None = None
    must_begin_epoch: bool = False

    @property
    def cache_key(self) -> tuple[str, ...]:
        """The key of the payload cache: the payload stream and the requested context window."""
        settings, ids = self.settings, (self.tenant_id, self.conversation_id)
        return *ids, settings.format, settings.model or "", str(requested_context_window(settings))


@dataclass(frozen=True, slots=True)
class Retry:
    """The result of a stage where the conversation changed: the attempt to start again with."""

    attempt: Attempt


@dataclass(frozen=True)  # without slots, which a cached property does not work with
class BuildState:
    """The view that a build shows, with its entries and, once rendered, its payload items.

    `last_epoch` is the newest of this stream and context window; `cached` its rendered history,
    which the rows of `input` extend. `entries` are the messages of the view with their tokens; they
    may grow while a cached payload does. `dynamic_texts` are those of scratchpad and status, which
    stand before or after the history as the policy says. `excluded_seqs` are the tool results that
    the policy never clears, None until they are read. Only reasoning after `min_reasoning_after` is
    sent, because no payload with more fits. The `continued_epoch` is the last one
    with changed sections and tools as items, of which the newest may not be stored yet; those in
    `resolved` are of its start. None where nothing changed inside it.
    """

    attempt: Attempt
    input: BuildInput
    resolved: ResolvedSettings
    limits: Limits
    last_epoch: Epoch | None
    cached: CachedPayload | None
    min_reasoning_after: int
    degraded: tuple[str, ...]
    view: View = WHOLE_VIEW
    entries: Sequence[Entry] = ()
    tools: PayloadTools = NO_PAYLOAD_TOOLS
    dynamic_texts: tuple[str, ...] = ()
    notes: Notes = field(default_factory=Notes)
    rendered: CachedPayload | None = None
    items: PayloadItems | None = None
    excluded_seqs: frozenset[int] | None = None
    continued_epoch: Epoch | None = None

    @property
    def changes(self) -> tuple[PromptChange, ...]:
        """The changed sections and tools that are items of the payload."""
        return changes_from(epoch.changes) if (epoch := self.continued_epoch) is not None else ()

    @property
    def has_new_change(self) -> bool:
        """Whether the last change is not stored yet."""
        return self.continued_epoch is not None and self.continued_epoch is not self.input.epoch

    @property
    def format(self) -> FormatName:
        """The format of the payload."""
        return self.attempt.settings.format

    @property
    def conversation_id(self) -> str:
        """The conversation of the payload."""
        return self.attempt.conversation_id

    @property
    def stored(self) -> ConversationState:
        """The state of the conversation."""
        return self.input.conversation.state

    # --- other states ---------------------------------------------------------------------

    def degrade(self, *values: str) -> BuildState:
        """Add values to `degraded`, each once."""
        added = tuple(dict.fromkeys((*self.degraded, *values)))
        return self if added == self.degraded else replace(self, degraded=added)

    def retry(self) -> Retry:
        """Return the `Retry` for a view, pins or epochs that changed."""
        one_build = tuple(value for value in self.degraded if value in DEGRADED_ONE_BUILD)
        return Retry(replace(self.attempt, degraded=one_build))

    def with_rendered(self, rendered: CachedPayload) -> BuildState:
        """Show a rendered history as it is now."""
        items = rendered.assembler.items(self.tail)
        return replace(self, rendered=rendered, entries=rendered.entries, items=items)

    def with_view(self, view: View) -> BuildState:
        """Return the state with a view that shows no other messages, not rendered yet."""
        view, entries = with_shown_item(with_shortened(view, ())), self.entries
        if view.spans != self.view.spans:
            entries = [item for item in entries if view.shows(item.seq)]
        return replace(self, rendered=None, items=None, view=view, entries=entries)

    def with_notes(self, notes: Notes) -> BuildState:
        """Show other notes."""
        if notes == self.notes:
            return self
        noted = replace(self, notes=notes)
        if self.rendered is None or noted.tail == self.tail:
            return noted
        return replace(noted, items=self.rendered.assembler.items(noted.tail))

    # --- the entries ----------------------------------------------------------------------

    @property
    def plan_entries(self) -> Sequence[Entry]:
        """The entries for a compaction plan: a pin protects its whole call group.

        Results that the policy excludes from clearing are marked, once `excluded_seqs` is set.
        """
        entries: Sequence[Entry] = self.entries
        if pins := self._pinned:
            entries = with_pins(entries, pins)
        if self.excluded_seqs:
            entries = with_excluded(entries, self.excluded_seqs)
        return list(shortened_entries(entries, self.view)) if self.view.shortened else entries

    @property
    def _pinned(self) -> frozenset[int]:
        """The seqs of pinned messages, of open calls, and of a provider's compaction item.

        A sliding window goes on without open calls.
        """
        seqs, item = self.stored.calls.open.values(), self.view.provider_item
        slides = self.resolved.policy.strategy is StrategyName.SLIDING_WINDOW
        max_tokens = 0 if slides else self.limits.capacity // OPEN_CALLS_SHARE
        open_calls = open_call_seqs(self.entries, seqs, max_tokens)
        return open_calls.union(self.input.pins, (item.seq,) if item is not None else ())

    @property
    def view_entries(self) -> list[Entry]:
        """The same entries with the tokens that they cost in this view."""
        return shown_entries(self.plan_entries, self.view)

    # --- dynamic text ---------------------------------------------------------------------

    @property
    def leading(self) -> DynamicTexts:
        """The dynamic texts before the history."""
        is_leading = self.resolved.policy.dynamic_position == "before_window"
        return self.resolved.dynamic_texts_of(self.dynamic_texts if is_leading else ())

    @property
    def tail(self) -> DynamicTexts:
        """The dynamic texts and notes after the history."""
        position, texts = self.resolved.policy.dynamic_position, self.notes.texts
        if position == "tail":
            texts = (*self.dynamic_texts, *texts)
        is_system = position == "system"
        return self.resolved.dynamic_texts_of(() if is_system else texts)

    @property
    def system_dynamic_texts(self) -> tuple[str, ...]:
        """The dynamic texts and notes at the end of the system prompt."""
        is_system = self.resolved.policy.dynamic_position == "system"
        return (*self.dynamic_texts, *self.notes.texts) if is_system else ()

    @property
    def texts_before_history(self) -> tuple[str, ...]:
        """The dynamic texts before the history: a change of them ends an epoch."""
        return (*self.leading.texts, *self.system_dynamic_texts)

    @property
    def dynamic_hash(self) -> str:
        """The hash of the dynamic texts before the history, empty without any."""
        texts = self.texts_before_history
        return digest(json_text.dumps(texts)) if texts else ""

    # --- cost -----------------------------------------------------------------------------

    @property
    def fits(self) -> bool:
        """Whether the payload fits in the context window."""
        return self.tokens.total <= self.limits.capacity

    @property
    def summary_tokens(self) -> int:
        """Tokens of the view's summaries and note, before the factor."""
        return view_summary_tokens(self.view, self.resolved.count)

    @property
    def added_tool_tokens(self) -> int:
        """Tokens of tools beyond those in the resolved settings, before the factor."""
        references = self.items.references if self.items is not None else ()
        tokens = self.resolved.tool_tokens(self.tools, references)
        return tokens - self.resolved.raw_fixed.tool_descriptions

    @property
    def added_system_tokens(self) -> int:
        """Tokens of dynamic text and notes beyond the resolved settings, before the factor."""
        resolved = self.resolved
        tokens = resolved.system_tokens(self.system_dynamic_texts)
        tokens += sum(change.tokens for change in self.changes)
        if self.items is not None:
            tokens += self.items.leading_tokens + self.items.tail_tokens
        else:
            tokens += resolved.system_tokens((*self.leading.texts, *self.tail.texts))
        return tokens - resolved.raw_dynamic

    @cached_property
    def tokens(self) -> PayloadTokens:
        """The tokens of the payload: exact once it is rendered, before estimated from entries."""
        resolved = self.resolved
        if self.items is not None:
            conversation, summary = self.items.tokens, self.items.summary_tokens
        else:
            conversation = sum(item.tokens for item in shown_entries(self.entries, self.view))
            summary = self.summary_tokens
        added = self.added_tool_tokens, self.added_system_tokens
        return resolved.tokens(conversation, summary, *added)

    @property
    def policy_tokens(self) -> PayloadTokens:
        """The tokens that are compared with the policy's own context window."""
        resolved, state = self.resolved, self.stored
        if resolved.has_smaller_window:
            tools = agent_tools_tokens(resolved, state)
            return resolved.tokens(state.shown_tokens, state.summary_tokens, tools)
        return self.tokens


@dataclass(frozen=True, slots=True)
class Overflow:
    """No payload fits: it would have to show at least these entries."""

    state: BuildState
    entries: Sequence[Entry]
