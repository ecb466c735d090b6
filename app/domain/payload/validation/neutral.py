"""The rules for every provider (N), except where a provider has its own rule for the same.

The modules of the providers judge `N1` and `N3` to `N6` with the pairing of calls. This module has
the rules that need the previous build, or facts beside the payload.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.domain.payload.validation.rules import Check
from app.domain.payload.validation.shapes import (
    Object,
    Shape,
    first_difference,
    object_of,
    same_on_wire,
    wire_bytes,
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

    `groups` yields the keys of the calls of each call group. `changed_rule` names the rule that
    is broken where an item was replaced, `prefix_rule` the one for another system prompt or other
    tools.
    """

    judge: Callable[[Check], None]
    results: Callable[[Shape], Iterator[Result]]
    groups: Callable[[Shape], Iterable[tuple[bytes, ...]]]
    changed_rule: Callable[[Any, Any], str] = lambda _old, _new: "N9"
    prefix_rule: str = "N9"


def judge(dialect: Dialect, check: Check) -> None:
    """Judge the rules of all providers, `N7` for tokens and `N11` for placeholders here."""
    tokens, capacity = check.context.tokens, check.context.capacity
    if tokens is not None and capacity is not None and tokens > capacity:
        message = f"about {tokens:,} tokens, and the model's window takes {capacity:,} of input"
        check.add("N7", "", message)
    names_tool = f'"{READ_LINES}"'.encode() in wire_bytes(check.tools)
    for pointer, text in dialect.results(check):
        if not _names_all(text, names_tool):
            check.add("N11", pointer, "the placeholder does not name ref, size and how to read it")
    if check.previous is not None and check.has_other_model:
        _judge_groups(check.previous, dialect, check)
    elif check.previous is not None:
        _judge_prefix(check.previous, dialect, check)


def _judge_groups(old: Shape, dialect: Dialect, check: Check) -> None:
    """`N4`: a call group of the previous build is shown whole or not at all."""
    old_groups = {group for group in dialect.groups(old) if len(group) > 1}
    group_of_call = {call: group for group in old_groups for call in group}
    for group in dialect.groups(check):
        whole = group_of_call.get(group[0])
        if whole is not None and group not in old_groups and set(group) < set(whole):
            check.add("N4", check.items_at, "a call group is shown only in part")


def _judge_prefix(old: Shape, dialect: Dialect, check: Check) -> None:
    """`N9` and the providers' own rules for it: inside an epoch items are only appended."""
    if not same_on_wire(check.tools, old.tools):
        check.add(dialect.prefix_rule, check.tools_at, "the tools changed inside an epoch")
    if not check.touches(check.system_at) and not same_on_wire(check.system, old.system):
        check.add(dialect.prefix_rule, check.system_at, "the system prompt changed inside an epoch")
    index = first_difference(check.items, check.previous_stable_items)
    if index is None:
        return
    pointer = f"{check.items_at}/{index}"
    if index >= len(check.items):
        check.add("N9", check.items_at, f"the build before had {index + 1} items to keep, or more")
    elif not check.touches(pointer):
        rule = dialect.changed_rule(old.items[index], check.items[index])
        check.add(rule, pointer, "is not what stood here in the build before")


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
    """Return a key that is equal for equal calls."""
    return wire_bytes(parts)


def calls_of(raw: object, name: str) -> Sequence[Object]:
    """Return the objects in a list field of an item."""
    value = object_of(raw).get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else ()
