"""Whether a value matched by a pattern of `secret_patterns` is a secret.

Some of the names that secrets are assigned to are also those of variables, and not every value is
a secret. A value that is left alone contains neither `=` nor `:`, except a plain URL, so that it
hides no other assignment.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_PLACEHOLDER = re.compile(
    r"\$\{?[A-Za-z_][\w.]*+\}?|\$\([^()]*+\)|\$\{\{[^{}]*+\}\}|\{\{[^{}]*+\}\}|\{[\w.\[\] ]*+\}"
    r"|--?[a-z-]++|%\w++%|%\(\w++\)s|%[sdv]|#\{[^{}]*+\}|<[^<>]*+>?|@\w++@"
    r"|[*.\u2022\u2026xX_-]*+|\[(?:redacted|masked|hidden|filtered|secret)\]?"
    r"|(?:null|nil|none|true|false|undefined|empty|unset|string|str|text|bytes|int|integer|number"
    r"|bool|boolean|object|array|any|hidden|redacted|masked|required|optional|yes|no|todo|tbd"
    r"|void|unknown|self|this|default|u?int(?:8|16|32|64)?(?:_t|array)?|uint8clampedarray|arraybuffer"
    r"|buffer|bytearray|secretstr|invalid|missing|expired|prompt|input|env|file|vault)[.!?]?",
    re.IGNORECASE,
)
_PATH = re.compile(r"(?:~|\.{1,2})?+(?:/[a-z0-9_.-]++)++/?|https?://[\w./-]++|\$env:\w++")
_CODE = re.compile(r"[&*!]?[A-Za-z_$][\w$]*+(?:(?:\?|!)?(?:\.|->|::)[A-Za-z_$][\w$]*+)++[.:]?")
_NAME = re.compile(r"[&*!@$]?[A-Za-z_$][A-Za-z_$-]*+[0-9]{0,2}[.:?!]*")
_SECRET_WORD = re.compile(r"pass(?:w|\b|_)|secret|token|credential|api_?key|pwd", re.IGNORECASE)


def _is_placeholder(value: str) -> bool:
    """Whether a value is only a placeholder: a variable, a type, a path, asterisks."""
    if _PATH.fullmatch(value):
        return True
    return not {"=", ":"} & set(value) and _PLACEHOLDER.fullmatch(value) is not None


def _is_code(value: str) -> bool:
    """Whether an unquoted value is an expression: `settings.password`, `new_password`."""
    return bool(_CODE.fullmatch(value) or (_NAME.fullmatch(value) and _SECRET_WORD.search(value)))


def _has_letters_and_digits(value: str) -> bool:
    return any(map(str.isdigit, value)) and any(map(str.isalpha, value))


def _is_value(value: str) -> bool:
    return len(value) >= 3 and not _is_placeholder(value)


def _is_quoted_token(value: str) -> bool:
    if len(value) < 8 or any(map(str.isspace, value)) or _is_placeholder(value):
        return False
    return len(value) >= 16 or _has_letters_and_digits(value)


def _is_variable(value: str) -> bool:
    """Whether a value in an environment file is a secret: such files have numbers, but no code."""
    return len(value) >= 3 and not _is_placeholder(value) and not _is_short_number(value)


def _is_short_number(value: str) -> bool:
    return len(value) < 6 and value.rstrip("smhd").isdecimal()


def _is_plain(value: str) -> bool:
    return len(value) >= 3 and not (_is_placeholder(value) or _is_code(value))


def _is_word(value: str) -> bool:
    """Whether a value that may be code or prose is a secret, which mixes letters and others."""
    if len(value) < 5 or not _is_plain(value):
        return False
    return _has_letters_and_digits(value) or any(sign in value[:-1] for sign in "!@#$%^*+~")


def _is_token(value: str) -> bool:
    return (
        len(value) >= 8
        and _is_plain(value)
        and _has_letters_and_digits(value)
        and not _NAME.fullmatch(value)
    )


VALUE_CHECKS: dict[str, Callable[[str], bool]] = {
    "maybe_value": _is_value,
    "maybe_quoted": _is_value,
    "maybe_quoted_token": _is_quoted_token,
    "maybe_env": _is_variable,
    "maybe_plain": _is_plain,
    "maybe_word": _is_word,
    "maybe_token": _is_token,
}
"""The check of a matched value by the name of its group; other groups have none."""
