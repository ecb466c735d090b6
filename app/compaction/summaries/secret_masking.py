"""Masks secrets in text that is sent to a summariser. [summary.secrets-masked]

1. A secret is recognised by its own form (a key with a prefix, a private key, a password in a URL)
   or by the name that it is assigned to (`DB_PASS=`, `"password":`).
2. All patterns search the same text, and their matches are masked together: their order does not
   matter. RE2 matches in linear time.
3. The name of a pattern's group selects the check of its value (`_is_secret`). A group of another
   name, or without one, is always a secret. Without groups the whole match is the secret.
4. Terminals colour names and values: their codes are removed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import lru_cache
from importlib.resources import files
from typing import Any

import re2

from app.common.texts import sendable
from app.conversations.view import Span, union

MASK = "[secret masked]"

SecretPatterns = tuple[Any, ...]
"""Compiled patterns."""

_PART = re.compile(r"\{([A-Z_]+)\}")


def _read_table() -> dict[str, dict[str, str]]:
    """Return the expressions of `secrets.toml` by section and name."""
    table = tomllib.loads(files(__package__).joinpath("secrets.toml").read_text("utf-8"))
    parts: dict[str, str] = {}

    def whole(value: str | list[str]) -> str:
        text = value if isinstance(value, str) else "|".join(value)
        return _PART.sub(lambda match: parts[match[1]], text)

    for name, value in table.pop("parts").items():
        parts[name] = whole(value)
    return {
        section: {name: whole(value) for name, value in values.items()}
        for section, values in table.items()
    }


_TABLE = _read_table()
DEFAULT_SECRET_PATTERNS: tuple[str, ...] = tuple(_TABLE["patterns"].values())
"""The patterns that are masked unless the settings have others."""

# --- which values are secrets ---------------------------------------------------------------

_PLACEHOLDER, _PATH, _CODE, _IDENTIFIER = (
    re.compile(_TABLE["values"][name]) for name in ("placeholder", "path", "code", "identifier")
)
_RUN = re.compile(r"[A-Za-z0-9]{8,}")
_SECRET_WORD = re.compile(r"pass(?:w|\b|_)|secret|token|credential|api_?key|pwd", re.IGNORECASE)


def _is_secret(value: str, kind: str) -> bool:
    """Return whether a matched value is a secret: no variable, type, path, code or prose.

    A value that is left alone contains neither `=` nor `:`, except a plain URL, so that it hides
    no other assignment.
    """
    if len(value) < 3 or _PATH.fullmatch(value):
        return False
    if not {"=", ":"} & set(value) and _PLACEHOLDER.fullmatch(value):
        return False
    is_name = _IDENTIFIER.fullmatch(value) is not None
    is_code = bool(_CODE.fullmatch(value)) or (is_name and bool(_SECRET_WORD.search(value)))
    is_mixed = any(map(str.isdigit, value)) and any(map(str.isalpha, value))
    match kind:
        case "maybe_key":
            runs = _RUN.findall(value)
            words = {form for run in runs for form in (run.lower(), run.upper(), run.title())}
            return any(len(run) >= 20 or not run.isalpha() or run not in words for run in runs)
        case "maybe_variable":
            return not (len(value) < 6 and value.rstrip("smhd").isdecimal())
        case "maybe_plain":
            return not is_code
        case "maybe_word":
            has_sign = any(sign in value[:-1] for sign in "!@#$%^*+~")
            return len(value) >= 5 and not is_code and (is_mixed or has_sign)
        case "maybe_token":
            return len(value) >= 8 and not is_code and is_mixed and not is_name
        case "weak_quoted":
            has_blank = any(map(str.isspace, value))
            return len(value) >= 8 and not has_blank and (len(value) >= 16 or is_mixed)
        case _:
            return True


# --- masking --------------------------------------------------------------------------------

_COLOUR = re.compile(r"(?:\x1b|\\{1,7}u001[bB])\[[0-9;]*[A-Za-z]")
_QUOTE_OR_LINE = re.compile(rb"(?<!\\)(\\*+)([\"'`\r\n])")
_CUT_OFF = re.compile(rb"[^\s\"'`\\]*+")
_MASKED = re.compile(re.escape(MASK.encode()))


@lru_cache(maxsize=8)
def compile_patterns(patterns: tuple[str, ...]) -> SecretPatterns:
    """Compile the secret patterns; the first group that matches is the secret.

    Raises ValueError for what RE2 cannot match in linear time, such as look-around and
    back-references, and for a pattern that matches the empty text.
    """
    options = re2.Options()
    options.log_errors = False
    compiled = []
    for pattern in patterns:
        try:
            compiled.append(re2.compile(pattern, options))
        except (re2.error, UnicodeEncodeError) as exc:
            raise ValueError(f"has a pattern that RE2 does not know, {pattern!r}: {exc}") from exc
        if compiled[-1].search("") is not None:
            raise ValueError(f"has a pattern that matches the empty text, {pattern!r}")
    return tuple(compiled)


def mask_secrets(text: str, patterns: SecretPatterns) -> str:
    """Replace every secret in the text by a mask, and characters that no provider accepts."""
    text = _COLOUR.sub("", sendable(text))
    data = text.encode()
    spans = union(span for pattern in patterns for span in _spans(pattern, data))
    if not spans:
        return text
    spans = union((*spans, *(Span(*match.span()) for match in _MASKED.finditer(data))))
    starts = (0, *(span.end for span in spans))
    ends = (*(span.start for span in spans), len(data))
    return MASK.join(data[start:end].decode() for start, end in zip(starts, ends, strict=True))


def _spans(pattern: Any, text: bytes) -> Iterator[Span]:
    """Yield the ranges of secrets that a pattern matches, in bytes."""
    names = {number: name for name, number in pattern.groupindex.items()}
    position = 0
    while match := pattern.search(text, position):
        used = [n for n in range(1, pattern.groups + 1) if match.start(n) >= 0]
        marks = {names.get(n, "") for n in used} & {"weak", "call"}
        group = next((n for n in used if names.get(n) not in marks), 0)
        kind, (start, end) = names.get(group, ""), match.span(group)
        is_quoted = kind == "maybe_quoted"
        if is_quoted:
            start, end = end, _end_of_quoted(text, end, match[group])
        if "weak" in marks:
            kind = "weak_quoted" if is_quoted else "maybe_token"
        is_checked = kind.startswith(("maybe_", "weak_"))
        is_secret = not is_checked or (
            "call" not in marks and _is_secret(text[start:end].decode(), kind)
        )
        if is_secret and start < end:
            yield Span(start, end)
        position = max(match.start() + 1, start if is_quoted and not is_secret else end)


def _end_of_quoted(text: bytes, start: int, opening: bytes) -> int:
    """Return where a quoted value ends: at its quote, or cut off, before what cannot be in it.

    With each level of JSON the slashes before a quote double: before the closing quote there are as
    many as before the opening one, besides pairs of those that stand for slashes of the value.
    """
    level = len(opening)
    for match in _QUOTE_OR_LINE.finditer(text, start):
        if match[2] in b"\r\n":
            break
        slashes = len(match[1]) % (2 * level)
        if match[2] == opening[-1:] and slashes < level:
            return match.end() - 1 - slashes
    cut_off = _CUT_OFF.match(text, start)
    return cut_off.end() if cut_off else start
