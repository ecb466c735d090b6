"""Views: what of a log is shown, and what stands for the rest.

1. A view is a value: the spans shown verbatim, the summaries of what is not, what is cleared.
2. It shows nothing outside the active window of its conversation, and tells of nothing outside it
   either (B2). That window is a set of spans, too; the last one is open.
3. What is hidden of the window lies in one range, `[span_start, span_end)` of the head, but for
   single messages kept inside it. Everything from its end on is shown, and everything before its
   start.
4. Summaries are ordered, do not overlap, and lie inside the hidden range (N10). Messages hidden
   without a summary are told of by the note.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from app.domain.common import json_text

SUMMARY_PREFIX = "[Earlier conversation summary: "
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

    `head_bytes` and `tail_bytes` are of all its texts together, `tokens` is what is left of its
    cost.
    """

    seq: int
    head_bytes: int
    tail_bytes: int
    tokens: int


def _start(span: Span) -> int:
    return span.start


ENDLESS = 2**62
"""The end of a span that is still growing."""

WHOLE = (Span(1, ENDLESS),)
"""The spans that show a log as it is."""


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


@dataclass(frozen=True, slots=True)
class Summary:
    """A summary and the seqs it stands for; `tokens` is what its message costs.

    `level` 1 is made of messages, each higher one of summaries of the level below (D3);
    `sources` are the spans of those, or the span itself.
    """

    span: Span
    text: str
    tokens: int = 0
    level: int = 1
    sources: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class View:
    """What of a log is shown: the frozen part of an epoch.

    `window` are the seqs that may be shown at all (B2), `spans` those shown verbatim, both
    ascending; the last one is open. `retain` and the
    summaries stand where the hidden range begins, each in a message of its own. Tool results up
    to `trimmed_through` are placeholders, but for the seqs in `untrimmed`. Of the messages in
    `shortened`, ascending, only the beginning and the end are shown. Reasoning after
    `reasoning_after` is replayed (A10, A11); `reasoning_of` names whose reasoning the model takes
    of what came in the Chat format (N12).
    """

    spans: tuple[Span, ...] = WHOLE
    summaries: tuple[Summary, ...] = ()
    retain: str | None = None
    note: str | None = None
    trimmed_through: int = 0
    untrimmed: tuple[int, ...] = ()
    reasoning_after: int = 0
    reasoning_of: tuple[str, ...] = ()
    summary_as_system: bool = False
    window: tuple[Span, ...] = WHOLE
    shortened: tuple[ShortenedMessage, ...] = ()

    def shows(self, seq: int) -> bool:
        """Whether the message with this seq is shown verbatim."""
        at = bisect_right(self.spans, seq, key=_start) - 1
        return at >= 0 and seq < self.spans[at].end

    def trims(self, seq: int) -> bool:
        """Whether a tool result with this seq gives way to its placeholder."""
        return seq <= self.trimmed_through and seq not in self.untrimmed

    @property
    def is_whole(self) -> bool:
        """Whether it shows the log as it is, so that nothing was made after another prefix."""
        given_up = self.summaries or self.note or self.trimmed_through or self.shortened
        return self.spans == WHOLE and not given_up

    @property
    def cuts_the_start(self) -> bool:
        """Whether the log's first message is not shown."""
        return not self.shows(1)

    @property
    def hidden(self) -> Span | None:
        """The range that holds everything hidden, None when all is shown."""
        return hidden_by(self.spans, self.window)

    @property
    def kept(self) -> tuple[int, ...]:
        """The seqs shown although they lie in the hidden range."""
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
        """The range that the summaries stand for together."""
        if not self.summaries:
            return None
        return Span(self.summaries[0].span.start, self.summaries[-1].span.end)

    def summary_texts(self) -> tuple[str, ...]:
        """Return the messages that stand where others are left out, in order."""
        texts = [] if self.retain is None else [f"{RETAIN_PREFIX}{self.retain}]"]
        texts += [f"{SUMMARY_PREFIX}{summary.text}]" for summary in self.summaries]
        if self.note is not None:
            texts.append(f"{texts.pop()}\n{self.note}" if texts else self.note)
        return tuple(texts)

    def as_json(self) -> str:
        """Return the text that is stored for it."""
        return json_text.dumps(asdict(self))


def hidden_by(spans: Sequence[Span], window: Sequence[Span] = WHOLE) -> Span | None:
    """Return the range that holds all of a window that these spans do not show, None without any.

    It may hold seqs outside the window as well, which nothing tells of.
    """
    hidden = minus(window, spans)
    return Span(hidden[0].start, hidden[-1].end) if hidden else None


def spans_beside(
    hidden: Span | None, kept: Iterable[int] = (), window: tuple[Span, ...] = WHOLE
) -> tuple[Span, ...]:
    """Return the seqs of a window shown verbatim around a hidden range and inside it."""
    if hidden is None:
        return window
    inside = spans_of(filter(hidden.holds, kept))
    return union((*minus(window, (hidden,)), *overlap(inside, window)))


def spans_through(spans: Sequence[Span], head_seq: int) -> list[Span]:
    """Return what there is of the spans in a log with this head."""
    ended = (Span(span.start, min(span.end, head_seq + 1)) for span in spans)
    return [span for span in ended if span.start < span.end]


def view_from(raw: Mapping[str, Any]) -> View:
    """Read a view back from what `as_json` wrote, in this version or the first."""
    summaries = raw.get("summaries")
    if summaries is None:  # the first version knew one summary
        span = raw["summary_span"]
        summaries = [{"span": span, "text": raw["summary"] or ""}] if span else []
    return View(
        spans=tuple(Span(**item) for item in raw["spans"]),
        summaries=tuple(map(summary_from, summaries)),
        retain=raw.get("retain"),
        note=raw["note"],
        trimmed_through=raw["trimmed_through"],
        untrimmed=tuple(raw.get("untrimmed", ())),
        reasoning_after=raw["reasoning_after"],
        reasoning_of=tuple(raw.get("reasoning_of", ())),
        summary_as_system=raw["summary_as_system"],
        window=tuple(Span(**item) for item in raw["window"]) if "window" in raw else WHOLE,
        shortened=tuple(ShortenedMessage(**item) for item in raw.get("shortened", ())),
    )


def summary_from(raw: Mapping[str, Any]) -> Summary:
    """Read a summary back from its JSON object."""
    return Summary(
        span=Span(**raw["span"]),
        text=raw["text"],
        tokens=raw.get("tokens", 0),
        level=raw.get("level", 1),
        sources=tuple(Span(**item) for item in raw.get("sources", ())),
    )
