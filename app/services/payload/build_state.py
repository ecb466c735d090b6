"""What a build is asked, and what it shows at the moment: the values that its steps hand on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from app.domain.common import json_text
from app.domain.common.messages import FormatName
from app.domain.common.policy import DynamicPosition
from app.domain.compaction.planning import (
    CompactResult,
    as_shortened,
    as_shown,
    own_tools_cost,
    shorten,
    summary_cost,
)
from app.domain.compaction.tool_result_clearing import output_tokens
from app.domain.conversations.epoch import ContextRead
from app.domain.conversations.turns import Entry, entry, never_cleared, pinned_seqs
from app.domain.conversations.view import ShortenedMessage, View
from app.domain.models.budget import Limits, Usage
from app.domain.payload.assembler import PayloadItems
from app.domain.payload.epochs import window_of
from app.domain.payload.service_notes import MAX_ROUNDS, Notes, percent_of
from app.domain.prompt.resolved_settings import (
    NO_PAYLOAD_TOOLS,
    STUB_TOOL,
    PayloadTools,
    RequestSettings,
    ResolvedSettings,
    digest,
)
from app.domain.prompt.sections import NO_TAIL, Tail
from app.domain.tool_output.preview import COMPACT_CONTEXT
from app.services.payload.payload_cache import CachedPayload

SUMMARY_AS_USER = "summary_role_user"
"""The step of a payload whose format has no place for a summary as system text."""
_PASSING = (
    "summariser_unavailable",
    "compaction_pending",
    "tool_deferral",
    "cache_breakpoints",
    SUMMARY_AS_USER,
)
"""Steps that say something about one build, not about what it shows."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a caller holds: the payload of this epoch that ended with this seq (G4).

    Epochs are numbered in each lane; `build_id` tells which one it was.
    """

    epoch: int
    through_seq: int
    build_id: str | None = None


@dataclass(slots=True)
class Build:
    """One build under way: what it was asked, and what it had to do so far.

    It `began` an epoch when no caller has a payload of it yet. It `sheds` all reasoning so far
    where no payload with that fits.
    """

    tenant_id: str
    conversation_id: str
    ask: RequestSettings
    known: Known | None = None
    degraded: list[str] = field(default_factory=list)
    compaction: CompactResult | None = None
    compacts: bool = True
    held: CachedPayload | None = None
    held_epoch_id: str = ""
    began: bool = False
    sheds: bool = False

    def degrade(self, *steps: str) -> None:
        """Name what the payload had to give up, each step once (C4)."""
        self.degraded += [step for step in steps if step not in self.degraded]

    def start_over(self) -> None:
        """Forget the steps that shaped a view: it is looked at anew."""
        self.degraded = [step for step in self.degraded if step in _PASSING]
        self.sheds = False

    @property
    def lasting_steps(self) -> tuple[str, ...]:
        """The steps that shape the view, and so hold for its whole epoch."""
        return tuple(step for step in self.degraded if step not in _PASSING)

    @property
    def key(self) -> tuple[str, ...]:
        """The lane and window of the build: what a folded window is held under."""
        return (
            self.conversation_id,
            self.ask.format,
            self.ask.model or "",
            str(window_of(self.ask)),
        )


@dataclass(slots=True)
class BuildState:
    """What a build shows at the moment: a view with its entries and, once folded, its items.

    `dynamic` are the texts of scratchpad and status; `opening` those of them that stand before
    the history, `tail` those after it, together with the notes.
    """

    read: ContextRead
    resolved: ResolvedSettings
    limits: Limits
    view: View
    entries: list[Entry]
    offer: PayloadTools = NO_PAYLOAD_TOOLS
    dynamic: tuple[str, ...] = ()
    opening: Tail = NO_TAIL
    tail: Tail = NO_TAIL
    notes: Notes = field(default_factory=Notes)
    window: CachedPayload | None = None
    items: PayloadItems | None = None
    excluded: frozenset[int] | None = None

    @property
    def planned(self) -> list[Entry]:
        """The entries with the pins as they are now, each holding its whole call group.

        Results that the policy excludes from clearing are marked, once they are known.
        """
        excluded = self.excluded or frozenset()
        if not (self.read.pins or excluded or self.view.shortened):
            return self.entries
        pins = self.pins
        marked = [
            entry(item.seq, item.role, item.tokens, item.seq in pins, item.seq in excluded)
            for item in self.entries
        ]
        return [*as_shortened(marked, self.view)]

    @property
    def pins(self) -> frozenset[int]:
        """The seqs among the entries that pins hold: results come in after the pin as well."""
        pins = set(self.read.pins)
        return pinned_seqs([replace(item, pinned=item.seq in pins) for item in self.entries])

    @property
    def shown(self) -> list[Entry]:
        """The planned entries at what they cost in this view."""
        return as_shown(self.planned, self.view)

    @property
    def whole(self) -> frozenset[int]:
        """The seqs among the entries that are not cleared: pins and excluded results."""
        return never_cleared(self.planned)

    @property
    def output_tokens(self) -> int:
        """The tool output shown, placeholders left out (F3)."""
        if self.window is not None:
            return self.window.output_tokens
        return sum(output_tokens(item, self.view) for item in self.entries)

    @property
    def system_dynamic(self) -> tuple[str, ...]:
        """The texts that stand at the end of the system prompt although they change (B4)."""
        in_system = self.resolved.policy.dynamic_position is DynamicPosition.SYSTEM
        return (*self.dynamic, *self.notes.texts) if in_system else ()

    @property
    def fixed_texts(self) -> tuple[str, ...]:
        """The dynamic texts that stand before the history: a change of them ends an epoch."""
        return (*self.opening.texts, *self.system_dynamic)

    @property
    def dynamic_hash(self) -> str:
        """What the epoch's record names these texts by, empty without any."""
        return digest(json_text.dumps(self.fixed_texts)) if self.fixed_texts else ""

    def show(self, window: CachedPayload) -> None:
        """Take a folded window as what is shown, as it stands now."""
        self.window, self.entries = window, window.entries
        self.items = window.assembler.items(self.tail)

    def unfold(self) -> None:
        """Forget the folded window: the view is about to change."""
        self.window = self.items = None

    def narrow(self, view: View) -> None:
        """Show another view, which shows no message that this one does not."""
        self.unfold()
        self.view = shorten(view, ())
        self.entries = [item for item in self.entries if view.shows(item.seq)]

    def shorten(self, shorts: Sequence[ShortenedMessage]) -> None:
        """Show less of these messages."""
        self.unfold()
        self.view = shorten(self.view, shorts)

    # --- what it costs --------------------------------------------------------------------

    @property
    def extra_tools(self) -> int:
        """Raw tokens of the tools beyond those that the frame counts."""
        references = self.items.references if self.items is not None else ()
        tokens = self.resolved.tool_tokens(self.offer, references)
        return tokens - self.resolved.raw_fixed.tool_descriptions

    @property
    def extra_system(self) -> int:
        """Raw tokens of dynamic text and notes beyond those that the frame counts."""
        resolved = self.resolved
        tokens = resolved.system_tokens(self.system_dynamic)
        if self.items is not None:
            tokens += self.items.opening_tokens + self.items.tail_tokens
        else:
            tokens += resolved.system_tokens((*self.opening.texts, *self.tail.texts))
        return tokens - resolved.raw_dynamic

    @property
    def usage(self) -> Usage:
        """The usage of the view: exact once it is folded, from its entries before."""
        resolved = self.resolved
        if self.items is not None:
            conversation, summary = self.items.tokens, self.items.summary_tokens
        else:
            conversation = sum(item.tokens for item in as_shown(self.entries, self.view))
            summary = summary_cost(self.view, resolved.count)
        return resolved.usage(conversation, summary, self.extra_tools, self.extra_system)

    @property
    def own_usage(self) -> Usage:
        """The usage that the policy's own window is judged by (decision 13)."""
        resolved, state = self.resolved, self.read.conversation.state
        if resolved.is_reduction:
            return resolved.usage(
                state.shown_tokens, state.summary_tokens, own_tools_cost(resolved, state)
            )
        return self.usage

    # --- its tools and notes --------------------------------------------------------------

    def extra_for(self, format: FormatName, kept: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Return the tools that folded items need besides the caller's, those kept among them.

        They are own tools that items and notes mention (L1), or else a stub where Anthropic
        demands some tool beside calls (A6).
        """
        assert self.items is not None
        mentions = {*self.items.mentions, *self.notes.mentions, *kept}
        own = self.resolved.agent_tools(mentions)
        has_tools = bool(own or self.resolved.tools)
        needs_stub = format is FormatName.ANTHROPIC and self.items.has_calls and not has_tools
        return (STUB_TOOL.name,) if needs_stub else own

    def settle(self, format: FormatName, kept: tuple[str, ...]) -> None:
        """Write the notes for what is folded now, and offer the own tools that it mentions.

        A note that leaves no room for the payload is left out: it would cost what it tells of.
        """
        wanted = kept
        for _ in range(MAX_ROUNDS):  # the tools that a note brings are part of what it tells
            self._note()
            wanted = self.extra_for(format, wanted)
            if wanted == self.offer.extra:
                break
            self.offer = replace(self.offer, extra=wanted)
        if self.notes.percent is not None and self.usage.total > self.limits.capacity:
            self._put_notes(replace(self.notes, percent=None))
            self.offer = replace(self.offer, extra=self.extra_for(format, kept))

    def _note(self) -> None:
        """Write the notes, and the tail with them (G6, H2)."""
        names = COMPACT_CONTEXT in self.resolved.nameable
        self._put_notes(Notes(None, len(self.offer.deferred), names))
        for _ in range(MAX_ROUNDS):
            used = self.usage.total
            if self.notes.percent is None and not self.limits.reached(used, self.limits.notice_at):
                return
            percent = percent_of(used, self.limits)
            if percent == self.notes.percent:
                return
            self._put_notes(replace(self.notes, percent=percent))

    def _put_notes(self, notes: Notes) -> None:
        self.notes = notes
        match self.resolved.policy.dynamic_position:
            case DynamicPosition.TAIL:
                texts: tuple[str, ...] = (*self.dynamic, *notes.texts)
            case DynamicPosition.BEFORE_WINDOW:
                texts = notes.texts
            case DynamicPosition.SYSTEM:
                texts = ()
            case _:
                assert_never(self.resolved.policy.dynamic_position)
        tail = self.resolved.tail(texts)
        if tail != self.tail and self.window is not None:
            self.items = self.window.assembler.items(tail)
        self.tail = tail


def build_state_of(
    read: ContextRead,
    resolved: ResolvedSettings,
    limits: Limits,
    view: View,
    ask: RequestSettings,
    offer: PayloadTools,
) -> BuildState:
    """Return a picture to start from: nothing of the view is known yet."""
    texts = resolved.dynamic(ask)
    build_state = BuildState(read, resolved, limits, view, [], offer, texts)
    match resolved.policy.dynamic_position:
        case DynamicPosition.TAIL:
            build_state.tail = resolved.tail(texts)
        case DynamicPosition.BEFORE_WINDOW:
            build_state.opening = resolved.tail(texts)
        case DynamicPosition.SYSTEM:
            pass
    return build_state
