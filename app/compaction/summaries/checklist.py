"""What a model's summary must not lose: the words of users, and what calls did.

1. Statements and short messages of users are `kept`: they are put above the model's text word for
   word, whatever it answers, in whatever language. They take at most half of the summary, in a
   tree half of all summaries; of more the newest stay. [summary.checklist]
2. A line of the answer that repeats one of them is left out. One that stands below its heading of
   standing instructions and that no user said is marked as the summariser's.
3. The next summary reads them back from the section of the one before.
4. The model is sent the state of the work as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.compaction.summaries.digest import Digest
from app.compaction.summaries.sections import HEADING, MORE, NOTHING, Section
from app.compaction.summaries.sentences import statement_of
from app.compaction.summaries.writing import fitted
from app.models.tokens import CountText

KEPT_SHARE = 0.5
"""The share of a summary that kept statements may take."""
KEPT_HEADING = "## Said by the user, word for word"
MAX_KEPT_CHARS = 300
NOT_SAID = " (added by the summariser)"
_STANDING = re.compile(r"^#{1,4} *\**standing instructions", re.IGNORECASE)
_LIST_MARK = re.compile(r"^\s*(?:[-*\u2022]|\d+[.)])\s+")
_OTHERS = frozenset(Section) - {Section.STATED, Section.REQUESTS, Section.SAID, Section.EARLIER}


@dataclass(frozen=True, slots=True)
class Checklist:
    """What a summary must not lose; `others` is the text of what is not kept."""

    kept: tuple[str, ...] = ()
    others: str = ""

    @property
    def text(self) -> str:
        """What a model is sent of it, its tags not yet escaped."""
        return "\n\n".join(filter(None, (kept_text(self.kept), self.others)))


def checklist_of(
    digest: Digest, kept_tokens: int, others_tokens: int, count: CountText
) -> Checklist:
    """Return what of a digest a summary must not lose (rules 1 and 4)."""
    digest.finish()
    users = [each for each in digest.stated.values() if each.by_user]
    requests = [text for text in digest.requests.values() if len(text) <= MAX_KEPT_CHARS]
    said = [each.text for each in users if not each.request]
    inside = [each.text for each in users if each.request]
    places = {text: at for at, text in enumerate((*requests, *inside, *said))}
    kept: list[str] = []
    shown, remaining = "", kept_tokens - count(KEPT_HEADING) - 2
    for text in (*reversed(said), *reversed(requests), *reversed(inside)):
        cost = count(_item(text)) + 1
        if cost <= remaining and _flat(text) not in shown:
            kept.append(text)
            remaining -= cost
            shown += f" {_flat(text)}"
    kept.sort(key=places.__getitem__)
    others = fitted(digest, others_tokens, count, sections=_OTHERS).text
    return Checklist(tuple(kept), "" if others == NOTHING else others)


def kept_text(kept: Sequence[str]) -> str:
    """Return the section of what is kept."""
    return "\n".join((KEPT_HEADING, *map(_item, kept))) if kept else ""


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
            if not is_kept and not line.startswith(MORE):
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
        digest.restore_stated(each)
    if HEADING in text:
        digest.read(text[text.index(HEADING) :])


def with_kept(
    answer: str,
    kept: Sequence[str],
    closing: str,
    max_tokens: int | None = None,
    count: CountText = len,
) -> str:
    """Return the text of a summary: what is kept, what a model wrote, and the last line.

    Of an answer that is too long for `max_tokens` beside them, the last lines are left out.
    """
    own = _own_lines(answer, kept)

    def joined() -> str:
        return "\n\n".join(filter(None, (kept_text(kept), "\n".join(own).strip(), closing)))

    while max_tokens is not None and own and (tokens := count(joined())) > max_tokens:
        excess = len(own) * (tokens - max_tokens) // tokens
        own = own[: min(len(own) - 1, len(own) - excess)]
    return joined()


def _own_lines(answer: str, kept: Sequence[str]) -> list[str]:
    """Return the lines of an answer without those that are kept (rule 2)."""
    said = set(map(_flat, kept))
    stems = frozenset(stem for text in kept for stem in statement_of(_flat(text)).stems)
    lines: list[str] = []
    is_standing = False
    for line in answer.split("\n"):
        text = _LIST_MARK.sub("", line)
        if line.startswith("#"):
            is_standing = _STANDING.match(line) is not None
        elif _flat(text) in said or line == KEPT_HEADING or line.startswith((HEADING, MORE)):
            continue
        elif is_standing and text.strip() and kept and NOT_SAID not in line:
            own = statement_of(_flat(text)).stems
            lines.append(line if 2 * len(own & stems) >= len(own) else f"{line}{NOT_SAID}")
            continue
        lines.append(line)
    pairs = zip(lines, [*lines[1:], "#"], strict=True)  # no heading without a line below it
    return [line for line, after in pairs if not (line.startswith("#") and after.startswith("#"))]


def _item(text: str) -> str:
    return f"- {text}".replace("\n", "\n  ")


def _flat(text: str) -> str:
    return " ".join(text.lower().split()).strip(" .!。*`\"'")
