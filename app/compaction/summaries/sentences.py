"""Reads texts of any language: what people wrote, its sentences and its values.

1. What a harness adds to a user's message is removed; what the user typed for a command stays.
2. A text is cut between sentences and lines, never inside one.
3. A statement is a sentence with a label or with a value that has a type, such as an amount.
4. A newer statement replaces an older one only where that is sure: both are about the same words,
   and their values of one type differ.
"""

# ruff: noqa: RUF001 - characters of several scripts are meant

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from itertools import groupby
from typing import Any

from app.models.tokens import CountText

# --- what messages and lines look like ----------------------------------------------------------

_TABLES = files(__package__).joinpath("forms.toml").read_text("utf-8")
FORMS: Mapping[str, Any] = tomllib.loads(_TABLES)
"""What harnesses, tools and programs write, by name."""


def any_of(name: str) -> str:
    """Return the expression of a form."""
    return f"(?:{'|'.join(FORMS[name])})"


_ELEMENT = re.compile(rf"<({any_of('elements')})(?:\s[^<>\n]{{0,200}})?>", re.IGNORECASE)
_COMMAND = re.compile(r"<command-(?:name|args)>([^<]*)<")
"""The elements with what the user typed."""
BEGINS_COMMAND = re.compile(rf"\s*{any_of('commands')}", re.DOTALL)
"""Matches a message that begins a slash command or a skill."""
_NOT_TYPED = re.compile(rf"^\s*{any_of('not_typed')}")
_NOTICE = re.compile(rf"^\s*{any_of('notices')}\s*$")
_RESUMED = re.compile(r"^\s*This session is being continued from a previous conversation")
_OUTPUT = re.compile(rf"^\s*{any_of('output')}")
DECIDES = re.compile(any_of("decides"), re.IGNORECASE)
ANNOUNCES = re.compile(rf"(?!.*{any_of('decides')})\W*{any_of('announces')}", re.IGNORECASE)
"""Matches a sentence in which an assistant says what it does next, but not what it decided."""
_PROMPT_END = re.compile(r"(?:bash-\$|\(Current directory: [^\n]{0,400}\)\s*bash-\$)\s*$")
_ACTION_END = re.compile(rf"```\s*\Z|</{any_of('actions')}>\s*\Z|^Action(?: Input)?:", re.MULTILINE)
_ACTION_FENCE = re.compile(r"```[\w-]{0,20}[ \t]*\n?")
_ACTION_TAG = re.compile(r"<(?:execute_\w+|function|tool_call|bash|command)\b[^>\n]{0,80}>")
_FENCE = re.compile(r"^ {0,8}(?:```|~~~)")
_BULLET = re.compile(r"^\s{0,24}(?:[-*+•▪–]|\d{1,3}[.)]|#{1,6})\s+(?:\[[ xX~-]\]\s*)?")
_CODE = re.compile(rf"^\s*{any_of('code')}")
_TICKS = re.compile(r"`[^`\n]{1,200}`|https?://\S{1,300}|\*\*")
_SYMBOL = re.compile(r"[{}\[\]()<>;=|&$\\_^~@#*+]")


def typed_text(text: str) -> str:
    """Return a user's text without what a harness added to it (rule 1)."""
    if typed := _COMMAND.findall(text[: MAX_SENTENCE_CHARS * 8]):
        text = " ".join(part.strip() for part in typed).strip()
    if _NOT_TYPED.match(text):
        return ""
    kept, at = list[str](), 0
    last = {name: text.rfind(f"</{name}>") for name in set(_ELEMENT.findall(text))}
    for match in _ELEMENT.finditer(text) if last else ():
        if at <= match.start() < last[match[1]]:
            kept.append(text[at : match.start()])
            at = text.index(f"</{match[1]}>", match.end()) + len(match[1]) + 3
    lines = "".join((*kept, text[at:])).splitlines()
    return "\n".join(line for line in lines if not _NOTICE.match(line)).strip()


def resumed_from(text: str) -> str:
    """Return a harness's own summary of an earlier conversation, if a user message is one.

    Its last paragraph is an order of the harness.
    """
    if not _RESUMED.match(text):
        return ""
    return text.partition("\nSummary:\n")[2].rpartition("\n\n")[0].strip() or text.strip()


def is_output(text: str) -> bool:
    """Whether a text begins or ends as harnesses mark the output of a command."""
    return bool(_OUTPUT.match(text) or _PROMPT_END.search(text[-500:]))


def is_listing(text: str) -> bool:
    """Whether a text begins with code or has mostly lines of it."""
    lines = [line for line in text[:4000].splitlines() if line.strip()]
    rows = sum(is_code(line) or not line[:1].strip() for line in lines)
    return any(map(_CODE.match, lines[:1])) or (len(lines) > 2 and 2 * rows > len(lines))


def action_in(said: str) -> tuple[str, str] | None:
    """Return the command that a text ends in, which a harness runs, and the text before it."""
    if not _ACTION_END.search(said[-400:]):
        return None
    parts = _ACTION_FENCE.split(said)
    if len(parts) > 2:
        return parts[-2].strip(), "```\n".join(parts[:-2])
    before, *after = _ACTION_TAG.split(said, maxsplit=1)
    return (re.sub(r"</?[\w=]{1,60}>", " ", after[0]).strip() if after else ""), before


def is_code(line: str) -> bool:
    """Whether a line is one of code, a listing, a table or a trace."""
    if _CODE.match(line):
        return True
    plain = _TICKS.sub("", line)
    return 7 * len(_SYMBOL.findall(plain)) > len(plain)


def without_code(text: str) -> str:
    """Return the prose of an assistant's text: without fences, tables and listings."""
    kept, in_fence = list[str](), False
    for line in text.splitlines():
        if _FENCE.match(line):
            in_fence = not in_fence
        elif not in_fence and not (line.strip() and is_code(line) and not _BULLET.match(line)):
            kept.append(line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()


# --- sentences --------------------------------------------------------------------------------

MAX_SENTENCE_CHARS = 500
_END = re.compile(
    r"[.!?…।۔؟。！？\n](?:(?<=\n)|(?<=[。！？])[。！？]*[」』”’)\]）]*\s*"
    r"|(?<![.!?…].)[.!?…।۔؟]*[\"'”’»)\]*_`]*(?=\s)\s*)"
)
"""It begins with a set of characters, which is searched the fastest."""
QUESTION = ("?", "？", "؟")


def pieces(text: str) -> list[str]:
    """Return a text cut after each sentence and line; joined they are the text (rule 2)."""
    found: list[str] = []
    start = 0
    for match in _END.finditer(text):
        end = match.end()
        is_short = len(text[start : match.start()].strip()) < 3
        if match[0][0] == "." and (text[end : end + 1].islower() or is_short):
            continue  # an abbreviation, or a number before an item
        found.append(text[start:end])
        start = end
    if text[start:]:
        found.append(text[start:])
    return found


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences and items of a text without its fences."""
    in_fence = False
    for piece in pieces(text):
        line, is_fence = piece.strip(), _FENCE.match(piece) is not None
        in_fence ^= is_fence
        if line and not in_fence and not is_fence:
            yield _BULLET.sub("", line)


def is_prose(sentence: str) -> bool:
    """Whether it is a whole sentence or item that says something."""
    words = len(sentence.split())
    is_long = words >= 3 or len(sentence) - len(sentence.encode("ascii", "ignore")) >= 6
    ends = sentence.endswith(("…", ",", ":", "：", *QUESTION))
    return is_long and not ends and len(sentence) <= MAX_SENTENCE_CHARS and not is_code(sentence)


@lru_cache(512)
def flat(text: str) -> str:
    """Return a text for comparisons: lower case, one space between words, no mark at its ends."""
    return " ".join(text.lower().split()).strip(" .!。*`\"'")


def one_line(text: str, max_chars: int) -> str:
    """Return the beginning of a text on one line, cut between words."""
    line = " ".join(text[: 2 * max_chars + 200].split())
    if len(line) <= max_chars:
        return line
    cut = line[: max_chars - 1]
    space = cut.rfind(" ")
    return f"{cut[:space] if space > max_chars // 2 else cut}…"


LEFT_OUT = "[… {:,} characters left out …]"
CUT = "[…]"
_MARKED = re.compile(
    rf"{_BULLET.pattern}|\b[A-ZÀ-ÞА-ЯЁ]{{2,}} [A-ZÀ-ÞА-ЯЁ]{{2,}}\b|\b[A-ZÀ-ÞА-ЯЁ]{{5,}}\b"
)
"""An item of a list, or words in capitals."""


def shortened(
    text: str, max_tokens: int, count: CountText, ranks: Mapping[str, int] | None = None
) -> str:
    """Return sentences of a text within `max_tokens`: first, last, listed and emphasised ones.

    Output that was pasted into it comes last, and code in the middle is left out. `ranks` has the
    pieces that come last (3) or are left out (4). It is empty without any.
    """
    room = max_tokens - count(LEFT_OUT.format(len(text))) - 2
    parts = pieces(text)
    last, weights, in_fence = len(parts) - 1, list[tuple[int, float]](), False
    for at, part in enumerate(parts):
        is_fence = _FENCE.match(part) is not None
        in_fence ^= is_fence
        rank = 3 if _OUTPUT.match(part) else 1 if _MARKED.search(part) else 2
        is_code_line = in_fence or is_fence or is_code(part[:MAX_SENTENCE_CHARS])
        rank = 4 if is_code_line else (ranks or {}).get(part, rank)
        weight = 4 if part.strip() == CUT else 0 if at in (0, last) else rank
        weights.append((weight, min(at, 1.5 * (last - at))))
    kept = set[int]()
    for at in sorted(range(len(parts)), key=weights.__getitem__):
        cost = count(parts[at]) + 2 if parts[at].strip() else 0
        if cost > room or weights[at][0] == 4:
            break
        kept.add(at)
        room -= cost
    shown, left = "", len(text) - sum(len(parts[at]) for at in kept)
    if not any(parts[at].strip() for at in kept):  # no end of a sentence
        is_long = bool(parts) and len(parts[0]) > MAX_SENTENCE_CHARS
        return f"{text[: max(0, room) * 2].rsplit(' ', 1)[0]}…" if is_long and room > 0 else ""
    for is_kept, places in groupby(range(len(parts)), kept.__contains__):
        part = "".join(parts[at] for at in places)
        if is_kept:
            shown += part
        elif part.strip():
            note = f" {CUT}" if LEFT_OUT[:3] in shown else f"\n{LEFT_OUT.format(left)}"
            shown = f"{shown.rstrip()}{note}\n"
    return shown.strip()


# --- statements -------------------------------------------------------------------------------

_LABEL = re.compile(r"^\W{0,4}([^\W\d_][^\n:：.?!,]{1,40}?)\*{0,2}[:：]\*{0,2}\s+(?=\S)")
_TYPES = FORMS["values"].items()
_VALUE = re.compile("|".join(f"(?P<{kind}>{'|'.join(each)})" for kind, each in _TYPES))
_SIGN = re.compile(r"[\d@/“\"«「`]|(?<=.)[A-ZÀ-ÞА-Я]|\w\.\w")
_WIDE = r"\u2e80-\u9fff\uac00-\ud7ff"
_WORD = re.compile(rf"[{_WIDE}]+|[^\W\d_{_WIDE}]+")
MAX_LABEL_WORDS = 5
MAX_CORRECTION_CHARS, MAX_AROUND_VALUE = 80, 24
WEAK = frozenset({"name", "quoted", "number"})
"""Types of values that many sentences have."""


@dataclass(frozen=True, slots=True)
class Statement:
    """What a sentence is about: its label in capitals, its words, and its values by type.

    `before` are the stems directly before others, nothing where there is none.
    """

    label: str
    stems: frozenset[str]
    before: Mapping[str, str]
    values: Mapping[str, frozenset[str]]
    has_amount: bool
    """Whether a number has a unit."""

    @property
    def words(self) -> frozenset[str]:
        """What it can be found by: the stems, and its names, which may be part of the subject."""
        return self.stems | self.values.get("name", frozenset())

    @property
    def is_strong(self) -> bool:
        """Whether it has a value of a type that few sentences have, or an amount with its unit."""
        return self.has_amount or bool(self.values.keys() - WEAK)


@lru_cache(4096)
def statement_of(sentence: str) -> Statement:
    """Return what a sentence states."""
    label = label_of(sentence)
    body = sentence.removeprefix(label)
    values: dict[str, set[str]] = {}
    taken = whole = body
    has_amount = False
    for match in _VALUE.finditer(body) if _SIGN.search(body) else ():
        is_number = match.lastgroup == "number"
        has_amount = has_amount or (is_number and not match[0].strip(" .,")[-1:].isdigit())
        value = match[0].split()[0] if is_number else match[0]
        values.setdefault(match.lastgroup or "", set()).add(value.strip(" .,").lower())
        taken = taken.replace(match[0], " ", 1)
        whole = whole if match.lastgroup == "name" else whole.replace(match[0], " ", 1)
    found = {kind: frozenset(each) for kind, each in values.items()}
    stems = dict(_stems(taken))
    before = dict(_stems(whole)) if "name" in found else stems
    return Statement(label.strip(" *:：-"), frozenset(stems), before, found, has_amount)


def has_values(sentence: str) -> bool:
    """Whether a sentence has a value of any type, or is the correction of the one before it."""
    return sentence.startswith("→") or bool(statement_of(sentence.strip()).values)


def _stems(text: str) -> Iterator[tuple[str, str]]:
    """Yield the stems of a text, each with the one of the word directly before it."""
    before, end = "", -2
    for match in _WORD.finditer(text):
        word, found = match[0], list[str]()
        if word[0] > "\u2e7f" and not word[0].isupper() and not word[0].islower():
            found = [word[at : at + 2] for at in range(max(1, len(word) - 1))]
        elif len(word) > 3 or (word.isupper() and len(word) > 1):
            found = [word.lower()[:5]]
        for at, stem in enumerate(found):
            is_next = at == 0 and match.start() == end + 1 and text[end] in " -"
            yield stem, before if is_next else ""
        before, end = found[-1] if found else "", match.end()


def label_of(sentence: str) -> str:
    """Return the label in capitals that a sentence begins with, its colon included, or nothing."""
    label = _LABEL.match(sentence)
    if label is None or not label[1].isupper() or len(label[1].split()) > MAX_LABEL_WORDS:
        return ""
    return label[0].rstrip()


def replaces(new: Statement, old: Statement, common: frozenset[str]) -> bool:
    """Whether a newer statement surely replaces an older one (rule 4).
    `common` are the stems that many statements have: they tell no subject from another.
    """
    has_labels = bool(new.label and old.label)
    if has_labels and new.label != old.label:
        return False
    kinds = new.values.keys() & old.values.keys()
    one, other = new.values, old.values
    differing = {kind for kind in kinds if one[kind] - other[kind] and other[kind] - one[kind]}
    if len(differing) > 1:
        return False  # one of the values may be the subject: `invoice 7 is $300`
    if not has_labels:
        is_one = all(len(one[kind]) == 1 == len(other[kind]) for kind in differing)
        return bool(differing) and is_one and _has_same_subject(new, old, common)
    mine, others = new.stems - common, old.stems - common
    both = mine & others
    overlap = len(both) / min(len(mine), len(others)) if both else 0
    if differing - WEAK:
        return overlap >= 0.32
    least, shared = (0.6, 2) if differing else (0.7, 3)
    return (bool(differing) or not kinds) and overlap >= least and len(both) >= shared


def corrects(text: str, earlier: str) -> bool:
    """Whether a short text has little but a value of the type that an earlier text states."""
    if len(text) > MAX_CORRECTION_CHARS or len(earlier) > MAX_SENTENCE_CHARS:
        return False
    values = statement_of(text).values
    one = [value for found in values.values() for value in found]
    is_bare = len(one) == 1 and len(text) - len(one[0]) <= MAX_AROUND_VALUE
    return is_bare and not values.keys().isdisjoint(statement_of(earlier).values)


def _has_same_subject(new: Statement, old: Statement, common: frozenset[str]) -> bool:
    """Whether two words in a row are in both, and no word that is comes after different ones.

    `mobile port` and `partner port` are two subjects. Sentences that begin alike have to go on so.
    """
    shared = new.before.keys() & old.before.keys()
    pairs = [(stem, new.before[stem], old.before[stem]) for stem in shared]
    begins, begun = (next(iter(each.before), "") for each in (new, old))
    if begins == begun and len(shared) < min(len(new.before), len(old.before)):
        return False
    return not any(one and other and one != other for _, one, other in pairs) and any(
        one == other and one in shared and not {stem, one} <= common for stem, one, other in pairs
    )
