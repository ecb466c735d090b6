"""The build: from a conversation to the payload of its next model call (C4, G2, L2).

1. One select reads the head, the settings, the lane's last epoch and the messages it shows.
2. The view of that epoch is used as long as it fits. Otherwise, in this order: compact (only for
   the policy's own window), reduce without a model, refuse with CONTEXT_OVERFLOW.
3. What is counted is what is returned: a view is checked once it is folded, and reduced again
   should it be over.
4. Only the start of an epoch is written (decision 19).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from app.domain.budget import Limits, Pressure, Usage, measure, read_pressure
from app.domain.compaction import (
    NOTE_TOKENS,
    CompactResult,
    Pending,
    base_view,
    fresh_spans,
    keep_left_out,
    room_for,
    spans_beside,
    summary_cost,
    summary_room,
    summary_view,
)
from app.domain.epochs import (
    Start,
    break_reason,
    lane_of,
    same_ground,
    start_from,
    window_of,
)
from app.domain.errors import (
    Conflict,
    ContextOverflow,
    NotFound,
    ServiceUnavailable,
    ValidationError,
)
from app.domain.fitting import fit_with_note
from app.domain.frames import STUB_TOOL, Ask, Frame, check_tools
from app.domain.log import LogRow
from app.domain.messages import FormatName
from app.domain.payload import render_payload
from app.domain.policy import StrategyName
from app.domain.prompt import Assembler, Items, View, assembler_for
from app.domain.records import ContextRead, Epoch, Head
from app.domain.strategies import (
    ENDLESS,
    STRATEGIES,
    Keep,
    Room,
    Slide,
    Span,
    Summarise,
    spans_through,
)
from app.domain.summaries import SummaryAsk
from app.domain.tokens import estimate_tool_defs_tokens
from app.domain.turns import Entry, entry
from app.services.condensing import condense
from app.services.frames import Frames
from app.services.ports import Database
from app.services.readings import Reading, read_budget
from app.services.summariser import Summariser
from app.services.windows import Window, Windows

_MOST_ROUNDS = 6
_MOST_UNKNOWN_TOKENS = 260_000
"""How much a build reads before it knows the window; longer logs are planned from their counts."""
_THREAD_BYTES = 200_000
_PASSING = ("summariser_unavailable", "compaction_pending")
"""Steps that say something about one build, not about what it shows."""

CompactForBuild = Callable[[str, str, Ask, Head], Awaitable[CompactResult | Keep | Pending | None]]
"""Compacts a conversation as a build wants it; None says that its view has changed meanwhile."""


@dataclass(frozen=True, slots=True)
class Built:
    """The answer to a build: the JSON body, payload bytes already rendered."""

    body: dict[str, Any]


@dataclass(slots=True)
class _Build:
    """One build under way: what it was asked, and what it had to do so far."""

    tenant_id: str
    conversation_id: str
    ask: Ask
    degraded: list[str] = field(default_factory=list)
    compaction: CompactResult | None = None
    compacts: bool = True
    held: Window | None = None
    held_epoch_id: str = ""

    def degrade(self, *steps: str) -> None:
        """Name what the payload had to give up, each step once (C4)."""
        self.degraded += [step for step in steps if step not in self.degraded]

    @property
    def lasting_steps(self) -> tuple[str, ...]:
        """The steps that shape the view, and so hold for its whole epoch."""
        return tuple(step for step in self.degraded if step not in _PASSING)

    @property
    def key(self) -> tuple[str, ...]:
        return (
            self.conversation_id,
            self.ask.format,
            self.ask.model or "",
            str(window_of(self.ask)),
        )


@dataclass(slots=True)
class _Picture:
    """What a build shows at the moment: a view with its entries and, once folded, its items."""

    read: ContextRead
    frame: Frame
    limits: Limits
    view: View
    entries: list[Entry]
    window: Window | None = None
    items: Items | None = None

    def show(self, window: Window) -> None:
        """Take a folded window as what is shown, as it stands now."""
        self.window, self.entries, self.items = window, window.entries, window.assembler.items()

    def unfold(self) -> None:
        """Forget the folded window: the view is about to change."""
        self.window = self.items = None

    def narrow(self, view: View) -> None:
        """Show another view, which shows no message that this one does not."""
        self.unfold()
        self.view = view
        self.entries = [item for item in self.entries if view.shows(item.seq)]


class ContextService:
    """Builds payloads and reads budgets."""

    def __init__(
        self,
        database: Database,
        frames: Frames,
        summariser: Summariser,
        windows: Windows,
        compact_for_build: CompactForBuild,
        new_id: Callable[[], str],
    ) -> None:
        self._database = database
        self._frames = frames
        self._summariser = summariser
        self._windows = windows
        self._compact_for_build = compact_for_build
        self._new_id = new_id

    async def budget(self, tenant_id: str, conversation_id: str) -> Reading | None:
        """Return the budget of the stored settings, None while no window is known."""
        async with self._database.session() as records:
            found = await records.conversations.find(
                tenant_id, conversation_id, self._frames.default_model
            )
            if found is None:
                raise NotFound.conversation(conversation_id)
            return await read_budget(self._frames, records, found)

    async def build(self, tenant_id: str, conversation_id: str, ask: Ask) -> Built:
        """Return the payload for the next call of a model (K1).

        Raises NotFound, ValidationError (no messages, no model), ContextLimitUnknown, or
        ContextOverflow with the budget when no valid payload fits.
        """
        build = _Build(tenant_id, conversation_id, ask)
        for _ in range(_MOST_ROUNDS):
            picture = await self._look(build)
            if await self._compacted(build, picture):
                continue
            await self._reduce(build, picture)
            if await self._fold(build, picture):
                return self._answer(build, picture)
        raise Conflict("The conversation changes too fast to build on; try again")

    # --- reading --------------------------------------------------------------------------

    async def _look(self, build: _Build) -> _Picture:
        """Read the conversation and settle the view to start from."""
        build.degraded = [step for step in build.degraded if step in _PASSING]
        read = await self._read(build)
        if read.conversation.head.head_seq == 0:
            raise ValidationError("Conversation has no messages")
        frame = await self._frames.of(read.conversation, build.ask)
        if frame.model is None:
            raise ValidationError.at(
                "/model", "No model: name one in the request, the conversation or its agent"
            )
        limits = frame.required_limits()
        check_tools(frame.tools, build.ask.format)
        if frame.raw_fixed.fixed >= limits.capacity:
            raise _overflow(frame.usage(0, 0), limits)
        if read.compacted_by is not None and read.compacted_by != frame.policy.strategy:
            await self._drop_state(read)
            return await self._look(build)
        prior = _prior(read, build.ask)
        start = start_from(prior.frame) if prior is not None else None
        head = read.conversation.head
        if prior and start and same_ground(prior, start, frame, limits, head.view_version):
            view = start.view
            build.degrade(*start.degraded)
        else:
            read = await self._with_summary(read)
            view = base_view(head, read.summary, frame.policy)
        picture = _Picture(read, frame, limits, view, [])
        await self._gather(build, picture, prior)
        if frame.policy.strategy is StrategyName.SLIDING_WINDOW:
            _slide(picture)
        return picture

    async def _read(self, build: _Build) -> ContextRead:
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
                have_frame=window.frame if window else None,
                have_through=window.assembler.folded_through if window else 0,
                most_tokens=_MOST_UNKNOWN_TOKENS,
            )
        if read is None:
            self._windows.drop(build.key)
            raise NotFound.conversation(build.conversation_id)
        return read

    async def _with_summary(self, read: ContextRead) -> ContextRead:
        """Read the active summary, which comes with the epoch's frame as long as that holds."""
        conversation = read.conversation
        if read.summary is not None or conversation.head.compaction_id is None:
            return read
        async with self._database.session() as records:
            receipt = await records.contexts.find_compaction(
                conversation.conversation_id, conversation.head.compaction_id
            )
        return replace(read, summary=receipt.summary if receipt is not None else None)

    async def _drop_state(self, read: ContextRead) -> None:
        """Show everything again: another strategy made the active summary (D6)."""
        conversation = read.conversation
        async with self._database.session() as records:
            await records.contexts.hide_compaction(
                conversation.conversation_id, conversation.head.view_version
            )

    async def _gather(self, build: _Build, picture: _Picture, prior: Epoch | None) -> None:
        """Get the entries of the view and, where they were read with it, its folded window."""
        read, view, window = picture.read, picture.view, build.held
        warm = prior is not None and build.held_epoch_id == prior.epoch_id
        if warm and window is not None and window.view == view:
            self._extend(window, read.rows)
            picture.show(window)
            return
        spans = _read_spans(read, prior)
        if read.rows_read and not warm and _covers(spans, view.spans):
            rows = [row for row in read.rows if view.shows(row.seq)]
            picture.show(await self._folded(build, picture, rows))
            return
        picture.entries = await self._entries(build, view, read)

    async def _entries(self, build: _Build, view: View, read: ContextRead) -> list[Entry]:
        found: list[Entry] = []
        async with self._database.session() as records:
            for span in spans_through(view.spans, read.conversation.head.head_seq):
                found += await records.log.entries(build.conversation_id, span.start, span.end)
        return found

    def _extend(self, window: Window, rows: list[LogRow]) -> None:
        """Fold what came since; another build on the same lane may have been first."""
        for row in rows:
            if row.seq > window.assembler.folded_through and window.view.shows(row.seq):
                window.assembler.feed(row)
                window.entries.append(entry(row.seq, row.role, row.tokens))

    # --- reducing -------------------------------------------------------------------------

    async def _compacted(self, build: _Build, picture: _Picture) -> bool:
        """Compact when the pressure asks for it; true when the view changed (C3, E6)."""
        frame, limits = picture.frame, picture.frame.policy_limits
        policy = frame.policy.compaction
        if not build.compacts or limits is None or not policy.enabled:
            return False
        if STRATEGIES[frame.policy.strategy].trigger(frame.policy) is None:
            return False
        head = picture.read.conversation.head
        usage = _usage(picture)
        if frame.is_reduction:
            usage = frame.usage(head.tokens - head.hidden_tokens, head.summary_tokens)
        level = read_pressure(usage.total, limits).pressure
        forced = level is Pressure.BLOCKED or usage.total > limits.capacity
        if not forced and (level is not Pressure.COMPACT or not policy.auto):
            return False
        build.compacts = False
        try:
            result = await self._compact_for_build(
                build.tenant_id,
                build.conversation_id,
                build.ask,
                head,
            )
        except (ServiceUnavailable, ValidationError):
            build.degrade("summariser_unavailable")
            return False
        if isinstance(result, Pending):
            build.degrade("compaction_pending")
            return False
        if isinstance(result, Keep):
            return False
        if result is None:
            build.compacts = True
            return True
        build.compaction = result
        return True

    async def _reduce(self, build: _Build, picture: _Picture) -> None:
        """Make the view fit by steps that need no model (C4, decision 13)."""
        if _usage(picture).total <= picture.limits.capacity:
            return
        await self._reduce_to(build, picture, overshoot=0)

    async def _reduce_to(self, build: _Build, picture: _Picture, overshoot: int) -> None:
        frame, limits = picture.frame, picture.limits
        policy = frame.policy
        if policy.strategy is StrategyName.FULL_HISTORY or not policy.compaction.enabled:
            raise _overflow(_usage(picture), limits)
        picture.unfold()
        room = self._room(picture, overshoot)
        plan = STRATEGIES[policy.strategy].plan(
            picture.entries, picture.view.summary_span, room, policy
        )
        if isinstance(plan, Summarise):
            await self._summarise(build, picture, plan)
            room = self._room(picture, overshoot)
        summary = summary_cost(picture.view, frame.count)
        fitted = fit_with_note(
            picture.entries,
            picture.view.trimmed_through,
            replace(room, summary=summary),
            NOTE_TOKENS,
        )
        if fitted is None:
            raise _overflow(_usage(picture), limits)
        build.degrade(*fitted.steps)
        view = replace(picture.view, trimmed_through=fitted.trimmed_through)
        if fitted.shown is not None:
            last_seq = picture.entries[-1].seq
            picture.narrow(replace(view, spans=fitted.shown))
            span = view.summary_span
            told = span.end - span.start if span is not None else 0
            dropped = last_seq - len(picture.entries) - told
            note = f"[{dropped} earlier messages were left out to fit the window.]"
            view = replace(picture.view, note=note)
        picture.view = view

    def _room(self, picture: _Picture, overshoot: int) -> Room:
        frame, limits = picture.frame, picture.limits
        reserve = max(summary_room(limits), summary_cost(picture.view, frame.count))
        room = room_for(limits, frame.policy, frame.raw_fixed.fixed, reserve, frame.factor)
        return replace(room, capacity=room.capacity - overshoot)

    async def _summarise(self, build: _Build, picture: _Picture, plan: Summarise) -> None:
        """Reduce this lane by an extractive summary, which is stored with its epoch alone."""
        view, frame = picture.view, picture.frame
        span, top = keep_left_out(view.spans, plan.span)
        result = await condense(
            self._database,
            self._summariser,
            build.conversation_id,
            fresh_spans(span, view.summary_span),
            view.summary,
            SummaryAsk(),
            None,
            summary_room(picture.limits),
        )
        build.degrade("extractive_summary")
        if plan.shrunk:
            build.degrade("preserved_ranges_summarised")
        summarised = replace(
            summary_view(span, result.text, frame.policy),
            spans=(*top, Span(span.end, ENDLESS)),
            note=view.note,
            trimmed_through=view.trimmed_through,
        )
        picture.narrow(summarised)

    # --- folding --------------------------------------------------------------------------

    async def _fold(self, build: _Build, picture: _Picture) -> bool:
        """Fold the view into items and record its epoch; false when another build was first."""
        last = picture.read.epoch
        for _ in range(_MOST_ROUNDS):
            start, reason = self._start(build, picture, last)
            if picture.window is None or picture.window.view != start.view:
                picture.view = start.view
                await self._refold(build, picture)
            assert picture.window is not None
            if _needs_stub(build.ask, picture) != start.stub_tools:
                start = replace(start, stub_tools=not start.stub_tools)
                reason = reason or ("tools_changed" if last is not None else None)
            folded = _folded_usage(build, picture).total
            if folded <= picture.limits.capacity:
                return await self._record(build, picture, start, reason, last)
            # Plans go by the entries' counts, which the folded items exceed by so much.
            picture.unfold()
            exceeds = folded - _usage(picture).total
            await self._reduce_to(build, picture, overshoot=exceeds + 16)
        raise _overflow(_usage(picture), picture.limits)

    def _start(
        self, build: _Build, picture: _Picture, last: Epoch | None
    ) -> tuple[Start, str | None]:
        """Return what the epoch of this payload starts from, and why it is not the last one."""
        limits, view = picture.limits, picture.view
        stub = picture.window is not None and _needs_stub(build.ask, picture)
        before = start_from(last.frame) if last is not None else None
        if last is None or before is None:
            reason = "model_changed" if picture.read.has_other_lane else None
        else:
            if picture.window is None:
                stub = before.stub_tools
            version = picture.read.conversation.head.view_version
            reason = break_reason(last, before, picture.frame, limits, version, view, stub)
            if reason is None:
                return before, None
        # Reasoning is bound to the prefix it was made after: another prefix drops it (E10, A10).
        after = 0
        if build.ask.format is not FormatName.OPENAI_CHAT and not (
            reason is None and view.is_whole
        ):
            after = picture.read.conversation.head.head_seq
        view = replace(view, reasoning_after=after)
        start = Start(view, limits.total, limits.max_output_tokens, stub, build.lasting_steps)
        return start, reason

    async def _refold(self, build: _Build, picture: _Picture) -> None:
        head_seq = picture.read.conversation.head.head_seq
        rows: list[LogRow] = []
        as_chat = build.ask.format is FormatName.OPENAI_CHAT
        async with self._database.session() as records:
            for span in spans_through(picture.view.spans, head_seq):
                rows += await records.contexts.rows(
                    build.conversation_id, span.start, span.end, as_chat=as_chat
                )
        picture.show(await self._folded(build, picture, rows))

    async def _folded(self, build: _Build, picture: _Picture, rows: list[LogRow]) -> Window:
        """Fold a view from its rows; large ones in a thread, off the event loop."""
        if sum(len(row.text) for row in rows) > _THREAD_BYTES:
            return await asyncio.to_thread(_fold_rows, build.ask.format, picture, rows)
        return _fold_rows(build.ask.format, picture, rows)

    async def _record(
        self,
        build: _Build,
        picture: _Picture,
        start: Start,
        reason: str | None,
        last: Epoch | None,
    ) -> bool:
        """Write the epoch's start unless it is the last one's; keep the window for later."""
        window, read = picture.window, picture.read
        assert window is not None
        if last is not None and reason is None:
            epoch = last
        else:
            epoch = self._epoch(build, picture, start, reason, last)
            async with self._database.session() as records:
                if not await records.contexts.add_epoch(
                    build.conversation_id, epoch, start.view.spans, picture.frame.texts
                ):
                    return False
        window.epoch_id, window.frame = epoch.epoch_id, epoch.frame
        picture.read = replace(read, epoch=replace(epoch, reason=reason))
        self._windows.keep(build.key, window)
        return True

    def _epoch(
        self,
        build: _Build,
        picture: _Picture,
        start: Start,
        reason: str | None,
        last: Epoch | None,
    ) -> Epoch:
        frame, head = picture.frame, picture.read.conversation.head
        return Epoch(
            epoch=last.epoch + 1 if last is not None else 1,
            epoch_id=self._new_id(),
            lane=lane_of(build.ask, frame.model or ""),
            format=build.ask.format,
            window=window_of(build.ask),
            reason=reason,
            start_seq=head.head_seq,
            view_version=head.view_version,
            frame=start.as_json(),
            sections_hash=frame.sections_hash,
            tools_hash=frame.tools_hash,
            policy_hash=frame.policy_hash,
        )

    # --- answering ------------------------------------------------------------------------

    def _answer(self, build: _Build, picture: _Picture) -> Built:
        window, epoch, read = picture.window, picture.read.epoch, picture.read
        items = picture.items
        assert window is not None and items is not None and epoch is not None
        payload = render_payload(
            build.ask.format,
            picture.frame,
            items,
            _needs_stub(build.ask, picture),
            build.conversation_id,
        )
        usage = _folded_usage(build, picture)
        pressure = read_pressure(usage.total, picture.limits)
        through_seq = max(items.folded_through, read.conversation.head.head_seq)
        body = {
            "format": build.ask.format,
            "payload": payload.body,
            "build_id": f"{epoch.epoch_id}.{through_seq}",
            "epoch": epoch.epoch,
            "through_seq": through_seq,
            "stable_items": payload.stable_items,
            "base_items": 0,
            "prefix_hash": payload.prefix_hash,
            "cache_break_reason": epoch.reason,
            "breakpoints": payload.breakpoints,
            "tail": [],
            "tokens_used": usage.total,
            "budget": measure(usage, picture.limits),
            "pressure": pressure.pressure,
            "notice": pressure.notice,
            "next_threshold": pressure.next_threshold,
            "tokens_to_next": pressure.tokens_to_next,
            "summary_used": window.view.summary is not None,
            "new_state": _new_state(build, read),
            "compaction": build.compaction,
            "degraded": build.degraded,
            "deferred_tools": 0,
            "delta": False,
        }
        return Built(body)


def _prior(read: ContextRead, ask: Ask) -> Epoch | None:
    """Return the lane's newest epoch of this request's window (decision 0005)."""
    prior = read.window_epoch or read.epoch
    return prior if prior is not None and prior.window == window_of(ask) else None


def _read_spans(read: ContextRead, prior: Epoch | None) -> tuple[Span, ...]:
    """Return the spans whose rows the select read; it follows the same rule (see READ)."""
    head = read.conversation.head
    if prior is not None and prior.view_version == head.view_version:
        return start_from(prior.frame).view.spans
    return spans_beside(head.span)


def _covers(have: tuple[Span, ...], want: tuple[Span, ...]) -> bool:
    return all(
        any(part.start <= span.start and span.end <= part.end for part in have) for span in want
    )


def _fold_rows(format: FormatName, picture: _Picture, rows: list[LogRow]) -> Window:
    """Fold all rows of a view into a fresh window."""
    assembler: Assembler = assembler_for(format, picture.view, picture.frame.count)
    entries = []
    for row in rows:
        assembler.feed(row)
        entries.append(entry(row.seq, row.role, row.tokens))
    assembler.finish()
    return Window("", "", picture.view, assembler, entries)


def _slide(picture: _Picture) -> None:
    """Move the window to the last N messages (D2)."""
    limits, policy = picture.limits, picture.frame.policy
    room = room_for(limits, policy, picture.frame.raw_fixed.fixed, 0, picture.frame.factor)
    plan = STRATEGIES[policy.strategy].plan(picture.entries, None, room, policy)
    if not isinstance(plan, Slide):
        return
    spans = (Span(plan.tail_start, ENDLESS),)
    if spans != picture.view.spans:
        picture.narrow(replace(picture.view, spans=spans, note=None))


def _needs_stub(ask: Ask, picture: _Picture) -> bool:
    """Whether a stub stands for missing tools: Anthropic demands some beside calls (A6)."""
    return (
        ask.format is FormatName.ANTHROPIC
        and not picture.frame.tools
        and picture.items is not None
        and picture.items.has_calls
    )


def _usage(picture: _Picture) -> Usage:
    """Return the usage of a view: exact once it is folded, from its entries before."""
    if picture.items is not None:
        items = picture.items
        return picture.frame.usage(items.tokens, items.summary_tokens)
    trimmed = picture.view.trimmed_through
    shown = sum(
        item.trimmed_tokens if item.seq <= trimmed else item.tokens for item in picture.entries
    )
    return picture.frame.usage(shown, summary_cost(picture.view, picture.frame.count))


def _folded_usage(build: _Build, picture: _Picture) -> Usage:
    items = picture.items
    assert items is not None
    stub = 0
    if _needs_stub(build.ask, picture):
        stub = estimate_tool_defs_tokens((STUB_TOOL,), picture.frame.count)
    return picture.frame.usage(items.tokens, items.summary_tokens, stub)


def _new_state(build: _Build, read: ContextRead) -> dict[str, Any] | None:
    if build.compaction is None or not build.compaction.compacted or read.summary is None:
        return None
    return {
        "strategy": read.compacted_by,
        "summary": read.summary,
        "summary_range": build.compaction.summary_range,
        "compressed_at": read.compacted_at,
    }


def _overflow(usage: Usage, limits: Limits) -> ContextOverflow:
    return ContextOverflow(
        "No valid payload fits the window",
        {"budget": measure(usage, limits)},
    )
