"""Writes a digest as text within a number of tokens. [summary.extractive, summary.room]

1. What fits whole is listed whole. Else items take the room by rank, the newest of a rank first:
   first each rank up to its share of the room, then all of them in the same order what is left,
   of steps a few tokens each before any is whole.
2. A request or conclusion that does not fit is shown by its first and last sentences, then by
   those that no other request has; without code, and without what another request shows.
3. What stands in a request or a conclusion that is shown is not repeated as a statement.
4. What has no room is `unlisted`: a later summary with more room lists it. [summary.unlisted]
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from app.common.texts import sendable
from app.compaction.summaries import sentences
from app.compaction.summaries.digest import Digest
from app.compaction.summaries.prompt import SummaryResult
from app.compaction.summaries.summary_text import (
    HEADING,
    NO_CLOSING,
    NOTHING,
    WRITTEN,
    Closing,
    Section,
    line_of,
    section_text,
)
from app.conversations.view import SectionCount, Span
from app.formats.message import Message
from app.models.tokens import CountText

MAX_UNLISTED, MAX_UNLISTED_CHARS = 400, 60_000
MIN_SOURCE_TOKENS = 128
"""A shorter source counts as so long: half of it would not hold a sentence."""
SOURCE_SHARE = 0.5
"""The share of its source that a summary may take."""
MIN_CUT_TOKENS, BRIEF_TOKENS = 24, 80
"""The least tokens of a shortened text; at first, the most of one that is older."""
MIN_ITEM_TOKENS, MAX_STATING_CHARS = 3, 300
"""A message of a user with more characters asks for more than it states."""
MAX_CLOSING_SHARE = 0.06
_STATEMENTS = frozenset({Section.STATED, Section.VALUES})
_TEXTS = frozenset({Section.REQUESTS, Section.SAID, Section.STEPS, Section.EARLIER})


@dataclass(frozen=True, slots=True)
class SummaryScope:
    """What a summary stands for, besides the messages that it is made from.

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
    """Items of one rank: their places in their section, and the share of the room at first.

    `is_older` ones are first shown in a few tokens each.
    """

    section: Section
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
    sections: frozenset[Section] = frozenset(Section)
    room: int = 0
    ending: str = field(init=False)
    chosen: dict[Section, dict[int, str]] = field(init=False)
    items: dict[Section, list[str]] = field(init=False)
    repeated: set[str] = field(init=False)
    """The pieces that requests have several times."""
    numbers: list[int] = field(default_factory=list)
    """The numbers of the messages of what the user stated."""

    def __post_init__(self) -> None:
        digest, closing = self.digest, self.closing.text
        digest.finish()
        self.count = cache(self.count)
        self.ending = closing if self.count(closing) <= self.limit * MAX_CLOSING_SHARE else ""
        found = defaultdict(list, digest.work.lines())
        found[Section.EARLIER] += [digest.earlier] * bool(digest.earlier)
        for section, texts in digest.texts.items():
            found[section] = [f"#{number} {text}" for number, text in sorted(texts.items())]
        listed = [each for each in digest.stated.values() if each.is_listed]
        for each in sorted(listed, key=lambda each: each.at):
            found[each.section].append(each.line)
            if each.by_user:
                self.numbers.append(each.at)
        every = map(sentences.pieces, set(digest.requests.values()))
        times = Counter(piece for found in every for piece in found)
        self.repeated = {piece for piece, found in times.items() if found > 1 and piece.strip()}
        wanted = [section for section in Section if section in self.sections]
        self.items = {section: list(map(sendable, found.get(section, ()))) for section in wanted}
        self.chosen = {section: {} for section in wanted}

    # --- choosing -------------------------------------------------------------------------

    def _ranks(self) -> Iterable[Rank]:
        """Return all items by rank."""
        newest = {section: self._newest(section) for section in Section}
        talk = (Section.REQUESTS, Section.SAID, Section.STATED, Section.STEPS)
        requests, said, stated, steps = (newest[section] for section in talk)
        numbers, listed = sorted(self.digest.requests), self.items.get(Section.STATED, [])
        texts_of = [self.digest.requests[number] for number in numbers]
        known = self.digest.stated.values()
        # One more statement of a kind that there are many of says less than any other.
        common = self.digest.common_words()
        rare = [each for each in known if not each.of.stems <= common]
        telling = {each.request for each in rare if each.of.is_strong}
        texts = {each.line for each in rare if each.of.values}
        newer = {each.line for each in known if each.is_newer}
        stated.sort(key=lambda at: listed[at] not in newer)
        others = sorted(requests[1:], key=lambda at: texts_of[at].endswith(sentences.QUESTION))
        told = [at for at in others if numbers[at] in telling]
        told.sort(key=lambda at: len(texts_of[at]) > MAX_STATING_CHARS)
        yield Rank(Section.REQUESTS, requests[:1], 0.25)
        yield Rank(Section.REQUESTS, requests[-1:], 0.2)
        yield Rank(Section.STATED, [at for at in stated if sentences.label_of(listed[at])], 1.0)
        yield Rank(Section.STATED, [at for at in stated if listed[at] in texts], 0.45)
        yield Rank(Section.REQUESTS, told, 0.45, is_older=True)
        for section in (Section.TODO, Section.FAILED, Section.OPEN):
            yield Rank(section, newest[section], 0.1)
        yield Rank(Section.SAID, said[:1], 0.2)
        yield Rank(Section.STATED, stated, 0.2)
        yield Rank(Section.REQUESTS, others, 0.45, is_older=True)
        for section in (Section.COMMANDS, Section.EDITED, Section.DONE):
            yield Rank(section, newest[section], 0.12)
        yield Rank(Section.EARLIER, newest[Section.EARLIER], 0.35)
        yield Rank(Section.SAID, said[1:], 0.12, is_older=True)
        yield Rank(Section.VALUES, newest[Section.VALUES], 0.12)
        for section in (Section.REFERENCES, Section.READ, Section.LOOKED):
            yield Rank(section, newest[section], 0.0)
        yield Rank(Section.STEPS, steps, 0.04, is_older=True)

    def choose(self) -> None:
        """Choose the items (rule 1)."""
        for section, texts in self.items.items():
            self.chosen[section] = dict(enumerate(texts))
        self._leave_out_repeated()
        if len(text := self.text()) <= 8 * self.limit and self.count(text) <= self.limit:
            return
        self.chosen = {section: {} for section in self.items}
        ranks = [rank for rank in self._ranks() if rank.section in self.items]
        self.room = self.limit - self.count(self.text())
        for rank in ranks:
            self._take(rank, int(self.limit * rank.share) + MIN_CUT_TOKENS, is_brief=True)
        for is_brief in (True, False):
            self._leave_out_repeated()
            self.room = self.limit - self.count(self.text())  # joined, items cost less than alone
            for rank in ranks:
                self._take(rank, self.room, is_brief=is_brief and rank.section is Section.STEPS)
        self._leave_out_repeated()

    def _newest(self, section: Section) -> list[int]:
        return list(range(len(self.items.get(section, ())) - 1, -1, -1))

    def _take(self, rank: Rank, most: int, *, is_brief: bool = False) -> None:
        """Choose items of a rank while they have room, together at most so many tokens."""
        section, most = rank.section, min(most, self.room)
        chosen, shown = self.chosen[section], self._shown() if section in _STATEMENTS else ""
        for at in rank.places:
            if most < MIN_ITEM_TOKENS:
                return
            text, known = self.items[section][at], chosen.get(at, "")
            if text == known or (shown and sentences.flat(text) in shown):
                continue
            before = self._cost(section, known) if known else 0
            cost = self._cost(section, text)
            room = min(most + before, BRIEF_TOKENS if is_brief and rank.is_older else most + before)
            if section in _TEXTS and cost > room:
                text = self._shortened(text, room, is_older=rank.is_older)
                cost = self._cost(section, text)
            if len(text) > len(known) and cost <= most + before:
                chosen[at] = text
                self.room -= cost - before
                most -= cost - before

    def _shortened(self, text: str, tokens: int, *, is_older: bool) -> str:
        if tokens < MIN_CUT_TOKENS:
            return ""
        number, space, rest = text.partition(" ") if text.startswith("#") else ("", "", text)
        ranks, requests = dict.fromkeys(self.repeated, 3), self.chosen.get(Section.REQUESTS, {})
        others = "\n".join(each for each in requests.values() if not each.startswith(f"{number} "))
        for piece in sentences.pieces(rest) if is_older else ():
            is_shown = piece in self.repeated and piece.strip() in others
            if is_shown or sentences.is_output(piece):
                ranks[piece] = 4
        cut = sentences.shortened(rest, tokens - 10, self.count, ranks)
        return f"{number}{space}{cut}" if cut else ""

    def _cost(self, section: Section, text: str) -> int:
        label = sentences.label_of(text) if section is Section.STATED else ""
        chosen = self.chosen[section]
        is_known = any(each.startswith(label) for each in chosen.values())
        heading = "" if chosen else f"## {section.value}\n"
        return self.count(f"{heading}{line_of(text.removeprefix(label) if is_known else text)}\n")

    def _shown(self) -> str:
        inside = (self.chosen.get(section, {}).values() for section in _TEXTS)
        return "\n".join(sentences.flat(text) for texts in inside for text in texts)

    def _leave_out_repeated(self) -> None:
        """Leave out statements that stand in a text that is shown (rule 3)."""
        shown = self._shown()
        for section in _STATEMENTS & self.chosen.keys():
            chosen = self.chosen[section].items()
            self.chosen[section] = {a: b for a, b in chosen if sentences.flat(b) not in shown}

    # --- the text -------------------------------------------------------------------------

    def text(self) -> str:
        """Return the chosen items as text."""
        parts = [part for part in (*self._sections(self.chosen), self.ending) if part]
        return "\n".join((HEADING, *parts)) if parts else NOTHING

    def _sections(self, items: dict[Section, dict[int, str]]) -> list[str]:
        chosen = ((at, sorted(items[at].items())) for at in Section if items.get(at))
        return [
            section_text(at, [t for _, t in each], self.digest.work.root) for at, each in chosen
        ]

    def unlisted(self) -> str:
        """Return the items that have no room as the text of a summary, newest first (rule 4)."""
        left: dict[Section, dict[int, str]] = {section: {} for section in self.items}
        shown = self._shown()
        budget, chars = MAX_UNLISTED, MAX_UNLISTED_CHARS
        for section, chosen in self.chosen.items():
            for at in self._newest(section) if section is not Section.OPEN else ():
                text, known = self.items[section][at], chosen.get(at)
                is_shown = known == text or (known is None and sentences.flat(text) in shown)
                if not is_shown and len(text) <= chars and budget:
                    left[section][at] = text
                    budget, chars = budget - 1, chars - len(text)
        if not any(left.values()):
            return ""
        stated = self.items.get(Section.STATED, [])  # listed ones as well: the order of all
        numbered = enumerate(zip(self.numbers, stated, strict=False))
        left[Section.STATED] = {at: f"@{number} {text}" for at, (number, text) in numbered}
        return "\n".join((HEADING, *self._sections(left)))

    def counts(self) -> tuple[SectionCount, ...]:
        """Return what became of the items of each section."""
        counts: list[SectionCount] = []
        for section, items in self.items.items():
            replaced, kept = self.digest.superseded[section], len(self.chosen[section])
            if found := len(items) + replaced:
                dropped = found - kept - replaced
                counts.append(SectionCount(section.value, found, kept, replaced, dropped))
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
    sections: frozenset[Section] = frozenset(Section),
) -> SummaryResult:
    """Return a digest as text within a limit, and what has no room."""
    writer = Writer(digest, limit, count, closing, sections)
    writer.choose()
    text = writer.text()
    while count(text) > limit and any(writer.chosen.values()):  # joined lines may cost more
        last = next(s for s in reversed(Section) if writer.chosen.get(s))
        del writer.chosen[last][min(writer.chosen[last])]
        text = writer.text()
    return SummaryResult(text, None, writer.counts(), writer.unlisted())


def write_summary(
    digest: Digest, max_tokens: int, source_tokens: int, scope: SummaryScope
) -> SummaryResult:
    """Return a digest as a summary, at most half as long as its source."""
    limit = min(max_tokens, int(source_tokens * SOURCE_SHARE))
    return fitted(digest, limit, scope.count, scope.closing)


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
        is_ours = text.startswith(HEADING) and WRITTEN not in text
        own = digest_of(earlier=(text,)) if is_ours else Digest()
        was_changed = own.keep_stated(current.stated.keys())
        left.append(fitted(own, count(text), count).text if was_changed else text)
    return left
