"""How the messages of a view are shown: cleared, shortened, without media or compactions.

The rules are those of the assembler.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from app.blobs.preview import READ_LINES, placeholder
from app.blobs.stored_output import StoredOutput, inline_output, message_ref, without_tool_names
from app.conversations.messages.row import JoinedRow, LogRow
from app.conversations.sent_media import MEDIA_WORDS, SentMedia, media_in, without_media
from app.conversations.text_shortening import shortened_preview
from app.conversations.turns import MAX_PLACEHOLDER_TOKENS
from app.conversations.view import ShortenedMessage, View
from app.formats import PROVIDERS, compactions
from app.formats.base import Provider
from app.formats.message import EMPTY_MESSAGE, Message, Part, Role, Text, ToolCall
from app.formats.reasoning_fields import convert_reasoning, is_replayed
from app.models.tokens import CountText, count_sealed, count_visible, counts_as_stored, signed_parts
from app.policy.policy import AGENT_TOOL_NAMES
from app.prompt.sections import NO_DYNAMIC_TEXTS, DynamicTexts

ALL_TOOLS = frozenset(AGENT_TOOL_NAMES)
NO_NAMES: frozenset[str] = frozenset()
MAX_NOT_CARRIED = 16
"""How many types of content a payload lists as not carried."""
_COMPACTION_TYPE = f'"{compactions.COMPACTION}"'.encode()


def placeholder_of(row: LogRow, *, names_tool: bool = True) -> str:
    """Return the placeholder of a cleared tool result."""
    output = output_of(row)
    return placeholder(output.ref_in(row.id, row.seq).id, output.byte_size, named=names_tool)


def output_of(row: LogRow) -> StoredOutput:
    """Return how a row shows its tool result, whole by default."""
    if (output := row.output) is not None:
        return output
    return inline_output(row.message())


@dataclass(eq=False)
class ShownMessages(ABC):
    """Reads rows as messages of one payload, and counts them.

    Its text may name the agent tools in `mentionable_tools`; `mentions` are those that it would
    name if it could.
    `defined_tools` are the tools that the payload defines, `references` those of them that a search
    result refers to. `opening` is the dynamic text before the history.
    """

    provider: Provider
    view: View
    count: CountText
    mentionable_tools: Collection[str] = ALL_TOOLS
    opening: DynamicTexts = NO_DYNAMIC_TEXTS
    defined_tools: Collection[str] = NO_NAMES
    mentions: set[str] = field(default_factory=set, init=False)
    references: set[str] = field(default_factory=set, init=False)
    sealed_tokens: int = field(default=0, init=False)
    """Those of the tokens that are of reasoning and sealed text."""
    costs_by_seq: dict[int, int] = field(default_factory=dict, init=False)
    """The tokens of messages whose items cost another number than their stored count."""
    media: list[SentMedia] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.format = self.provider.name
        self._not_carried: dict[str, None] = {}
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
        if output is None or not output.mentions:
            return False
        self.mentions.update(output.mentions)
        return any(name not in self.mentionable_tools for name in output.mentions)

    def _message(self, row: LogRow) -> Message:
        """Return a row's message as it is shown."""
        if isinstance(row, JoinedRow):
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
        if (shortened := self._shortened_by_seq.get(row.seq)) is not None:
            return self._shortened(row, shortened)
        message = self._sent_message(row)
        if self._has_sent_item(row):
            return message
        return _without_tool_names(message, output_of(row)) if self._is_rewritten(row) else message

    def _has_sent_item(self, row: LogRow) -> bool:
        item = self.view.sent_item
        return item is not None and row.seq == item.seq

    def _sent_message(self, row: LogRow) -> Message:
        if not may_have_compaction(row):
            return row.message()
        return self._without_compactions(row) or row.message()

    def _without_compactions(self, row: LogRow) -> Message | None:
        """Return a message without compactions, None where nothing else is in it (rule 8)."""
        message = row.message()
        if self._has_sent_item(row):
            return compactions.after_compaction(message)
        return compactions.without_compactions(
            self.provider.unbound(message) if row.format is self.format else message
        )

    def _shortened(self, row: LogRow, shortened: ShortenedMessage) -> Message:
        """Return a message with the middle of its texts left out (rule 5)."""
        message, ref = self._sent_message(row), message_ref(row.id, row.seq)
        preview = shortened_preview(message, shortened, ref)
        self.mentions.update(preview.mentions)
        if all(name in self.mentionable_tools for name in preview.mentions):
            return preview.message
        return shortened_preview(message, shortened, ref, named=False).message

    def _with_converted_reasoning(self, row: LogRow, message: Message) -> Message:
        """Return a message with reasoning that came in the Chat format in this format's form."""
        if not (row.reasoning_tokens and PROVIDERS[row.format].names_family):
            return message
        accepts = self.view.reasoning_of if row.seq > self.view.reasoning_after else ()
        return convert_reasoning(message, self.format, accepts)

    def _is_own_reasoning(self, row: LogRow) -> bool:
        """Whether the model would take the reasoning of a message."""
        message = row.message()
        if row.format is self.format and not self.provider.names_family:
            return any(part.format is self.format for part in signed_parts(message))
        return is_replayed(message, self.view.reasoning_of)

    def _visible_tokens(
        self, row: LogRow, message: Message, shown: Message, *, is_changed: bool
    ) -> int:
        """Return the tokens of a row without reasoning: the stored count where that still holds.

        `message` is sent as `shown`; with `is_changed` it is not the stored one.
        """
        is_same = not (is_changed or row.has_media or self._is_rewritten(row))
        if is_same and counts_as_stored(message, shown, self.format):
            return row.tokens
        return count_visible(shown, self.count, self.format)

    def _record_cost(self, row: LogRow, visible: int, reasoning: int = 0) -> int:
        """Record what the items of a row cost, and return it."""
        self.sealed_tokens += reasoning
        tokens = visible + reasoning
        if tokens != row.tokens:
            others = row.rows[1:] if isinstance(row, JoinedRow) else ()
            self.costs_by_seq[row.seq] = tokens - sum(other.tokens for other in others)
        return tokens

    def _record_content(self, shown: Message) -> None:
        """Count the sealed text of a shown message, and collect the types that labels stand for."""
        self.sealed_tokens += count_sealed(shown, self.format, self.count)
        for part in shown.parts:
            if isinstance(part, Text) and part.stands_for and part.format is not self.format:
                for kind in part.stands_for:
                    if len(self._not_carried) < MAX_NOT_CARRIED:
                        self._not_carried[kind] = None


def may_have_media(row: LogRow) -> bool:
    """Whether media may be in a row, by the words in its text."""
    return any(word in row.text for word in MEDIA_WORDS)


def may_have_compaction(row: LogRow) -> bool:
    """Whether a compaction of a provider may be in a row, by the words in its text."""
    return (
        row.role is Role.ASSISTANT
        and row.format in compactions.CONTENT_KEYS
        and _COMPACTION_TYPE in row.text
    )


def _without_tool_names(message: Message, output: StoredOutput) -> Message:
    """Return a truncated result whose note, at the end of its last text, names no tool."""
    parts: list[Part] = list(message.parts)
    for index in reversed(range(len(parts))):
        part = parts[index]
        if isinstance(part, Text):
            parts[index] = Text(without_tool_names(part.text, output))
            break
    return replace(message, parts=tuple(parts))
