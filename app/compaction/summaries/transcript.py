"""Messages and summaries as labelled plain text, which a summariser reads.

1. Tool calls are described, never sent as tool blocks. Images and reasoning are described by their
   size. [summary.labelled-text] [summary.no-reasoning-no-media]
2. A call is described once: by its result, whose label has the name and the arguments, or where
   the result is not among the messages, after the text that it belongs to.
3. A text is divided into parts, which can be masked and shortened one by one. Their middle is left
   out; what users say is shortened last, results of tools first. [summary.capped-input]
4. What does not fit a context window is cut into chunks, between call groups where possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import pairwise
from typing import assert_never

from app.formats.media import block_label
from app.formats.message import File, Image, Message, Opaque, Part, Reasoning, Role, Text, ToolCall
from app.models.tokens import CountText

VERBATIM_LABEL = " (kept word for word)"
NO_ARGUMENTS = "no arguments"
LARGEST_RESULT, SMALLEST_RESULT = 8192, 8
"""The limits of a result in tokens: the first that is tried, and the last."""
LABEL_TOKENS = 8
"""The cost of a label and of what separates texts."""
_NOTE_TOKENS = 12
"""Reserved for the note that counts the characters left out."""
_MIN_CUT_TOKENS = 32
_SEPARATOR_TOKENS = 2


class PartKind(Enum):
    """What a part of a transcript is."""

    USER = auto()
    ASSISTANT = auto()
    RESULT = auto()
    VERBATIM = auto()
    """A message that stays verbatim beside the summary."""
    SUMMARY = auto()


@dataclass(frozen=True, slots=True)
class TranscriptPart:
    """One labelled text of a transcript.

    `arguments` are those of the call that it describes, None where it describes no call.
    """

    kind: PartKind
    label: str
    text: str
    arguments: str | None = None
    is_error: bool = False

    @property
    def full_text(self) -> str:
        """The part as a summariser reads it, its tags not yet escaped."""
        arguments = f" with {self.arguments}" if self.arguments is not None else ""
        label = f"{self.label}{arguments}{', failed' if self.is_error else ''}"
        return f"{label}:\n{self.text}" if self.text else label

    def changed(self, change: Callable[[str], str]) -> TranscriptPart:
        """Return the part with each of its texts changed."""
        arguments = change(self.arguments) if self.arguments is not None else None
        return replace(self, label=change(self.label), text=change(self.text), arguments=arguments)


PartGroup = tuple[TranscriptPart, ...]
"""The parts of one call group: a message, and the results of its calls."""


def without_trailing_calls(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Remove the calls of a last assistant message, or the message where it has no other text."""
    if not messages or not messages[-1].calls:
        return tuple(messages)
    *before, last = messages
    if not last.text.strip():
        return tuple(before)
    parts = tuple(part for part in last.parts if not isinstance(part, ToolCall))
    return (*before, replace(last, parts=parts))


def transcript_groups(
    messages: Sequence[Message], verbatim_indices: frozenset[int] = frozenset()
) -> list[PartGroup]:
    """Return the messages as labelled text, one call group after the other.

    `verbatim_indices` are those of messages that stay verbatim beside the summary.
    """
    starts = [
        index
        for index, message in enumerate(messages)
        if not index or message.role is not Role.TOOL
    ]
    calls: dict[str, ToolCall] = {}
    return [
        tuple(_parts(messages, range(start, end), verbatim_indices, calls))
        for start, end in pairwise([*starts, len(messages)])
    ]


def summary_groups(texts: Sequence[str]) -> list[PartGroup]:
    """Return each summary labelled by its position."""
    return [
        (TranscriptPart(PartKind.SUMMARY, f"Summary of part {number}", text),)
        for number, text in enumerate(texts, start=1)
    ]


def _parts(
    messages: Sequence[Message],
    indices: range,
    verbatim: frozenset[int],
    calls: dict[str, ToolCall],
) -> Iterator[TranscriptPart]:
    """Yield the parts of one message with its results; adds its calls to those before."""
    calls |= {call.id: call for index in indices for call in messages[index].calls}
    answered = {messages[index].tool_call_id for index in indices}
    for index in indices:
        message = messages[index]
        is_verbatim = index in verbatim
        after_label = VERBATIM_LABEL if is_verbatim else ""
        described = (_describe(part) for part in message.parts)
        body = "\n".join(text for text in described if text)
        if message.role is Role.TOOL:
            call = calls.get(message.tool_call_id or "")
            name = message.name or (call.name if call is not None else "a tool")
            yield TranscriptPart(
                PartKind.VERBATIM if is_verbatim else PartKind.RESULT,
                f"Result of {name}{after_label}",
                body or "[nothing]",
                (call.arguments or NO_ARGUMENTS) if call is not None else None,
                message.is_error,
            )
            continue
        label, kind = _SPEAKERS[message.role]
        if body or not message.calls:
            yield TranscriptPart(
                PartKind.VERBATIM if is_verbatim else kind,
                f"{label}{after_label}",
                body or "[nothing]",
            )
        for call in message.calls:
            if call.id not in answered:
                called = f"{label} called {call.name}"
                yield TranscriptPart(kind, called, "", call.arguments or NO_ARGUMENTS)


_SPEAKERS = {
    Role.USER: ("User", PartKind.USER),
    Role.SYSTEM: ("System", PartKind.USER),
    Role.ASSISTANT: ("Assistant", PartKind.ASSISTANT),
}


def _describe(part: Part) -> str:
    match part:
        case Text():
            return part.text
        case ToolCall():
            return ""  # rule 2
        case Image():
            return f"[image, {_media(part)}, not shown]"
        case File():
            named = f" {part.name}" if part.name else ""
            if part.text is not None:
                return f"[file{named}]\n{part.text}"
            return f"[file{named}, {_media(part)}, not shown]"
        case Reasoning():
            return f"[reasoning, {len(part.text):,} characters, not shown]"
        case Opaque():
            return block_label(part.block)
        case _:
            assert_never(part)


def _media(part: Image | File) -> str:
    kind = part.media_type or "type unknown"
    return f"{kind}, {len(part.data) * 3 // 4:,} bytes" if part.data else kind


# --- limits ---------------------------------------------------------------------------------

_SHARES = {
    PartKind.USER: (8.0, 256),
    PartKind.ASSISTANT: (2.0, 128),
    PartKind.RESULT: (1.0, SMALLEST_RESULT),
    PartKind.VERBATIM: (1.0, SMALLEST_RESULT),
}
"""The limit of each kind of text as a multiple of that of a result, and its minimum."""
_ARGUMENTS_SHARE = (0.5, 12)


@dataclass(frozen=True, slots=True)
class SourceText:
    """A text that is sent, and the length of what it was made from, in characters."""

    text: str = ""
    source_chars: int = 0


TextGroup = tuple[SourceText, ...]
"""The texts of one call group, which stay together where they fit."""


def shortened_groups(
    groups: Sequence[PartGroup], max_tokens: int | None, count: CountText
) -> list[TextGroup]:
    """Return the texts of all groups within `max_tokens`, or as short as they may get.

    Summaries are never shortened, without a limit nothing is.
    """
    sizes = {
        part: (count(part.text), count(part.arguments or "")) for group in groups for part in group
    }

    def total(result_tokens: int | None) -> int:
        taken = 0
        for part in (part for group in groups for part in group):
            most, most_arguments = _limits(part.kind, result_tokens)
            text, arguments = sizes[part]
            taken += LABEL_TOKENS + min(text, most or text)
            taken += min(arguments, most_arguments or arguments)
        return taken

    def shortened(part: TranscriptPart) -> SourceText:
        (most, most_arguments), short = _limits(part.kind, limit), part
        text, arguments = sizes[part]
        if most is not None and text > most:
            short = replace(short, text=cut_middle(part.text, most, count))
        if most_arguments is not None and part.arguments and arguments > most_arguments:
            short = replace(short, arguments=cut_middle(part.arguments, most_arguments, count))
        return SourceText(short.full_text, len(part.full_text))

    limit: int | None = None
    if max_tokens is not None and total(None) > max_tokens:
        limit = LARGEST_RESULT
        while limit > SMALLEST_RESULT and total(limit) > max_tokens:
            limit //= 2
    return [tuple(map(shortened, group)) for group in groups]


def _limits(kind: PartKind, result_tokens: int | None) -> tuple[int | None, int | None]:
    """Return the limits of a text and of the arguments in its label, None for none."""
    if result_tokens is None or kind is PartKind.SUMMARY:
        return None, None
    (share, least), (arguments_share, least_arguments) = _SHARES[kind], _ARGUMENTS_SHARE
    return (
        max(least, int(result_tokens * share)),
        max(least_arguments, int(result_tokens * arguments_share)),
    )


def _beginning(text: str, max_tokens: int, count: CountText) -> str:
    keep = min(len(text), max_tokens * 8)
    while keep > 1 and (tokens := count(text[:keep]) + 1) > max_tokens:
        keep = min(keep - 1, keep * max_tokens // tokens)
    return f"{text[:keep].rstrip()}…"


def cut_middle(text: str, max_tokens: int, count: CountText) -> str:
    """Return the text with a note in the place of its middle, within `max_tokens`.

    Where there is room for little more than the note, that is the beginning of the text.
    """
    if max_tokens < _MIN_CUT_TOKENS:
        return _beginning(text, max_tokens, count)
    keep = min(len(text), max_tokens * 8)
    while True:
        head, tail = text[: keep // 2], text[len(text) - keep // 2 :]
        tokens = count(head) + count(tail) + _NOTE_TOKENS
        if tokens <= max_tokens or keep < 2:
            break
        excess = (max_tokens - _NOTE_TOKENS) / max(1, tokens - _NOTE_TOKENS)
        keep = min(keep - 1, int(keep * max(0.0, excess) * 0.97))
    left_out = len(text) - len(head) - len(tail)
    return f"{head.rstrip()} [… {left_out:,} characters left out …] {tail.lstrip()}"


# --- chunks ---------------------------------------------------------------------------------


def take_chunk(
    groups: Sequence[TextGroup], max_tokens: int, count: CountText
) -> tuple[SourceText, list[TextGroup]]:
    """Return the first groups that fit into `max_tokens`, joined, and the other groups.

    A first group that is too large alone is cut between its texts, a first text in its middle.
    """
    chunk: list[SourceText] = []
    remaining_tokens = max_tokens
    for index, group in enumerate(groups):
        tokens = [count(item.text) + _SEPARATOR_TOKENS for item in group]
        if sum(tokens) <= remaining_tokens:
            chunk += group
            remaining_tokens -= sum(tokens)
            continue
        rest = list(groups[index:])
        if not chunk:
            taken = 0
            while taken < len(group) and tokens[taken] <= remaining_tokens:
                remaining_tokens -= tokens[taken]
                taken += 1
            chunk += group[:taken]
            if not taken:
                cut = cut_middle(group[0].text, max_tokens, count)
                chunk, taken = [SourceText(cut, group[0].source_chars)], 1
            rest = [group[taken:], *rest[1:]] if taken < len(group) else rest[1:]
        return _joined(chunk), rest
    return _joined(chunk), []


def _joined(texts: Sequence[SourceText]) -> SourceText:
    joined = "\n\n".join(item.text for item in texts)
    return SourceText(joined, sum(item.source_chars for item in texts))
