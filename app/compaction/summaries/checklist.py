"""What a model's summary must not lose: the words of users, and what calls did.

1. What users said is `kept`: an extract of it alone is put above the model's text, whatever it
   answers, in whatever language. It takes at most half of the summary, in a tree half of all
   summaries. Nothing replaces a user's words: of two rules that differ in a value both may hold.
   [summary.checklist]
2. The model's text stands below a line that says whose it is. A line that repeats what is kept is
   left out; one of its standing instructions that no user said in these words is marked.
3. The next summary reads the extract back as any other.
4. The model is sent the state of the work as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from app.compaction.summaries.digest import Digest
from app.compaction.summaries.sentences import flat, is_prose, shortened
from app.compaction.summaries.summary_text import MORE, NOTHING, TITLE, WRITTEN, Heading
from app.compaction.summaries.writing import fitted
from app.models.tokens import CountText

KEPT_SHARE = 0.5
"""The share of a summary that kept statements may take."""
OURS = (TITLE, WRITTEN, MORE)
"""How lines begin that are no model's."""
NOT_SAID = " (in the summariser's words)"
_STANDING = re.compile(r"^#{1,4} *\**standing instructions", re.IGNORECASE)
_LIST_MARK = re.compile(r"^\s*(?:[-*\u2022]|\d+[.)])\s+")
_KEPT = re.compile(rf"^{TITLE}\n(?:(?!{TITLE}).*\n)*?{WRITTEN}\n|^{MORE}.*$", re.MULTILINE)
_SAID = frozenset({Heading.STATED, Heading.REQUESTS})
_OTHERS = frozenset(Heading) - _SAID - {Heading.SAID, Heading.STEPS, Heading.EARLIER}


@dataclass(frozen=True, slots=True)
class Checklist:
    """What a summary must not lose.

    `kept` is the extract of what users said, `others` what calls did, which is not kept. `said` is
    all that users said, for comparisons.
    """

    kept: str = ""
    others: str = ""
    said: str = ""

    @property
    def text(self) -> str:
        """What a model is sent of it, its tags not yet escaped."""
        return "\n\n".join(filter(None, (self.kept, self.others)))


def checklist_of(
    digest: Digest, kept_tokens: int, others_tokens: int, count: CountText
) -> Checklist:
    """Return what of a digest a summary must not lose (rules 1 and 4)."""
    kept = fitted(digest, kept_tokens, count, headings=_SAID).text
    others = fitted(digest, others_tokens, count, headings=_OTHERS).text
    stated = (each.text for each in digest.stated.values() if each.by_user)
    return Checklist(
        "" if kept == NOTHING else kept,
        "" if others == NOTHING else others.removeprefix(TITLE).strip(),
        "\n".join(map(flat, (*digest.requests.values(), *stated))),
    )


def kept_tokens_of(texts: Iterable[str], count: CountText) -> int:
    """Return the tokens of what summaries by a model keep."""
    return sum(count(text.partition(WRITTEN)[0]) for text in texts if WRITTEN in text)


def own_text(summaries: str) -> str:
    """Return summaries without what they keep beside a model's text, and without last lines."""
    return _KEPT.sub("", summaries).strip()


def with_kept(
    answer: str, checklist: Checklist, closing: str, max_tokens: int, count: CountText
) -> str:
    """Return the text of a summary: what is kept, what a model wrote, and the last line.

    Of an answer that is too long beside them, sentences in the middle are left out.
    """
    own = "\n".join(_own_lines(answer, checklist)).strip()
    above = f"{checklist.kept}\n{WRITTEN}\n" if checklist.kept and own else checklist.kept
    room = max_tokens - count(f"{above}\n\n{closing}")
    if count(own) > room:
        own = shortened(own, room, count)
    return "\n\n".join(filter(None, (f"{above}{own}", closing)))


def _own_lines(answer: str, checklist: Checklist) -> Iterator[str]:
    """Yield the lines of an answer without those that are kept (rule 2)."""
    kept, is_standing, heading = flat(checklist.kept), False, ""
    for line in answer.split("\n"):
        text = _LIST_MARK.sub("", line)
        if line.startswith(OURS) or (is_prose(text) and flat(text) in kept):
            continue
        if line.startswith("#"):
            is_standing = bool(kept) and _STANDING.match(line) is not None
            heading = line
            continue
        if heading and text.strip():
            yield heading  # one without a line below it is left out
            heading = ""
        is_said = flat(text) in checklist.said or NOT_SAID in line
        yield line if is_said or not is_standing else f"{line}{NOT_SAID}"
