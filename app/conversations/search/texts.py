"""The texts of a message that a search reads, and the excerpts of them that it shows.

1. A search reads texts, names and arguments of tool calls, and results as the log stores them. It
   does not read reasoning, which payloads never repeat once its prefix is gone, nor the calls and
   results of `recall`, which only repeat other messages.
2. JSON is searched by its strings, after its escapes are decoded.
3. An excerpt is the part of a text around its best matches, on one line.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final

from app.blobs.preview import RECALL
from app.common import json_text
from app.conversations.messages.row import StoredMessage, parse_stored
from app.conversations.search.words import SPACELESS, Term, normalised, text_pieces
from app.formats.message import File, FormatName, Message, Part, Role, Text, ToolCall

EXCERPT_CHARS: Final = 300
"""Characters of an excerpt."""
_CHARS_BEFORE_MATCH = 60  # characters of an excerpt before its first match
_MAX_READ_CHARS = 1 << 20  # characters of a message that an excerpt is chosen from
_MAX_MATCHES = 500  # matches of one term among them
_ESCAPES = re.compile(r'(?:\\u[0-9a-fA-F]{4})+|\\["\\/bfnrt]')


@dataclass(frozen=True, slots=True)
class SearchedMessage:
    """A message, and the name of the tool that made the result, where it is known.

    `said_at` is its own time, or that of its receipt.
    """

    message: StoredMessage
    tool_name: str | None = None
    said_at: datetime | None = None

    def texts(self) -> tuple[str, ...]:
        """Return its texts that a search reads."""
        parsed = parse_stored(self.message.body.encode(), FormatName(self.message.format))
        return text_of(parsed, self.tool_name)


def text_of(message: Message, tool_name: str | None = None) -> tuple[str, ...]:
    """Return the texts of a message that a search reads (rule 1).

    `tool_name` is the tool that made a result, where the message does not name it.
    """
    name = tool_name or message.name
    if message.role is Role.TOOL and name == RECALL:
        return ()
    texts = (name or "", *(text for part in message.parts for text in _part_texts(part)))
    return tuple(_unescaped(text) for text in texts if text)


def _part_texts(part: Part) -> tuple[str, ...]:
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
    """Return JSON with its escapes decoded, and other text unchanged (rule 2)."""
    if not text[:256].lstrip().startswith(("{", "[")) or "\\" not in text:
        return text
    return "".join(_ESCAPES.sub(_character, piece) for piece in text_pieces(text))


def _character(escape: re.Match[str]) -> str:
    text: str = json_text.loads_exact(f'"{escape[0]}"')
    return text


def excerpt(
    text: str, weights: Sequence[tuple[Term, float]], max_chars: int = EXCERPT_CHARS
) -> str:
    """Return about so many characters around the terms of the highest weight together (rule 3)."""
    start = 0
    if len(text) > max_chars and (matches := _matches(text[:_MAX_READ_CHARS], weights)):
        width = max_chars - 2 * _CHARS_BEFORE_MATCH

        def weight_from(first: int) -> float:
            near = matches[first : first + width]
            terms = {term for at, term in near if at - near[0][0] <= width}
            return sum(weights[term][1] for term in terms)

        best = max(range(len(matches)), key=weight_from)
        start = max(0, matches[best][0] - _CHARS_BEFORE_MATCH)
    end = start + max_chars
    shown = " ".join(text[start:end].split())
    return f"{'…' if start else ''}{shown}{'…' if end < len(text) else ''}"


def _matches(text: str, weights: Sequence[tuple[Term, float]]) -> list[tuple[int, int]]:
    """Return the positions of words that match, each with the number of its term."""
    plain = text.lower() if text.isascii() else text.translate(_NORMALISED)
    matches: list[tuple[int, int]] = []
    for number, (term, _) in enumerate(weights):
        positions = (match.start() for match in re.finditer(re.escape(term.lexeme), plain))
        word_starts = (at for at in positions if _is_word_at(text, at, term))
        matches += [(at, number) for at in islice(word_starts, _MAX_MATCHES)]
    return sorted(matches)


def _is_word_at(text: str, start: int, term: Term) -> bool:
    """Whether a word begins there, and ends with the term unless the term is a prefix."""
    if SPACELESS.match(text, start):
        return True
    end = start + len(term.lexeme)
    if start and text[start - 1].isalnum() and not text[start].isupper():
        return False
    return term.is_prefix or not text[end : end + 1].isalnum() or text[end].isupper()


class _NormalisedCharacters(dict[int, str]):
    """Normalises single characters, so that positions in a text stay the same."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        folded = normalised(unicodedata.normalize("NFKC", character))
        self[code] = folded if len(folded) == 1 else character
        return self[code]


_NORMALISED = _NormalisedCharacters()
