"""What a provider's error says about the size of a request. [compaction.overflow-errors]

Providers have neither codes nor wording in common. The error becomes one text in lower case,
without quotes and backslashes, so that JSON inside JSON reads like any text; then the first of
these rules counts:

1. A sum of input and output beyond the context window is judged by its numbers: the output is too
   large where lowering it leaves enough of it, and the error names its setting or it takes a third
   of that window or more. Otherwise the input is too long.
2. A code for an input that is too long decides, anywhere in the error.
3. The first row of `_WORDS` with a match: refused reasoning; limits on a rate or a payment, which
   are none of this; refused media; an output beyond the model's limit.
4. HTTP 413 says that the input is too long. With 401 to 404 and 429 only a code does.
5. Words that name the context, the prompt or the input as too long decide, vague ones only in a
   text that names no other limit.

Patterns have no unbounded repetition, and the text is bounded: a search is linear.
`provider_errors/` of the tests has recorded errors, with the place where each was found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Final

from app.common import json_text

_MAX_CHARS, _MAX_FIELDS, _MAX_DEPTH = 12_000, 500, 20
"""How much of an error is searched, from both of its ends: errors are short, unless they quote."""
_MIN_STRING_CHARS = 10_000
"""A limit of characters below this is one of a name or an id, not of a prompt."""
_NEVER_BY_WORDS = frozenset({401, 402, 403, 404, 429})
_MIN_ROOM_SHARE, _MIN_ROOM_TOKENS = 0.25, 2_000
"""What lowering the output has to leave at least: a share of what was requested, or so much."""
_ECHOES = frozenset({"input", "messages", "request", "prompt", "contents", "loc"})
"""Fields in which a provider quotes the request: their text is that of the conversation."""

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
    """What an error says; of an output that is too large also its limit in tokens, if named.

    With `exceeds_window` a smaller input would help.
    """

    kind: VerdictKind
    exceeds_window: bool = False
    output_limit: int | None = None

    def lowered_output(self, max_output_tokens: int) -> int:
        """Return the output limit to try next: the named one, else half of the present one."""
        return max(1, min(self.output_limit or max_output_tokens // 2, max_output_tokens))


_INPUT, _OTHER = Verdict(VerdictKind.INPUT_TOO_LONG, True), Verdict(VerdictKind.OTHER)
_N, _SETTING = r"(\d[\d,]{0,15})", r"max_?(?:completion_?|output_?|new_?)?tokens"
_WINDOW = re.compile(rf"(?:context length (?:is|of)(?: only)?|must be <=) {_N}")
_PART = re.compile(
    rf"{_N}(?: tokens)?(?: (?:in|of|for|from)(?: the| your)?)?(?: text| tool)?"
    r" (messages|prompt|inputs?\b|functions|output|completion|max_(?:new_)?tokens)"
    rf"|is (too large): {_N}"
)
_ANTHROPIC_SUM = re.compile(rf"exceed context limit: {_N} \+ {_N} > {_N}")
_OUTPUT_LIMIT = re.compile(
    rf"(?:(?:at most|limit of|equal to|<=?|>|\[\d+,|exceed|maximum output tokens) ?\(?{_N}"
    rf"|to {_N} (\(exclusive\)))"
)
_CODE = re.compile(
    r"\b(?:(?:model_)?context_(?:length|window|limit)_exceeded|contextwindowexceedederror"
    r"|exceed_context_size|(?:tokens|context|prompt|input)_too_long)|code: (?:1261|1039)\b"
)
_WORDS: Final = [
    (kind, re.compile("|".join(patterns)))
    for kind, *patterns in (
        (
            VerdictKind.REASONING_REFUSED,
            r"invalid (?:signature|data) in (?:redacted_)?thinking block",
            r"thinking blocks in the latest assistant message cannot be modified",
            r"block in an assistant message cannot be thinking|invalid_encrypted_content",
            r"encrypted[ _]content\b.{0,400}(?:could not be (?:verified|decrypted)|not supported)",
            r"provided without its required (?:following|reasoning) item",
            r"(?:could not|failed to|unable to) decrypt\b.{0,60}(?:encrypted|reasoning)",
            r"thought[ _]signature is (?:not valid|invalid)",
            r"(?:reasoning_content|reasoning_details|thinking_blocks)\b.{0,80}(?:unsupported"
            r"|not (?:supported|permitted|allowed)|unrecognized|unexpected)",
        ),
        (
            VerdictKind.OTHER,
            r"\bper[ -](?:second|sec|minute|min|hour|day|week|month)\b|\b[tr]p[md]\b",
            r"rate[ _-]?limit|\bquota|too many requests|too many tokens processed|throttl",
            r"overloaded|\bcredits?\b|\bbilling\b|\bbalance\b|每(?:秒|分钟|小时|天|日|月)|限流|额度",
        ),
        (
            VerdictKind.MEDIA_REFUSED,
            r"too (?:many|much) (?:images|media|documents)|many-image requests|\bpdf pages\b",
            r"\bmax(?:imum)? (?:number )?of (?:\d+ )?(?:images|media|files)",
            r"could not process (?:image|pdf|document|file)|unsupported image|invalid_image",
            r"(?<!of )\b(?:image|file|attachment|audio|video|document|pdf)s?\b(?: \w{1,20}){0,3} "
            r"(?:exceeds?|too large|too big|too long)\b|not represent a valid image",
            r"unable to process input (?:image|video|audio|file)|base64 decoding failed",
        ),
        (
            VerdictKind.OUTPUT_TOO_LARGE,
            r"maximum allowed number of output|maximum tokens you requested exceed",
            r"\d is not less or equal to \d|maxoutputtokens value of \d",
            r"range of max_tokens (?:is|should be) \[",
            rf"{_SETTING}(?: is limited for this model|[^:]{{0,60}}: integer above maximum value)",
            rf"(?<!\+ )(?<!and )(?<!plus )(?:\b{_SETTING}|max(?:imum)? output tokens)\b"
            r"(?: for \S{1,60})?[^.;]{0,60}?"
            r"(?:too (?:large|big|high)|exceed|cannot be (?:greater|larger)|\bat most\b"
            r"|\b(?:must|should) be (?:less|smaller|at most|below|between|<|≤)"
            r"|\b(?:greater|larger|higher) than (?:the )?(?:max|limit|model))",
        ),
    )
]
_STRING = re.compile(
    r"(?:invalid (?P<field>[\w.\[\]]{1,100}): )?string too long\. expected a string with maximum"
    r" length (\d{1,12})|expected maxlength: (\d{1,12})"
)
_HISTORY = ("messages", "input", "prompt", "contents")
_STATUS = re.compile(r"(?:^|\b(?:status|code|error|request failed)\b\W{0,9})([45]\d\d)\b")
_CLEAR: Final = re.compile(
    r"context[ _](?:length|window|size|limit)s?\b.{0,60}?"
    r"(?:exceed|overflow|too (?:long|large|small)|\bfull\b|not enough)"
    r"|prompt (?:is )?too long|tokens but the models? context window is|request_too_large"
    r"|(?:exceed\w*|longer than|greater than|larger than|too (?:long|large|big|many) for"
    r"|fit in(?:to)?)\b.{0,60}?\b(?:context (?:length|window|size|limit)|n_ctx|max_seq_len)"
    r"|max(?:imum)?[ _](?:model |allowed |supported )?"
    r"(?:context (?:length|window|size|limit)|(?:prompt|input|sequence) (?:length|tokens?))\b"
    r"|total number of tokens\b.{0,60}?cannot exceed|max tokens of \d[\d,]{0,15} exceeded"
    r"|reduce (?:the length of )?(?:the |your )?(?:input|prompts?|messages?|conversation)\b"
    r"|n_keep\W{0,4}\d{1,9}\W{0,8}n_ctx\b|longer than the maximum model length"
    r"|input_ids size \(\d{1,9}\).{0,60}?exceeds max(?:imum)?[ _]length|tokens_limit_reached"
    r"|max_length \(\d{1,9}\) cannot be greater than model context_length"
    r"|length of input_ids is \d{1,9}, but max_length is set to|range of input length should be"
    r"|total tokens of image and text exceed|string_above_max_length"
    r"|prompt_?tokens\b.{0,40}?(?:must be less than|exceeds?|greater than)"
    r"|max_total_tokens\b.{0,20}?must be less than or equal to max_seq_len"
    r"|\b(?:messages|input): array too long|request (?:entity |body |payload )?(?:size )?(?:is )?"
    r"(?:too large|exceeds the (?:limit|maximum (?:allowed )?(?:size|number of bytes)))"
)
_VAGUE: Final = re.compile(
    r"\b(?:prompt|input|conversation|context|history)(?: tokens?| text| length| size)?"
    r" (?:is |are )?too (?:long|large|big)\b"
    r"|\b(?:prompts?|inputs?)\b[^.;:]{0,60}?(?:exceeds?|exceeded|longer than|greater than"
    r"|larger than|above|must have less than)\b.{0,40}?(?:\d|limit|max|length)"
    r"|too many (?:input |prompt )?tokens"
    r"|exceed\w* (?:the |your )?(?:models? )?(?:max(?:imum)? )?(?:number of )?(?:input )?"
    r"tokens? (?:limit|allowed)"
    r"|(?:输入|提示词?|上下文|对话|会话|prompt|tokens?)[^.;。]{0,30}?"
    r"(?:超过|超出|超限|超长|过长|太长|过大|过多)"
)
_OTHER_LIMIT: Final = re.compile(
    rf"\b{_SETTING}\b|\b(?:output|completion) tokens|\b(?:images?|pixels?|files?|audio|video"
    r"|pages|bytes|array too long|tools?|functions?|metadata|instructions)\b|输出|生成"
)
_ESCAPE = re.compile(r"\\+(?:u([0-9a-fA-F]{4})|[nrt])")
_QUOTES = re.compile(r"[`'\"\\‘’“”]")  # noqa: RUF001 - quotes


def judge_error(error: Error, status: int | None = None) -> Verdict:
    """Return what a provider's answer says about the size of the request.

    `error` is its body, as text or as JSON; `status` is its HTTP status.
    """
    text = _plain_text(error)
    if (verdict := _verdict_of_sum(text)) is not None:
        return verdict
    if _CODE.search(text):
        return _INPUT
    kind = next((kind for kind, pattern in _WORDS if pattern.search(text)), None)
    if kind is VerdictKind.OUTPUT_TOO_LARGE:
        limit = _OUTPUT_LIMIT.search(text)
        named = _number(limit[1] or limit[2]) - bool(limit[3]) if limit is not None else 0
        return Verdict(kind, output_limit=named or None)
    if kind is not None:
        return Verdict(kind)
    return _INPUT if _is_too_long(text, status) else _OTHER


def is_context_overflow(error: Error, status: int | None = None) -> bool:
    """Whether a smaller input would help."""
    return judge_error(error, status).exceeds_window


def _verdict_of_sum(text: str) -> Verdict | None:
    """Return the verdict of rule 1, None without a window, an input and an output."""
    context_window = input_tokens = output = 0
    if match := _ANTHROPIC_SUM.search(text):
        input_tokens, output, context_window = map(_number, match.groups())
    elif match := _WINDOW.search(text):
        context_window = _number(match[1])
        for part in _PART.finditer(text):
            if part[3] or part[2].startswith(("completion", "output", "max_")):
                output = _number(part[4] or part[1])
            else:
                input_tokens += _number(part[1])
    if not input_tokens or not output:
        return None
    room = context_window - input_tokens
    names_setting = re.search(_SETTING, text.partition("reduce")[0]) is not None
    is_large = names_setting or output >= context_window / 3
    if not (is_large and room >= min(_MIN_ROOM_SHARE * output, _MIN_ROOM_TOKENS)):
        return _INPUT
    # vLLM stops to count an input at this number, so that the room is unknown.
    limit = None if room == output - 1 else room
    return Verdict(VerdictKind.OUTPUT_TOO_LARGE, True, limit)


def _is_too_long(text: str, status: int | None) -> bool:
    """Whether the input is too long, by rules 4 and 5."""
    statuses = {status} if status else set(map(int, _STATUS.findall(text)))
    if statuses & _NEVER_BY_WORDS:
        return False
    if strings := list(_STRING.finditer(text)):
        return 413 in statuses or any(
            (match["field"] is None or match["field"].startswith(_HISTORY))
            and int(match[2] or match[3]) >= _MIN_STRING_CHARS
            for match in strings
        )
    if 413 in statuses or _CLEAR.search(text):
        return True
    return not _OTHER_LIMIT.search(text) and _VAGUE.search(text) is not None


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def _plain_text(error: object) -> str:
    """Return an error as one text to search."""
    if isinstance(error, str) and error[:1] in ("{", "["):
        with suppress(ValueError):
            error = json_text.loads(error)
    text = " ".join(islice(_leaves(error), _MAX_FIELDS))
    if len(text) > _MAX_CHARS:
        text = f"{text[: _MAX_CHARS // 2]} {text[-_MAX_CHARS // 2 :]}"
    text = _ESCAPE.sub(lambda match: chr(int(match[1], 16)) if match[1] else " ", text)
    return " ".join(_QUOTES.sub("", text.lower()).split())


def _leaves(value: object, depth: int = 0) -> Iterator[str]:
    """Yield names, texts and numbers of JSON, without what it quotes of the request."""
    if isinstance(value, Mapping) and depth < _MAX_DEPTH:
        for name, item in value.items():
            if name not in _ECHOES:
                yield f"{name}:"
                yield from _leaves(item, depth + 1)
    elif isinstance(value, list | tuple) and depth < _MAX_DEPTH:
        for item in value:
            yield from _leaves(item, depth + 1)
    elif isinstance(value, str):
        yield value
    elif type(value) is int and abs(value) < 10**9:
        yield str(value)
