"""Views: the messages of a log that payloads show, and the summaries of the others. Windows: the
messages of which a view may show something.

1. A view is a value: spans that are shown verbatim, summaries of hidden messages, and the tool
   results that are cleared.
2. A view neither shows nor summarises messages outside the conversation's active window. The
   window is a set of spans, of which the last has no end.
3. The hidden messages of the window are one range, the `hidden_span` of the conversation's
   state, except for the `kept_seqs` inside it. All messages before and after it are shown.
4. Summaries are ordered, do not overlap, and are inside the hidden range. The note mentions the
   messages that are hidden without a summary.
5. A message is in the window if it is newer than the marker, `max(last_cleared_at, now - rolling
   window)`. Its time is its own timestamp unless that is in the future, or else the time at which
   it was received.
6. A whole call group is inside or outside. One that leaves the window has ended: a result that
   comes then belongs to no group, and is inside.
7. Times nearly always rise with the seqs. So the window is everything from the seq `since` on,
   except for `gaps`: later messages with a time before the marker.
8. A restored message is shown again for the length of a rolling window, or until a clear.
9. The window moves only when a message has to leave it, and then by one step more than necessary,
   so that the prompt cache of a busy conversation does not miss on every turn. No shown message is
   older than the rolling window. Messages that leave early are younger by at most one step.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from app.common import json_text
from app.common.answer_schemas import answer
from app.formats.message import FormatName

SUMMARY_PREFIX = "[Earlier summary, lossy: recall or refetch exact values: "
"""What a summary's message begins with. [summary.lossy]"""
RETAIN_PREFIX = "[Kept from earlier in the conversation: "


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open range of seqs."""

    start: int
    end: int

    def holds(self, seq: int) -> bool:
        """Whether this seq lies in the range."""
        return self.start <= seq < self.end


@dataclass(frozen=True, slots=True)
class ShortenedMessage:
    """A user or assistant message of which only the beginning and the end are shown.

    `head_bytes` and `tail_bytes` count the bytes of all its texts, `tokens` is the remaining cost.
    """

    seq: int
    head_bytes: int
    tail_bytes: int
    tokens: int


@dataclass(frozen=True, slots=True)
class RepeatedResult:
    """A tool result at `seq` that is cleared because a later one repeats its call."""

    seq: int
    newer_seq: int


@dataclass(frozen=True, slots=True)
class MediaCut:
    """The media that are left out: those before the message at `seq`, and its first `count`."""

    seq: int
    count: int


def _start(span: Span) -> int:
    return span.start


def _seq(item: RepeatedResult) -> int:
    return item.seq


ENDLESS = 2**62
"""The end of a span without an end."""

WHOLE = (Span(1, ENDLESS),)
"""The spans of a whole log."""


def union(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return the seqs in any of these spans, as ascending spans that do not touch."""
    merged: list[Span] = []
    for span in sorted(spans, key=_start):
        if span.start >= span.end:
            continue
        if merged and span.start <= merged[-1].end:
            merged[-1] = Span(merged[-1].start, max(merged[-1].end, span.end))
        else:
            merged.append(span)
    return tuple(merged)


def spans_of(seqs: Iterable[int]) -> tuple[Span, ...]:
    """Return the spans that hold exactly these seqs, ascending."""
    return union(Span(seq, seq + 1) for seq in seqs)


def count_in(spans: Iterable[Span]) -> int:
    """Return how many seqs lie in these spans, which do not overlap."""
    return sum(span.end - span.start for span in spans)


def overlap(spans: Iterable[Span], others: Iterable[Span]) -> tuple[Span, ...]:
    """Return the seqs that lie in both, each of them ascending spans that do not touch."""
    right = tuple(others)
    shared: list[Span] = []
    for span in spans:
        first = max(0, bisect_right(right, span.start, key=_start) - 1)
        for other in right[first:]:
            if other.start >= span.end:
                break
            start, end = max(span.start, other.start), min(span.end, other.end)
            if start < end:
                shared.append(Span(start, end))
    return tuple(shared)


def minus(spans: Iterable[Span], others: Iterable[Span]) -> tuple[Span, ...]:
    """Return the seqs in these spans and not in the others, ascending as they are."""
    edges = [0]
    for other in others:
        edges += (other.start, other.end)
    edges.append(ENDLESS)
    return overlap(spans, map(Span, edges[::2], edges[1::2]))


@answer()
@dataclass(frozen=True, slots=True)
class HeadingCount:
    """What became of the statements below one heading, in a summary without a model."""

    heading: str
    """The heading."""
    found: int
    """Statements that there were; the sum of the other numbers."""
    kept: int
    """Statements in the summary."""
    superseded: int
    """Statements that a newer one replaced."""
    dropped: int
    """Statements that there was no room for."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A summary of the messages in a span; `tokens` is the cost of its message.

    A summary of `level` 1 is made of messages, one of a higher level of summaries of the level
    below. `sources` are the spans of those, or the span itself. `headings` are empty for a summary
    by a model. `unlisted` are statements without room in it and all that users stated, for the next
    one without a model; only receipts store them.
    """

    span: Span
    text: str
    tokens: int = 0
    level: int = 1
    sources: tuple[Span, ...] = ()
    headings: tuple[HeadingCount, ...] = ()
    unlisted: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ProviderItem:
    """A provider's compaction item, which stands for every message before its own.

    The message at `seq` has it, in `format`; `model` made it, empty where that is unknown. `tokens`
    is its estimated cost. One that is `requested` came of a request for it, with a signature;
    another one came when a threshold was reached. A payload that only has summaries instead does
    not send it.
    """

    seq: int
    format: FormatName
    model: str
    tokens: int
    requested: bool = False
    is_sent: bool = True


@dataclass(frozen=True, slots=True)
class View:
    """The view of a log, which is constant within an epoch.

    - `window` are the seqs of the active window, `spans` those shown verbatim, both ascending; the
      last span has no end.
    - `retain` and each summary are messages of their own at the start of the hidden range.
    - Tool results up to `results_cleared_through` are placeholders, except for the seqs in
      `uncleared_results`. So are the `repeated_results` after it, ascending.
    - Of the messages in `shortened`, ascending, only the beginning and the end are shown.
    - With a `provider_item` a payload begins with that item. Summaries of what it stands for are
      for the payloads that do not send it.
    - Late results up to the seq `late_through` are shown next to their calls. Later ones are shown
      where they came, as text, because the calls have been sent without a result.
    - Labels stand for the media up to the `media_cut`.
    - Reasoning after `reasoning_after` is replayed. `reasoning_of` are the families of models
      whose reasoning the model accepts.
    """

    spans: tuple[Span, ...] = WHOLE
    summaries: tuple[Summary, ...] = ()
    retain: str | None = None
    note: str | None = None
    results_cleared_through: int = 0
    uncleared_results: tuple[int, ...] = ()
    reasoning_after: int = 0
    reasoning_of: tuple[str, ...] = ()
    summary_as_system: bool = False
    window: tuple[Span, ...] = WHOLE
    shortened: tuple[ShortenedMessage, ...] = ()
    provider_item: ProviderItem | None = None
    late_through: int = 0
    media_cut: MediaCut | None = None
    repeated_results: tuple[RepeatedResult, ...] = ()

    @property
    def sent_item(self) -> ProviderItem | None:
        """The provider's item that payloads begin with."""
        item = self.provider_item
        return item if item is not None and item.is_sent else None

    def shows(self, seq: int) -> bool:
        """Whether the message with this seq is shown verbatim."""
        at = bisect_right(self.spans, seq, key=_start) - 1
        return at >= 0 and seq < self.spans[at].end

    def cuts_media(self, seq: int) -> bool:
        """Whether media of the message with this seq are left out."""
        return self.media_cut is not None and seq <= self.media_cut.seq

    def clears_result(self, seq: int) -> bool:
        """Whether a tool result with this seq is a placeholder."""
        if seq <= self.results_cleared_through:
            return seq not in self.uncleared_results
        at = bisect_left(self.repeated_results, seq, key=_seq)
        return at < len(self.repeated_results) and self.repeated_results[at].seq == seq

    @property
    def last_cleared_result(self) -> int:
        """The seq up to which tool results are cleared, some or all; 0 where none is."""
        repeated = self.repeated_results
        return repeated[-1].seq if repeated else self.results_cleared_through

    def with_repeated(
        self, results: Iterable[RepeatedResult], uncleared: Collection[int] = ()
    ) -> View:
        """Return the view with these repeated results cleared, and no others.

        Left as they are: those in `uncleared`, and those whose later result the view does not show.
        """
        through = self.results_cleared_through
        return replace(
            self,
            repeated_results=tuple(
                item
                for item in sorted(results, key=_seq)
                if item.seq > through and item.seq not in uncleared
                if self.shows(item.seq) and self.shows(item.newer_seq)
            ),
        )

    @property
    def is_whole(self) -> bool:
        """Whether it shows the whole log unchanged."""
        return self.spans == WHOLE and not (self.summaries or self.is_reduced_inside)

    @property
    def is_reduced_inside(self) -> bool:
        """Whether something is left out that neither a summary nor a provider's item stands for."""
        cut = self.media_cut is not None
        return bool(self.note or self.last_cleared_result or self.shortened) or cut

    @property
    def cuts_the_start(self) -> bool:
        """Whether the log's first message is not shown."""
        return not self.shows(1)

    @property
    def hidden(self) -> Span | None:
        """The hidden range, None when all is shown."""
        return hidden_by(self.spans, self.window)

    @property
    def kept_seqs(self) -> tuple[int, ...]:
        """The seqs in the hidden range that are shown, such as pinned messages."""
        hidden = self.hidden
        if hidden is None:
            return ()
        return tuple(
            seq
            for span in self.spans
            if hidden.start <= span.start < hidden.end
            for seq in range(span.start, span.end)
        )

    @property
    def summarised(self) -> Span | None:
        """The range of all summaries together."""
        if not self.summaries:
            return None
        return Span(self.summaries[0].span.start, self.summaries[-1].span.end)

    def summary_texts(self) -> tuple[str, ...]:
        """Return the texts of the messages in place of the hidden range, in order."""
        summaries, item = self.summaries, self.sent_item
        if item is not None:
            summaries = tuple(summary for summary in summaries if summary.span.end > item.seq)
        retain = self.retain if item is None or summaries else None
        texts = [] if retain is None else [f"{RETAIN_PREFIX}{retain}]"]
        texts += [f"{SUMMARY_PREFIX}{summary.text}]" for summary in summaries]
        if self.note is not None:
            texts.append(f"{texts.pop()}\n{self.note}" if texts else self.note)
        return tuple(texts)

    @property
    def hides_messages(self) -> bool:
        """Whether something stands for messages that are not shown."""
        return self.sent_item is not None or bool(
            self.summaries or self.retain is not None or self.note is not None
        )

    def as_stored(self) -> dict[str, Any]:
        """Return it as a JSON object, as it is stored."""
        stored = asdict(self)
        for summary in stored["summaries"]:
            del summary["unlisted"]
        return stored

    def as_json(self) -> str:
        """Return it as stored JSON."""
        return json_text.dumps(self.as_stored())


WHOLE_VIEW = View()
"""The view of a whole log."""


def hidden_by(spans: Sequence[Span], window: Sequence[Span] = WHOLE) -> Span | None:
    """Return the range of the window's seqs that are not in these spans, None without any.

    It may contain seqs outside the window as well.
    """
    hidden = minus(window, spans)
    return Span(hidden[0].start, hidden[-1].end) if hidden else None


def spans_beside(
    hidden: Span | None, kept_seqs: Iterable[int] = (), window: tuple[Span, ...] = WHOLE
) -> tuple[Span, ...]:
    """Return the spans of a window around a hidden range, and of the kept seqs inside it."""
    if hidden is None:
        return window
    inside = spans_of(filter(hidden.holds, kept_seqs))
    return union((*minus(window, (hidden,)), *overlap(inside, window)))


def spans_through(spans: Sequence[Span], head_seq: int) -> list[Span]:
    """Return the spans up to the head of a log."""
    ended = (Span(span.start, min(span.end, head_seq + 1)) for span in spans)
    return [span for span in ended if span.start < span.end]


def start_of_last(spans: Sequence[Span], head_seq: int, count: int) -> int:
    """Return the seq at which the last `count` messages of these spans begin, 1 for all."""
    for span in reversed(spans_through(spans, head_seq)):
        size = span.end - span.start
        if count <= size:
            return span.end - count
        count -= size
    return 1


# --- the active window ----------------------------------------------------------------------------

TICK = timedelta(microseconds=1)
"""The resolution of times."""
STEPS_PER_WINDOW = 24
"""The window moves by its length divided by this number (rule 9)."""


@dataclass(frozen=True, slots=True)
class Restored:
    """A range of seqs that was put back into the window, and when."""

    span: Span
    at: datetime


@dataclass(frozen=True, slots=True)
class RewoundSpan:
    """A range of seqs that a rewind took out of the window, and when.

    `calls` are the ids and seqs of its calls that were open then.
    """

    span: Span
    at: datetime
    calls: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ActiveWindow:
    """All messages from `since` on without the `gaps`, and the `restored` ranges.

    The `rewound` ranges are left out, unless they were restored later.
    """

    since: int = 1
    gaps: tuple[Span, ...] = ()
    restored: tuple[Restored, ...] = ()
    rewound: tuple[RewoundSpan, ...] = ()

    @property
    def spans(self) -> tuple[Span, ...]:
        """The seqs in the window, ascending; the last span has no end."""
        if self.is_plain:
            return WHOLE if self.since == 1 else (Span(self.since, ENDLESS),)
        left_out = union((*self.gaps, *(item.span for item in self.rewound)))
        newer = minus((Span(self.since, ENDLESS),), left_out)
        put_back = (
            span
            for item in self.restored
            for span in minus((item.span,), union(r.span for r in self.rewound if r.at >= item.at))
        )
        return union((*newer, *put_back))

    @property
    def is_plain(self) -> bool:
        """Whether it has neither gaps nor restored or rewound ranges."""
        return not (self.gaps or self.restored or self.rewound)

    def holds(self, seq: int) -> bool:
        """Whether the message with this seq is in the window."""
        if self.is_plain:
            return seq >= self.since
        return any(span.holds(seq) for span in self.spans)

    def with_restored(self, spans: Iterable[Span], at: datetime) -> ActiveWindow:
        """Return the window with the parts of these ranges that are outside it put back."""
        new = minus(union(spans), self.spans)
        at = max((at, *(item.at + TICK for item in self.rewound)))
        return replace(self, restored=(*self.restored, *(Restored(span, at) for span in new)))

    def rewind(self, span: Span, at: datetime, open_calls: Mapping[str, int]) -> ActiveWindow:
        """Return the window without this range, of which these calls may be open."""
        at = max((at, *(item.at for item in self.restored)))
        calls = tuple((call_id, seq) for call_id, seq in open_calls.items() if span.holds(seq))
        return replace(self, rewound=(*self.rewound, RewoundSpan(span, at, calls)))

    def newest_rewound(self, span: Span) -> RewoundSpan | None:
        """Return what the newest rewind of this range took out."""
        return next((item for item in reversed(self.rewound) if item.span == span), None)

    def unrewind(self, span: Span) -> ActiveWindow:
        """Return the window as if the newest rewind of this range had not been made."""
        undone = self.newest_rewound(span)
        return replace(self, rewound=tuple(item for item in self.rewound if item is not undone))

    def parts_as_json(self) -> str:
        """Return gaps, restored and rewound ranges as stored: JSON, or empty without any."""
        if self.is_plain:
            return ""
        return json_text.dumps(
            {
                "gaps": [[gap.start, gap.end] for gap in self.gaps],
                "restored": [
                    [item.span.start, item.span.end, item.at.isoformat()] for item in self.restored
                ],
                "rewound": [
                    [item.span.start, item.span.end, item.at.isoformat(), item.calls]
                    for item in self.rewound
                ],
            }
        )


WHOLE_LOG_WINDOW = ActiveWindow()
"""The window that holds the whole log."""


def window_from(since: int, parts: str) -> ActiveWindow:
    """Read a window back from its seq and what `parts_as_json` wrote."""
    if not parts:
        return ActiveWindow(since) if since != 1 else WHOLE_LOG_WINDOW
    raw: Mapping[str, Any] = json_text.loads(parts)
    return ActiveWindow(
        since,
        tuple(Span(start, end) for start, end in raw["gaps"]),
        tuple(
            Restored(Span(start, end), datetime.fromisoformat(at))
            for start, end, at in raw["restored"]
        ),
        tuple(
            RewoundSpan(
                Span(start, end), datetime.fromisoformat(at), tuple((id, seq) for id, seq in calls)
            )
            for start, end, at, calls in raw.get("rewound", ())
        ),
    )


def marker_of(
    cleared_at: datetime | None,
    window_seconds: int | None,
    now: datetime,
    *,
    one_step_ahead: bool = False,
) -> datetime | None:
    """Return the time up to which no message is shown, None without one (rule 5).

    With `one_step_ahead` it is one step later, so that the next read does not move the window
    again.
    """
    rolled = None
    if window_seconds is not None:
        window = timedelta(seconds=window_seconds)
        rolled = now - (window - window / STEPS_PER_WINDOW if one_step_ahead else window)
    return max(filter(None, (cleared_at, rolled)), default=None)


def time_after_clear(now: datetime, cleared_at: datetime | None) -> datetime:
    """Return the current time, or a tick after the last clear if that is later."""
    return now if cleared_at is None else max(now, cleared_at + TICK)


def still_restored(
    restored: Iterable[Restored], window: ActiveWindow, marker: datetime | None
) -> tuple[Restored, ...]:
    """Return the restored ranges that stay in a window after a move."""
    return tuple(
        Restored(span, item.at)
        for item in restored
        if marker is None or item.at > marker
        for span in minus((item.span,), window.spans)
    )
