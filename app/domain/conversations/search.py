"""Words of messages: what can be searched of a log, and what a query asks for (A6, L1).

1. A word is a run of letters, digits and their marks, folded: compatibility forms and case are
   made one, accents fall away. What cannot be told apart any more is one word.
2. Words joined by one or two of `-._/'` stand for themselves and for each of their ends, as do the
   humps of camelCase: `app/words.py` is indexed as `app_words_py`, `words_py` and `py`. A word of a
   query finds what begins with it, and so every part and every piece from one part to another.
   Words of less than MIN_PREFIX characters find only themselves.
3. Scripts that put no spaces between words are indexed by pairs of neighbouring characters.
   A query for them needs all its pairs; a single character finds every pair it begins.
4. Indexed are at most MAX_LEXEMES different lexemes of a message, each of LONGEST_LEXEME bytes at
   most: longer words are told apart by their beginnings.
5. Searched is what was said: texts, names of tools and their arguments, results as the log has
   them. Reasoning is not, because it never comes back once its prefix is gone (E10); neither is
   what `recall` was asked and answered, which only repeats what is there.
6. JSON is searched by its strings: its escapes are undone first.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, lru_cache
from itertools import chain, islice, pairwise
from math import log
from typing import Final

from app.domain.common import json_text
from app.domain.common.errors import ValidationError
from app.domain.common.messages import File, FormatName, Message, Part, Role, Text, ToolCall
from app.domain.conversations.log import parse_stored
from app.domain.conversations.stored_message import StoredMessage
from app.domain.tool_output.blobs import ToolOutputRef
from app.domain.tool_output.preview import RECALL

MIN_PREFIX: Final = 3
LONGEST_LEXEME: Final = 52
MAX_LEXEMES: Final = 16_384
MAX_QUERY: Final = 1000
MAX_TERMS: Final = 64

_MAX_HUMPS = 10  # what has more is no name, but encoded bytes
_PIECE = 32_768  # characters at a time: one pass over 10 MB would hold the interpreter too long
_LOOK_AHEAD = 4096
_SPACELESS = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3130-\u318f"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f\uac00-\ud7ff\uf900-\ufaff"
    "\U00020000-\U000323af"
)
"""Thai, Lao, Myanmar, Khmer, Kana, Han; and Hangul, where particles stick to words."""
_LETTER = rf"[^\W_{_SPACELESS}]"
_IS_SPACELESS = re.compile(f"[{_SPACELESS}]")
_JOINTS = re.compile("[-._/'\u2019]{1,2}")
_HUMPS = re.compile("[A-Z]+(?![a-z])|[A-Z]?[^A-Z]+")
_GAP = re.compile(r"\W")
_UNSEEN = re.compile("[\u00ad\u200c\u200d\u2060\ufe00-\ufe0f\ufeff\U000e0100-\U000e01ef]+")
_ESCAPES = re.compile(r'(?:\\u[0-9a-fA-F]{4})+|\\["\\/bfnrt]')
_ASKED = re.compile(r'(?P<no>(?<!\S)-(?=[^\s-]))?(?:"(?P<phrase>[^"]*)"|(?P<word>[^\s"]+))')
_QUOTES = str.maketrans(dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb", '"'))


@dataclass(frozen=True, slots=True)
class Term:
    """A lexeme that is looked for: as it is, or as a beginning (rule 2)."""

    lexeme: str
    is_prefix: bool

    def matches(self, lexeme: str) -> bool:
        """Whether a lexeme of a message is one that is looked for."""
        return lexeme.startswith(self.lexeme) if self.is_prefix else lexeme == self.lexeme


@dataclass(frozen=True, slots=True)
class Query:
    """What a message must have: all `words`, none of the groups in `excluded`, and the phrases.

    A message has a group where it has all its words. A phrase is simple words in a row.
    """

    words: tuple[Term, ...]
    excluded: tuple[tuple[Term, ...], ...] = ()
    phrases: tuple[tuple[str, ...], ...] = ()
    excluded_phrases: tuple[tuple[str, ...], ...] = ()

    @property
    def needs_text(self) -> bool:
        """Whether words alone do not decide, because their order matters."""
        return bool(self.phrases or self.excluded_phrases)

    def admits(self, texts: Sequence[str]) -> bool:
        """Whether what a message says has the phrases wanted, and none of those excluded."""
        said = [_row(simple_words(text)) for text in texts]
        return all(any(_row(phrase) in row for row in said) for phrase in self.phrases) and not any(
            _row(phrase) in row for phrase in self.excluded_phrases for row in said
        )


@dataclass(frozen=True, slots=True)
class Searched:
    """A message with the name of the tool whose result it is, where that is known."""

    message: StoredMessage
    tool_name: str | None = None

    def texts(self) -> tuple[str, ...]:
        """Return what of it can be searched."""
        parsed = parse_stored(self.message.body.encode(), FormatName(self.message.format))
        return text_of(parsed, self.tool_name)


@dataclass(frozen=True, slots=True)
class Postings:
    """The newest messages that have a term; `is_cut` where older ones may have it as well."""

    seqs: tuple[int, ...]
    is_cut: bool = False

    def estimate(self, head_seq: int) -> float:
        """Return how many messages of a log with this head have the term, about."""
        if not self.is_cut:
            return len(self.seqs)
        return len(self.seqs) * head_seq / (head_seq - min(self.seqs) + 1)


# --- what is searched ------------------------------------------------------------------------


def text_of(message: Message, tool_name: str | None = None) -> tuple[str, ...]:
    """Return the texts of a message that are searched (rule 5).

    `tool_name` tells whose result it is, where the message itself does not.
    """
    name = tool_name or message.name
    if message.role is Role.TOOL and name == RECALL:
        return ()
    texts = (name or "", *(text for part in message.parts for text in _said(part)))
    return tuple(_unescaped(text) for text in texts if text)


def _said(part: Part) -> tuple[str, ...]:
    match part:
        case Text():
            return (part.text,)
        case ToolCall():
            return (part.name,) if part.name == RECALL else (part.name, part.arguments)
        case File():
            return (part.name or "", part.text or "")
        case _:
            return ()


def _unescaped(text: str) -> str:
    """Return JSON with its escapes undone, any other text as it is (rule 6)."""
    if not text[:256].lstrip().startswith(("{", "[")) or "\\" not in text:
        return text
    return "".join(_ESCAPES.sub(_character, piece) for piece in _pieces(text))


def _character(escape: re.Match[str]) -> str:
    text: str = json_text.loads_exact(f'"{escape[0]}"')
    return text


# --- words -----------------------------------------------------------------------------------


def lexemes(*texts: str) -> tuple[str, ...]:
    """Return the different lexemes of texts in the order of their coming (rules 1 to 4)."""
    found: dict[str, None] = {}
    for text in texts:
        for piece in _pieces(text):
            tokens = dict.fromkeys(_tokens(piece))
            found.update(dict.fromkeys(chain.from_iterable(map(_lexemes_of, tokens))))
            if len(found) >= MAX_LEXEMES:
                return tuple(islice(found, MAX_LEXEMES))
    return tuple(found)


def simple_words(text: str) -> list[str]:
    """Return the words of a text in a row: joined ones apart, spaceless ones by character."""
    found: list[str] = []
    for piece in _pieces(text):
        for token in _tokens(piece):
            found.extend(_simple(token))
    return found


def _row(words: Iterable[str]) -> str:
    return f" {' '.join(words)} "


def _pieces(text: str) -> Iterator[str]:
    """Yield a text in pieces that end where no word goes on, if there is such a place."""
    start = 0
    while len(text) - start > _PIECE:
        at = start + _PIECE
        gap = _GAP.search(text, at, at + _LOOK_AHEAD)
        end = gap.start() if gap else at + _LOOK_AHEAD
        yield text[start:end]
        start = end
    yield text[start:]


def _tokens(piece: str) -> list[str]:
    """Return the runs of a text in which words are: joined words, or a spaceless script."""
    if piece.isascii():
        return _ascii_tokens().findall(piece)
    plain = _UNSEEN.sub("", unicodedata.normalize("NFKC", piece))
    return _all_tokens().findall(plain)


@cache
def _ascii_tokens() -> re.Pattern[str]:
    return re.compile(r"[A-Za-z0-9]+(?:[-._/']{1,2}[A-Za-z0-9]+){0,30}")


@cache
def _all_tokens() -> re.Pattern[str]:
    word = f"{_LETTER}+(?:[{_marks()}]+{_LETTER}*)*"
    return re.compile(f"[{_SPACELESS}]+|{word}(?:{_JOINTS.pattern}{word}){{0,30}}")


def _marks() -> str:
    """Return the marks that stand with letters, as the inside of a character class."""
    marks = [code for code in range(0x300, 0x1F000) if unicodedata.category(chr(code))[0] == "M"]
    runs: list[list[int]] = []
    for code in marks:
        if runs and runs[-1][1] == code - 1:
            runs[-1][1] = code
        else:
            runs.append([code, code])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in runs)


@lru_cache(maxsize=32_768)
def _lexemes_of(token: str) -> tuple[str, ...]:
    if token.isascii() and token.isalnum() and not _has_humps(token):
        return (token.lower()[:LONGEST_LEXEME],)
    if _IS_SPACELESS.match(token):
        run = _folded(token)
        return (*map("".join, pairwise(run)), run[-1])
    found = []
    rest = ""
    for part in reversed(_JOINTS.split(token)):
        after = f"_{rest}" if rest else ""
        for hump in reversed(_humps(part)):
            after = (_folded(hump) + after)[:LONGEST_LEXEME]
            found.append(_cut(after))
            if len(hump) < MIN_PREFIX:
                found.append(_folded(hump))
        rest = after
        if len(part) < MIN_PREFIX:
            found.append(_folded(part))
    return tuple(found)


def _has_humps(part: str) -> bool:
    return not (part.isupper() or part[1:] == part[1:].lower())


def _humps(part: str) -> list[str]:
    if not _has_humps(part):
        return [part]
    found = _HUMPS.findall(part)
    return found if len(found) <= _MAX_HUMPS else [part]


def _simple(token: str) -> Iterable[str]:
    if _IS_SPACELESS.match(token):
        return _folded(token)
    return map(_folded, _JOINTS.split(token))


def _folded(word: str) -> str:
    """Return a word as it is compared: without case and accents (rule 1)."""
    if word.isascii():
        return word.lower()
    apart = unicodedata.normalize("NFD", word.casefold())
    return unicodedata.normalize("NFC", "".join(filter(_is_kept, apart)))


def _is_kept(character: str) -> bool:
    """Whether a character is no accent: vowel signs and voicing marks make other words."""
    kind = unicodedata.combining(character)
    return not (10 <= kind <= 36 or kind >= 200)


def _cut(lexeme: str) -> str:
    if lexeme.isascii():
        return lexeme
    return lexeme.encode()[:LONGEST_LEXEME].decode(errors="ignore")


# --- queries ---------------------------------------------------------------------------------


def query_from(text: str, pointer: str = "/query/q") -> Query:
    """Read a query: all words are needed, `-word` excludes, `"quoted words"` stand in a row.

    Raises ValidationError at `pointer` for one that is too long, or that wants no word.
    """
    if len(text) > MAX_QUERY:
        raise ValidationError.at(pointer, f"A query has at most {MAX_QUERY:,} characters")
    words: dict[Term, None] = {}
    excluded: list[tuple[Term, ...]] = []
    phrases: list[tuple[str, ...]] = []
    excluded_phrases: list[tuple[str, ...]] = []
    for asked in _ASKED.finditer(text.translate(_QUOTES)):
        if asked["phrase"] is None:
            terms = _terms(asked["word"])
            if asked["no"] and terms:
                excluded.append(terms)
            elif terms:
                words.update(dict.fromkeys(terms))
        elif phrase := tuple(simple_words(asked["phrase"])):
            (excluded_phrases if asked["no"] else phrases).append(phrase)
            if not asked["no"]:
                words.update(dict.fromkeys(_terms(" ".join(phrase))))
    if not words:
        raise ValidationError.at(pointer, "A query needs a word to look for")
    if len(words) + sum(map(len, excluded)) > MAX_TERMS:
        raise ValidationError.at(pointer, f"A query has at most {MAX_TERMS} words")
    return Query(tuple(words), tuple(excluded), tuple(phrases), tuple(excluded_phrases))


def _terms(text: str) -> tuple[Term, ...]:
    """Return what a message needs that has all words of a text."""
    return tuple(term for piece in _pieces(text) for token in _tokens(piece) for term in _of(token))


def _of(token: str) -> Iterable[Term]:
    """Return what a message needs that has the token, or what begins with it."""
    if not _IS_SPACELESS.match(token):
        return (_beginning("_".join(_simple(token))),)
    run = _folded(token)
    if len(run) == 1:
        return (Term(run, is_prefix=True),)
    return (Term(first + second, is_prefix=False) for first, second in pairwise(run))


def _beginning(word: str) -> Term:
    return Term(_cut(word[:LONGEST_LEXEME]), len(word) >= MIN_PREFIX)


# --- recall ----------------------------------------------------------------------------------

MAX_RECALLED: Final = 10
"""Messages that `recall` shows (L1)."""
MAX_RECALL_TERMS: Final = 24
EXCERPT: Final = 300
"""Characters of an excerpt."""

_MIN_INFLECTED = 6  # characters of a word that has an ending
_BEFORE = 60  # characters of an excerpt before its first match
_COMMON_SHARE = 0.1
_MIN_SHARE = 0.15  # of all that was asked for, by weight
_USUAL_SIZE = 128  # lexemes of a message that says one thing
_MAX_READ = 1 << 20  # characters of a message that are looked at for its excerpt
_MAX_MATCHES = 500  # places of one term among them


def recall_terms(text: str) -> tuple[Term, ...]:
    """Return what a question in natural language looks for; of very many words the longest.

    Words find others of their stem: they are cut by what endings take up in most languages.
    Joined ones stand for their parts as well as for themselves.
    """
    found: dict[Term, None] = {}
    for piece in _pieces(text):
        for token in _tokens(piece):
            if _IS_SPACELESS.match(token):
                found.update(dict.fromkeys(_of(token)))
                continue
            parts = [part for part in _simple(token) if part]
            found.update(dict.fromkeys(_beginning(_stem(part)) for part in parts))
            if len(parts) > 1:
                found.update(dict.fromkeys(_of(token)))
    longest = sorted(found, key=lambda term: -len(term.lexeme))
    return tuple(found) if len(found) <= MAX_RECALL_TERMS else tuple(longest[:MAX_RECALL_TERMS])


def _stem(word: str) -> str:
    if not word.isalpha() or len(word) <= MIN_PREFIX:
        return word
    plain = word.removesuffix("s") if not word.endswith("ss") else word
    return plain[: len(plain) - len(plain) // 4] if len(plain) >= _MIN_INFLECTED else plain


@dataclass(frozen=True, slots=True)
class Candidate:
    """A message that may answer: which of the terms it has, and of how many lexemes it is."""

    seq: int
    terms: frozenset[int]
    size: int = _USUAL_SIZE


@dataclass(frozen=True, slots=True)
class Recalled:
    """A message that answers a question, shown by an excerpt.

    `output_ref` is what the rest of a cut result is read by; `tool_name` is None where it is not
    known whose result it is.
    """

    seq: int
    role: str
    tool_name: str | None
    created_at: datetime
    excerpt: str
    output_ref: ToolOutputRef | None


def candidates(postings: Sequence[Postings], others: Iterable[int] = ()) -> list[Candidate]:
    """Return the messages that have any of the terms, as far as their postings tell.

    `others` have all of them that there are in the log.
    """
    every = [number for number, posting in enumerate(postings) if posting.seqs]
    found = {seq: {*every} for seq in others}
    for number, posting in enumerate(postings):
        for seq in posting.seqs:
            found.setdefault(seq, set()).add(number)
    return [Candidate(seq, frozenset(terms)) for seq, terms in found.items()]


def weights(postings: Sequence[Postings], head_seq: int) -> list[float]:
    """Return what each term is worth: the rarer in the conversation, the more."""
    counts = (posting.estimate(head_seq) for posting in postings)
    return [log(1 + (max(0.0, head_seq - count) + 0.5) / (count + 0.5)) for count in counts]


def ranked(
    found: Iterable[Candidate], postings: Sequence[Postings], head_seq: int
) -> list[Candidate]:
    """Return candidates, the best first: those with all terms, then those with most and rarest.

    A longer message has words by chance, so it is worth a little less. Common terms alone are no
    answer, unless nothing else was asked for, or together they are much of it.
    """
    worth = weights(postings, head_seq)
    common = max(MAX_RECALLED, _COMMON_SHARE * head_seq)
    rare = {place for place, item in enumerate(postings) if item.estimate(head_seq) <= common}
    known = sum(bool(item.seqs) for item in postings)
    least = _MIN_SHARE * sum(worth) if rare else 0.0

    def score(item: Candidate) -> float:
        return sum(worth[term] for term in item.terms)

    def key(item: Candidate) -> tuple[bool, float, int]:
        longer = log(max(item.size, _USUAL_SIZE) / _USUAL_SIZE)
        return len(item.terms) < known, -round(score(item) / (1 + 0.25 * longer), 2), -item.seq

    answers = (item for item in found if rare & item.terms or score(item) >= least)
    return sorted(answers, key=key)


def excerpt(text: str, terms: Sequence[Term], worth: Sequence[float]) -> str:
    """Return about EXCERPT characters around the words of a text that matter most, on one line."""
    start = max(0, _densest(_matches(text[:_MAX_READ], terms), worth) - _BEFORE)
    end = start + EXCERPT
    shown = " ".join(text[start:end].split())
    return f"{'…' if start else ''}{shown}{'…' if end < len(text) else ''}"


def _densest(matches: Sequence[tuple[int, int]], worth: Sequence[float]) -> int:
    """Return where the stretch begins that has the terms which are worth most together."""
    counts: Counter[int] = Counter()
    first, score, best, start = 0, 0.0, 0.0, 0
    for at, term in matches:
        score += 0 if counts[term] else worth[term]
        counts[term] += 1
        while at - matches[first][0] > EXCERPT - 2 * _BEFORE:
            left = matches[first][1]
            counts[left] -= 1
            score -= 0 if counts[left] else worth[left]
            first += 1
        if score > best:
            best, start = score, matches[first][0]
    return start


def _matches(text: str, terms: Sequence[Term]) -> list[tuple[int, int]]:
    """Return where words begin that are looked for, each with the number of its term."""
    plain = text.lower() if text.isascii() else text.translate(_ALIKE)
    found = []
    for number, term in enumerate(terms):
        places = (match.start() for match in re.finditer(re.escape(term.lexeme), plain))
        begun = (at for at in places if _stands_at(text, at, term))
        found += [(at, number) for at in islice(begun, _MAX_MATCHES)]
    return sorted(found)


def _stands_at(text: str, start: int, term: Term) -> bool:
    """Whether a word begins there, and ends with the term if it has to."""
    if _IS_SPACELESS.match(text, start):
        return True
    end = start + len(term.lexeme)
    if start and text[start - 1].isalnum() and not text[start].isupper():
        return False
    return term.is_prefix or not text[end : end + 1].isalnum() or text[end].isupper()


class _Alike(dict[int, str]):
    """Folds characters one by one, so that all stay in their places."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        folded = _folded(unicodedata.normalize("NFKC", character))
        self[code] = folded if len(folded) == 1 else character
        return self[code]


_ALIKE = _Alike()
