"""The rules for every provider (N), except where a provider has its own rule for the same.

The modules of the providers judge `N1` and `N3` to `N6` with the pairing of calls. This module has
the rules that need the build before, or facts beside the payload.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.domain.payload.validation.rules import Context, Findings
from app.domain.payload.validation.shapes import (
    Object,
    Shape,
    alike,
    first_difference,
    object_of,
    sent,
)
from app.domain.tool_output.preview import READ_LINES

Result = tuple[str, str]
"""A tool result: its pointer and its text."""

_TRIMMED: Final = "[tool output trimmed"
_TRIMMED_WHOLE = re.compile(r"\[tool output trimmed; ref=\S+; [\d,]+ bytes(; read with \w+)?\]")
_STORED: Final = "[Tool result stored —"
_STORED_HEAD = re.compile(
    r"\[Tool result stored — [\d,]+ bytes from \"[^\n]*\"\.\nFirst \d+ chars: "
)
_STORED_END_CHARACTERS = 400


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one provider expresses what the neutral rules need.

    `groups` yields the calls of each call group; `changed_rule` names the rule that an item breaks
    which replaced another; `frame_rule` the one for another system prompt or other tools.
    """

    judge: Callable[[Shape, Context, Findings], None]
    results: Callable[[Shape], Iterator[Result]]
    groups: Callable[[Shape], Iterable[tuple[bytes, ...]]]
    changed_rule: Callable[[Any, Any], str] = lambda _old, _new: "N9"
    frame_rule: str = "N9"


def judge(
    shape: Shape, old: Shape | None, dialect: Dialect, context: Context, found: Findings
) -> None:
    """Judge the rules of all providers; `old` is the payload of the build before."""
    if context.tokens is not None and context.capacity is not None:
        _judge_tokens(context.tokens, context.capacity, found)
    _judge_placeholders(shape, dialect, found)
    if old is None:
        return
    if has_other_model(shape, old):
        _judge_groups(shape, old, dialect, found)
    else:
        _judge_prefix(shape, old, dialect, context, found)


def has_other_model(shape: Shape, old: Shape) -> bool:
    """Whether the build before was for another model, so that nothing of it has to stay."""
    return bool(shape.payload.get("model") != old.payload.get("model"))


def _judge_groups(shape: Shape, old: Shape, dialect: Dialect, found: Findings) -> None:
    """`N4`: a call group of the build before is here whole or not at all."""
    before = {group for group in dialect.groups(old) if len(group) > 1}
    owner = {call: group for group in before for call in group}
    for group in dialect.groups(shape):
        whole = owner.get(group[0])
        if whole is not None and group not in before and set(group) < set(whole):
            found.add("N4", shape.at, "a call group is shown only in part")


def _judge_tokens(tokens: int, capacity: int, found: Findings) -> None:
    if tokens > capacity:
        message = f"about {tokens:,} tokens, and the model's window takes {capacity:,} of input"
        found.add("N7", "", message)


def _judge_prefix(
    shape: Shape, old: Shape, dialect: Dialect, context: Context, found: Findings
) -> None:
    """`N9` and the providers' own rules for it: inside an epoch items are only appended."""
    if not alike(shape.tools, old.tools):
        found.add(dialect.frame_rule, shape.tools_at, "the tools changed inside an epoch")
    if not found.touches(shape.system_at) and not alike(shape.system, old.system):
        found.add(dialect.frame_rule, shape.system_at, "the system prompt changed inside an epoch")
    index = first_difference(shape, old, context.previous_stable)
    if index is None:
        return
    pointer = f"{shape.at}/{index}"
    if index >= len(shape.items):
        found.add("N9", shape.at, f"the build before had {index + 1} items to keep, or more")
    elif not found.touches(pointer):
        rule = dialect.changed_rule(old.items[index], shape.items[index])
        found.add(rule, pointer, "is not what stood here in the build before")


def _judge_placeholders(shape: Shape, dialect: Dialect, found: Findings) -> None:
    """`N11`: a placeholder names ref, size and tool."""
    names_tool = f'"{READ_LINES}"'.encode() in sent(shape.tools)
    for pointer, text in dialect.results(shape):
        if not _names_all(text, names_tool):
            found.add("N11", pointer, "the placeholder does not name ref, size and how to read it")


def _names_all(text: str, names_tool: bool) -> bool:
    """Whether a text has all parts of a placeholder; other texts pass."""
    if text.startswith(_TRIMMED):
        match = _TRIMMED_WHOLE.fullmatch(text)
        return match is not None and (match[1] is not None or not names_tool)
    if text.startswith(_STORED):
        end = text[-_STORED_END_CHARACTERS:]
        return _STORED_HEAD.match(text) is not None and 'ref_id="' in end
    return True


def call_key(*parts: object) -> bytes:
    """Return what tells one call of a payload from the others."""
    return sent(parts)


def calls_of(raw: object, name: str) -> Sequence[Object]:
    """Return the objects in a list field of an item."""
    value = object_of(raw).get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else ()
