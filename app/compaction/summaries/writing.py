"""Writes a digest as text within a number of tokens. [summary.extractive, summary.room]

1. Items take the room by rank: the newest request, what users stated, the state of the work, the
   newest conclusion, older requests, values, and what was only read. Within a rank the newest come
   first. Each rank has a share of the room that it cannot exceed before the others had theirs.
2. A request or conclusion that does not fit is shown by its first and last sentences.
3. What stands in a request that is shown is not repeated as a statement.
4. What has no room is `unlisted`: a later summary with more room lists it. [summary.unlisted]
5. Items are lines `- …`, further lines are indented: a later summary reads them back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from app.common.texts import sendable
from app.compaction.summaries.calls import GAVE
from app.compaction.summaries.digest import (
    HEADING,
    NO_CLOSING,
    NOTHING,
    Closing,
    Digest,
    Section,
    work_lines,
)
from app.compaction.summaries.prompt import SummaryResult
from app.compaction.summaries.sentences import head_and_tail, label_of
from app.conversations.view import SectionCount, Span
from app.formats.message import Message
from app.models.tokens import CountText

MAX_UNLISTED, MAX_UNLISTED_CHARS = 400, 60_000
RETAIN_SHARE = 0.25
"""The share of the summary that its retain section may take."""
MIN_SOURCE_TOKENS = 128
"""A shorter source counts as so long: half of it would not hold a sentence."""
SOURCE_SHARE = 0.5
"""The share of its source that a summary may take."""
MIN_CUT_TOKENS = 24
"""A text that has fewer tokens left is not shortened to them but left out."""
BRIEF_TOKENS = 40
"""So much of every older request and conclusion is tried before any is shown whole."""
LEAST_TOKENS = 24
"""Of a small room a share would not hold an item."""
MIN_CLOSING_SHARE = 0.06
_RETAINED = frozenset({Section.STATED})
_ONE_LINE = frozenset({Section.EDITED, Section.READ})
_STATE = (Section.TODO, Section.FAILED, Section.OPEN)
MAX_WORK, MAX_TALK_WORDS = 12, 4
OPTIONAL_SHARE = 0.7
"""Values, older conclusions and what was only read take no more than this share of the room."""
_WORK = (Section.EDITED, Section.DONE, Section.COMMANDS)
_REPEATED = {
    Section.STATED: (Section.REQUESTS,),
    Section.VALUES: (Section.REQUESTS, Section.SAID, Section.EARLIER),
}
"""Where statements of a section may stand already."""
_FILLING = (Section.STATED, *_STATE, Section.EDITED, Section.VALUES)
MAX_TRIES = 24
_LAST = (Section.REFERENCES, Section.READ, Section.LOOKED)


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


@dataclass(slots=True)
class Writer:
    """Chooses the items of one text."""

    digest: Digest
    limit: int
    count: CountText
    closing: Closing = NO_CLOSING
    sections: frozenset[Section] = frozenset(Section)
    room: int = field(init=False)
    ending: str = field(init=False)
    chosen: dict[Section, dict[int, str]] = field(default_factory=dict)
    items: dict[Section, list[str]] = field(init=False)

    def __post_init__(self) -> None:
        digest, closing = self.digest, self.closing.text
        digest.finish()
        self.ending = closing if self.count(closing) <= self.limit * MIN_CLOSING_SHARE else ""
        self.room = self.limit - self.count(HEADING) - 1
        self.room -= self.count(self.ending) + 2 if self.ending else 0
        stated: dict[Section, list[str]] = {Section.STATED: [], Section.VALUES: []}
        for each in digest.stated.values():
            stated[each.section].append(each.text)
        found: dict[Section, Sequence[str]] = {
            **work_lines(digest.work),
            Section.REQUESTS: [f"#{number} {text}" for number, text in digest.requests.items()],
            Section.SAID: [f"#{number} {text}" for number, text in digest.said.items()],
            Section.EARLIER: [digest.earlier] if digest.earlier else [],
            **stated,
        }
        wanted = (section for section in Section if section in self.sections)
        self.items = {section: list(map(sendable, found.get(section, ()))) for section in wanted}

    # --- choosing -------------------------------------------------------------------------

    def choose(self) -> None:
        """Choose the items by rank (rule 1)."""
        requests, said = self._newest(Section.REQUESTS), self._newest(Section.SAID)
        users = [each for each in self.digest.stated.values() if each.by_user]
        # One more statement of a kind that there are many of says less than any other.
        common = self.digest.common_words()
        ranked = self._newest(Section.STATED)
        usual = {at for at in ranked if users[at].request and users[at].of.stems <= common}
        ranked.sort(key=usual.__contains__)
        noted = [at for at in ranked if users[at].of.is_strong or not users[at].request]
        self._take(Section.REQUESTS, requests[:1], 0.25)
        self._take(Section.REQUESTS, requests[-1:], 0.2)
        self._take_stated([at for at in ranked if label_of(users[at].text)], 1.0)
        rare = [at for at in noted if at not in usual and users[at].of.values]
        self._take_stated(rare, 0.45)
        for section in _STATE:
            self._take(section, self._newest(section), 0.1)
        self._take(Section.SAID, said[:1], 0.2)
        talk = self.items.get(Section.REQUESTS, [])
        older = sorted(requests[1:], key=lambda at: len(talk[at].split()) <= MAX_TALK_WORDS)
        self._take(Section.REQUESTS, older, 0.45, brief=True)
        told = [at for at in self._newest(Section.COMMANDS) if not self._is_plain(at)]
        self._take(Section.COMMANDS, told, 0.08)
        for section in _WORK:
            self._take(section, self._newest(section)[:MAX_WORK], 0.12)
        self._take_stated(noted, 0.2)
        self._take(Section.EARLIER, self._newest(Section.EARLIER), 0.35)
        self._take(Section.VALUES, self._newest(Section.VALUES), 0.12)
        self._take(Section.SAID, said[1:], 0.12, brief=True)
        self._take_stated([at for at in ranked if users[at].of.values], 0.5)
        self._take(Section.REQUESTS, older, 1.0)
        self.room -= int(self.limit * (1 - OPTIONAL_SHARE))  # what messages may take as well
        self._take(Section.VALUES, self._newest(Section.VALUES), 0.3)
        for section in (*_STATE, *_LAST):
            self._take(section, self._newest(section)[:MAX_WORK], 0.3)
        self._take(Section.SAID, said[:3], 0.4)
        self._take(Section.EARLIER, self._newest(Section.EARLIER), 1.0)
        self._take(Section.SAID, said, 1.0)
        self._leave_out_repeated()
        self._fill_up()

    def _fill_up(self) -> None:
        """Add items that fit by the count of the whole text: alone they cost more than in it."""
        tries, chars = MAX_TRIES, 6 * (self.limit - self.count(self.text()))
        for section in _FILLING:
            chosen = self.chosen.setdefault(section, {})
            texts = self.items.get(section, [])
            for at in sorted(self._newest(section), key=lambda at: not label_of(texts[at])):
                text = texts[at]
                is_out = at in chosen or len(text) > chars or not tries
                if is_out or self._is_repeated(section, text):
                    continue
                tries -= 1
                chosen[at] = text
                if (tokens := self.count(self.text())) > self.limit:
                    del chosen[at]
                else:
                    chars = 6 * (self.limit - tokens)

    def _newest(self, section: Section) -> list[int]:
        return list(range(len(self.items.get(section, ())) - 1, -1, -1))

    def _is_plain(self, at: int) -> bool:
        """Whether all that is known of a command is that it succeeded."""
        return self.items[Section.COMMANDS][at].endswith(f"{GAVE}ok")

    def _take_stated(self, positions: Iterable[int], share: float) -> None:
        texts = self.items.get(Section.STATED, [])
        shown = _flat(self.chosen.get(Section.REQUESTS, {}).values())
        positions = [at for at in positions if at < len(texts) and _flat([texts[at]]) not in shown]
        self._take(Section.STATED, positions, share)

    def _take(
        self, section: Section, positions: Iterable[int], share: float, *, brief: bool = False
    ) -> None:
        """Choose items of a section while they have room, together at most a share of the limit.

        A text is shortened to what is left (rule 2), a `brief` one first to a few tokens.
        """
        if section not in self.items:
            return
        most = min(self.room, int(self.limit * share) + LEAST_TOKENS)
        texts, chosen = self.items[section], self.chosen.setdefault(section, {})
        for at in positions:
            known = chosen.get(at)
            if known == texts[at]:
                continue
            left = most + (self._cost(section, known) if known is not None else 0)
            text = texts[at]
            cost = self._cost(section, text, is_first=not chosen)
            is_long = brief and cost > BRIEF_TOKENS * 2
            if cost > left or is_long:
                if section not in (Section.REQUESTS, Section.SAID, Section.EARLIER):
                    continue
                text = self._shortened(text, min(left, BRIEF_TOKENS * 2) if is_long else left)
                cost = self._cost(section, text, is_first=not chosen)
                if not text or cost > left or (known and len(text) <= len(known)):
                    continue
            before = self._cost(section, known) if known is not None else 0
            chosen[at] = text
            self.room -= cost - before
            most -= cost - before

    def _shortened(self, text: str, tokens: int) -> str:
        if tokens < MIN_CUT_TOKENS:
            return ""
        number, space, rest = text.partition(" ") if text.startswith("#") else ("", "", text)
        cut = head_and_tail(rest, tokens - 10, self.count)
        return f"{number}{space}{cut}" if cut else ""

    def _cost(self, section: Section, text: str, *, is_first: bool = False) -> int:
        if section in _ONE_LINE:
            text = f"{text}, "
        elif (label := label_of(text)) and section is Section.STATED:
            known = map(label_of, self.chosen[section].values())
            text = text.removeprefix(label) if label in known else f"\n{text}"
        heading = self.count(f"## {section.value}\n") if is_first else 0
        return self.count(f"{_line(text)}\n") + heading

    def _leave_out_repeated(self) -> None:
        for section in _REPEATED:
            kept = self.chosen.get(section, {})
            for at in [at for at, text in kept.items() if self._is_repeated(section, text)]:
                del kept[at]

    def _is_repeated(self, section: Section, text: str) -> bool:
        """Whether a shown request or conclusion has this statement (rule 3)."""
        inside = _REPEATED.get(section, ())
        shown = (text for each in inside for text in self.chosen.get(each, {}).values())
        return bool(inside) and _flat([text]) in _flat(shown)

    # --- the text -------------------------------------------------------------------------

    def text(self) -> str:
        """Return the chosen items as text."""
        sections = self._sections({s: sorted(each.items()) for s, each in self.chosen.items()})
        if not sections:
            return f"{HEADING}\n{self.ending}" if self.ending else NOTHING
        return "\n".join(filter(None, (HEADING, *sections, self.ending)))

    def _sections(self, items: dict[Section, list[tuple[int, str]]]) -> list[str]:
        found: list[str] = []
        for section in (section for section in Section if items.get(section)):
            lines = [text for _, text in items[section]]
            if section is Section.STATED:
                lines = _grouped(lines)
            if section in _ONE_LINE:
                root = self.digest.work.root
                lines = [f"in {root}"] * bool(root) + [", ".join(lines)]
            found.append("\n".join((f"## {section.value}", *map(_line, lines))))
        return found

    def unlisted(self) -> str:
        """Return the items that have no room as the text of a summary, newest first (rule 4)."""
        left: dict[Section, list[tuple[int, str]]] = {}
        listed = _flat(text for each in self.chosen.values() for text in each.values())
        budget, chars = MAX_UNLISTED, MAX_UNLISTED_CHARS
        for section in self.items:
            chosen = self.chosen.get(section, {})
            for at in self._newest(section):
                text = self.items[section][at]
                is_shown = chosen.get(at) == text
                is_shown = is_shown or (at not in chosen and _flat([text]) in listed)
                if is_shown or section is Section.OPEN or len(text) > chars or not budget:
                    continue
                left.setdefault(section, []).insert(0, (at, text))
                budget, chars = budget - 1, chars - len(text)
        return "\n".join((HEADING, *self._sections(left))) if left else ""

    def counts(self) -> tuple[SectionCount, ...]:
        """Return what became of the items of each section."""
        counts: list[SectionCount] = []
        for section, items in self.items.items():
            replaced = self.digest.superseded[section]
            kept = len(self.chosen.get(section, {}))
            if found := len(items) + replaced:
                dropped = found - kept - replaced
                counts.append(SectionCount(section.value, found, kept, replaced, dropped))
        return tuple(counts)


def _grouped(statements: Iterable[str]) -> list[str]:
    """Return statements with each label once: of the same one they stand below each other."""
    groups: dict[tuple[str, str], list[str]] = {}
    for text in statements:
        label = label_of(text)
        groups.setdefault((label, "" if label else text), []).append(
            text.removeprefix(label).strip()
        )
    return [
        "\n".join((label, *lines)) if len(lines) > 1 else f"{label} {lines[0]}".strip()
        for (label, _), lines in groups.items()
    ]


def _line(text: str) -> str:
    return "- " + text.replace("\n", "\n  ")


def _flat(texts: Iterable[str]) -> str:
    return " ".join(" ".join(texts).lower().split())


# --- summaries --------------------------------------------------------------------------------


def digest_of(messages: Sequence[Message], earlier: Iterable[str] = ()) -> Digest:
    """Return what earlier summaries and messages hold."""
    digest = Digest()
    for text in filter(None, earlier):
        digest.read(text)
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
    digest: Digest, wants_retain: bool, max_tokens: int, source_tokens: int, scope: SummaryScope
) -> SummaryResult:
    """Return a digest as a summary, at most half as long as its source."""
    limit = min(max_tokens, int(source_tokens * SOURCE_SHARE))
    if not wants_retain:
        return fitted(digest, limit, scope.count, scope.closing)
    retain_tokens = int(limit * RETAIN_SHARE)
    retained = fitted(digest, retain_tokens, scope.count, NO_CLOSING, _RETAINED)
    others = frozenset(Section) - _RETAINED
    made = fitted(digest, limit - retain_tokens, scope.count, scope.closing, others)
    text = retained.text if retained.text != NOTHING else None
    counts = (*retained.sections, *made.sections)
    unlisted = "\n".join(filter(None, (retained.unlisted, made.unlisted)))
    return SummaryResult(made.text, text, counts, unlisted)


def merged(texts: Iterable[str]) -> Digest:
    """Return what several summaries, oldest first, hold; newer statements replace older ones."""
    digest = Digest()
    for place, text in enumerate(filter(None, texts)):
        digest.read(text, replaces=place > 0)
    return digest


def merged_unlisted(texts: Sequence[str], count: CountText) -> str:
    """Return in one text what several summaries, oldest first, had no room for."""
    return Writer(merged(texts), 0, count).unlisted()


def without_replaced(
    texts: Sequence[str], count: CountText, shown: Sequence[Message] = ()
) -> list[str]:
    """Return summaries, oldest first, without what a later one or a message after them replaces.

    A summary without such a statement, or that a model wrote, is returned as it is.
    """
    current = merged(texts)
    for message in shown:
        current.replace_by(message)
    left: list[str] = []
    for text in texts:
        own = merged((text,)) if HEADING in text[: len(HEADING)] else Digest()
        was_changed = own.keep_stated(current.stated.keys())
        left.append(fitted(own, count(text), count).text if was_changed else text)
    return left
