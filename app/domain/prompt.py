"""The prompt: the sole assembler of a payload's items (G2, S3).

1. An assembler folds rows into wire items in log order. What it folded never changes, so a later
   build extends an earlier one byte for byte (N8, N9, G3).
2. Calls without a result are closed when the next user or assistant message comes. At the end of
   the log they are closed outside the stable items, because a result may still come (decision 17).
3. Call ids are unique in a payload and short enough; later ones are rewritten where a log uses an
   id again (N3). A result of a call that is not shown is not shown either (N1).
4. A payload starts with a user message: where it would not, a note stands first (N5, A1).
5. Text that names one of the agent's own tools stands in a payload only where the tool does (L1).
6. Every token is counted as it is added, from the counts stored with the rows (decision 12).
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from app.domain import jsontext
from app.domain.formats import anthropic, openai_chat
from app.domain.formats.wire import sendable_id
from app.domain.log import LogRow
from app.domain.messages import NO_RESULT, FormatName, Message, Part, Reasoning, Role, Text
from app.domain.offload import Output, inline_output, viewed
from app.domain.tokens import MESSAGE_OVERHEAD, CountText, count_message, count_rendered
from app.domain.tool_output import READ_LINES, TOOL_NAMES, placeholder
from app.domain.turns import TRIMMED_TOKENS
from app.domain.views import View

ALL_TOOLS = frozenset(TOOL_NAMES)
WINDOW_NOTE = "[Earlier messages are not shown.]"
START_NOTE = "[The conversation starts here.]"
CONTINUE_NOTE = "[Continue.]"
CACHE_MARK = b',"cache_control":{"type":"ephemeral"}'
_THINKING = ("thinking", "redacted_thinking")
MOST_MARKS = 4
"""Anthropic takes at most this many cache marks in a payload (A7)."""
LOOKBACK_BLOCKS = 19
"""Anthropic finds an earlier cache entry at most this many blocks before a mark (A8)."""


def placeholder_of(row: LogRow, *, named: bool = True) -> str:
    """Return the text that stands for a trimmed tool result (F3, N11)."""
    output = output_of(row)
    return placeholder(output.ref_in(row.id, row.seq).id, output.byte_size, named=named)


def output_of(row: LogRow) -> Output:
    """Return what a row says of its result; what does not say it shows it all."""
    if (output := row.output) is not None:
        return output
    return inline_output(row.message())


@dataclass(slots=True)
class CallIds:
    """Gives every call of a payload an id that is valid and unique there (N3)."""

    used: set[str] = field(default_factory=set)

    def assign(self, call_id: str) -> str:
        """Return the id to send; the original wherever that is possible."""
        wire = sendable_id(call_id)
        if wire in self.used:
            number = 2
            while True:
                digest = hashlib.sha256(f"{call_id}\0{number}".encode("utf-8", "surrogatepass"))
                wire = f"call_{digest.hexdigest()[:24]}"
                if wire not in self.used:
                    break
                number += 1
        self.used.add(wire)
        return wire


class Assembler(ABC):
    """Folds rows into the items of one payload; `tokens` is what they cost so far.

    `tools` may be named in it; `mentions` are those that are.
    """

    def __init__(self, view: View, count: CountText, tools: Collection[str] = ALL_TOOLS) -> None:
        self.view = view
        self.count = count
        self.tools = tools
        self.mentions: set[str] = set()
        self.tokens = 0
        self.summary_tokens = 0
        self.folded_through = 0
        self.size_bytes = 0
        self.has_calls = False
        self._ids = CallIds()
        self._open: dict[str, str] = {}
        self._summary_texts = view.summary_texts()
        self._started = False

    def feed(self, row: LogRow) -> None:
        """Fold one row; rows come in log order, each once, only those the view shows."""
        if self._summary_texts and self._summary_goes_before(row.seq):
            self._put_summary()
        if row.role is Role.TOOL:
            call_id = row.call_ids[0]
            if call_id in self._open:
                self._feed_result(row, self._open.pop(call_id))
        else:
            self._end_group()
            if not self._started and row.role is Role.ASSISTANT:
                self._put_note(WINDOW_NOTE if self.view.cuts_the_start else START_NOTE)
            self._started = True
            self._feed_message(row)
            self.has_calls = self.has_calls or bool(row.call_ids)
        self.folded_through = row.seq
        self.size_bytes += len(row.text)

    def finish(self) -> None:
        """Fold what stands after the last row: a summary of everything before."""
        if self._summary_texts:
            self._put_summary()

    def _summary_goes_before(self, seq: int) -> bool:
        hidden = self.view.hidden
        return hidden is None or seq >= hidden.start

    def _put_summary(self) -> None:
        texts, self._summary_texts = self._summary_texts, ()
        self._end_group()
        before = self.tokens
        for text in texts:
            self._put_note(text, as_system=self.view.summary_as_system)
        self.summary_tokens = self.tokens - before
        self.tokens = before

    def _end_group(self) -> None:
        for wire_id in self._open.values():
            self._put_result(wire_id)
        self._open.clear()
        self._flush_media()

    def _trimmed(self, row: LogRow) -> bool:
        return row.tokens > TRIMMED_TOKENS and self.view.trims(row.seq)

    def _placeholder(self, row: LogRow) -> str:
        named = READ_LINES in self.tools
        if named:
            self.mentions.add(READ_LINES)
        return placeholder_of(row, named=named)

    def _is_plain(self, row: LogRow) -> bool:
        """Whether a row's view has to be shown in the words that name no tool (rule 5)."""
        output = row.output
        if output is None or not output.mentions:
            return False
        if all(name in self.tools for name in output.mentions):
            self.mentions.update(output.mentions)
            return False
        return True

    def _message(self, row: LogRow) -> Message:
        message = row.message()
        return _plain(message, output_of(row)) if self._is_plain(row) else message

    @abstractmethod
    def _feed_message(self, row: LogRow) -> None: ...

    @abstractmethod
    def _feed_result(self, row: LogRow, wire_id: str) -> None: ...

    @abstractmethod
    def _put_note(self, text: str, *, as_system: bool = False) -> None: ...

    @abstractmethod
    def _put_result(self, wire_id: str) -> None: ...

    @abstractmethod
    def _flush_media(self) -> None: ...

    @abstractmethod
    def items(self) -> Items:
        """Return the payload's items as they stand, open calls closed, without changing it."""


@dataclass(frozen=True, slots=True)
class Items:
    """The wire items of a payload's history: the first `stable` of them are promised to stay.

    `tokens` counts the history without the summary. `marks` are the stable items worth a cache
    mark, newest first; `has_calls` tells whether any tool call is among the items, `mentions`
    which of the agent's own tools they name.
    """

    wire: list[bytes]
    stable: int
    tokens: int
    summary_tokens: int
    prefix_digest: str
    folded_through: int
    has_calls: bool
    marks: tuple[int, ...] = ()
    mentions: tuple[str, ...] = ()


class ChatAssembler(Assembler):
    """Items for OpenAI Chat Completions (rules HB)."""

    def __init__(self, view: View, count: CountText, tools: Collection[str] = ALL_TOOLS) -> None:
        super().__init__(view, count, tools)
        self._items: list[bytes] = []
        self._media: list[tuple[Message, str]] = []
        self._hash = hashlib.sha256()

    def _put(self, item: bytes, tokens: int) -> None:
        self._items.append(item)
        self._hash.update(item)
        self.tokens += tokens

    def _feed_message(self, row: LogRow) -> None:
        rewritten: dict[str, str] = {}
        for call_id in row.call_ids:
            wire_id = self._ids.assign(call_id)
            self._open[call_id] = wire_id
            rewritten |= _renamed(call_id, wire_id)
        self._put_row(row, rewritten)

    def _feed_result(self, row: LogRow, wire_id: str) -> None:
        call_id = row.call_ids[0]
        if self._trimmed(row):
            self._put_result(wire_id, self._placeholder(row))
            return
        self._put_row(row, _renamed(call_id, wire_id))
        if row.has_media:
            self._media.append((row.message(), wire_id))
        if not self._open:
            self._flush_media()

    def _put_row(self, row: LogRow, ids: Mapping[str, str]) -> None:
        if not (ids or row.has_media or self._is_plain(row)):
            self._put(row.text, row.tokens)
            return
        message = self._message(row)
        item = jsontext.dump_payload(openai_chat.render(message, ids))
        self._put(item, count_rendered(FormatName.OPENAI_CHAT, message, self.count, ids))

    def _put_note(self, text: str, *, as_system: bool = False) -> None:
        self._started = True
        item = {"role": "system" if as_system else "user", "content": text}
        self._put(jsontext.dump_payload(item), MESSAGE_OVERHEAD + self.count(text))

    def _put_result(self, wire_id: str, text: str = NO_RESULT) -> None:
        item, tokens = self._result_item(wire_id, text)
        self._put(item, tokens)

    def _result_item(self, wire_id: str, text: str) -> tuple[bytes, int]:
        message = Message(Role.TOOL, (Text(text),), tool_call_id=wire_id)
        item = openai_chat.render(message)
        return jsontext.dump_payload(item), count_message(message, self.count).visible

    def _flush_media(self) -> None:
        for item in self._media_items():
            self._put(item, 0)
        self._media.clear()

    def _media_items(self) -> list[bytes]:
        """Return the user messages that carry the media of results; the rows' counts hold them."""
        found = []
        for message, wire_id in self._media:
            item = openai_chat.render_media(message, {message.tool_call_id or "": wire_id})
            if item is not None:
                found.append(jsontext.dump_payload(item))
        return found

    def items(self) -> Items:
        """Return the messages; open calls are closed after the stable ones."""
        wire, tokens = list(self._items), self.tokens
        for wire_id in self._open.values():
            item, cost = self._result_item(wire_id, NO_RESULT)
            wire.append(item)
            tokens += cost
        wire.extend(self._media_items())
        return Items(
            wire=wire,
            stable=len(self._items),
            tokens=tokens,
            summary_tokens=self.summary_tokens,
            prefix_digest=self._hash.hexdigest(),
            folded_through=self.folded_through,
            has_calls=self.has_calls,
            mentions=tuple(sorted(self.mentions)),
        )


class AnthropicAssembler(Assembler):
    """Items for Anthropic Messages (rules HA): neighbours of one role share a message.

    The last message may still grow, so it is never among the stable ones.
    """

    def __init__(self, view: View, count: CountText, tools: Collection[str] = ALL_TOOLS) -> None:
        super().__init__(view, count, tools)
        self._closed: list[bytes] = []
        self._block_counts: list[int] = []
        self._markable: list[bool] = []
        self._ends_markable = True
        self._role = ""
        self._blocks: list[bytes] = []
        self._hash = hashlib.sha256()

    def _put(self, role: str, blocks: list[bytes], tokens: int, *, markable: bool = True) -> None:
        """Add blocks; `tokens` is their cost without the overhead of a message."""
        if role != self._role:
            self._close()
            self._role = role
            self.tokens += MESSAGE_OVERHEAD
        self._blocks.extend(blocks)
        self._ends_markable = markable
        self.tokens += tokens

    def _close(self) -> None:
        if self._blocks:
            item = _anthropic_item(self._role, self._blocks)
            self._closed.append(item)
            self._block_counts.append(len(self._blocks))
            self._markable.append(self._ends_markable)
            self._hash.update(item)
            self._blocks = []

    def _feed_message(self, row: LogRow) -> None:
        rewritten: dict[str, str] = {}
        for call_id in row.call_ids:
            wire_id = self._ids.assign(call_id)
            self._open[call_id] = wire_id
            rewritten |= _renamed(call_id, wire_id)
        self._put_row(row, rewritten)

    def _feed_result(self, row: LogRow, wire_id: str) -> None:
        call_id = row.call_ids[0]
        if self._trimmed(row):
            self._put_result(wire_id, self._placeholder(row))
            return
        self._put_row(row, _renamed(call_id, wire_id))

    def _put_row(self, row: LogRow, ids: Mapping[str, str]) -> None:
        message, is_plain = self._message(row), self._is_plain(row)
        replays = row.seq > self.view.reasoning_after
        role, blocks = anthropic.render(message, ids, keep_reasoning=replays)
        tokens = row.tokens
        if ids or row.has_media or is_plain or not _counts_alike(message):
            tokens = count_rendered(FormatName.ANTHROPIC, message, self.count, ids)
        if replays and row.reasoning_tokens:
            tokens += self._replayed_tokens(row, message)
        wire = [jsontext.dump_payload(block) for block in blocks]
        # No mark may stand on thinking (A7).
        markable = blocks[-1]["type"] not in _THINKING
        self._put(role, wire, tokens - MESSAGE_OVERHEAD, markable=markable)

    def _replayed_tokens(self, row: LogRow, message: Message) -> int:
        """Return the tokens of the reasoning that goes back: only what Anthropic made (N12)."""
        thoughts = [part for part in message.parts if isinstance(part, Reasoning)]
        sent = [part for part in thoughts if part.block and part.format is FormatName.ANTHROPIC]
        if len(sent) == len(thoughts):
            return row.reasoning_tokens
        return count_message(Message(message.role, tuple(sent)), self.count).reasoning

    def _put_note(self, text: str, *, as_system: bool = False) -> None:
        self._started = True
        block = jsontext.dump_payload({"type": "text", "text": text})
        self._put("user", [block], self.count(text))

    def _put_result(self, wire_id: str, text: str = NO_RESULT) -> None:
        block, tokens = self._result_block(wire_id, text)
        self._put("user", [block], tokens)

    def _result_block(self, wire_id: str, text: str) -> tuple[bytes, int]:
        message = Message(Role.TOOL, (Text(text),), tool_call_id=wire_id)
        _, (block,) = anthropic.render(message)
        tokens = count_message(message, self.count).visible - MESSAGE_OVERHEAD
        return jsontext.dump_payload(block), tokens

    def _flush_media(self) -> None:
        """Do nothing: media stand inside their tool result here."""

    def items(self) -> Items:
        """Return the messages; the last one is a user message, as the API wants it (A1)."""
        wire, tokens = list(self._closed), self.tokens
        role, blocks = self._role, list(self._blocks)
        for wire_id in self._open.values():
            block, cost = self._result_block(wire_id, NO_RESULT)
            if role != "user":
                wire.append(_anthropic_item(role, blocks))
                role, blocks = "user", []
                tokens += MESSAGE_OVERHEAD
            blocks.append(block)
            tokens += cost
        if blocks:
            wire.append(_anthropic_item(role, blocks))
        if role == "assistant":
            note = jsontext.dump_payload({"type": "text", "text": CONTINUE_NOTE})
            wire.append(_anthropic_item("user", [note]))
            tokens += MESSAGE_OVERHEAD + self.count(CONTINUE_NOTE)
        return Items(
            wire=wire,
            stable=len(self._closed),
            tokens=tokens,
            summary_tokens=self.summary_tokens,
            prefix_digest=self._hash.hexdigest(),
            folded_through=self.folded_through,
            has_calls=self.has_calls,
            marks=self._marks(),
            mentions=tuple(sorted(self.mentions)),
        )

    def _marks(self) -> tuple[int, ...]:
        """Return the stable messages to mark for the cache, newest first (A7, A8).

        They lie at most 19 blocks apart, so that each finds the entry of the one before; only a
        message that is larger itself makes a wider step.
        """
        found: list[int] = []
        distance, reach = 0, -1  # blocks since the last mark; the farthest it still finds
        index = len(self._closed) - 1
        while index >= 0 and len(found) < MOST_MARKS:
            if self._markable[index] and found and distance <= LOOKBACK_BLOCKS:
                reach = index
            elif self._markable[index]:
                index = max(index, reach)
                found.append(index)
                distance, reach = 0, -1
            distance += self._block_counts[index]
            index -= 1
        return tuple(found)


def _renamed(call_id: str, wire_id: str) -> dict[str, str]:
    """Map a call's id to the one to send, as the log has it and as its chat item has it."""
    if wire_id == call_id:
        return {}
    return {call_id: wire_id, sendable_id(call_id): wire_id}


def _anthropic_item(role: str, blocks: list[bytes]) -> bytes:
    return b'{"role":"%s","content":[%s]}' % (role.encode(), b",".join(blocks))


def with_cache_mark(item: bytes) -> bytes:
    """Return an Anthropic message with `cache_control` on its last block."""
    assert item.endswith(b"}]}")
    return item[:-3] + CACHE_MARK + b"}]}"


def _plain(message: Message, output: Output) -> Message:
    """Return a cut result in the words that name no tool: its last text has the note."""
    parts: list[Part] = list(message.parts)
    for place in reversed(range(len(parts))):
        part = parts[place]
        if isinstance(part, Text):
            parts[place] = Text(viewed(part.text, output))
            break
    return replace(message, parts=tuple(parts))


def _counts_alike(message: Message) -> bool:
    """Whether a message says the same in both formats, so that its stored count holds."""
    return openai_chat.adapt(message) is message and anthropic.adapt(message) is message


def assembler_for(
    format: FormatName, view: View, count: CountText, tools: Collection[str] = ALL_TOOLS
) -> Assembler:
    """Return a fresh assembler for a format, which may name these of the agent's own tools."""
    if format is FormatName.ANTHROPIC:
        return AnthropicAssembler(view, count, tools)
    return ChatAssembler(view, count, tools)
