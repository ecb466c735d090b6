"""The build: from a conversation to the payload of its next model call (C4, G2, L2).

1. One select reads the head, the settings, the lane's last epoch and the messages it shows.
2. The view of that epoch is used as long as it fits. Otherwise, in this order: compact (only for
   the policy's own window), reduce without a model, refuse with CONTEXT_OVERFLOW. Before that,
   whatever the pressure, too much tool output is cleared (F3).
3. What is counted is what is returned: a view is checked once it is folded, and reduced again
   should it be over.
4. Only the start of an epoch is written (decision 19).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from app.domain.common import json_text
from app.domain.common.errors import (
    Conflict,
    ContextOverflow,
    NotFound,
    ServiceUnavailable,
    ValidationError,
)
from app.domain.common.messages import FormatName, Role
from app.domain.common.policy import CompactionMode, StrategyName
from app.domain.compaction.overflow_recovery import view_after_overflow
from app.domain.compaction.planning import (
    NOTE_TOKENS,
    CompactionInput,
    CompactionPending,
    CompactResult,
    base_view,
    fresh_spans,
    reserve_for,
    room_for,
    shorten,
    shown_cost,
    summary_cost,
    summary_room,
    view_after,
    with_note,
)
from app.domain.compaction.strategies import (
    STRATEGIES,
    CompactionPlan,
    HistoryBudget,
    NoCompaction,
    SlidingCut,
)
from app.domain.compaction.summaries import SummaryRequest
from app.domain.compaction.text_shortening import (
    MIN_TOKENS,
    SHORTENED,
    leveled,
    max_text,
    oversized,
)
from app.domain.compaction.tool_result_clearing import (
    clear_at_least,
    excluded_seqs,
    plan_clearing,
    tool_budget,
)
from app.domain.compaction.truncation import (
    EMERGENCY,
    TRIMMED,
    Truncation,
    newest_request,
    truncate_with_note,
)
from app.domain.conversations.conversation import Conversation, ConversationState
from app.domain.conversations.epoch import ContextRead, Epoch
from app.domain.conversations.log.row import LogRow
from app.domain.conversations.turns import Entry
from app.domain.conversations.view import (
    ENDLESS,
    ShortenedMessage,
    Span,
    Summary,
    View,
    overlap,
    spans_beside,
    spans_through,
)
from app.domain.formats.json_fields import takes_system
from app.domain.formats.reasoning_fields import UNBOUND, accepted_by
from app.domain.models.budget import Limits, Pressure, Usage, measure, read_pressure
from app.domain.models.calibration import Estimate, estimate_of
from app.domain.payload.assembler import Assembler, MisplacedBreakpoint, PayloadItems, StablePoint
from app.domain.payload.assemblers import assembler_for
from app.domain.payload.contributors import Contributor, contributors, overflow_detail, suggestions
from app.domain.payload.epochs import (
    BuildName,
    Start,
    break_reason,
    factor_in,
    keeps_prefix,
    model_in,
    payload_stream_of,
    same_ground,
    start_from,
    window_of,
)
from app.domain.payload.rendering import Payload, Request, render_payload
from app.domain.prompt.resolved_settings import (
    PayloadTools,
    RequestSettings,
    ResolvedSettings,
    check_tools,
    digest,
    takes_all,
)
from app.services.common.observers import UNOBSERVED
from app.services.compaction.paged_summarisation import summarise_paged
from app.services.compaction.summariser import Summariser
from app.services.conversations.active_windows import ActiveWindows
from app.services.payload.build_state import (
    SUMMARY_AS_USER,
    Build,
    BuildState,
    Known,
    build_state_of,
)
from app.services.payload.payload_cache import CachedPayload, PayloadCache
from app.services.ports import Database, Observer
from app.services.prompt.budget_status import BudgetStatus, read_budget
from app.services.prompt.settings_resolver import SettingsResolver
from app.services.tool_output.text_shortening import reader_tokens, shorts_for

_log = logging.getLogger("app.context")

SHED = "reasoning_dropped"
"""The step of a payload that fits only without the reasoning so far."""
NOT_CARRIED = "content_not_carried"
"""The step of a payload with labels; the type of what they stand for follows a colon."""
_MAX_ROUNDS = 6
_MAX_UNKNOWN_TOKENS = 260_000
"""How much a build reads before it knows the window; longer logs are planned from their counts."""
_THREAD_BYTES = 200_000
CompactForBuild = Callable[
    [str, str, RequestSettings, ConversationState, Hashable],
    Awaitable[CompactResult | NoCompaction | CompactionPending | None],
]
"""Compacts a conversation as a build wants it; None says that its view has changed meanwhile.

The last argument stands for all that a plan goes by: log, view, policy, pins.
"""
Cut = Callable[[CompactionInput, View], Awaitable[CompactResult]]
"""Makes the view of an emergency cut what the conversation shows (E6)."""
Status = Callable[[str, Conversation], Awaitable[str | None]]
"""Tells a tenant's conversation what its agent's others are doing, None without any (B4)."""


class Clear(Protocol):
    """Clears tool results as planned; False while a compaction of the conversation runs (F3)."""

    async def __call__(
        self,
        tenant_id: str,
        conversation_id: str,
        request: RequestSettings,
        version: int,
        plan: CompactionPlan,
        spans: tuple[Span, ...] | None = None,
    ) -> bool:
        """Make it what the conversation shows, if the view is still this version."""
        ...


@dataclass(frozen=True, slots=True)
class Built:
    """The answer to a build: the JSON body, payload bytes already rendered."""

    body: dict[str, Any]


class ContextService:
    """Builds payloads and reads budgets."""

    def __init__(
        self,
        database: Database,
        resolver: SettingsResolver,
        summariser: Summariser,
        windows: PayloadCache,
        active: ActiveWindows,
        compact_for_build: CompactForBuild,
        cut: Cut,
        clear: Clear,
        status: Status,
        new_id: Callable[[], str],
        observer: Observer = UNOBSERVED,
    ) -> None:
        self._database = database
        self._frames = resolver
        self._summariser = summariser
        self._windows = windows
        self._active = active
        self._compact_for_build = compact_for_build
        self._cut = cut
        self._clear = clear
        self._status = status
        self._new_id = new_id
        self._observer = observer

    async def budget(self, tenant_id: str, conversation_id: str) -> BudgetStatus | None:
        """Return the budget of the stored settings, None while no window is known."""
        async with self._database.session() as records:
            found = await records.conversations.find(
                tenant_id, conversation_id, self._frames.default_model
            )
        if found is None:
            raise NotFound.conversation(conversation_id)
        found = await self._active.settled(tenant_id, found)
        async with self._database.session() as records:
            return await read_budget(self._frames, records, found)

    async def build(
        self, tenant_id: str, conversation_id: str, ask: RequestSettings, known: Known | None = None
    ) -> Built:
        """Return the payload for the next call of a model (K1), or what is new in it (G4).

        Raises NotFound, ValidationError (no messages, no model), ContextLimitUnknown, or
        ContextOverflow with the budget when no valid payload fits.
        """
        return await self._built(Build(tenant_id, conversation_id, ask, known))

    async def _built(self, build: Build) -> Built:
        for _ in range(_MAX_ROUNDS):
            build_state = await self._look(build)
            if await self._cleared(build, build_state):
                continue
            if (
                build_state.window is None
                and build_state.usage.total <= build_state.limits.capacity
            ):
                await self._refold(build, build_state)  # so that pressure is judged by what is sent
            if build_state.items is not None:
                build_state.settle(
                    build.ask.format, build_state.offer.extra
                )  # pressure counts the notes
            await self._shorten_oversized(build, build_state)
            if await self._compacted(build, build_state):
                continue
            await self._reduce(build, build_state)
            if await self._fold(build, build_state):
                return await self._answer(build, build_state)
        raise Conflict("The conversation changes too fast to build on; try again")

    async def overflow(
        self, tenant_id: str, conversation_id: str, ask: RequestSettings
    ) -> tuple[CompactResult, Built]:
        """Cut what the provider found too long, and build anew; no model is asked (E6).

        What is cut is counted from the payload this lane got last, so that each call makes it
        smaller. Raises what `build` does, and ContextOverflow when nothing can be cut any more.
        """
        for _ in range(_MAX_ROUNDS):
            build = Build(tenant_id, conversation_id, ask)
            build_state = await self._look(build)
            situation = CompactionInput(
                tenant_id,
                build_state.read.conversation,
                build_state.resolved,
                build_state.view,
                tuple(build_state.planned),
            )
            most = _most_after(situation, build_state.limits)
            view = await self._shorter(build, build_state, situation, most)
            if view is None:
                raise await self._overflow(build_state, build_state.shown)
            try:
                result = await self._cut(situation, view)
            except Conflict:
                continue
            build = Build(tenant_id, conversation_id, ask, compacts=False)
            return result, await self._built(build)
        raise Conflict("The conversation changes too fast to cut; try again")

    async def _shorter(
        self, build: Build, build_state: BuildState, situation: CompactionInput, most_tokens: int
    ) -> View | None:
        """Return the view of an emergency: turns go first, but not for one text that is too large.

        A text that takes more than all the rest gives way to half of itself before turns go, and
        where no turn is left to go (E6).
        """
        largest = max_text(build_state.shown)
        view = None
        for comes_first in (True, False):
            rest = sum(item.tokens for item in build_state.shown)
            if largest is not None and (not comes_first or 2 * largest.tokens > rest):
                view = await self._halved(build, build_state, largest)
                if view is not None and situation.tokens_in(view) <= most_tokens:
                    return view
            if comes_first and (view := view_after_overflow(situation, most_tokens)) is not None:
                return view
        return None

    async def _halved(self, build: Build, build_state: BuildState, largest: Entry) -> View | None:
        """Return the view with half of a text, None where it is small or no text is large."""
        policy = build_state.resolved.policy.messages
        if largest.tokens < 2 * MIN_TOKENS or not policy.offload_oversized:
            return None
        shorts = await self._shorts(build, build_state, {largest.seq: largest.tokens // 2})
        return shorten(build_state.view, shorts) if shorts else None

    async def _overflow(self, build_state: BuildState, entries: Sequence[Entry]) -> ContextOverflow:
        """Return the refusal of a payload that shows at least these entries."""
        conversation_id, resolved = (
            build_state.read.conversation.conversation_id,
            build_state.resolved,
        )
        summary = summary_cost(build_state.view, resolved.count)
        conversation = sum(item.tokens for item in entries)
        usage = resolved.usage(
            conversation, summary, build_state.extra_tools, build_state.extra_system
        )
        largest = contributors(resolved, build_state.offer, usage, entries)
        seqs = [part.seq for part in largest if part.seq]
        ids: Mapping[int, str] = {}
        if seqs:
            async with self._database.session() as records:
                ids = await records.log.ids(conversation_id, seqs)
        return _refusal(resolved, build_state.limits, usage, largest, ids)

    # --- reading --------------------------------------------------------------------------

    async def _look(self, build: Build) -> BuildState:
        """Read the conversation and settle the view to start from."""
        build.start_over()
        read = await self._read(build)
        if read.conversation.is_outdated(self._active.now()):
            await self._active.settled(build.tenant_id, read.conversation)
            read = await self._read(build)
        if not read.conversation.state.shown_messages:
            where = " in its active window" if read.conversation.state.head_seq else ""
            raise ValidationError(f"Conversation has no messages{where}")
        prior = _prior(read, build.ask)
        start = start_from(prior.start_json) if prior is not None else None
        resolved = await self._frame(build, read, start)
        if resolved.model is None:
            raise ValidationError.at(
                "/model", "No model: name one in the request, the conversation or its agent"
            )
        if resolved.derives_status(build.ask):
            status = await self._status(build.tenant_id, read.conversation)
            build.ask = replace(build.ask, status=status)
        limits = resolved.required_limits()
        check_tools(resolved, build.ask.format)
        fixed = resolved.usage(0, 0, extra_system=-resolved.raw_dynamic)
        if fixed.total >= limits.capacity:
            deferred = resolved.deferral(build.ask.format)
            raise _refusal(
                resolved,
                limits,
                fixed,
                contributors(resolved, PayloadTools((), deferred), fixed, ()),
                {},
            )
        if read.compacted_for is not None and read.compacted_for != resolved.policy.strategy:
            await self._drop_state(read)
            return await self._look(build)
        state = read.conversation.state
        kept: PayloadTools | None = None
        if (
            prior
            and start
            and same_ground(prior, start, resolved, limits, state.view_version)
            and all(start.view.shows(seq) and not start.view.trims(seq) for seq in read.pins)
        ):
            view = start.view
            if prior.tools_hash == resolved.tools_hash:
                kept = start.offer
            build.degrade(*start.degraded)
        else:
            read = await self._with_view(read)
            view = base_view(state, read.view, resolved.policy)
            view = replace(view, reasoning_of=resolved.takes_reasoning_of(build.ask.format))
            if prior and start and _slides_on(prior, start, read, resolved, limits):
                view = replace(view, spans=start.view.spans)
        if view.shortened:
            build.degrade(SHORTENED)
        offer = await self._offer(build, read, resolved, kept)
        build_state = build_state_of(read, resolved, limits, view, build.ask, offer)
        await self._gather(build, build_state, prior)
        if resolved.policy.strategy is StrategyName.SLIDING_WINDOW:
            _slide(build_state)
        return build_state

    async def _frame(
        self, build: Build, read: ContextRead, start: Start | None
    ) -> ResolvedSettings:
        """Return the frame, counting by the epoch's factor as long as that is near (J3)."""
        calibration = read.conversation.calibration
        current = calibration.rounded.factor if calibration is not None else 1.0
        factor = factor_in(start, current) if start is not None else None
        return await self._frames.of(read.conversation, build.ask, factor)

    async def _offer(
        self, build: Build, read: ContextRead, resolved: ResolvedSettings, kept: PayloadTools | None
    ) -> PayloadTools:
        """Return what becomes of the tools: as before in an epoch, else by their use (H1).

        A tool that a search has found in this turn is shown, which ends the epoch (H2).
        """
        state, format = read.conversation.state, build.ask.format
        promoted = state.promoted_now
        if kept is not None and not set(promoted).intersection(kept.deferred):
            return kept
        extra = kept.extra if kept is not None else ()
        deferred = resolved.deferral(format, promoted=promoted)
        if deferred:
            try:
                async with self._database.session() as records:
                    last_used = await records.log.last_used(build.conversation_id)
                deferred = resolved.deferral(format, last_used, promoted)
            except ServiceUnavailable:
                build.degrade("tool_deferral")
                deferred = () if takes_all(resolved, format) else deferred
        return PayloadTools(extra, deferred, bool(deferred) and resolved.defers_natively(format))

    async def _read(self, build: Build) -> ContextRead:
        # Rows held are not read, so the rest of the build must go by this window and this epoch,
        # whatever other builds keep or rename meanwhile.
        window = build.held = self._windows.find(build.key)
        build.held_epoch_id = window.epoch_id if window else ""
        async with self._database.session() as records:
            read = await records.contexts.read(
                build.tenant_id,
                build.conversation_id,
                format=build.ask.format,
                model=build.ask.model,
                default_model=self._frames.default_model,
                window=window_of(build.ask),
                have_epoch_id=window.epoch_id if window else None,
                have_start=window.start_json if window else None,
                have_through=window.assembler.folded_through if window else 0,
                most_tokens=_MAX_UNKNOWN_TOKENS,
            )
        if read is None:
            self._windows.drop(build.key)
            raise NotFound.conversation(build.conversation_id)
        return read

    async def _with_view(self, read: ContextRead) -> ContextRead:
        """Read the active view, which comes with the epoch's frame as long as that holds."""
        conversation = read.conversation
        if read.view is not None or conversation.state.compaction_id is None:
            return read
        async with self._database.session() as records:
            receipt = await records.contexts.find_compaction(
                conversation.conversation_id, conversation.state.compaction_id
            )
        return replace(read, view=receipt.view if receipt is not None else None)

    async def _drop_state(self, read: ContextRead) -> None:
        """Show everything again: another strategy made the active summary (D6)."""
        conversation = read.conversation
        async with self._database.session() as records:
            await records.contexts.hide_compaction(
                conversation.conversation_id, conversation.state.view_version
            )

    async def _gather(self, build: Build, build_state: BuildState, prior: Epoch | None) -> None:
        """Get the entries of the view and, where they were read with it, its folded window."""
        read, view, window = build_state.read, build_state.view, build.held
        state = read.conversation.state
        # Only what was shown by the same view goes on from rows in hand.
        warm = (
            prior is not None
            and build.held_epoch_id == prior.epoch_id
            and prior.view_version == state.view_version
        )
        if warm and window is not None and window.view == view and _fits(window, build_state):
            self._extend(window, read.rows)
            build_state.show(window)
            return
        spans = _read_spans(read, prior)
        if read.rows_read and not warm and _covers(spans, view.spans):
            rows = [row for row in read.rows if view.shows(row.seq)]
            # What was read without its text gave way in the view it was read for.
            if all(row.text or view.trims(row.seq) for row in rows):
                build_state.show(await self._folded(build, build_state, rows))
                return
        build_state.entries = await self._entries(build, view, read)

    async def _entries(self, build: Build, view: View, read: ContextRead) -> list[Entry]:
        found: list[Entry] = []
        async with self._database.session() as records:
            for span in spans_through(view.spans, read.conversation.state.head_seq):
                found += await records.log.entries(build.conversation_id, span.start, span.end)
        return found

    def _extend(self, window: CachedPayload, rows: list[LogRow]) -> None:
        """Fold what came since; another build on the same lane may have been first."""
        for row in rows:
            if row.seq > window.assembler.folded_through and window.view.shows(row.seq):
                window.feed(row)

    # --- clearing -------------------------------------------------------------------------

    async def _cleared(self, build: Build, build_state: BuildState) -> bool:
        """Clear tool output over its budget; true when the view changed (F3)."""
        resolved, limits = build_state.resolved, build_state.resolved.judging_limits()
        policy = resolved.policy.tool_output
        if not policy.enabled or resolved.policy.strategy is StrategyName.FULL_HISTORY:
            return False
        budget = tool_budget(policy, limits.total)
        if build_state.output_tokens <= budget or _is_suspended(build_state, limits):
            return False
        await self._exclude(build, build_state)
        least = clear_at_least(policy, limits.total)
        plan = plan_clearing(build_state.planned, build_state.view, budget, least)
        if isinstance(plan, NoCompaction):
            return False
        slides = resolved.policy.strategy is StrategyName.SLIDING_WINDOW
        return await self._clear(
            build.tenant_id,
            build.conversation_id,
            build.ask,
            build_state.read.conversation.state.view_version,
            plan,
            build_state.view.spans if slides else None,
        )

    async def _exclude(self, build: Build, build_state: BuildState) -> None:
        """Learn which of the results shown are never cleared; a window keeps their tools' names."""
        tools = build_state.resolved.policy.tool_output.exclude_tools
        if not tools or build_state.excluded is not None:
            return
        window = build_state.window
        names = window.tool_names if window is not None else {}
        after = window.named_through if window is not None else 0
        build_state.entries = list(
            build_state.entries
        )  # a window may grow while the names are read
        last = build_state.entries[-1].seq if build_state.entries else 0
        shown = [Span(max(span.start, after + 1), span.end) for span in build_state.view.spans]
        if missing := spans_through(shown, last):
            async with self._database.session() as records:
                for span in missing:
                    names.update(
                        await records.log.tool_names(build.conversation_id, span.start, span.end)
                    )
        if window is not None:
            window.named_through = max(window.named_through, last)
        build_state.excluded = excluded_seqs(build_state.entries, build_state.view, names, tools)

    # --- reducing -------------------------------------------------------------------------

    async def _compacted(self, build: Build, build_state: BuildState) -> bool:
        """Compact when the pressure asks for it; true when the view changed (C3, E6)."""
        resolved, limits = build_state.resolved, build_state.resolved.policy_limits
        policy = resolved.policy.compaction
        if not build.compacts or limits is None or not policy.enabled:
            return False
        if STRATEGIES[resolved.policy.strategy].trigger(resolved.policy) is None:
            return False
        state = build_state.read.conversation.state
        usage = build_state.own_usage
        level = read_pressure(usage.total, limits).pressure
        forced = level is Pressure.BLOCKED or usage.total > limits.capacity
        inline = policy.mode is CompactionMode.INLINE and state.tokens >= state.resume_at
        wanted = (Pressure.DUE, Pressure.COMPACT) if inline else (Pressure.COMPACT,)
        if not forced and (level not in wanted or not policy.auto):
            return False
        build.compacts = False
        try:
            result = await self._compact_for_build(
                build.tenant_id,
                build.conversation_id,
                build.ask,
                state,
                (state.head_seq, state.view_version, resolved.policy_hash, build_state.read.pins),
            )
        except (ServiceUnavailable, ValidationError):
            build.degrade("summariser_unavailable")
            return False
        if isinstance(result, CompactionPending):
            build.degrade("compaction_pending")
            return False
        if isinstance(result, NoCompaction):
            return False
        if result is None:
            build.compacts = True
            return True
        build.compaction = result
        build.degrade(*result.degraded)
        return True

    async def _reduce(self, build: Build, build_state: BuildState) -> None:
        """Make the view fit by steps that need no model (C4, decision 13)."""
        if build_state.usage.total <= build_state.limits.capacity:
            return
        await self._reduce_or_shed(build, build_state, 0, _has_reasoning(build_state))

    async def _reduce_or_shed(
        self, build: Build, build_state: BuildState, overshoot: int, has_reasoning: bool
    ) -> None:
        """Make the view fit; where that fails, leave out all reasoning so far.

        A payload without reasoning is better than none.
        """
        try:
            await self._reduce_to(build, build_state, overshoot)
        except ContextOverflow:
            if build.sheds or not has_reasoning:
                raise
            build.sheds = True
            build.degrade(SHED)
            build_state.unfold()

    async def _reduce_to(self, build: Build, build_state: BuildState, overshoot: int) -> None:
        policy = build_state.resolved.policy
        if policy.strategy is StrategyName.FULL_HISTORY or not policy.compaction.enabled:
            if not await self._level(
                build, build_state, build_state.planned, overshoot, only_large=True
            ):
                raise await self._overflow(build_state, build_state.shown)
            return
        await self._exclude(build, build_state)
        build_state.unfold()
        room = self._room(build_state, overshoot)
        plan = STRATEGIES[policy.strategy].plan(
            build_state.shown, build_state.view.hidden, room, policy, failures=0
        )
        if isinstance(plan, CompactionPlan):
            await self._apply(build, build_state, plan)
            room = self._room(build_state, overshoot)
        fitted = _fitted(build_state, room)
        if fitted is None and await self._level(
            build, build_state, _staying(build_state), overshoot
        ):
            fitted = _fitted(build_state, room)
        if fitted is None:
            if not await self._newest_only(build, build_state, overshoot):
                raise await self._overflow(build_state, _staying(build_state) or build_state.shown)
            return
        build.degrade(*fitted.steps)
        through = fitted.trimmed_through
        view = replace(
            build_state.view,
            trimmed_through=through,
            untrimmed=tuple(sorted(seq for seq in build_state.whole if seq <= through)),
        )
        if fitted.shown is not None:
            view = with_note(replace(view, spans=overlap(fitted.shown, view.window)))
        build_state.narrow(view)

    async def _newest_only(self, build: Build, build_state: BuildState, overshoot: int) -> bool:
        """Show the newest user message and the pins alone, where a summary hid that message (E6).

        False when it is shown already, or does not fit either.
        """
        window = build_state.view.window
        log = await self._entries(build, View(spans=window), build_state.read)
        newest = next((item for item in reversed(log) if item.role is Role.USER), None)
        if newest is None or build_state.view.shows(newest.seq):
            return False
        left = [item for item in log if item is newest or item.pinned]
        hidden = Span(1, log[-1].seq + 1)
        spans = spans_beside(hidden, [item.seq for item in left], window)
        before = build_state.view, build_state.entries
        build_state.unfold()
        build_state.view, build_state.entries = (
            with_note(replace(build_state.view, spans=spans)),
            left,
        )
        if not self._holds(build_state, overshoot):
            await self._level(build, build_state, build_state.shown, overshoot)
        if self._holds(build_state, overshoot):
            build.degrade(EMERGENCY)
            return True
        build_state.view, build_state.entries = before
        return False

    def _holds(self, build_state: BuildState, overshoot: int) -> bool:
        """Whether what the picture shows fits, by the counts of its entries."""
        room = self._room(build_state, overshoot)
        left = replace(room, summary=summary_cost(build_state.view, build_state.resolved.count))
        return left.holds(sum(item.tokens for item in build_state.shown))

    # --- shortening -----------------------------------------------------------------------

    async def _shorten_oversized(self, build: Build, build_state: BuildState) -> None:
        """Shorten the messages that would not fit beside a summary of everything else.

        It comes before a compaction, so that the pressure is judged by what is sent.
        """
        if build_state.usage.total <= build_state.limits.capacity:
            return
        room = self._room(build_state, reader_tokens(build_state.resolved, build_state.offer.extra))
        left = room.capacity - room.fixed - room.summary
        await self._show_short(build, build_state, oversized(build_state.planned, left))

    async def _level(
        self,
        build: Build,
        build_state: BuildState,
        entries: Sequence[Entry],
        overshoot: int,
        *,
        only_large: bool = False,
    ) -> bool:
        """Shorten the largest of these messages so that they fit alone, if that is possible.

        With `only_large` no message gives way that takes less than half of what there is.
        """
        room = self._room(build_state, overshoot)
        left = (
            room.capacity - room.fixed - summary_cost(build_state.view, build_state.resolved.count)
        )
        left -= NOTE_TOKENS + reader_tokens(build_state.resolved, build_state.offer.extra)
        movable = None
        if only_large:
            short = {item.seq for item in build_state.view.shortened}
            movable = {item.seq for item in entries if 2 * item.tokens > left} | short
        return await self._show_short(build, build_state, leveled(entries, left, movable))

    async def _show_short(
        self, build: Build, build_state: BuildState, costs: Mapping[int, int]
    ) -> bool:
        """Show less of the messages with these seqs; false where none can be shortened."""
        if not costs or not build_state.resolved.policy.messages.offload_oversized:
            return False
        shorts = await self._shorts(build, build_state, costs)
        if shorts:
            build.degrade(SHORTENED)
            build_state.shorten(shorts)
        return bool(shorts)

    async def _shorts(
        self, build: Build, build_state: BuildState, costs: Mapping[int, int]
    ) -> list[ShortenedMessage]:
        as_chat = build.ask.format is FormatName.OPENAI_CHAT
        return await shorts_for(
            self._database, build.conversation_id, costs, build_state.resolved, as_chat=as_chat
        )

    def _room(self, build_state: BuildState, overshoot: int) -> HistoryBudget:
        resolved, limits = build_state.resolved, build_state.limits
        now = summary_cost(build_state.view, resolved.count)
        reserve = max(reserve_for(StrategyName.SANDWICH, limits), now)
        fixed = resolved.raw_fixed.fixed + build_state.extra_tools + build_state.extra_system
        room = room_for(limits, resolved.policy, fixed, reserve, resolved.factor)
        return replace(room, capacity=room.capacity - overshoot, summary_now=now)

    async def _apply(self, build: Build, build_state: BuildState, plan: CompactionPlan) -> None:
        """Reduce this lane as planned, its summary extractive and stored with its epoch alone."""
        view, resolved = build_state.view, build_state.resolved
        summaries, retain = view.summaries, view.retain
        if plan.hidden is not None and plan.summarises:
            span = plan.hidden
            result = await summarise_paged(
                self._database,
                self._summariser,
                build.conversation_id,
                fresh_spans(span, view.summarised, plan.released, view.window),
                "\n\n".join(summary.text for summary in summaries) or None,
                SummaryRequest(),
                None,
                summary_room(build_state.limits),
                self._summariser.effort(build.tenant_id),
                kept_seqs=frozenset(plan.kept),
            )
            summaries = (Summary(span, result.text, shown_cost(result.text, resolved.count)),)
            build.degrade("extractive_summary")
            if plan.shrunk:
                build.degrade("preserved_ranges_summarised")
        if plan.trimmed_through > view.trimmed_through:
            build.degrade(TRIMMED)
        build_state.narrow(view_after(view, plan, summaries, retain, build_state.whole))

    # --- folding --------------------------------------------------------------------------

    async def _fold(self, build: Build, build_state: BuildState) -> bool:
        """Fold the view into items and record its epoch; false when another build was first."""
        last = build_state.read.epoch
        for _ in range(_MAX_ROUNDS):
            start, reason, kept = self._start(build, build_state, last)
            if build_state.window is None or build_state.window.view != start.view:
                build_state.view = start.view
                await self._refold(build, build_state)
            assert build_state.window is not None
            build_state.settle(build.ask.format, kept)
            if (build_state.offer, build_state.dynamic_hash) != (start.offer, start.dynamic):
                continue  # now that it is folded, it tells what it starts with
            folded = build_state.usage.total
            if folded <= build_state.limits.capacity:
                return await self._record(build, build_state, start, reason, last)
            # Plans go by the entries' counts, which the folded items exceed by so much.
            has_reasoning = _has_reasoning(build_state)
            build_state.unfold()
            exceeds = folded - build_state.usage.total
            await self._reduce_or_shed(build, build_state, exceeds + 16, has_reasoning)
        raise await self._overflow(build_state, build_state.shown)

    def _start(
        self, build: Build, build_state: BuildState, last: Epoch | None
    ) -> tuple[Start, str | None, tuple[str, ...]]:
        """Return what the epoch of this payload starts from, and why it is not the last one.

        With it come the own tools that the last one had and that stay.
        """
        state = build_state.read.conversation.state
        before = start_from(last.start_json) if last is not None else None
        if last is None or before is None:
            after = self._fresh_start(build, build_state, ())
            reason = "model_changed" if build_state.read.other_lanes else None
            is_bound = after.view.is_whole and not (
                _others_thought(build, build_state) or build.sheds
            )
        else:
            kept = before.offer.extra
            after = self._fresh_start(build, build_state, kept)
            pins = build_state.read.pins
            changes = (last, before, after, build_state.resolved, state, window_of(build.ask), pins)
            reason = break_reason(*changes)
            if reason is None and not build.sheds:
                return before, None, kept
            if keeps_prefix(*changes) and not build.sheds:
                same = before.view.reasoning_after, before.view.reasoning_of
                return _bound(after, *same), reason, kept
            after = self._fresh_start(build, build_state, ())
            reason = reason or SHED
            is_bound = False
        least = before.view.reasoning_after if before is not None else 0
        reasoning_after = 0 if is_bound else max(least, _reasoning_after(build, build_state))
        accepts = build_state.resolved.takes_reasoning_of(build.ask.format)
        return _bound(after, reasoning_after, accepts), reason, ()

    def _fresh_start(self, build: Build, build_state: BuildState, kept: tuple[str, ...]) -> Start:
        """Return what an epoch would start from that begins now."""
        extra = kept
        if build_state.items is not None:
            extra = build_state.extra_for(build.ask.format, kept)
        return Start(
            build_state.view,
            build_state.limits.total,
            build_state.limits.max_output_tokens,
            replace(build_state.offer, extra=extra),
            build.lasting_steps,
            build_state.resolved.factor,
            build_state.dynamic_hash,
        )

    async def _refold(self, build: Build, build_state: BuildState) -> None:
        view, head_seq = build_state.view, build_state.read.conversation.state.head_seq
        rows: list[LogRow] = []
        as_chat = build.ask.format is FormatName.OPENAI_CHAT
        async with self._database.session() as records:
            for span in spans_through(view.spans, head_seq):
                rows += await records.contexts.rows(
                    build.conversation_id,
                    span.start,
                    span.end,
                    as_chat=as_chat,
                    trimmed_through=view.trimmed_through,
                    untrimmed=view.untrimmed,
                )
        build_state.show(await self._folded(build, build_state, rows))

    async def _folded(
        self, build: Build, build_state: BuildState, rows: list[LogRow]
    ) -> CachedPayload:
        """Fold a view from its rows; large ones in a thread, off the event loop."""
        if sum(len(row.text) for row in rows) > _THREAD_BYTES:
            return await asyncio.to_thread(_fold_rows, build.ask.format, build_state, rows)
        return _fold_rows(build.ask.format, build_state, rows)

    async def _record(
        self,
        build: Build,
        build_state: BuildState,
        start: Start,
        reason: str | None,
        last: Epoch | None,
    ) -> bool:
        """Write the epoch's start unless it is the last one's; keep the window for later."""
        window, read = build_state.window, build_state.read
        assert window is not None
        if last is not None and reason is None:
            epoch = last
        else:
            epoch = self._epoch(build, build_state, start, reason, last)
            async with self._database.session() as records:
                if not await records.contexts.add_epoch(
                    build.conversation_id, epoch, start.view, _texts(build_state)
                ):
                    return False
            build.began = True
        window.epoch_id, window.start_json = epoch.epoch_id, epoch.start_json
        build_state.read = replace(read, epoch=replace(epoch, reason=reason))
        self._windows.keep(build.key, window)
        return True

    def _epoch(
        self,
        build: Build,
        build_state: BuildState,
        start: Start,
        reason: str | None,
        last: Epoch | None,
    ) -> Epoch:
        resolved, state = build_state.resolved, build_state.read.conversation.state
        return Epoch(
            epoch=last.epoch + 1 if last is not None else 1,
            epoch_id=self._new_id(),
            payload_stream=payload_stream_of(build.ask, resolved.model or ""),
            format=build.ask.format,
            window=window_of(build.ask),
            reason=reason,
            start_seq=state.head_seq,
            view_version=state.view_version,
            start_json=start.as_json(),
            sections_hash=resolved.sections_hash,
            tools_hash=resolved.tools_hash,
            policy_hash=resolved.policy_hash,
        )

    # --- answering ------------------------------------------------------------------------

    async def _answer(self, build: Build, build_state: BuildState) -> Built:
        window, epoch, read = build_state.window, build_state.read.epoch, build_state.read
        items = build_state.items
        assert window is not None and items is not None and epoch is not None
        usage = build_state.usage
        through_seq = max(items.folded_through, read.conversation.state.head_seq)
        known = None if build.began else _point_of(build.known, epoch, window, through_seq)
        request = Request(
            build.ask.format,
            build_state.offer,
            build.conversation_id,
            build_state.system_dynamic,
            known,
        )
        payload = _rendered(request, build_state.resolved, items)
        build.degrade(*payload.degraded)
        view = window.view
        if view.summary_as_system and view.summary_texts() and not takes_system(build.ask.format):
            build.degrade(SUMMARY_AS_USER)
        given_up = bool(build.degraded)
        build.degrade(*(f"{NOT_CARRIED}:{kind}" for kind in items.not_carried))
        pressure = read_pressure(usage.total, build_state.limits)
        body = {
            "format": build.ask.format,
            "payload": payload.body,
            "build_id": await self._build_id(build, build_state, epoch, through_seq),
            "epoch": epoch.epoch,
            "through_seq": through_seq,
            "stable_items": payload.stable_items,
            "base_items": payload.base_items,
            "prefix_hash": payload.prefix_hash,
            "cache_break_reason": epoch.reason,
            "breakpoints": payload.breakpoints,
            "tail": payload.tail,
            "tokens_used": usage.total,
            "budget": measure(usage, build_state.limits),
            "pressure": pressure.pressure,
            "notice": pressure.notice,
            "next_threshold": pressure.next_threshold,
            "tokens_to_next": pressure.tokens_to_next,
            "estimate": _estimate(build_state),
            "summary_used": bool(window.view.summaries),
            "new_state": _new_state(build, build_state),
            "compaction": build.compaction,
            "degraded": build.degraded,
            "deferred_tools": len(build_state.offer.deferred),
            "defers_natively": build_state.offer.native,
            "delta": payload.is_delta,
        }
        self._observer.built(
            build.ask.format,
            pressure.pressure,
            is_delta=payload.is_delta,
            is_degraded=given_up,
        )
        return Built(body)

    async def _build_id(
        self, build: Build, build_state: BuildState, epoch: Epoch, through_seq: int
    ) -> str:
        """Name the build; what its tail says is kept, once for builds that say the same (I6)."""
        texts, window = build_state.tail.texts, build_state.window
        if not texts or window is None:
            return BuildName(epoch.epoch_id, through_seq).build_id
        body = json_text.dumps(texts)
        name = digest(body)
        if window.kept_tail != name:
            async with self._database.session() as records:
                await records.contexts.add_text(build.conversation_id, name, body)
            window.kept_tail = name
        return BuildName(epoch.epoch_id, through_seq, name).build_id


def _fitted(build_state: BuildState, room: HistoryBudget) -> Truncation | None:
    """Return the smallest reduction without a model that makes a picture fit, None without any."""
    summary = summary_cost(build_state.view, build_state.resolved.count)
    return truncate_with_note(
        build_state.planned,
        build_state.view.trimmed_through,
        replace(room, summary=summary),
        NOTE_TOKENS,
        build_state.view.hidden,
    )


def _staying(build_state: BuildState) -> list[Entry]:
    """Return what no reduction drops, at what it costs: the newest user message and the pins."""
    shown = build_state.shown
    newest, pins = newest_request(shown), build_state.pins
    return [item for item in shown if item is newest or item.seq in pins]


def _prior(read: ContextRead, ask: RequestSettings) -> Epoch | None:
    """Return the lane's newest epoch of this request's window (decision 0005)."""
    prior = read.window_epoch or read.epoch
    return prior if prior is not None and prior.window == window_of(ask) else None


def _read_spans(read: ContextRead, prior: Epoch | None) -> tuple[Span, ...]:
    """Return the spans whose rows the select read; it follows the same rule (see READ)."""
    state = read.conversation.state
    if prior is not None and prior.view_version == state.view_version:
        view = start_from(prior.start_json).view
        return view.spans if len(view.window) == 1 else view.spans[-1:]
    window = (Span(state.window.since, ENDLESS),)
    return spans_beside(state.span, state.kept, window)


def _covers(have: tuple[Span, ...], want: tuple[Span, ...]) -> bool:
    return all(
        any(part.start <= span.start and span.end <= part.end for part in have) for span in want
    )


def _fold_rows(format: FormatName, build_state: BuildState, rows: list[LogRow]) -> CachedPayload:
    """Fold all rows of a view into a fresh window."""
    resolved = build_state.resolved
    assembler: Assembler = assembler_for(
        format,
        build_state.view,
        resolved.count,
        resolved.nameable,
        build_state.opening,
        resolved.defined(build_state.offer),
    )
    window = CachedPayload("", "", build_state.view, assembler)
    for row in rows:
        window.feed(row)
    assembler.finish()
    return window


def _fits(window: CachedPayload, build_state: BuildState) -> bool:
    """Whether a folded window says what this request wants said besides the messages."""
    resolved, assembler = build_state.resolved, window.assembler
    return (
        assembler.tools == resolved.nameable
        and assembler.opening == build_state.opening
        and assembler.defined == resolved.defined(build_state.offer)
    )


def _point_of(
    known: Known | None, epoch: Epoch, window: CachedPayload, through_seq: int
) -> StablePoint | None:
    """Return where a caller's copy ends, None for one that is not of this epoch (decision 18)."""
    if known is None or known.epoch != epoch.epoch:
        return None
    if known.build_id is not None and not known.build_id.startswith(f"{epoch.epoch_id}."):
        return None
    if not epoch.start_seq <= known.through_seq <= through_seq:
        return None
    return window.assembler.point_at(known.through_seq)


def _estimate(build_state: BuildState) -> Estimate:
    """Tell how the payload was counted (J3)."""
    conversation, resolved = build_state.read.conversation, build_state.resolved
    return estimate_of(
        build_state.usage.total,
        conversation.counter,
        resolved.factor,
        build_state.limits.margin,
        conversation.calibration,
    )


def _rendered(request: Request, resolved: ResolvedSettings, items: PayloadItems) -> Payload:
    try:
        return render_payload(request, resolved, items)
    except MisplacedBreakpoint:
        _log.exception("cache_marks_failed")
        return render_payload(request, resolved, items, marked=False)


def _bound(start: Start, reasoning_after: int, reasoning_of: tuple[str, ...]) -> Start:
    """Return a start whose payloads replay the reasoning after this seq alone, of these makers."""
    view = replace(start.view, reasoning_after=reasoning_after, reasoning_of=reasoning_of)
    return replace(start, view=view)


def _has_reasoning(build_state: BuildState) -> bool:
    return build_state.window is not None and build_state.window.assembler.has_reasoning


def _others_thought(build: Build, build_state: BuildState) -> bool:
    """Whether another model may have made the reasoning that this lane would replay."""
    lanes, format = build_state.read.other_lanes, build.ask.format
    if format is not FormatName.OPENAI_CHAT:
        return bool(lanes)
    family = build_state.resolved.takes_reasoning_of(format)[:1]
    return any(
        accepted_by(model_in(payload_stream), format)[:1] == family != ()
        for payload_stream in lanes
    )


def _reasoning_after(build: Build, build_state: BuildState) -> int:
    """Return after which seq reasoning goes back where the prefix is another than before.

    Signed reasoning is bound to the prefix that it was made after (E10, A10). Plain text is not:
    the turn under way keeps it, for some providers refuse a tool loop without.
    """
    head_seq, format = build_state.read.conversation.state.head_seq, build.ask.format
    accepts = build_state.resolved.takes_reasoning_of(format)
    if format is not FormatName.OPENAI_CHAT or build.sheds:
        return head_seq
    if not accepts:
        return 0
    if accepts[0] not in UNBOUND or _others_thought(build, build_state):
        return head_seq
    users = (item.seq for item in reversed(build_state.entries) if item.role is Role.USER)
    return next(users, head_seq)


def _texts(build_state: BuildState) -> Mapping[str, str]:
    """Return the texts that an epoch's record names, by their hashes (decision 19)."""
    texts = dict(build_state.resolved.texts)
    if build_state.fixed_texts:
        texts[build_state.dynamic_hash] = json_text.dumps(build_state.fixed_texts)
    return texts


def _slides_on(
    prior: Epoch, start: Start, read: ContextRead, resolved: ResolvedSettings, limits: Limits
) -> bool:
    """Whether a window of the last N messages is where it was, so that the log need not be read.

    It is when tool results were cleared since, and nothing else happened.
    """
    state = read.conversation.state
    return (
        resolved.policy.strategy is StrategyName.SLIDING_WINDOW
        and state.view_cause == TRIMMED
        and same_ground(prior, start, resolved, limits, state.view_version - 1)
        and not start.degraded
        and all(map(start.view.shows, read.pins))
    )


def _slide(build_state: BuildState) -> None:
    """Move the window to the last N messages (D2)."""
    limits, policy = build_state.limits, build_state.resolved.policy
    room = room_for(
        limits, policy, build_state.resolved.raw_fixed.fixed, 0, build_state.resolved.factor
    )
    plan = STRATEGIES[policy.strategy].plan(build_state.planned, None, room, policy)
    if not isinstance(plan, SlidingCut):
        return
    spans = spans_beside(Span(1, plan.tail_start), plan.kept, build_state.view.window)
    if spans != build_state.view.spans:
        build_state.narrow(replace(build_state.view, spans=spans, note=None))


def _most_after(situation: CompactionInput, limits: Limits) -> int:
    """Return what an emergency may leave: less than there was (E6).

    Where no build may reduce what is left, it has to fit as well (D2, E1).
    """
    view, policy = situation.view, situation.resolved.policy
    most = situation.tokens_in(view) - 1
    if policy.strategy is StrategyName.FULL_HISTORY or not policy.compaction.enabled:
        most = min(most, limits.capacity)
    return most


def _is_suspended(build_state: BuildState, limits: Limits) -> bool:
    """Whether what was undone stays undone until the log has grown (decision 24)."""
    state = build_state.read.conversation.state
    if state.tokens >= state.resume_at:
        return False
    level = read_pressure(build_state.own_usage.total, limits).pressure
    return level not in (Pressure.COMPACT, Pressure.BLOCKED)


def _new_state(build: Build, build_state: BuildState) -> dict[str, Any] | None:
    made, view = build.compaction, build_state.view
    if made is None or made.summary_range is None or not view.summaries:
        return None
    return {
        "strategy": build_state.read.compacted_for,
        "summary": "\n\n".join(summary.text for summary in view.summaries),
        "summary_range": made.summary_range,
        "compressed_at": build_state.read.compacted_at,
    }


def _refusal(
    resolved: ResolvedSettings,
    limits: Limits,
    usage: Usage,
    largest: Sequence[Contributor],
    ids: Mapping[int, str],
) -> ContextOverflow:
    return ContextOverflow(
        overflow_detail(usage.total, limits, largest),
        {
            "budget": measure(usage, limits),
            "largest": [part.as_json(ids) for part in largest],
            "suggestions": suggestions(resolved, limits, usage, largest),
        },
    )
