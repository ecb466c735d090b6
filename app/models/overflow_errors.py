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
   media are named as such: too many,
   too large, or one that the provider cannot read, whose message it may name by its index.
4. A requested output beyond the model's limit is too large.
5. HTTP 413 says that the input is too long. With 401 to 404 and 429 only a code does.
6. Words that name the context, the prompt or the input as too long decide.
7. A limit of a short field or of tools is neither; otherwise words for too many tokens decide.

The error may be text, JSON, an array, or JSON inside a string inside JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from app.models.error_texts import ErrorTexts, texts_of
from app.models.provider_phrasings import (
    CODES,
    FIELD_CODES,
    INPUTS,
    MEDIA,
    MEDIA_COUNTS,
    OTHER_LIMITS,
    OTHERS,
    OUTPUTS,
    RATES,
    REASONING,
    SUMS,
    VAGUE_INPUTS,
    WEAK_CODES,
    Phrasing,
)

MIN_STRING_CHARS = 10_000
"""A limit of characters below this is one of a name or an id, not of a prompt."""

_MIN_ERROR_STATUS = 400
_PAYLOAD_TOO_LARGE = 413
_NEVER_BY_WORDS = frozenset({401, 402, 403, 404, 429})
_MIN_ROOM_SHARE, _MIN_ROOM_TOKENS = 0.25, 2_000
"""What lowering the output has to leave at least: a share of what was requested, or so much."""
_LARGE_OUTPUT_SHARE = 1 / 3
"""An output of this share of the window is too large where input and output do not fit."""


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


def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern of the table; the number `<name>` becomes the group of that name."""
    return re.compile(re.sub(r"(?<!\?P)<(\w+)>", r"(?P<\1>\\d[\\d,]{0,15})", pattern))


def _joined(rows: Iterable[Phrasing]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{row.pattern})" for row in rows))


_SUMS = [(_compiled(row.pattern), row.names_setting) for row in SUMS]
_OUTPUTS = [_compiled(row.pattern) for row in OUTPUTS]
_CODE = re.compile(rf"\b(?:{'|'.join(row.pattern for row in CODES)})\b")
_FIELD_CODES = frozenset(row.pattern for row in FIELD_CODES)
_WEAK_CODE, _RATE, _OTHERS = _joined(WEAK_CODES), _joined(RATES), _joined(OTHERS)
_MEDIA, _MEDIA_COUNT, _REASONING = _joined(MEDIA), _joined(MEDIA_COUNTS), _joined(REASONING)
_ITEM_INDEX = re.compile(r"\b(?:messages|contents)[.\[](\d{1,6})\b")
_MANY_IMAGES = 20
"""How many images no provider counts as too many, whatever their size."""
_NAMES_INPUT, _VAGUE_INPUT = _joined(INPUTS), _joined(VAGUE_INPUTS)
_OTHER_LIMIT = _joined(OTHER_LIMITS)
_STRING = re.compile(
    r"(?:invalid (?P<field>[\w.\[\]]{1,100}): )?string too long\. expected a string with maximum"
    r" length (?P<chars>\d{1,12})|expected maxlength: (?P<max>\d{1,12})"
)
_STRING_CODE = "string_above_max_length"
_HISTORY = ("messages", "input", "prompt", "contents")


def judge_error(
    error: str | Mapping[str, object] | Sequence[object] | None, status: int | None = None
) -> Verdict:
    """Return what a provider's answer says about the size of the request.

    `error` is its body, as text or as JSON; `status` is its HTTP status.
    """
    found = texts_of(error)
    texts = found.texts
    if status is not None and status < _MIN_ERROR_STATUS and not found.is_marked:
        return _INPUT if any(map(_CODE.fullmatch, found.codes)) else _OTHER
    if (verdict := _verdict_of_sum(texts)) is not None:
        return verdict
    if found.codes & _FIELD_CODES or _has(_CODE, texts):
        return _INPUT
    if _has(_REASONING, texts):
        return Verdict(VerdictKind.REASONING_REFUSED)
    if _has(_RATE, texts) or _has(_OTHERS, texts):
        return _OTHER
    if _has(_MEDIA, texts):
        return _verdict_of_media(texts)
    if (verdict := _verdict_of_output(texts)) is not None:
        return verdict
    return _INPUT if _is_too_long(found, status) else _OTHER


def is_context_overflow(
    error: str | Mapping[str, object] | Sequence[object] | None, status: int | None = None
) -> bool:
    """Whether a smaller input would help."""
    return judge_error(error, status).exceeds_window


def _is_too_long(found: ErrorTexts, status: int | None) -> bool:
    """Whether the input is too long, by rules 5 to 7."""
    texts, statuses = found.texts, {status} if status is not None else found.statuses
    if statuses & _NEVER_BY_WORDS:
        return False
    if _PAYLOAD_TOO_LARGE in statuses or _has(_WEAK_CODE, texts):
        return True
    strings = [match for text in texts for match in _STRING.finditer(text)]
    if strings:
        return any(map(_is_long_string, strings))
    if any(_STRING_CODE in text for text in texts) or _has(_NAMES_INPUT, texts):
        return True
    return not _has(_OTHER_LIMIT, texts) and _has(_VAGUE_INPUT, texts)


def _verdict_of_media(texts: Sequence[str]) -> Verdict:
    if _has(_MEDIA_COUNT, texts):
        return Verdict(VerdictKind.MEDIA_REFUSED, keep_media=_MANY_IMAGES)
    match = next(filter(None, map(_ITEM_INDEX.search, texts)), None)
    return Verdict(VerdictKind.MEDIA_REFUSED, item_index=int(match[1]) if match else None)


def _is_long_string(match: re.Match[str]) -> bool:
    """Whether a string that is too long is one of the history."""
    field = match["field"]
    is_history = field is None or field.startswith(_HISTORY)
    return is_history and int(match["chars"] or match["max"]) >= MIN_STRING_CHARS


def _verdict_of_sum(texts: Sequence[str]) -> Verdict | None:
    """Return the verdict of rule 1, None without such a sum."""
    for text in texts:
        for pattern, names_setting in _SUMS:
            if match := pattern.search(text):
                return _verdict_of_numbers(match, names_setting=names_setting)
    return None


def _verdict_of_numbers(match: re.Match[str], *, names_setting: bool) -> Verdict:
    groups = match.groupdict()
    window = _number(groups["window"])
    if parts := groups.get("parts"):
        output, total = _parts(parts)
        input_tokens = total - output
    else:
        input_tokens, output = _number(groups["input"]), _number(groups["output"])
    room = window - input_tokens
    is_large = names_setting or output >= _LARGE_OUTPUT_SHARE * window
    if not (is_large and output and room >= min(_MIN_ROOM_SHARE * output, _MIN_ROOM_TOKENS)):
        return _INPUT
    # vLLM stops to count an input at this number, so that the room is unknown.
    is_least_input = room == output - 1
    limit = None if is_least_input else room
    return Verdict(VerdictKind.OUTPUT_TOO_LARGE, True, limit, output)


def _parts(text: str) -> tuple[int, int]:
    """Return the tokens of the output, and those of all parts, of a list such as OpenAI's."""
    output = total = 0
    for match in re.finditer(r"(\d[\d,]{0,15})([^\d]{0,60})", text):
        tokens = _number(match[1])
        total += tokens
        if "completion" in match[2] or "output" in match[2]:
            output += tokens
    return output, total


def _verdict_of_output(texts: Sequence[str]) -> Verdict | None:
    """Return the verdict of rule 4, None where no text says so."""
    for text in texts:
        for pattern in _OUTPUTS:
            if match := pattern.search(text):
                groups = match.groupdict()
                limit = _optional_number(groups.get("limit"))
                if (beyond := _optional_number(groups.get("beyond"))) is not None:
                    limit = beyond - 1
                requested = _optional_number(groups.get("requested"))
                return Verdict(VerdictKind.OUTPUT_TOO_LARGE, False, limit or None, requested)
    return None


def _has(pattern: re.Pattern[str], texts: Iterable[str]) -> bool:
    return any(pattern.search(text) for text in texts)


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def _optional_number(text: str | None) -> int | None:
    return _number(text) if text else None
