"""Messages and summaries as labelled plain text, which a summariser reads.

1. Tool calls are described, never sent as tool blocks. Images and reasoning are described by their
   size. [summary.labelled-text] [summary.no-reasoning-no-media]
2. A call is described once: by its result, whose label has the name and the arguments, or where
   the result is not among the messages, after the text that it belongs to.
3. A text is divided into parts, which can be masked and shortened one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import pairwise
from typing import assert_never

from app.formats.labels import block_label
from app.formats.message import File, Image, Message, Opaque, Part, Reasoning, Role, Text, ToolCall

VERBATIM_LABEL = " (kept word for word)"
NO_ARGUMENTS = "no arguments"


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
        (TranscriptPart(PartKind.SUMMARY, f"Part {number}", text),)
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
