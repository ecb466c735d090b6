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

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import accumulate, pairwise, takewhile
from typing import assert_never

from app.formats.media import block_label
from app.formats.message import File, Image, Message, Opaque, Part, Reasoning, Role, Text, ToolCall
from app.models.tokens import CountText

VERBATIM_LABEL = " (kept word for word)"
NO_ARGUMENTS = "no arguments"
LABEL_TOKENS = 8
"""The cost of a label and of what separates texts."""
_MIN_CUT_TOKENS = 32
_SEPARATOR_TOKENS = 2


class PartKind(Enum):
    """What a part of a transcript is; `VERBATIM` ones stay beside the summary."""

    USER, ASSISTANT, RESULT, VERBATIM, SUMMARY = range(5)


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
    starts = [at for at, message in enumerate(messages) if not at or message.role is not Role.TOOL]
    calls: dict[str, ToolCall] = {}
    groups: list[PartGroup] = []
    for start, end in pairwise([*starts, len(messages)]):
        group = messages[start:end]
        calls |= {call.id: call for message in group for call in message.calls}
        answered = frozenset(message.tool_call_id for message in group)
        groups.append(
            tuple(
                part
                for at, message in enumerate(group, start)
                for part in _parts(message, at in verbatim_indices, calls, answered)
            )
        )
    return groups


def summary_groups(texts: Sequence[str]) -> list[PartGroup]:
    """Return each summary labelled by its position."""
    return [
        (TranscriptPart(PartKind.SUMMARY, f"Summary of part {number}", text),)
        for number, text in enumerate(texts, start=1)
    ]


def _parts(
    message: Message, is_verbatim: bool, calls: dict[str, ToolCall], answered: frozenset[str | None]
) -> Iterator[TranscriptPart]:
    """Yield the parts of a message; the calls in `answered` have a result."""
    body = "\n".join(filter(None, map(_describe, message.parts)))
    label, kind = _SPEAKERS[message.role]
    arguments = None
    if message.role is Role.TOOL:
        call = calls.get(message.tool_call_id or "")
        label = f"{label} {message.name or (call.name if call is not None else 'a tool')}"
        arguments = (call.arguments or NO_ARGUMENTS) if call is not None else None
    if body or not message.calls:
        shown = PartKind.VERBATIM if is_verbatim else kind
        label_shown = f"{label}{VERBATIM_LABEL if is_verbatim else ''}"
        is_error = message.is_error and message.role is Role.TOOL
        yield TranscriptPart(shown, label_shown, body or "[nothing]", arguments, is_error)
    for each in message.calls:
        if each.id not in answered:
            called = f"{label} called {each.name}"
            yield TranscriptPart(kind, called, "", each.arguments or NO_ARGUMENTS)


_SPEAKERS = {
    Role.USER: ("User", PartKind.USER),
    Role.SYSTEM: ("System", PartKind.USER),
    Role.ASSISTANT: ("Assistant", PartKind.ASSISTANT),
    Role.TOOL: ("Result of", PartKind.RESULT),
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

_NO_LIMIT = 1 << 40
_LEVELS = (_NO_LIMIT, *(8192 >> step for step in range(11)))
"""The limits of a result in tokens that are tried, the last whether it suffices or not."""
_SHARES = {
    PartKind.USER: (8.0, 256),
    PartKind.ASSISTANT: (2.0, 128),
    PartKind.RESULT: (1.0, _LEVELS[-1]),
    PartKind.VERBATIM: (1.0, _LEVELS[-1]),
    PartKind.SUMMARY: (1.0, _NO_LIMIT),
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
    parts = [part for group in groups for part in group]
    sizes = {part: (count(part.text), count(part.arguments or "")) for part in parts}

    def limits(part: TranscriptPart, level: int) -> tuple[int, ...]:
        shares = _SHARES[part.kind], _ARGUMENTS_SHARE
        return tuple(max(least, int(level * share)) for share, least in shares)

    def total(level: int) -> int:
        return sum(LABEL_TOKENS + sum(map(min, sizes[part], limits(part, level))) for part in parts)

    def shortened(part: TranscriptPart) -> SourceText:
        texts = zip((part.text, part.arguments), sizes[part], limits(part, level), strict=True)
        text, arguments = (
            cut_middle(each, most, count) if each and size > most else each
            for each, size, most in texts
        )
        short = replace(part, text=text or "", arguments=arguments)
        return SourceText(short.full_text, len(part.full_text))

    fitting = (each for each in _LEVELS if max_tokens is None or total(each) <= max_tokens)
    level = next(fitting, _LEVELS[-1])
    return [tuple(map(shortened, group)) for group in groups]


def cut_middle(text: str, max_tokens: int, count: CountText) -> str:
    """Return the text with a note in the place of its middle, within `max_tokens`.

    Where there is room for little more than the note, that is the beginning of the text.
    """

    def cut(keep: int) -> str:
        if max_tokens < _MIN_CUT_TOKENS:
            return f"{text[:keep].rstrip()}…"
        head, tail = text[: keep // 2], text[len(text) - keep // 2 :]
        left_out = f"[… {len(text) - len(head) - len(tail):,} characters left out …]"
        return f"{head.rstrip()} {left_out} {tail.lstrip()}"

    keep = min(len(text), max_tokens * 8)
    while keep > 1 and (tokens := count(cut(keep))) > max_tokens:
        keep = min(keep - 1, int(keep * 0.97 * max_tokens / tokens))
    return cut(keep)


# --- chunks ---------------------------------------------------------------------------------


def take_chunk(
    groups: Sequence[TextGroup], max_tokens: int, count: CountText
) -> tuple[SourceText, list[TextGroup]]:
    """Return the first groups that fit into `max_tokens`, joined, and the other groups.

    A first group that is too large alone is cut between its texts, a first text in its middle.
    """

    def fitting(sizes: Iterable[int]) -> int:
        return sum(1 for _ in takewhile(lambda size: size <= max_tokens, accumulate(sizes)))

    def size(item: SourceText) -> int:
        return count(item.text) + _SEPARATOR_TOKENS

    taken = fitting(sum(map(size, group)) for group in groups)
    chunk, rest = [item for group in groups[:taken] for item in group], list(groups[taken:])
    if not chunk and rest:
        group = rest[0]
        taken = fitting(map(size, group))
        cut = SourceText(cut_middle(group[0].text, max_tokens, count), group[0].source_chars)
        chunk, left = list(group[:taken]) or [cut], group[max(1, taken) :]
        rest = [left] * bool(left) + rest[1:]
    joined = "\n\n".join(item.text for item in chunk)
    return SourceText(joined, sum(item.source_chars for item in chunk)), rest
