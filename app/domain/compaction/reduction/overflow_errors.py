"""Whether a provider's error reports that the input was too long. [compaction.overflow-errors]

Providers have neither codes nor wording in common. So these rules apply in order:

1. A code for it, anywhere in the error, decides.
2. A limit on rate, quota or payment is no overflow, whatever else the text contains.
3. HTTP 413 is an overflow. HTTP 429 is one only with a code.
4. Words that name the context, the prompt or the input as too long decide.
5. A limit of the output, of media or of a short field is no overflow.
6. Otherwise words for too many tokens decide.

The text may be plain, JSON, or JSON inside a string inside JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

MAX_CHARS = 10_000
"""How much of a text is searched: errors are short, unless they quote the request."""
MIN_STRING_CHARS = 10_000
"""A limit of characters below this is one of a name or an id, not of a prompt."""

_MAX_DEPTH = 20
_PAYLOAD_TOO_LARGE, _TOO_MANY_REQUESTS = 413, 429

_ECHOES = frozenset({"input", "messages", "request", "prompt", "contents", "param", "loc"})
"""Fields in which a provider quotes the request: their text is that of the conversation."""

_CODE = re.compile(
    r"\b(?:context_(?:length|window|limit)_exceeded|exceed_context_size(?:_error)?"
    r"|model_context_window_exceeded|contextwindowexceedederror|context_window_exceeded_error"
    r"|max_context_length_exceeded|context_too_long|model_max_prompt_tokens_exceeded"
    r"|request_too_large|token_quantity_exceeded|prompt_too_long|input_too_long"
    r"|tokens_limit_reached)\b"
)
_STRING_CODE = "string_above_max_length"

_RATE = re.compile(
    r"\bper[ -](?:second|sec|minute|min|hour|day|week|month)\b|\b[tr]p[md]\b"
    r"|rate[ _-]?limit|quota|too many requests|\bplease wait\b|try again (?:in|later)\b"
    r"|retry (?:after|in)\b|throttl|overloaded|\bcredits?\b|\bbilling\b|can only afford"
    r"|too many tokens processed"
)

_NAMES_CONTEXT = re.compile(
    r"context[ _](?:length|window|size|limit)s?\b.{0,60}?"
    r"(?:exceed|overflow|too (?:long|large|small)|\bfull\b|not enough)"
    r"|\bcontext (?:the )?overflow"
    r"|(?:exceed\w*|longer than|greater than|larger than|too (?:long|large|big|many) for)"
    r"\b.{0,60}?\bcontext\b"
    r"|max(?:imum)?[ _](?:model |allowed |supported )?"
    r"(?:context (?:length|window|size|limit)|(?:prompt|input|sequence) (?:length|tokens?))\b"
    r"|reduce (?:the length of )?(?:the |your )?(?:input|prompts?|messages?|conversation)\b"
    r"|range of input length should be"
    r"|(?:prompt|input) token count\b.{0,60}?(?:exceeds|supports (?:only )?up to|above)"
    r"|inputs? tokens \+ max_new_tokens must be"
    r"|total number of tokens\b.{0,60}?cannot exceed"
    r"|too many tokens: size limit exceeded"
    r"|total tokens of image and text exceed"
    r"|prompt_?tokens\b.{0,40}?(?:must be less than|exceeds?|greater than)"
    r"|\bcurrent length is \d+ while limit is"
    r"|request (?:entity |body |payload )?(?:size )?(?:is )?"
    r"(?:too large|exceeds the (?:limit|maximum (?:allowed )?(?:size|number of bytes)))"
)
_OTHER_LIMIT = re.compile(
    r"\bmax_?(?:completion_|output_|new_)?tokens\b|\b(?:output|completion) tokens"
    r"|\bimages?\b|\bpixels?\b|\bfiles?\b|\battachments?\b|\baudio\b|\bvideo\b|\bpages\b"
    r"|\bbytes\b|\barray too long|\btools?\b|\bfunctions?\b|\bmetadata\b"
)
_TOO_MUCH = re.compile(
    r"\b(?:prompt|input|conversation|context|history)(?: tokens?| text| length| size)?"
    r" (?:is |are )?too (?:long|large|big)\b"
    r"|\b(?:prompts?|inputs?)\b[^.;:]{0,60}?(?:exceeds?|exceeded|longer than|greater than"
    r"|larger than|above|must have less than)\b.{0,40}?(?:\d|limit|max|length)"
    r"|too many (?:input |prompt )?tokens|token limit (?:was |is |has been )?exceeded"
    r"|exceed\w* (?:the |your )?(?:models? )?(?:max(?:imum)? )?(?:number of )?(?:input )?"
    r"tokens? (?:limit|allowed)"
)
_STRING = re.compile(
    r"string too long\. expected a string with maximum length (\d+)|expected maxlength: (\d+)"
)


def is_context_overflow(
    error: str | Mapping[str, object] | None, status: int | None = None
) -> bool:
    """Return whether the error reports that the input was too long for the model.

    `error` is the provider's answer, as text or as JSON; `status` is its HTTP status.
    """
    texts = [_plain(text) for text in _texts(error)]
    if any(_CODE.search(text) for text in texts):
        return True
    if any(_RATE.search(text) for text in texts):
        return False
    if status in {_PAYLOAD_TOO_LARGE, _TOO_MANY_REQUESTS}:
        return status == _PAYLOAD_TOO_LARGE
    lengths = [int(match[1] or match[2]) for text in texts for match in _STRING.finditer(text)]
    if lengths:
        return max(lengths) >= MIN_STRING_CHARS
    if any(_STRING_CODE in text or _NAMES_CONTEXT.search(text) for text in texts):
        return True
    if any(_OTHER_LIMIT.search(text) for text in texts):
        return False
    return any(_TOO_MUCH.search(text) for text in texts)


def _texts(value: object, depth: int = 0) -> Iterator[str]:
    """Yield the texts of an error, those of JSON inside a text as well."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, str):
        inner = _parsed(value)
        if inner is None:
            yield value[:MAX_CHARS]
        else:
            yield value[: value.index("{")][:MAX_CHARS]
            yield from _texts(inner, depth + 1)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            if name not in _ECHOES:
                yield from _texts(item, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item, depth + 1)


def _parsed(text: str) -> Mapping[str, object] | None:
    """Return the JSON object that a text holds, from its first brace to its last."""
    start, end = text.find("{"), text.rfind("}")
    if start < 0 or end < start:
        return None
    try:
        value = json.loads(text[start : end + 1])
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, Mapping) else None


def _plain(text: str) -> str:
    """Return the text in lower case, without quotes and with single spaces."""
    return re.sub(r"\s+", " ", re.sub(r"[`'\"\\‘’“”]", "", text.lower()))  # noqa: RUF001 - quotes
