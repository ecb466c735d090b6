"""The values that the steps of a build pass on. They are immutable: a step returns a new one.

The exception is `rendered`, the cached payload, which builds share and extend.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from app.common import json_text
from app.compaction.reduction import tool_output_tokens
from app.compaction.runs import SUMMARY_SHORT
from app.compaction.service import CompactionService
from app.compaction.summariser import Summariser
from app.context.payload_cache import CachedPayload, PayloadCache
from app.conversations.compaction_results import CompactResult
from app.conversations.conversation import ConversationState
from app.conversations.epochs import BuildInput, Epoch, epoch_start_from, requested_window
from app.conversations.messages.row import LogRow
from app.conversations.observers import UNOBSERVED, Observer
from app.conversations.provider_items import UNAVAILABLE
from app.conversations.sent_media import MEDIA_LEFT_OUT, cut_for
from app.conversations.service_notes import Notes
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.statuses import Statuses
from app.conversations.turns import (
    OPEN_CALLS_SHARE,
    Entry,
    entry,
    marked,
    never_cleared,
    open_call_seqs,
    pinned_seqs,
)
from app.conversations.view import WHOLE_VIEW, MediaCut, ShortenedMessage, View
from app.conversations.views import (
    agent_tools_tokens,
    shortened_entries,
    shown_entries,
    view_summary_tokens,
    with_shortened,
    with_shown_item,
)
from app.conversations.windows.service import ActiveWindows
from app.formats.message import FormatName, Role
from app.models.budget import Limits, Usage
from app.models.media import media_limits
from app.payload.assembler import PayloadItems
from app.policy.policy import DynamicPosition, StrategyName
from app.prompt.resolved_settings import (
    NO_PAYLOAD_TOOLS,
    PayloadTools,
    RequestSettings,
    ResolvedSettings,
    digest,
)
from app.prompt.sections import NO_DYNAMIC_TEXTS, DynamicTexts
from app.repositories import Database

LONG_BUILD_BYTES = 8 * 2**20


@dataclass(slots=True)
class LongBuild:
    """A build's place among the few at once that have read long messages.

    Each takes many times the memory of these messages.
    """

    places: asyncio.Semaphore = field(default_factory=partial(asyncio.Semaphore, 1))
    is_held: bool = False

    async def hold(self, rows: Sequence[LogRow]) -> None:
        """Wait for a place, if these messages are long, and keep it until the build ends."""
        if not self.is_held and sum(len(row.text) for row in rows) > LONG_BUILD_BYTES:
            await self.places.acquire()
            self.is_held = True

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None:
        if self.is_held:
            self.places.release()


@dataclass(frozen=True, slots=True)
class BuildDependencies:
    """The ports and services that build steps call."""

    database: Database
    resolver: SettingsResolver
    summariser: Summariser
    cache: PayloadCache
    active: ActiveWindows
    compaction: CompactionService
    statuses: Statuses
    new_id: Callable[[], str]
    observer: Observer = UNOBSERVED
    long_build: LongBuild = field(default_factory=LongBuild)

    def for_one_build(self) -> BuildDependencies:
        """Return the dependencies of one build."""
        return replace(self, long_build=LongBuild(self.long_build.places))


SUMMARY_AS_USER = "summary_role_user"
"""`degraded`: the format cannot carry the summary as system text."""
REASONING_DROPPED = "reasoning_dropped"
"""`degraded`: reasoning that its own family made is left out of a shown message."""
_DEGRADED_ONE_BUILD = (
    "summariser_unavailable",
    "compaction_pending",
    "tool_deferral",
    "cache_breakpoints",
    SUMMARY_AS_USER,
    SUMMARY_SHORT,
    UNAVAILABLE,
)
"""Values of `degraded` that describe one build. The others describe its view."""


@dataclass(frozen=True, slots=True)
class KnownPayload:
    """The payload that a caller holds: its epoch and the seq of its newest message.

    Epochs are numbered per payload stream; `build_id` identifies the epoch.
    """

    epoch: int
    through_seq: int
    build_id: str | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One pass through the steps: the request, and what earlier passes of the build did.

    A preview neither compacts nor stores anything. With `drops_reasoning` no reasoning so far is
    sent again.
    """

    tenant_id: str
    conversation_id: str
    settings: RequestSettings
    known: KnownPayload | None = None
    degraded: tuple[str, ...] = ()
    compaction: CompactResult | None = None
    may_compact: bool = True
    is_preview: bool = False
    drops_reasoning: bool = False

    @property
    def cache_key(self) -> tuple[str, ...]:
        """The key of the payload cache: the payload stream and the requested context window."""
        settings = self.settings
        window = str(requested_window(settings))
        return self.tenant_id, self.conversation_id, settings.format, settings.model or "", window


@dataclass(frozen=True, slots=True)
class Changed:
    """The view, the pins or the epochs of the conversation changed: the build reads them again."""

    attempt: Attempt


@dataclass(frozen=True)  # without slots, which a cached property does not work with
class BuildState:
    """The view that a build shows, with its entries and, once rendered, its payload items.

    `entries` are the messages of the view with their tokens; they may grow while a cached payload
    does. `dynamic_texts` are those of scratchpad and status: `opening` has those before the
    history, `tail` those after it, with the notes. `excluded_seqs` are the tool results that the
    policy never clears, None until they are read. Reasoning up to `reasoning_floor` is left out,
    because no payload with it fits. `last_epoch` is the newest of this stream and context window.
    `cached_epoch_id` was read with `cached`, which other builds may change meanwhile.
    """

    attempt: Attempt
    input: BuildInput
    resolved: ResolvedSettings
    limits: Limits
    view: View = WHOLE_VIEW
    entries: Sequence[Entry] = ()
    tools: PayloadTools = NO_PAYLOAD_TOOLS
    dynamic_texts: tuple[str, ...] = ()
    opening: DynamicTexts = NO_DYNAMIC_TEXTS
    tail: DynamicTexts = NO_DYNAMIC_TEXTS
    notes: Notes = field(default_factory=Notes)
    rendered: CachedPayload | None = None
    items: PayloadItems | None = None
    excluded_seqs: frozenset[int] | None = None
    degraded: tuple[str, ...] = ()
    reasoning_floor: int = 0
    last_epoch: Epoch | None = None
    cached: CachedPayload | None = None
    cached_epoch_id: str = ""

    @property
    def format(self) -> FormatName:
        """The format of the payload."""
        return self.attempt.settings.format

    @property
    def stored(self) -> ConversationState:
        """The state of the conversation."""
        return self.input.conversation.state

    @property
    def fits(self) -> bool:
        """Whether the payload fits in the context window."""
        return self.usage.total <= self.limits.capacity

    @property
    def has_reasoning(self) -> bool:
        """Whether the rendered payload replays reasoning."""
        return self.rendered is not None and self.rendered.assembler.has_reasoning

    @property
    def lasting_degraded(self) -> tuple[str, ...]:
        """The values of `degraded` that describe the view, and so hold for its whole epoch."""
        return tuple(value for value in self.degraded if value not in _DEGRADED_ONE_BUILD)

    # --- other states ---------------------------------------------------------------------

    def degrade(self, *values: str) -> BuildState:
        """Add values to `degraded`, each once."""
        added = tuple(dict.fromkeys((*self.degraded, *values)))
        return self if added == self.degraded else replace(self, degraded=added)

    def changed(self) -> Changed:
        """Return the attempt to go on with, because the conversation changed."""
        one_build = tuple(value for value in self.degraded if value in _DEGRADED_ONE_BUILD)
        return Changed(replace(self.attempt, degraded=one_build))

    def with_rendered(self, rendered: CachedPayload) -> BuildState:
        """Show a rendered history as it is now."""
        items = rendered.assembler.items(self.tail)
        return replace(self, rendered=rendered, entries=rendered.entries, items=items)

    def with_dynamic_texts(self, texts: tuple[str, ...]) -> BuildState:
        """Show these texts of scratchpad and status where the policy puts them."""
        position, shown = (
            self.resolved.policy.dynamic_position,
            self.resolved.dynamic_texts_of(texts),
        )
        return replace(
            self,
            dynamic_texts=texts,
            opening=shown if position is DynamicPosition.BEFORE_WINDOW else NO_DYNAMIC_TEXTS,
            tail=shown if position is DynamicPosition.TAIL else NO_DYNAMIC_TEXTS,
        )

    def without_rendered(self) -> BuildState:
        """Drop the rendered history, because the view will change."""
        return replace(self, rendered=None, items=None)

    def with_rendered_costs(self) -> BuildState:
        """Drop the rendered history; each entry costs what its rendered items did."""
        costs = self.rendered.assembler.costs_by_seq if self.rendered is not None else {}
        entries = [
            entry(item.seq, item.role, costs[item.seq], joins=item.joins)
            if item.seq in costs
            else item
            for item in self.entries
        ]
        return replace(self.without_rendered(), entries=entries)

    def with_narrower_view(self, view: View) -> BuildState:
        """Show another view, which shows no message that this one hides."""
        entries = [item for item in self.entries if view.shows(item.seq)]
        view = with_shown_item(with_shortened(view, ()))
        return replace(self, rendered=None, items=None, view=view, entries=entries)

    def with_shortened(self, messages: Sequence[ShortenedMessage]) -> BuildState:
        """Show less of these messages."""
        return replace(self, rendered=None, items=None, view=with_shortened(self.view, messages))

    def with_media_cut(self, cut: MediaCut) -> BuildState:
        """Leave out the media up to a cut."""
        view = replace(self.view, media_cut=cut)
        return replace(self.without_rendered(), view=view).degrade(MEDIA_LEFT_OUT)

    def media_cut(self) -> MediaCut | None:
        """Return which media a rendered payload has to leave out, None where it need not."""
        assert self.rendered is not None and self.items is not None
        sent, resolved = self.rendered.assembler.media, self.resolved
        limits = media_limits(resolved.model or "", self.format, self.limits.total)
        if limits is None or not sent:
            return None
        tools = resolved.wire_tools(self.format, self.tools) or b""
        system = (*(section.content for section in resolved.sections), *self.system_dynamic_texts)
        size = sum(map(len, self.items.wire_items)) + len(tools) + sum(map(len, system))
        cut = cut_for(sent, size, limits)
        return cut if cut != self.view.media_cut else None

    def with_less_reasoning(self) -> BuildState | None:
        """Leave out the reasoning of earlier turns, or else of earlier steps, or else all of it.

        The last step keeps its own the longest: its results go back with it. None where there is
        no more to leave out.
        """
        kept = max(self.reasoning_floor, self.view.reasoning_after)
        newest = {item.role: item.seq for item in self.entries}
        floors = (newest.get(Role.USER, 0), newest.get(Role.ASSISTANT, 0) - 1)
        head_seq = self.stored.head_seq
        floor = min((seq for seq in (*floors, head_seq) if seq > kept), default=None)
        return None if floor is None else replace(self.without_rendered(), reasoning_floor=floor)

    # --- agent tools ----------------------------------------------------------------------

    @property
    def may_add_tools(self) -> bool:
        """Whether agent tools may come or go: not in a tool loop, whose prefix that would break."""
        newest = self.entries[-1].role if self.entries else Role.USER
        has_calls = newest is Role.ASSISTANT and bool(self.stored.open_calls)
        in_loop = newest is Role.TOOL or has_calls
        return self.input.epoch is None or not in_loop or bool(self.resolved.agent_tools(()))

    @property
    def last_agent_tools(self) -> tuple[str, ...]:
        """The agent tools of the last epoch."""
        epoch = self.input.epoch
        return epoch_start_from(epoch.start_json).tools.agent_tools if epoch is not None else ()

    @property
    def named_tools(self) -> frozenset[str]:
        """The agent tools that texts of the payload may name."""
        return self.resolved.named_agent_tools(self.tools.agent_tools)

    # --- the entries ----------------------------------------------------------------------

    @property
    def plan_entries(self) -> Sequence[Entry]:
        """The entries for a compaction plan: a pin protects its whole call group.

        Results that the policy excludes from clearing are marked, once `excluded_seqs` is set.
        """
        excluded = self.excluded_seqs or frozenset()
        if not (self.pinned or excluded or self.view.shortened):
            return self.entries
        pins = self.pinned_group_seqs
        entries = [
            marked(item, pinned=item.seq in pins, excluded=item.seq in excluded)
            for item in self.entries
        ]
        return [*shortened_entries(entries, self.view)]

    @property
    def pinned(self) -> tuple[int, ...]:
        """The seqs of pinned messages, of open calls, and of a provider's compaction item.

        A sliding window goes on without open calls.
        """
        seqs, item = self.stored.calls.open.values(), self.view.provider_item
        slides = self.resolved.policy.strategy is StrategyName.SLIDING_WINDOW
        max_tokens = 0 if slides else self.limits.capacity // OPEN_CALLS_SHARE
        open_calls = open_call_seqs(self.entries, seqs, max_tokens)
        return (*self.input.pins, *open_calls, *((item.seq,) if item is not None else ()))

    @property
    def pinned_group_seqs(self) -> frozenset[int]:
        """The seqs of call groups with a pin; a result may have come after the pin."""
        pins = set(self.pinned)
        return pinned_seqs([replace(item, pinned=item.seq in pins) for item in self.entries])

    @property
    def view_entries(self) -> list[Entry]:
        """The same entries with the tokens that they cost in this view."""
        return shown_entries(self.plan_entries, self.view)

    @property
    def never_cleared(self) -> frozenset[int]:
        """The seqs of entries that no clearing touches: pins and excluded results."""
        return never_cleared(self.plan_entries)

    @property
    def output_tokens(self) -> int:
        """The tokens of shown tool output, without placeholders."""
        if self.rendered is not None:
            return self.rendered.output_tokens
        return sum(tool_output_tokens(item, self.view) for item in self.entries)

    # --- dynamic text ---------------------------------------------------------------------

    @property
    def system_dynamic_texts(self) -> tuple[str, ...]:
        """The dynamic texts at the end of the system prompt."""
        in_system = self.resolved.policy.dynamic_position is DynamicPosition.SYSTEM
        return (*self.dynamic_texts, *self.notes.texts) if in_system else ()

    @property
    def texts_before_history(self) -> tuple[str, ...]:
        """The dynamic texts before the history: a change of them ends an epoch."""
        return (*self.opening.texts, *self.system_dynamic_texts)

    @property
    def dynamic_hash(self) -> str:
        """The hash of the dynamic texts before the history, empty without any."""
        texts = self.texts_before_history
        return digest(json_text.dumps(texts)) if texts else ""

    # --- cost -----------------------------------------------------------------------------

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
        if self.items is not None:
            tokens += self.items.opening_tokens + self.items.tail_tokens
        else:
            tokens += resolved.system_tokens((*self.opening.texts, *self.tail.texts))
        return tokens - resolved.raw_dynamic

    @cached_property
    def usage(self) -> Usage:
        """The usage of the view: exact once it is rendered, estimated from its entries before."""
        resolved = self.resolved
        if self.items is not None:
            sealed = round((resolved.sealed_factor - 1) * self.items.sealed_tokens)
            conversation, summary = self.items.tokens + sealed, self.items.summary_tokens
        else:
            conversation = sum(item.tokens for item in shown_entries(self.entries, self.view))
            summary = self.summary_tokens
        return resolved.usage(
            conversation, summary, self.added_tool_tokens, self.added_system_tokens
        )

    @property
    def policy_usage(self) -> Usage:
        """The usage that is compared with the policy's own context window."""
        resolved, state = self.resolved, self.stored
        if resolved.has_smaller_window:
            return resolved.usage(
                state.shown_tokens, state.summary_tokens, agent_tools_tokens(resolved, state)
            )
        return self.usage


@dataclass(frozen=True, slots=True)
class Overflow:
    """No payload fits: it would have to show at least these entries."""

    state: BuildState
    entries: Sequence[Entry]
