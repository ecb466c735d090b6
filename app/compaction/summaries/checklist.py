"""What a model's summary must not lose: the words of users, and what calls did.

1. What users said is `kept`: it is put above the model's text word for word, whatever it answers,
   in whatever language. It takes at most half of the summary, in a tree half of all summaries.
   Short messages come first, whole, then the sentences of longer ones, those with a value first;
   what has only words that many have comes last. Of a kind the first and the newest stay. Nothing
   replaces a user's words: of two rules that differ in a value both may hold. [summary.checklist]
2. The model's text stands below a line that says whose it is. A line that repeats what is kept is
   left out; one of its standing instructions that no user said in these words is marked.
3. The next summary reads them back from the section of the one before.
4. The model is sent the state of the work as well.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from app.compaction.summaries.digest import ASKED, Digest
from app.compaction.summaries.sentences import (
    common_of,
    flat,
    is_prose,
    pieces,
    sentences,
    shortened,
    statement_of,
)
from app.compaction.summaries.summary_text import HEADING, MORE, NOTHING, Section, line_of
from app.compaction.summaries.writing import fitted
from app.models.tokens import CountText

KEPT_SHARE = 0.5
"""The share of a summary that kept statements may take."""
KEPT_HEADING = "## Said by the user, word for word"
WRITTEN = "## Written by the summariser, not by the user"
OURS = (KEPT_HEADING, WRITTEN, HEADING, MORE)
"""How lines begin that are no model's."""
MAX_KEPT_CHARS = 300
NOT_SAID = " (in the summariser's words)"
_STANDING = re.compile(r"^#{1,4} *\**standing instructions", re.IGNORECASE)
_LIST_MARK = re.compile(r"^\s*(?:[-*\u2022]|\d+[.)])\s+")
_OTHERS = frozenset(Section) - {Section.STATED, Section.REQUESTS, Section.SAID, Section.EARLIER}


@dataclass(frozen=True, slots=True)
class Checklist:
    """What a summary must not lose.

    `said` is all that users said, of which the newest is kept. `others` is the text of what calls
    did, which is not kept.
    """

    kept: tuple[str, ...] = ()
    others: str = ""
    said: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        """What a model is sent of it, its tags not yet escaped."""
        return "\n\n".join(filter(None, (kept_text(self.kept), self.others)))


def checklist_of(
    digest: Digest, kept_tokens: int, others_tokens: int, count: CountText
) -> Checklist:
    """Return what of a digest a summary must not lose (rules 1 and 4)."""
    digest.finish()
    found = list(_said(digest))
    texts = [text for text, _ in found]
    stems = [statement_of(_flat(text)).stems for text in texts]
    often = Counter(stem for each in stems for stem in each)
    common = common_of(often.items(), len(found))

    def rank(at: int) -> tuple[bool, int, bool, int]:
        return bool(stems[at]) and stems[at] <= common, found[at][1], at > 0, -at

    kept: set[int] = set()
    shown, remaining = "", kept_tokens - count(KEPT_HEADING) - 2
    for at in sorted(range(len(found)), key=rank):
        cost = count(line_of(texts[at])) + 1
        if cost <= remaining and _flat(texts[at]) not in shown:
            kept.add(at)
            remaining -= cost
            shown += f" {_flat(texts[at])}"
    others = fitted(digest, others_tokens, count, sections=_OTHERS).text
    others = "" if others == NOTHING else others.removeprefix(HEADING).strip()
    listed = tuple(texts[at] for at in sorted(kept))
    return Checklist(listed, others, frozenset(map(_flat, texts)))


def _said(digest: Digest) -> Iterator[tuple[str, int]]:
    """Yield what users said, oldest first, each with its rank (rule 1)."""
    for stated in digest.stated.values():
        if stated.by_user and not stated.request:
            yield stated.text, 0
    for text in digest.requests.values():
        if len(text) <= MAX_KEPT_CHARS:
            yield text, 0
            continue
        found = [each for each in sentences(text.partition(ASKED)[0]) if is_prose(each)]
        for each in found:
            yield each, 1 if statement_of(each).is_strong else 1 + len(found)


def kept_text(kept: Sequence[str]) -> str:
    """Return the section of what is kept."""
    return "\n".join((KEPT_HEADING, *map(line_of, kept))) if kept else ""


def kept_tokens_of(texts: Iterable[str], count: CountText) -> int:
    """Return the tokens of what summaries keep."""
    return sum(count(kept_text(split_kept(text)[0])) for text in texts)


def split_kept(summaries: str) -> tuple[list[str], str]:
    """Return what summaries that a model wrote keep, and the other text (rule 3)."""
    kept, other, is_kept = list[str](), list[str](), False
    for line in summaries.split("\n"):
        if is_kept and line.startswith("- "):
            kept.append(line[2:])
        elif is_kept and kept and line.startswith("  "):
            kept[-1] += f"\n{line[2:]}"
        else:
            is_kept = line == KEPT_HEADING
            if not is_kept and line != WRITTEN and not line.startswith(MORE):
                other.append(line)
    return kept, "\n".join(other).strip()


def read_summary(digest: Digest, text: str) -> None:
    """Take up an earlier summary, or several, by a model or without one."""
    kept, other = split_kept(text)
    for each in kept:
        digest.restore_stated(each)
    if other:
        digest.read(other)


def read_kept(digest: Digest, text: str) -> None:
    """Take up what earlier summaries keep, or the statements of one without a model."""
    for each in split_kept(text)[0]:
        if len(pieces(each)) > 1:
            digest.restore_request(each)
        else:
            digest.restore_stated(each)
    if HEADING in text:
        digest.read(text[text.index(HEADING) :])


def with_kept(
    answer: str, checklist: Checklist, closing: str, max_tokens: int, count: CountText
) -> str:
    """Return the text of a summary: what is kept, what a model wrote, and the last line.

    Of an answer that is too long beside them, sentences in the middle are left out.
    """
    above, own = kept_text(checklist.kept), "\n".join(_own_lines(answer, checklist)).strip()
    heading = f"{WRITTEN}\n" if above and own else ""
    room = max_tokens - count("\n\n".join((above, heading, closing)))
    if count(own) > room:
        own = shortened(own, room, count)
    return "\n\n".join(filter(None, (above, f"{heading}{own}" if own else "", closing)))


def _own_lines(answer: str, checklist: Checklist) -> list[str]:
    """Return the lines of an answer without those that are kept (rule 2)."""
    kept = set(map(_flat, checklist.kept))
    lines: list[str] = []
    is_standing = False
    for line in (*answer.split("\n"), "#"):
        text = _flat(_LIST_MARK.sub("", line))
        if line.startswith(OURS) or (text and text in kept):
            continue
        if line.startswith("#"):
            is_standing = bool(kept) and _STANDING.match(line) is not None
            if lines and lines[-1].startswith("#"):
                lines.pop()  # a heading without a line below it
        elif is_standing and text and text not in checklist.said and NOT_SAID not in line:
            line = f"{line}{NOT_SAID}"  # noqa: PLW2901
        lines.append(line)
    return lines[:-1]


def _flat(text: str) -> str:
    return flat(text).strip(" .!。*`\"'")
