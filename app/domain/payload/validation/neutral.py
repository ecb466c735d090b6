"""The rules for every provider (N), as far as none of a provider's own says the same.

N1 and N3 to N6 are judged beside the pairing they concern, by the provider's module. Here stand
those that need what a payload does not say of itself.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from app.domain.conversations.view import Span, View, overlap
from app.domain.payload.validation.rules import Context, Findings
from app.domain.payload.validation.shapes import (
    Object,
    Shape,
    alike,
    first_difference,
    object_of,
    sent,
    sent_with_marks,
)
from app.domain.tool_output.preview import READ_LINES

Result = tuple[str, str, str]
"""A tool result: its pointer, the id of its call, its text."""
Opaque = tuple[str, Object, str]
"""An opaque item: its pointer, the item, the rule that it breaks when it was changed."""

_TRIMMED: Final = "[tool output trimmed"
_TRIMMED_WHOLE = re.compile(r"\[tool output trimmed; ref=\S+; [\d,]+ bytes(; read with \w+)?\]")
_STORED: Final = "[Tool result stored —"
_STORED_HEAD = re.compile(
    r"\[Tool result stored — [\d,]+ bytes from \"[^\n]*\"\.\nFirst \d+ chars: "
)
_STORED_END_CHARACTERS = 400


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one provider says what the neutral rules are about.

    `groups` yields the calls of each call group; `changed_rule` names the rule that an item breaks
    which replaced another; `frame_rule` the one for another system prompt or other tools.
    """

    judge: Callable[[Shape, Context, Findings], None]
    results: Callable[[Shape], Iterator[Result]]
    groups: Callable[[Shape], Iterable[tuple[bytes, ...]]]
    opaque: Callable[[Shape, Context], Iterator[Opaque]]
    changed_rule: Callable[[Any, Any], str]
    frame_rule: str = "N9"


def judge(
    shape: Shape, old: Shape | None, dialect: Dialect, context: Context, found: Findings
) -> None:
    """Judge what every provider has in common; `old` is the payload of the build before."""
    _judge_cuts(context, shape, found)
    if context.tokens is not None and context.capacity is not None:
        _judge_tokens(context.tokens, context.capacity, found)
    if context.view is not None:
        _judge_summaries(context.view, shape, found)
    _judge_placeholders(shape, dialect, context, found)
    _judge_opaque(shape, dialect, context, found)
    _judge_authority(shape, context, found)
    if old is None:
        return
    if context.same_inputs and sent_with_marks(shape.payload) != sent_with_marks(old.payload):
        found.add("N8", "", "differs from the build before, although its inputs are the same")
    if is_new_epoch(shape, old, context):
        _judge_groups(shape, old, dialect, found)
    else:
        _judge_prefix(shape, old, dialect, context, found)


def is_new_epoch(shape: Shape, old: Shape, context: Context) -> bool:
    """Whether nothing of the build before was promised to this one: its epoch or model is over."""
    models = shape.payload.get("model"), old.payload.get("model")
    return context.new_epoch or models[0] != models[1]


def _judge_cuts(context: Context, shape: Shape, found: Findings) -> None:
    """N4: what is shown begins and ends between call groups."""
    groups = sorted(context.groups, key=lambda group: group.start)
    starts = [group.start for group in groups]
    for span in context.view.spans if context.view and groups else ():
        for edge in (span.start, span.end):
            at = bisect_left(starts, edge) - 1
            if at >= 0 and edge < groups[at].end:
                found.add("N4", shape.at, f"the log is cut at seq {edge}, inside a call group")


def _judge_groups(shape: Shape, old: Shape, dialect: Dialect, found: Findings) -> None:
    """N4: a call group of the build before is here whole or not at all."""
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
    """N9, and what providers call it: inside an epoch only what is new is added."""
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


def _judge_summaries(view: View, shape: Shape, found: Findings) -> None:
    """N10: summaries follow each other without gap or overlap, and what is shown follows them."""
    spans = [summary.span for summary in view.summaries]
    if not spans:
        return
    hidden = view.hidden
    if hidden is None or spans[0].start < hidden.start or spans[-1].end > hidden.end:
        found.add("N10", shape.at, "messages are summarised that are shown as well")
        return
    for before, after in pairwise((*spans, Span(hidden.end, hidden.end))):
        if after.start < before.end:
            found.add("N10", shape.at, f"two summaries tell of the message with seq {after.start}")
        elif not all(_is_told(view, gap) for gap in _untold(view, before.end, after.start)):
            message = f"nothing stands for the messages from seq {before.end} to {after.start}"
            found.add("N10", shape.at, message)


def _untold(view: View, start: int, end: int) -> tuple[Span, ...]:
    """Return what of the window lies between two summaries."""
    return overlap((Span(start, end),), view.window) if start < end else ()


def _is_told(view: View, gap: Span) -> bool:
    if view.note is not None:
        return True
    return any(span.start <= gap.start and gap.end <= span.end for span in view.spans)


def _judge_placeholders(shape: Shape, dialect: Dialect, context: Context, found: Findings) -> None:
    """N11: a placeholder names ref, size and tool, and is the same in every build."""
    names_tool = f'"{READ_LINES}"'.encode() in sent(shape.tools)
    for pointer, call_id, text in dialect.results(shape):
        expected = context.placeholders.get(call_id)
        if expected is not None and text != expected:
            found.add("N11", pointer, "does not show the placeholder that this result has")
        elif not _names_all(text, names_tool):
            found.add("N11", pointer, "the placeholder does not name ref, size and how to read it")


def _names_all(text: str, names_tool: bool) -> bool:
    """Whether a text says all that a placeholder has to; what is none has nothing to say."""
    if text.startswith(_TRIMMED):
        match = _TRIMMED_WHOLE.fullmatch(text)
        return match is not None and (match[1] is not None or not names_tool)
    if text.startswith(_STORED):
        end = text[-_STORED_END_CHARACTERS:]
        return _STORED_HEAD.match(text) is not None and 'ref_id="' in end
    return True


def _judge_opaque(shape: Shape, dialect: Dialect, context: Context, found: Findings) -> None:
    """N12: what only its maker understands is replayed byte for byte."""
    if context.opaque is None:
        return
    known = {sent(block) for block in context.opaque}
    for pointer, block, rule in dialect.opaque(shape, context):
        if sent(block) not in known:
            found.add(rule, pointer, "is not what the provider made, byte for byte")


def _judge_authority(shape: Shape, context: Context, found: Findings) -> None:
    """N13: what a tool, a document or a summary says gives no orders."""
    untrusted = [text for text in context.untrusted if text]
    if context.view is not None and not context.view.summary_as_system:
        untrusted += context.view.summary_texts()
    if not untrusted:
        return
    for pointer, text in shape.systems:
        if any(other in text for other in untrusted):
            found.add("N13", pointer, "untrusted text stands in the role of the system")


def call_key(*parts: object) -> bytes:
    """Return what tells one call of a payload from the others."""
    return sent(parts)


def calls_of(raw: object, name: str) -> Sequence[Object]:
    """Return the objects in a list field of an item."""
    value = object_of(raw).get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else ()
