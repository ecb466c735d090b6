"""What a provider's error says about the size of a request. [compaction.overflow-errors]

Providers have neither codes nor wording in common: `provider_phrasings` lists both. These rules
apply in order:

0. An answer with a status below 400 is no error, unless it has a field for errors or ended with a
   code for an input that is too long.
1. A sum of input and output beyond the window is judged by its numbers: the output is too large
   where lowering it leaves enough of it, and the error names its setting or it takes a third of the
   window or more. Otherwise the input is too long.
2. A code for an input that is too long decides, anywhere in the error.
3. Refused reasoning is named as such. Limits on a rate, a quota or a payment are neither. Refused
   media are named as such: too many, too large, or one that the provider cannot read, whose message
   it may name by its index.
4. A requested output beyond the model's limit is too large.
5. HTTP 413 says that the input is too long. With 401 to 404 and 429 only a code does.
6. Words that name the context, the prompt or the input as too long decide.
7. A limit of a short field or of tools is neither; otherwise words for too many tokens decide.

The error may be text, JSON, an array, or JSON inside a string inside JSON. The work is bounded: an
error of any size is read up to a number of fields and of characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice

from app.common import json_text
from app.common.json_text import MESSAGE_LIMITS
from app.models import provider_phrasings as phrasings

MIN_STRING_CHARS = 10_000
"""A limit of characters below this is one of a name or an id, not of a prompt."""
MAX_TEXT_CHARS = 8_000
"""How much of a text is searched, from both of its ends: errors are short, unless they quote."""
MAX_CHARS = 24_000
"""How much of all texts is searched."""
MAX_JSON_CHARS = 200_000
"""The longest JSON inside a text that is parsed."""
MAX_FIELDS = 500

_MIN_ERROR_STATUS = 400
_ERROR_STATUSES = frozenset(range(_MIN_ERROR_STATUS, 600))
_PAYLOAD_TOO_LARGE = 413
_NEVER_BY_WORDS = frozenset({401, 402, 403, 404, 429})
_MIN_ROOM_SHARE, _MIN_ROOM_TOKENS = 0.25, 2_000
"""What lowering the output has to leave at least: a share of what was requested, or so much."""
_LARGE_OUTPUT_SHARE = 1 / 3
"""An output of this share of the window is too large where input and output do not fit."""
_MANY_IMAGES = 20
"""How many images no provider counts as too many, whatever their size."""

_ECHOES = frozenset({"input", "messages", "request", "prompt", "contents", "param", "loc"})
"""Fields in which a provider quotes the request: their text is that of the conversation."""
_CODES = frozenset(
    {"code", "error_code", "errorcode", "status", "status_code", "statuscode"}
    | {"stop_reason", "finish_reason", "finishreason"}
)
_STATUS = re.compile(r"^\W*(?:(?:http|status|error|code|request failed)\b\W*)*([45]\d\d)\b")
_QUOTED_CODE = re.compile(r"""['"](?:error_?)?code['"]\s{0,3}:\s{0,3}['"]?(\w{1,40})""")
"""A field for codes in a text that is no JSON, such as the representation of a Python dict."""
_QUOTES = re.compile(r"[`'\"\\‘’“”]")  # noqa: RUF001 - quotes
_ITEM_INDEX = re.compile(r"\b(?:messages|contents)[.\[](\d{1,6})\b")
_STRING = re.compile(
    r"(?:invalid (?P<field>[\w.\[\]]{1,100}): )?string too long\. expected a string with maximum"
    r" length (?P<chars>\d{1,12})|expected maxlength: (?P<max>\d{1,12})"
)
_STRING_CODE = "string_above_max_length"
_HISTORY = ("messages", "input", "prompt", "contents")

Error = str | Mapping[str, object] | Sequence[object] | None


class VerdictKind(StrEnum):
    """What an error says about the size of the request."""

    INPUT_TOO_LONG = "input_too_long"
    OUTPUT_TOO_LARGE = "output_too_large"
    MEDIA_REFUSED = "media_refused"
    REASONING_REFUSED = "reasoning_refused"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an error says; of an output that is too large also the limit and the request, if named.

    Both are in tokens. With `exceeds_window` a smaller input would help, too. Of refused media,
    `keep_media` is how many may stay at most where they are too many, and `item_index` is the place
    of the item with a bad one, if named.
    """

    kind: VerdictKind
    exceeds_window: bool = False
    output_limit: int | None = None
    requested_output: int | None = None
    keep_media: int | None = None
    item_index: int | None = None

    def lowered_output(self, max_output_tokens: int) -> int:
        """Return the output limit to try next: the named one, else half of the requested one."""
        if self.output_limit is not None:
            return max(1, min(self.output_limit, max_output_tokens))
        return max(1, min(self.requested_output or max_output_tokens, max_output_tokens) // 2)


_INPUT, _OTHER = Verdict(VerdictKind.INPUT_TOO_LONG, True), Verdict(VerdictKind.OTHER)


def judge_error(error: Error, status: int | None = None) -> Verdict:
    """Return what a provider's answer says about the size of the request.

    `error` is its body, as text or as JSON; `status` is its HTTP status.
    """
    found = _texts_of(error)
    texts = found.texts
    if status is not None and status < _MIN_ERROR_STATUS and not found.is_marked:
        return _INPUT if any(map(phrasings.CODE.fullmatch, found.codes)) else _OTHER
    if (match := _first(phrasings.SUMS, texts)) is not None:
        return _verdict_of_sum(match)
    if found.codes & phrasings.FIELD_CODES or _has(phrasings.CODE, texts):
        return _INPUT
    if _has(phrasings.REASONING, texts):
        return Verdict(VerdictKind.REASONING_REFUSED)
    if _has(phrasings.RATE, texts) or _has(phrasings.OTHERS, texts):
        return _OTHER
    if _has(phrasings.MEDIA_COUNT, texts):
        return Verdict(VerdictKind.MEDIA_REFUSED, keep_media=_MANY_IMAGES)
    if _has(phrasings.MEDIA, texts):
        match = _first((_ITEM_INDEX,), texts)
        return Verdict(VerdictKind.MEDIA_REFUSED, item_index=int(match[1]) if match else None)
    if (match := _first(phrasings.OUTPUTS, texts)) is not None:
        numbers = {name: _number(text) for name, text in match.groupdict().items() if text}
        limit = numbers["beyond"] - 1 if "beyond" in numbers else numbers.get("limit")
        requested = numbers.get("requested")
        return Verdict(VerdictKind.OUTPUT_TOO_LARGE, False, limit or None, requested)
    return _INPUT if _is_too_long(found, status) else _OTHER


def is_context_overflow(error: Error, status: int | None = None) -> bool:
    """Whether a smaller input would help."""
    return judge_error(error, status).exceeds_window


def _verdict_of_sum(match: re.Match[str]) -> Verdict:
    """Return the verdict of rule 1."""
    groups = match.groupdict()
    window = _number(groups["window"])
    if parts := groups.get("parts"):
        input_tokens = output = 0
        for part in re.finditer(r"(\d[\d,]{0,15})([^\d]{0,60})", parts):
            if "completion" in part[2] or "output" in part[2]:
                output += _number(part[1])
            else:
                input_tokens += _number(part[1])
    else:
        input_tokens, output = _number(groups["input"]), _number(groups["output"])
    room = window - input_tokens
    is_large = "setting" in groups or output >= _LARGE_OUTPUT_SHARE * window
    if not (is_large and output and room >= min(_MIN_ROOM_SHARE * output, _MIN_ROOM_TOKENS)):
        return _INPUT
    # vLLM stops to count an input at this number, so that the room is unknown.
    limit = None if room == output - 1 else room
    return Verdict(VerdictKind.OUTPUT_TOO_LARGE, True, limit, output)


def _is_too_long(found: _Found, status: int | None) -> bool:
    """Whether the input is too long, by rules 5 to 7."""
    texts, statuses = found.texts, {status} if status is not None else found.statuses
    if statuses & _NEVER_BY_WORDS:
        return False
    if _PAYLOAD_TOO_LARGE in statuses or _has(phrasings.WEAK_CODE, texts):
        return True
    if strings := [match for text in texts for match in _STRING.finditer(text)]:
        return any(
            (match["field"] is None or match["field"].startswith(_HISTORY))
            and int(match["chars"] or match["max"]) >= MIN_STRING_CHARS
            for match in strings
        )
    if any(_STRING_CODE in text for text in texts) or _has(phrasings.INPUT, texts):
        return True
    return not _has(phrasings.OTHER_LIMIT, texts) and _has(phrasings.VAGUE_INPUT, texts)


def _has(pattern: re.Pattern[str], texts: Iterable[str]) -> bool:
    return any(pattern.search(text) for text in texts)


def _first(patterns: Iterable[re.Pattern[str]], texts: Iterable[str]) -> re.Match[str] | None:
    matches = (pattern.search(text) for text in texts for pattern in patterns)
    return next(filter(None, matches), None)


def _number(text: str) -> int:
    return int(text.replace(",", ""))


@dataclass(slots=True)
class _Found:
    """What an error contains: its texts in lower case, its codes, and HTTP statuses.

    `is_marked` says that a field of it is for errors.
    """

    texts: list[str] = field(default_factory=list)
    codes: set[str] = field(default_factory=set)
    statuses: set[int] = field(default_factory=set)
    is_marked: bool = False

    def add_text(self, text: str) -> None:
        """Add a text, without its middle if it is long."""
        if len(text) > MAX_TEXT_CHARS:
            half = MAX_TEXT_CHARS // 2
            text = f"{text[:half]}\n{text[-half:]}"
        if match := _STATUS.search(text.lower()[:100]):
            self.statuses.add(int(match[1]))
        self.codes.update(match[1] for match in _QUOTED_CODE.finditer(text))
        if plain := " ".join(_QUOTES.sub("", text.lower()).split()):
            self.texts.append(plain)

    def add_code(self, code: object) -> None:
        """Add the value of a field for codes."""
        if isinstance(code, str) or (type(code) is int and abs(code) < 10**9):
            text = str(code)[:100].strip()
            self.codes.add(text)
            if text.isdecimal() and len(text) == 3:
                self.statuses |= {int(text)} & _ERROR_STATUSES


def _texts_of(error: object) -> _Found:
    """Return the texts of an error, those of JSON inside a text as well."""
    found = _Found()
    stack = [error]
    for _ in range(MAX_FIELDS):
        if not stack or sum(map(len, found.texts)) >= MAX_CHARS:
            break
        value = stack.pop()
        if isinstance(value, str):
            inner, before = _parsed(value)
            found.add_text(before)
            stack.append(inner)
        elif isinstance(value, Mapping):
            items = list(islice(value.items(), MAX_FIELDS))
            for name, item in items:
                if str(name).lower() in _CODES:
                    found.add_code(item)
                if (name in ("error", "errors") and item) or (name == "type" and item == "error"):
                    found.is_marked = True
            stack += [
                item
                for name, item in reversed(items)
                if name not in _ECHOES
                or (name == "param" and isinstance(item, str) and " " in item)
            ]
        elif isinstance(value, list | tuple):
            stack += value[MAX_FIELDS::-1]
    return found


def _parsed(text: str) -> tuple[object | None, str]:
    """Return the JSON in a text, from its first brace to its last, and the text before it.

    Of a text without any this is None and the text.
    """
    start, end = text.find("{"), text.rfind("}")
    if 0 <= start < end < start + MAX_JSON_CHARS:
        for candidate in (text[start : end + 1], f"[{text[start : end + 1]}]"):
            try:
                return json_text.loads_within(candidate, MESSAGE_LIMITS), text[:start]
            except ValueError:
                continue
    return None, text
