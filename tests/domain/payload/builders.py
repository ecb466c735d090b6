"""Logs, views and resolved settings of which tests build payloads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from app.compaction.reduction import reduced_to_fit
from app.compaction.shown_history import HistoryBudget, ShownHistory
from app.compaction.strategies import STRATEGIES
from app.conversations.messages.row import LogRow
from app.conversations.receipt import CompactionPlan, SlidingCut
from app.conversations.turns import Entry, is_group_boundary, pinned_seqs, protected
from app.conversations.view import Span, Summary, View, spans_beside
from app.conversations.view_changes import shown_entries, view_after, view_summary_tokens
from app.formats import ToolDefinition
from app.formats.message import FormatName
from app.models.budget import Limits
from app.models.model_info import ModelInfo
from app.payload.assembler import Assembler
from app.payload.format_assemblers import assembler_of
from app.policy.policy import (
    CompactionPolicy,
    Policy,
    SandwichPolicy,
    SlidingWindowPolicy,
    StrategyName,
)
from app.prompt.resolved_settings import ResolvedSettings, fixed_tokens, message_tokens, tool_costs
from app.prompt.sections import PromptSection, dynamic_texts, merge_sections
from tests.domain.histories import CHAT, RawLog, entries_of, pinned_at, raw_logs, rows_of, third
from tests.judge import refusals

FORMAT_NAMES = st.sampled_from(FormatName)
EVERYTHING = View()


@dataclass
class Case:
    """A log, the format it is built for, and a view of it made when the log was `state` long."""

    log: RawLog
    format: FormatName
    view: View
    state: int

    @property
    def rows(self) -> list[LogRow]:
        """The log's rows as a build of this format reads them."""
        return rows_of(self.log, self.format)

    @property
    def shown(self) -> list[LogRow]:
        """The rows the view shows."""
        return [row for row in self.rows if self.view.shows(row.seq)]


@st.composite
def views(draw: st.DrawFn, rows: Sequence[LogRow]) -> View:
    """Draw a view as builds make it of a log: pins, a plan of any kind, then fitting."""
    history = entries_of(list(rows))
    pins = draw(st.just([]) | st.lists(st.integers(1, len(rows)), min_size=1, max_size=3))
    history = pinned_at(history, pinned_seqs(pinned_at(history, pins)))
    capacity = draw(st.one_of(st.integers(20, 900), st.just(10**6)))
    room = HistoryBudget(capacity, capacity // 2, 0, draw(st.integers(0, 40)))
    view = draw(st.one_of(planned(history, room), earlier(history)))
    return replace(
        fitted(view, history, room),
        reasoning_after=draw(st.integers(0, len(rows))),
        late_through=len(rows),
        summary_as_system=draw(st.booleans()),
    )


@st.composite
def planned(draw: st.DrawFn, history: Sequence[Entry], room: HistoryBudget) -> View:
    """Draw the view that a strategy makes of a history right away."""
    policy = Policy(
        strategy=draw(st.sampled_from(list(StrategyName))),
        sandwich=SandwichPolicy(
            preserve_top=draw(st.integers(0, 3)), preserve_bottom=draw(st.integers(1, 3))
        ),
        sliding_window=SlidingWindowPolicy(keep_last_n=draw(st.integers(1, 5))),
        compaction=CompactionPolicy(retain_last_turns=draw(st.integers(0, 2))),
        preserve_user_messages=draw(st.booleans()),
    )
    minimal = draw(st.booleans())
    plan = STRATEGIES[policy.strategy].plan(
        ShownHistory(history, None, room, policy), minimal=minimal
    )
    if isinstance(plan, CompactionPlan):
        return draw(compacted(plan, history))
    if isinstance(plan, SlidingCut):
        return View(spans=spans_beside(Span(1, plan.tail_start), plan.kept_seqs))
    return EVERYTHING


@st.composite
def earlier(draw: st.DrawFn, history: Sequence[Entry]) -> View:
    """Draw a view that compactions in a row may have led to: any range between call groups."""
    cuts = [i for i in range(len(history) + 1) if is_group_boundary(history, i)]
    start = draw(st.sampled_from(cuts[:-1][:2]))
    end = draw(st.sampled_from([cut for cut in cuts if cut > start][-3:]))
    hidden = Span(history[start].seq, history[end - 1].seq + 1)
    kept = tuple(item.seq for item in history[start:end] if item.pinned)
    through = draw(st.just(0) | st.integers(1, len(history)))
    summarises = draw(st.sampled_from((True, True, False)))
    plan = CompactionPlan(("any",), 0, hidden, kept, through, summarises)
    return draw(compacted(plan, history))


@st.composite
def compacted(draw: st.DrawFn, plan: CompactionPlan, history: Sequence[Entry]) -> View:
    """Draw the view of a plan: one summary, or several with what was retained beside them."""
    summaries: tuple[Summary, ...] = ()
    retain = None
    if plan.hidden is not None and plan.summarises:
        start, end = plan.hidden.start, plan.hidden.end
        cuts = draw(st.just(set()) | st.sets(st.integers(start, end), min_size=1, max_size=3))
        bounds = sorted(cuts | {start, end})
        summaries = tuple(
            Summary(Span(a, b), f"They agreed on plan {a}.") for a, b in pairwise(bounds)
        )
        retain = draw(st.none() | st.just("The exact words."))
    pinned = [item.seq for item in history if item.pinned]
    return view_after(EVERYTHING, plan, summaries, retain, pinned)


def fitted(view: View, history: Sequence[Entry], room: HistoryBudget) -> View:
    """Return a view made to fit as a build does it, or as it is where nothing fits."""
    shown = shown_entries(history, view)
    room = replace(room, summary=view_summary_tokens(view, third))
    plan = reduced_to_fit(ShownHistory(shown, view.hidden, room))
    if plan is None:
        return view
    return view_after(view, plan, view.summaries, view.retain, protected(shown).uncleared)


@st.composite
def cases(draw: st.DrawFn, formats: Any = FORMAT_NAMES) -> Case:
    """Draw a log with a format and a view made for it."""
    log = draw(raw_logs())
    format = draw(formats)
    rows = rows_of(log, format)
    state = draw(st.just(len(rows)) | st.integers(1, len(rows)))
    return Case(log, format, draw(views(rows[:state])), state)


def folded(case: Case, rows: Iterable[LogRow] | None = None) -> Assembler:
    """Fold rows, all the view shows by default, the way a cold build does."""
    assembler = assembler_of(case.format)(case.view, third)
    shown = list(case.shown if rows is None else rows)
    assembler.expect(shown)
    for row in shown:
        assembler.add(row)
    assembler.finish()
    return assembler


def row(seq: int, raw: dict[str, Any], format: FormatName = CHAT) -> LogRow:
    """Return the row of one raw message."""
    (made,) = rows_of(RawLog([(format, raw)]), format)
    return replace_row(made, seq)


def replace_row(made: LogRow, seq: int) -> LogRow:
    """Return a row at another place of its log."""
    made.seq, made.id = seq, f"m{seq}"
    return made


def user(text: str) -> dict[str, Any]:
    """Return a user message, the same in both formats."""
    return {"role": "user", "content": text}


def asks(*call_ids: str) -> dict[str, Any]:
    """Return an assistant message that calls a tool under each id."""
    function = {"name": "f", "arguments": "{}"}
    calls = [{"id": call_id, "type": "function", "function": function} for call_id in call_ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(call_id: str, content: Any = "done") -> dict[str, Any]:
    """Return a tool message."""
    return {"role": "tool", "tool_call_id": call_id, "content": content}


RICH_VIEW = View(
    spans=spans_beside(Span(2, 9), (4, 5, 6)),
    summaries=(Summary(Span(2, 4), "first", level=2), Summary(Span(4, 8), "second")),
    retain="word for word",
    note="[1 earlier messages were left out to fit the window.]",
    results_cleared_through=11,
    uncleared_results=(6,),
)
"""Two summaries, a retain, a kept call group between them whose result stays, a trimmed tail."""
RICH_LOG = (
    *(user(f"said {n}") for n in (1, 2, 3, 4)),
    asks("pinned"),
    result("pinned", "kept " * 90),
    *(user(f"said {n}") for n in (7, 8, 9)),
    asks("old"),
    result("old", "cleared " * 90),
    user("said 12"),
)


LIMITS = Limits(10**6, 500, 0.8, 0.7, 0.95, 0.98)
TOOLS = (
    ToolDefinition("read_file", "Reads.", {"type": "object", "properties": {}}),
    ToolDefinition("shell", "", {"type": "object", "properties": {"c": {"type": "string"}}}),
)


def resolved_of(
    given_: Sequence[PromptSection], tools: tuple[ToolDefinition, ...], info: ModelInfo | None
) -> ResolvedSettings:
    """Return a frame with these sections and tools."""
    merged = merge_sections([given_])
    costs = tool_costs(tools, third)
    return ResolvedSettings(
        policy=Policy(),
        model="some-model",
        info=info,
        limits=LIMITS,
        policy_limits=LIMITS,
        limits_error=None,
        sections=merged,
        tools=tools,
        raw_fixed=fixed_tokens(merged, sum(costs), third),
        factor=1.0,
        count=third,
        sections_hash="s",
        tools_hash="t",
        policy_hash="p",
        texts={},
        tool_costs=costs,
        raw_dynamic=message_tokens(dynamic_texts(merged), third),
    )


def faults(format: FormatName, body: dict[str, Any]) -> list[str]:
    """Return what the provider's types and rules have against a payload."""
    return refusals(format, body)


LEAST = 0.99
IMAGE = 640 * 480 // 750
