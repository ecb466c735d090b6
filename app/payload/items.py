"""What a payload consists of: messages as a view shows them, and the items they become.

Messages are shown cleared, shortened, without media or compactions. The rules are those of the
assembler.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from app.blobs.preview import READ_LINES, placeholder
from app.blobs.stored_output import StoredOutput, inline_output, message_ref, without_tool_names
from app.common import json_text
from app.conversations.messages.row import LogRow
from app.conversations.partial_messages import (
    MEDIA_WORDS,
    SentMedia,
    media_in,
    shortened_preview,
    without_media,
)
from app.conversations.turns import MAX_PLACEHOLDER_TOKENS
from app.conversations.view import View
from app.formats import reasoning
from app.formats.base import Provider
from app.formats.message import EMPTY_MESSAGE, Message, Part, Role, Text, ToolCall
from app.models.tokens import CountText, signed_parts
from app.policy.policy import AGENT_TOOL_NAMES
from app.prompt.sections import NO_DYNAMIC_TEXTS, DynamicTexts

BREAKPOINT_INTERVAL = 15
"""Blocks between fixed breakpoints; Anthropic looks back 20 blocks from a breakpoint."""
MAX_BREAKPOINTS = 4
"""How many cache breakpoints providers take in a payload."""
_COMPACTION_TYPE = f'"{reasoning.COMPACTION}"'.encode()


class BreakpointPosition(NamedTuple):
    """Where a cache breakpoint may be: an item, a byte in it, and the tokens up to there."""

    item_index: int
    byte_offset: int
    tokens: int


class StablePoint(NamedTuple):
    """The number of stable items after a row, and the breakpoints then, newest first."""

    stable_items: int
    breakpoints: tuple[BreakpointPosition, ...]


@dataclass(frozen=True, slots=True)
class PayloadItems:
    """The messages of a payload as the provider's items; the first `stable_items` never change.

    Each of the `wire_items` is the JSON of one item. The last `tail_items` are replaced by the next
    build. `tokens` counts the history without summary, leading text and tail; `sealed_tokens` of
    them are of reasoning and sealed text. `breakpoints` are the positions for cache breakpoints,
    newest first. `mentions` are the agent tools that the items name, `references` the tools that
    search results refer to.
    """

    wire_items: list[bytes]
    stable_items: int
    tokens: int
    sealed_tokens: int
    summary_tokens: int
    prefix_digest: str
    rendered_through: int
    has_calls: bool
    breakpoints: tuple[BreakpointPosition, ...] = ()
    mentions: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    tail_items: int = 0
    leading_tokens: int = 0
    tail_tokens: int = 0


def breakpoint_json(provider: Provider) -> bytes:
    """Return the JSON that makes a block a breakpoint."""
    return b"," + json_text.dump_payload(provider.marked({}))[1:-1]


class MisplacedBreakpoint(ValueError):
    """A cache breakpoint would not stand at the end of a block."""


def with_breakpoints(item: bytes, breakpoint_json: bytes, byte_offsets: Collection[int]) -> bytes:
    """Return an item with a breakpoint at each of these offsets, the ends of its blocks."""
    for offset in sorted(byte_offsets, reverse=True):
        if item[offset : offset + 1] != b"}":
            raise MisplacedBreakpoint(f"No block of the item ends at byte {offset}")
        item = item[:offset] + breakpoint_json + item[offset:]
    return item


def placeholder_of(row: LogRow, *, names_tool: bool = True) -> str:
    """Return the placeholder of a cleared tool result."""
    output = _output_of(row)
    return placeholder(output.ref_in(row.id, row.seq).id, output.byte_size, named=names_tool)


def _output_of(row: LogRow) -> StoredOutput:
    """Return how a row shows its tool result, whole by default."""
    return row.output or inline_output(row.message())


@dataclass(eq=False)
class ShownMessages:
    """Reads rows as messages of one payload, and counts them.

    Its text may name the agent tools in `mentionable_tools`; `mentions` are those that it would
    name if it could.
    `defined_tools` are the tools that the payload defines, `references` those of them that a search
    result refers to. `leading` is the dynamic text before the history.
    """

    provider: Provider
    view: View
    count: CountText
    mentionable_tools: Collection[str] = frozenset(AGENT_TOOL_NAMES)
    leading: DynamicTexts = NO_DYNAMIC_TEXTS
    defined_tools: Collection[str] = frozenset()
    mentions: set[str] = field(default_factory=set, init=False)
    references: set[str] = field(default_factory=set, init=False)
    sealed_tokens: int = field(default=0, init=False)
    """Those of the tokens that are of reasoning and sealed text."""
    costs_by_seq: dict[int, int] = field(default_factory=dict, init=False)
    """The tokens of messages whose items cost another number than their stored count."""
    media: list[SentMedia] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.format = self.provider.name
        self._shortened_by_seq = {shortened.seq: shortened for shortened in self.view.shortened}

    def _is_cleared(self, row: LogRow) -> bool:
        return row.tokens > MAX_PLACEHOLDER_TOKENS and self.view.clears_result(row.seq)

    def _placeholder(self, row: LogRow) -> str:
        self.mentions.add(READ_LINES)
        return placeholder_of(row, names_tool=READ_LINES in self.mentionable_tools)

    def _is_rewritten(self, row: LogRow) -> bool:
        """Whether a row is not shown as it is stored, and so counted again.

        The names of tools leave its preview (rule 5), its text is shortened, or it loses what a
        compaction item in it stands for (rule 8).
        """
        if row.seq in self._shortened_by_seq or self._has_sent_item(row):
            return True
        if self.view.cuts_media(row.seq) and may_have_media(row):
            return True
        output = row.output
        mentions = output.preview.mentions if output is not None else ()
        if not mentions:
            return False
        self.mentions.update(mentions)
        return any(name not in self.mentionable_tools for name in mentions)

    def _message(self, row: LogRow) -> Message:
        """Return a row's message as it is shown."""
        if row.rows:
            messages = [self._message(each) for each in row.rows]
            joined = [p for each in messages for p in each.parts if p != Text(EMPTY_MESSAGE)]
            joined.sort(key=lambda part: isinstance(part, ToolCall))  # texts precede calls
            first = next((each for each in messages if each.block is not None), messages[0])
            return replace(first, parts=tuple(joined))
        message = self._message_with_media(row)
        cut = self.view.media_cut
        if cut is not None and row.seq <= cut.seq:
            ref = row.output.ref_in(row.id, row.seq).id if row.output else None
            count = cut.count if row.seq == cut.seq else len(message.parts)
            message = without_media(message, count, ref or message_ref(row.id, row.seq))
        self.media += media_in(row.seq, message)
        return message

    def _message_with_media(self, row: LogRow) -> Message:
        message = row.message()
        if may_have_compaction(row):
            message = self._without_compactions(row) or message
        if (shortened := self._shortened_by_seq.get(row.seq)) is not None:  # (rule 5)
            ref = message_ref(row.id, row.seq)
            preview, mentions = shortened_preview(message, shortened, ref, self.mentionable_tools)
            self.mentions.update(mentions)
            return preview
        if self._has_sent_item(row) or not self._is_rewritten(row):
            return message
        return _without_tool_names(message, _output_of(row))

    def _has_sent_item(self, row: LogRow) -> bool:
        item = self.view.sent_item
        return item is not None and row.seq == item.seq

    def _without_compactions(self, row: LogRow) -> Message | None:
        """Return a message without compactions, None where nothing else is in it (rule 8)."""
        message = row.message()
        if self._has_sent_item(row):
            return reasoning.after_compaction(message)
        return reasoning.without_compactions(
            self.provider.unbound(message) if row.format is self.format else message
        )

    def _is_own_reasoning(self, row: LogRow) -> bool:
        """Whether the model would take the reasoning of a message."""
        if row.format is not self.format:
            return False
        message, accepts = row.message(), self.view.reasoning_of
        parts = self.provider.sent_parts(message, accepts, replays=True)
        return bool(signed_parts(message.with_parts(parts)))

    def _record_cost(self, row: LogRow, visible: int, reasoning: int = 0) -> int:
        """Record what the items of a row cost, and return it."""
        self.sealed_tokens += reasoning
        tokens = visible + reasoning
        if tokens != row.tokens:
            others = row.rows[1:]
            self.costs_by_seq[row.seq] = tokens - sum(other.tokens for other in others)
        return tokens


def may_have_media(row: LogRow) -> bool:
    """Whether media may be in a row, by the words in its text."""
    return any(word in row.text for word in MEDIA_WORDS)


def may_have_compaction(row: LogRow) -> bool:
    """Whether a compaction of a provider may be in a row, by the words in its text."""
    return (
        row.role is Role.ASSISTANT
        and row.format in reasoning.CONTENT_KEYS
        and _COMPACTION_TYPE in row.text
    )


def _without_tool_names(message: Message, output: StoredOutput) -> Message:
    """Return a truncated result whose note, at the end of its last text, names no tool."""
    parts: list[Part] = list(message.parts)
    for index in reversed(range(len(parts))):
        if isinstance(part := parts[index], Text):
            parts[index] = Text(without_tool_names(part.text, output))
            break
    return replace(message, parts=tuple(parts))
