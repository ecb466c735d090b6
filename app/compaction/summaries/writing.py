"""Writes a digest as text within a number of tokens. [summary.extractive, summary.room]

1. If all items fit, all are listed. Else they are chosen rank by rank, the newest of a rank first:
   in a first round at most the share of the limit that the rank has, in two more what room is left.
   Steps and results get a few tokens each before any of them is whole. Older requests are first
   shown by their sentences with values alone.
2. A request or conclusion that does not fit is shortened to its first and last sentences, then to
   others, those last that several requests have; without code in its middle.
3. A sentence of a request or conclusion that is shown is not repeated as a statement.
4. An item without room is `unlisted`: a later summary with more room lists it. [summary.unlisted]
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import groupby
from typing import NamedTuple

from app.common.texts import sendable
from app.compaction.summaries import sentences, summary_text
from app.compaction.summaries.digest import Digest
from app.compaction.summaries.prompt import SummaryResult
from app.compaction.summaries.summary_text import NO_CLOSING, Closing, Heading
from app.conversations.view import HeadingCount, Span
from app.formats.message import Message
from app.models.tokens import CountText

MAX_UNLISTED, MAX_UNLISTED_CHARS = 400, 60_000
"""The most unlisted items that are kept for later summaries, and their characters together."""
MIN_SOURCE_TOKENS = 128
"""A shorter source counts as this many tokens: half of less would not hold a sentence."""
SOURCE_SHARE = 0.5
"""The most tokens of a summary, as a share of the tokens of its source."""
MIN_CUT_TOKENS, BRIEF_TOKENS = 24, 80
"""The fewest tokens of a shortened text; the most of one that is older, in the first round."""
BRIEF_SHARE = 0.02
"""An older request that takes more of the limit is first shown by its sentences with values."""
WHOLE_SHARE = 0.4
"""The newest request is whole up to this share of the limit."""
MIN_ITEM_TOKENS, MAX_STATING_CHARS = 3, 300
"""With less room than the first no item is tried. A request with more characters than the second
is a long one: it comes after the short ones with statements."""
BRIEF_RESULT_CHARS = 300
"""The most characters of a call with its result, until all others are listed."""
MAX_CLOSING_SHARE = 0.06
"""The last line is left out if it takes a larger share of the limit."""
_STATEMENTS = frozenset({Heading.STATED, Heading.VALUES})
_RESULTS = frozenset({Heading.DONE, Heading.LOOKED})
_BRIEF = _RESULTS | {Heading.STEPS}
_TEXTS = frozenset({Heading.REQUESTS, Heading.SAID, Heading.STEPS, Heading.EARLIER})


@dataclass(frozen=True, slots=True)
class SummaryScope:
    """What a summary is made from besides messages, and how it ends.

    `earlier_tokens` is the size of the messages that the earlier summary stands for, and
    `earlier_start` the seq of their first. `shown_after` are newer messages that stay shown: their
    values replace older ones. `unlisted` are items without room in the earlier summary,
    `newly_unlisted` those without room in the newest of several to merge. `kept_tokens` is the
    room for the statements that a model must not lose, None for half of the summary.
    """

    count: CountText
    closing: Closing = NO_CLOSING
    earlier_tokens: int = 0
    earlier_start: int = 0
    shown_after: tuple[Span, ...] = ()
    unlisted: str = ""
    newly_unlisted: str = ""
    kept_tokens: int | None = None


class Rank(NamedTuple):
    """Items of one rank: their places below their heading, and their share in the first round.

    Those that are `is_older` are first shown in a few tokens each.
    """

    heading: Heading
    places: Sequence[int]
    share: float
    is_older: bool = False


@dataclass(slots=True)
class Writer:
    """Chooses the items of one text."""

    digest: Digest
    limit: int
    count: CountText
    closing: Closing = NO_CLOSING
    headings: frozenset[Heading] = frozenset(Heading)
    room: int = 0
    ending: str = field(init=False)
    chosen: dict[Heading, dict[int, str]] = field(init=False)
    items: dict[Heading, list[str]] = field(init=False)
    repeated: set[str] = field(init=False)
    """The sentences that several requests have."""
    numbers: list[int] = field(default_factory=list)
    """The numbers of the messages with the statements of users, in their order."""

    def __post_init__(self) -> None:
        digest, closing = self.digest, self.closing.text
        digest.finish()
        self.count = cache(self.count)
        self.ending = closing if self.count(closing) <= self.limit * MAX_CLOSING_SHARE else ""
        found = defaultdict(list, digest.work.lines())
        if digest.earlier:
            found[Heading.EARLIER].append(digest.earlier)
        for heading, texts in digest.texts.items():
            found[heading] = [f"#{number} {text}" for number, text in sorted(texts.items())]
        listed = [each for each in digest.stated.values() if each.is_listed]
        for each in sorted(listed, key=lambda each: each.at):
            found[each.heading].append(each.line)
            if each.by_user:
                self.numbers.append(each.at)
        times = Counter(p for text in set(digest.requests.values()) for p in sentences.pieces(text))
        self.repeated = {piece for piece, found in times.items() if found > 1 and piece.strip()}
        wanted = [heading for heading in Heading if heading in self.headings]
        self.items = {heading: list(map(sendable, found.get(heading, ()))) for heading in wanted}
        self.chosen = {heading: {} for heading in wanted}

    # --- choosing -------------------------------------------------------------------------

    def _ranks(self) -> Iterable[Rank]:
        """Return all items by rank."""
        newest = {heading: self._newest(heading) for heading in Heading}
        talk = (Heading.REQUESTS, Heading.SAID, Heading.STATED, Heading.STEPS)
        requests, said, stated, steps = (newest[heading] for heading in talk)
        asked, listed = sorted(self.digest.requests.items()), self.items.get(Heading.STATED, [])
        common, known = self.digest.common_words(), self.digest.stated.values()
        # A statement of which all words are common says less than any other.
        valued = [each for each in known if each.of.values and not each.of.stems <= common]
        with_values, stating = {each.line for each in valued}, {each.request for each in valued}
        stated.sort(key=lambda at: not listed[at].endswith(summary_text.CHANGED))
        older = sorted(requests[1:], key=lambda at: asked[at][1].endswith(sentences.QUESTION))
        older.sort(key=lambda at: asked[at][0] not in stating)
        short = [at for at in older if len(asked[at][1]) <= MAX_STATING_CHARS]
        with_statements = [at for at in short if asked[at][0] in stating]
        is_whole = bool(asked) and self.count(asked[-1][1]) <= self.limit * WHOLE_SHARE
        yield Rank(Heading.REQUESTS, requests[:1], WHOLE_SHARE if is_whole else 0.25)
        yield Rank(Heading.REQUESTS, requests[-1:], 0.2)
        yield Rank(Heading.STATED, [at for at in stated if sentences.label_of(listed[at])], 1.0)
        yield Rank(Heading.STATED, [at for at in stated if listed[at] in with_values], 0.45)
        yield Rank(Heading.REQUESTS, with_statements, 0.75, is_older=True)
        for heading in (Heading.TODO, Heading.FAILED, Heading.OPEN):
            yield Rank(heading, newest[heading], 0.05)
        yield Rank(Heading.SAID, said[:1], 0.2)
        yield Rank(Heading.STATED, stated, 0.2)
        yield Rank(Heading.REQUESTS, older, 0.45, is_older=True)
        for heading in (Heading.COMMANDS, Heading.EDITED, Heading.DONE):
            yield Rank(heading, newest[heading], 0.12)
        yield Rank(Heading.EARLIER, newest[Heading.EARLIER], 0.35)
        yield Rank(Heading.SAID, said[1:], 0.12, is_older=True)
        yield Rank(Heading.VALUES, newest[Heading.VALUES], 0.12)
        for heading in (Heading.REFERENCES, Heading.READ, Heading.LOOKED):
            yield Rank(heading, newest[heading], 0.0)
        yield Rank(Heading.STEPS, steps, 0.04, is_older=True)

    def choose(self) -> None:
        """Choose the items (rule 1)."""
        for heading, texts in self.items.items():
            self.chosen[heading] = dict(enumerate(texts))
        self._leave_out_repeated()
        if len(text := self.text()) <= 8 * self.limit and self.count(text) <= self.limit:
            return
        self.chosen = {heading: {} for heading in self.items}
        ranks = [rank for rank in self._ranks() if rank.heading in self.items]
        self.room = self.limit - self.count(self.text())
        for rank in ranks:
            self._take(rank, int(self.limit * rank.share) + MIN_CUT_TOKENS, is_brief=True)
        for is_brief in (True, False):
            self.room = self.limit - self.count(self.text())  # joined, items cost less than alone
            for rank in ranks:
                self._take(rank, self.room, is_brief=is_brief and rank.heading in _BRIEF)
        self._leave_out_repeated()

    def _newest(self, heading: Heading) -> list[int]:
        return list(range(len(self.items.get(heading, ())) - 1, -1, -1))

    def _take(self, rank: Rank, most: int, *, is_brief: bool = False) -> None:
        """Choose items of a rank while there is room, of at most `most` tokens together."""
        heading, most = rank.heading, min(most, self.room)
        chosen, shown = self.chosen[heading], self._shown() if heading in _STATEMENTS else ""
        for at in rank.places:
            if most < MIN_ITEM_TOKENS:
                return
            text, known = self.items[heading][at], chosen.get(at, "")
            if is_brief and rank.is_older and heading is Heading.REQUESTS:
                text = self._brief(text)
            elif is_brief and heading in _RESULTS:
                text = sentences.one_line(text, BRIEF_RESULT_CHARS)
            if text == known or (shown and sentences.flat(text) in shown):
                continue
            before = self._cost(heading, known) if known else 0
            cost = self._cost(heading, text)
            room = min(most + before, BRIEF_TOKENS if is_brief and rank.is_older else most + before)
            if heading in _TEXTS and cost > room:
                text = self._shortened(text, room, is_older=rank.is_older)
                cost = self._cost(heading, text)
            if len(text) > len(known) and cost <= most + before:
                chosen[at] = text
                self.room -= cost - before
                most -= cost - before

    def _brief(self, text: str) -> str:
        """Return the sentences with values of a request, all if it is short, long or has none."""
        if len(text) > MAX_STATING_CHARS or self.count(text) <= self.limit * BRIEF_SHARE:
            return text
        number, _, rest = text.partition(" ")
        parts = sentences.pieces(rest.partition(summary_text.ASKED)[0])
        groups = groupby(parts, sentences.has_values)
        shown = "".join("".join(each) if told else f"{sentences.CUT} " for told, each in groups)
        return text if shown.strip() == sentences.CUT else f"{number} {shown.strip()}"

    def _shortened(self, text: str, tokens: int, *, is_older: bool) -> str:
        if tokens < MIN_CUT_TOKENS:
            return ""
        number, space, rest = text.partition(" ") if text.startswith("#") else ("", "", text)
        output = filter(sentences.is_output, sentences.pieces(rest) if is_older else ())
        ranks = dict.fromkeys(self.repeated, 3) | dict.fromkeys(output, 4)
        cut = sentences.shortened(rest, tokens - 10, self.count, ranks)
        return f"{number}{space}{cut}" if cut else ""

    def _cost(self, heading: Heading, text: str) -> int:
        label = sentences.label_of(text) if heading is Heading.STATED else ""
        chosen = self.chosen[heading]
        is_known = any(each.startswith(label) for each in chosen.values())
        title = "" if chosen else f"## {heading.value}\n"
        return self.count(
            f"{title}{summary_text.line_of(text.removeprefix(label) if is_known else text)}\n"
        )

    def _shown(self) -> str:
        inside = (self.chosen.get(heading, {}).values() for heading in _TEXTS)
        return "\n".join(sentences.flat(text) for texts in inside for text in texts)

    def _leave_out_repeated(self) -> None:
        """Leave out statements that are sentences of a text that is shown (rule 3)."""
        shown = self._shown()
        for heading in _STATEMENTS & self.chosen.keys():
            chosen = self.chosen[heading].items()
            self.chosen[heading] = {a: b for a, b in chosen if sentences.flat(b) not in shown}

    # --- the text -------------------------------------------------------------------------

    def text(self) -> str:
        """Return the chosen items as text."""
        parts = [part for part in (*self._under_headings(self.chosen), self.ending) if part]
        return "\n".join((summary_text.TITLE, *parts)) if parts else summary_text.NOTHING

    def _under_headings(self, items: dict[Heading, dict[int, str]]) -> list[str]:
        chosen = ((at, sorted(items[at].items())) for at in Heading if items.get(at))
        return [summary_text.text_under(at, [t for _, t in each]) for at, each in chosen]

    def unlisted(self) -> str:
        """Return the items without room as the text of a summary, newest first (rule 4)."""
        left: dict[Heading, dict[int, str]] = {heading: {} for heading in self.items}
        shown = self._shown()
        budget, chars = MAX_UNLISTED, MAX_UNLISTED_CHARS
        for heading, chosen in self.chosen.items():
            for at in self._newest(heading) if heading is not Heading.OPEN else ():
                text, known = self.items[heading][at], chosen.get(at)
                is_shown = known == text or (known is None and sentences.flat(text) in shown)
                if not is_shown and len(text) <= chars and budget:
                    left[heading][at] = text
                    budget, chars = budget - 1, chars - len(text)
        if not any(left.values()):
            return ""
        stated = self.items.get(Heading.STATED, [])  # listed ones as well: the order of all
        numbered = enumerate(zip(self.numbers, stated, strict=False))
        left[Heading.STATED] = {at: f"@{number} {text}" for at, (number, text) in numbered}
        return "\n".join((summary_text.TITLE, *self._under_headings(left)))

    def counts(self) -> tuple[HeadingCount, ...]:
        """Return what became of the items below each heading."""
        counts: list[HeadingCount] = []
        for heading, items in self.items.items():
            replaced, kept = self.digest.superseded[heading], len(self.chosen[heading])
            if found := len(items) + replaced:
                dropped = found - kept - replaced
                counts.append(HeadingCount(heading.value, found, kept, replaced, dropped))
        return tuple(counts)


# --- summaries --------------------------------------------------------------------------------


def digest_of(
    messages: Iterable[Message] = (),
    earlier: Iterable[str] = (),
    *,
    keeps_users: bool = False,
    replaces: bool = False,
) -> Digest:
    """Return what earlier summaries, oldest first, and messages hold.

    With `replaces` statements of a later summary replace those of an older one.
    """
    digest = Digest(keeps_users=keeps_users)
    for place, text in enumerate(filter(None, earlier)):
        digest.read(text, replaces=replaces and place > 0)
    for message in messages:
        digest.add(message)
    return digest


def fitted(
    digest: Digest,
    limit: int,
    count: CountText,
    closing: Closing = NO_CLOSING,
    headings: frozenset[Heading] = frozenset(Heading),
) -> SummaryResult:
    """Return a digest as text within a limit, and what has no room."""
    writer = Writer(digest, limit, count, closing, headings)
    writer.choose()
    text = writer.text()
    while count(text) > limit and any(writer.chosen.values()):  # joined lines may cost more
        last = next(s for s in reversed(Heading) if writer.chosen.get(s))
        del writer.chosen[last][min(writer.chosen[last])]
        text = writer.text()
    return SummaryResult(text, None, writer.counts(), writer.unlisted())


def write_summary(digest: Digest, max_tokens: int, scope: SummaryScope) -> SummaryResult:
    """Return a digest as a summary, at most half as long as its source."""
    source_tokens = digest.source_tokens + scope.earlier_tokens
    limit = min(max_tokens, int(source_tokens * SOURCE_SHARE))
    return replace(fitted(digest, limit, scope.count, scope.closing), digest=digest)


def merged_unlisted(texts: Sequence[str], count: CountText) -> str:
    """Return in one text what several summaries, oldest first, had no room for."""
    return Writer(digest_of(earlier=texts, replaces=True), 0, count).unlisted()


def without_replaced(
    texts: Sequence[str], count: CountText, shown: Sequence[Message] = ()
) -> list[str]:
    """Return summaries, oldest first, without what a later one or a message after them replaces.

    A summary without such a statement, or that a model wrote, is returned as it is.
    """
    current = digest_of(earlier=texts, replaces=True)
    for message in shown:
        current.replace_by(message)
    left: list[str] = []
    for text in texts:
        is_ours = text.startswith(summary_text.TITLE) and summary_text.WRITTEN not in text
        own = digest_of(earlier=(text,)) if is_ours else Digest()
        was_changed = own.keep_stated(current.stated.keys())
        left.append(fitted(own, count(text), count).text if was_changed else text)
    return left
