"""The assemblers of the formats: those whose neighbours of a role share an item, and others.

1. In formats of blocks an item is closed when a message of the other role comes. The open one may
   grow, so it is never stable; its content stays where it is. Nor is an item stable that has a call
   of the provider without a result, or comes after one.
2. In other formats every message is an item of its own or several. An item never changes, so all of
   them are stable.
3. Cache breakpoints are at the last block from the log, and at every `BREAKPOINT_INTERVAL`th block
   before. The latter never move, so that an earlier payload differs only near its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from app.common import json_text
from app.conversations.messages.row import LogRow
from app.conversations.partial_messages import media_in
from app.conversations.view import WHOLE
from app.formats import PROVIDERS, media
from app.formats.base import BlockProvider
from app.formats.json_fields import Raw, Wire
from app.formats.message import FormatName, Message, Opaque, Part, Role, Text
from app.formats.reasoning import BLANK_REASONING, DEMANDING, call_of, result_of, text_of
from app.models.tokens import MESSAGE_OVERHEAD, count_json, count_visible
from app.payload.assembler import CONTINUE_NOTE, Assembler
from app.payload.items import BREAKPOINT_INTERVAL, BreakpointPosition, may_have_media
from app.prompt.sections import DynamicTexts

USER = "user"
"""The role that users and tool results share."""
SYSTEM = "system"
"""The role of changes, which only Anthropic has."""
_ITEM_END = b"]}"
_NOT_CACHEABLE = ("thinking", "redacted_thinking", "compaction")
_TOOL_USE = b'{"type":"tool_use"'
_CACHEABLE = ("input_text", "input_image", "input_file")
_AFTER_LAST_PART_BYTES = len("}]}")


class MergingAssembler(Assembler):
    """Renders rows into items of alternating roles."""

    provider: BlockProvider
    open_items = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._role = ""
        self._blocks: list[bytes] = []
        self._closed: list[tuple[str, list[bytes]]] = []  # items that are not stable yet
        self._open_item_bytes = 0  # without `_ITEM_END`
        self._blocks_since_fixed = 0
        self._provider_calls: dict[str, Raw] = {}  # those that wait, by id

    def _put(self, role: Role, pieces: Sequence[Wire], tokens: int) -> None:
        """Add blocks; only those that begin an item cost the overhead of one."""
        self._put_blocks(self.provider.role_of(role), pieces, tokens)

    def _put_change(self, pieces: Sequence[Wire]) -> None:
        self._put_blocks(SYSTEM, pieces, 0)

    def _put_blocks(self, sender: str, pieces: Sequence[Wire], tokens: int) -> None:
        if sender != self._role:
            # Anthropic takes one of the system only after the user's, and no user's after it.
            if (sender == SYSTEM and self._role != USER) or (self._role, sender) == (SYSTEM, USER):
                self.misplaced = True
            self._close_item()
            self._role = sender
            self._open_item_bytes = len(self._item_start(sender))
            self.tokens += MESSAGE_OVERHEAD
        self.tokens += tokens - MESSAGE_OVERHEAD
        for piece in pieces:
            block = json_text.dump_payload(piece)
            self._open_item_bytes += len(block) + (1 if self._blocks else 0)
            self._blocks.append(block)
            self._blocks_since_fixed += 1
            if self.provider.breakpoint is not None and piece["type"] not in _NOT_CACHEABLE:
                self._add_breakpoint()

    def _add_message(self, row: LogRow) -> None:
        super()._add_message(row)
        if self._answer and self._role in (USER, SYSTEM):  # the answer comes next
            self._close_item()
            self._role = ""

    def _add_breakpoint(self) -> None:
        """Record the position after the last block; every `BREAKPOINT_INTERVAL`th is fixed."""
        position = BreakpointPosition(
            self._item_count, self._open_item_bytes - 1, self.tokens + self.summary_tokens
        )
        self._positions.append(position)
        if self._blocks_since_fixed >= BREAKPOINT_INTERVAL:
            self._blocks_since_fixed = 0
            self._fixed_positions.append(position)

    def _close_item(self) -> None:
        if self._blocks:
            self._closed.append((self._role, self._blocks))
            self._blocks = []
        if not self._provider_calls:
            for role, blocks in self._closed:
                self._append(self._item(role, blocks))
            self._closed.clear()

    @property
    def _item_count(self) -> int:
        return self.stable_items + len(self._closed)

    def _item_start(self, role: str) -> bytes:
        """Return the JSON of an item up to its first block."""
        return f'{{"role":"{role}","{self.provider.blocks_key}":['.encode()

    def _item(self, role: str, blocks: Sequence[bytes]) -> bytes:
        return self._item_start(role) + b",".join(blocks) + _ITEM_END

    def _text_block(self, text: str) -> bytes:
        (block,) = self.provider.render(Message(Role.USER, (Text(text),)))
        return json_text.dump_payload(block)

    def _with_tail(self, tail: DynamicTexts) -> tuple[list[bytes], int, int, int]:
        """Return the items; the last one is the user's, as these providers require.

        Nothing follows a call of the provider that waits but results of the client.
        """
        closed = [self._item(role, blocks) for role, blocks in self._closed]
        wire_items, tokens = [*self._stable_items, *closed], self.tokens
        if self._provider_calls:
            return [*wire_items, self._item(self._role, self._blocks)], tokens, 0, 0
        role, blocks, tail_tokens = self._role, list(self._blocks), 0
        if role not in (USER, SYSTEM):
            wire_items += [self._item(role, blocks)] if blocks else []
            role, blocks = USER, [self._text_block(CONTINUE_NOTE)]
            tokens += MESSAGE_OVERHEAD + self.count(CONTINUE_NOTE)
        texts = [self._text_block(text) for text in tail.texts]
        is_apart = bool(texts) and tail.as_system and self.provider.breakpoint is not None
        is_apart = is_apart and role != SYSTEM
        wire_items.append(self._item(role, blocks if is_apart else [*blocks, *texts]))
        tail_tokens = sum(map(self.count, tail.texts))
        if is_apart:  # only Anthropic has messages of the system
            wire_items.append(self._item(SYSTEM, texts))
            tail_tokens += MESSAGE_OVERHEAD
        return wire_items, tokens, 1 if texts else 0, tail_tokens


class AnthropicAssembler(MergingAssembler):
    """Payload items for Anthropic Messages.

    1. Thinking is replayed byte for byte while its prefix is unchanged, and never after that. A
       compaction block opens the first message, which is the assistant's.
    2. A call that Anthropic runs may have its result in a later message. Until then nothing follows
       it but results of the client; where something else came, a label stands for it. So it does
       for a result whose call is not shown.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._left_out: set[str] = set()  # calls that labels stand for

    @property
    def _waits(self) -> bool:
        return super()._waits or bool(self._provider_calls)

    def _end_group(self) -> None:
        self._close_calls()
        if self._provider_calls:
            calls, self._provider_calls = self._provider_calls, {}
            self._left_out |= calls.keys()
            for call in calls.values():
                self._replace(call)
            self._close_calls()

    def _replace(self, call: Raw) -> None:
        """Replace a call in an item that is not stable by a label (rule 2).

        After a call of the client there is no place for one: there it is left out.
        """
        label = media.label_for(Opaque(call, self.format))
        old, new = json_text.dump_payload(dict(call)), self._text_block(label.text)
        open_items = [*self._closed, (self._role, self._blocks)]
        at, blocks = next((i, b) for i, (_, b) in enumerate(open_items) if old in b)
        item_index, block_index = self.stable_items + at, blocks.index(old)
        before = blocks[:block_index]
        start = len(self._item_start("assistant")) + len(b",".join(before))
        has_place = not any(block.startswith(_TOOL_USE) for block in before)
        blocks[block_index : block_index + 1] = [new] if has_place else []
        grown = (len(new) if has_place else -1) - len(old)
        if at == len(self._closed):
            self._open_item_bytes += grown
        for positions in (self._positions, self._fixed_positions):
            positions[:] = [
                position._replace(byte_offset=position.byte_offset + grown)
                if position.item_index == item_index and position.byte_offset > start
                else position
                for position in positions
            ]
        left = (label,) if has_place else ()
        sent = (Message(Role.ASSISTANT, parts) for parts in ((Opaque(call, self.format),), left))
        tokens_before, tokens = (count_visible(message, self.count) for message in sent)
        self.tokens += tokens - tokens_before

    def _put_row(self, row: LogRow, ids: Mapping[str, str]) -> None:
        self._provider_calls_after = dict(self._provider_calls)
        super()._put_row(row, ids)
        self._provider_calls = self._provider_calls_after

    def _prepared(self, message: Message) -> Message:
        """Return a message with labels for results of calls that are not shown (rule 2).

        References of a search result are to defined tools; other tools are shown by name.
        """
        waiting, hides = self._provider_calls_after, self.view.spans != WHOLE
        parts: list[Part] = []
        for part in message.parts:
            known: Part = part
            if isinstance(part, Opaque):
                if call := call_of(part.block):
                    waiting[call] = part.block
                result = result_of(part.block)
                is_known = waiting.pop(result, None) is not None
                if result and not is_known and (result in self._left_out or hides):
                    known = media.label_for(part)
                if part.block.get("type") == "tool_reference":
                    name = str(part.block.get("tool_name", ""))
                    known = part if name in self.defined_tools else Text(f"[tool: {name}]")
                    self.references |= {name} & set(self.defined_tools)
            parts.append(known)
        return message.with_parts(parts)


class GeminiAssembler(MergingAssembler):
    """Payload contents for Gemini, which caches by prefix alone: there are no breakpoints.

    The responses of a call group are together, in the order of its calls. They are added with the
    last one, or when the group ends.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._group: list[str] = []  # the ids in the rendered calls of the open group
        self._results: dict[str, tuple[Sequence[Wire], int]] = {}

    def _keep_calls(self, row: LogRow, shown: Message, rendered: Sequence[Raw]) -> None:
        super()._keep_calls(row, shown, rendered)
        self._group = [call.id for call in shown.calls] or self._group

    def _result_ids(self, call_id: str, wire_id: str) -> dict[str, str]:
        return {call_id: self._sent_ids.get(wire_id, wire_id)}

    def _put_tool_result(self, call_id: str, pieces: Sequence[Wire], tokens: int) -> None:
        """Hold a result back until its group is complete."""
        self._results[call_id] = pieces, tokens

    def _finish_group(self) -> None:
        for call_id in self._group:
            pieces, tokens = self._results[call_id]
            super()._put_tool_result(call_id, pieces, tokens)
        self._group, self._results = [], {}
        super()._finish_group()


class ChatAssembler(Assembler):
    """Payload items for OpenAI Chat Completions.

    1. One row is one message. Media of results follow in a user message.
    2. Reasoning is replayed unchanged, to a model of the family that made it. A model that refuses
       a tool loop without it gets a blank where a message has none.
    """

    def _put(self, role: Role, pieces: Sequence[Wire], tokens: int) -> None:
        self.tokens += tokens
        for piece in pieces:
            self._append(json_text.dump_payload(piece))

    def _put_change(self, pieces: Sequence[Wire]) -> None:
        self._put(Role.SYSTEM, pieces, 0)
        if self._item_counts:
            self._item_counts[-1] = self.stable_items

    def _is_demanded(self, row: LogRow) -> bool:
        """Whether a model refuses this message without reasoning (rule 2)."""
        is_loop = self.has_calls or bool(row.call_ids or self.defined_tools)
        is_demanding = self.provider.names_family and DEMANDING in self.view.reasoning_of
        return row.role is Role.ASSISTANT and is_demanding and is_loop

    def _put_row(self, row: LogRow, ids: Mapping[str, str]) -> None:
        is_item = not (ids or row.needs_body or self._is_demanded(row) or self._is_rewritten(row))
        if not is_item or row.reasoning_tokens or not self.provider.stores_items:
            super()._put_row(row, ids)
            return
        if may_have_media(row):
            self.media += media_in(row.seq, row.message())
        self._append(row.text)
        self.tokens += row.tokens

    def _completed(self, row: LogRow, pieces: Sequence[Wire]) -> int:
        if not self._is_demanded(row) or "reasoning_content" in pieces[0]:
            return 0
        added = {"reasoning_content": text_of(pieces[0]) or BLANK_REASONING}
        pieces[0].update(added)
        return count_json(added, self.count)

    def _with_tail(self, tail: DynamicTexts) -> tuple[list[bytes], int, int, int]:
        wire_items = list(self._stable_items)
        if not tail.texts:
            return wire_items, self.tokens, 0, 0
        role = Role.SYSTEM if tail.as_system else Role.USER
        texts = tail.texts if self.provider.blocks_key else ("\n\n".join(tail.texts),)
        message = Message(role, tuple(map(Text, texts)))
        item = json_text.dump_payload(self.provider.wire(message))
        tokens = count_visible(message, self.count, self.format)
        return [*wire_items, item], self.tokens, 1, tokens


class ResponsesAssembler(ChatAssembler):
    """Payload items for OpenAI Responses.

    1. One row is one item or more.
    2. Reasoning is replayed byte for byte while its prefix is unchanged, a compaction item as long
       as payloads begin with it.
    3. A result has the type of its call in this payload, whatever format it came in. That of an
       asynchronous call is where it came; until then the call has none.
    4. Cache breakpoints are at the last part of user and developer messages: the two newest,
       because OpenAI finds a cached prefix only at breakpoints that are still there, and about
       every `BREAKPOINT_INTERVAL`th item.
    """

    newest_breakpoints = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self._last_is_model = False  # whether the model made the last item
        self._running: dict[str, str] = {}  # the ids to send of asynchronous calls, by call id

    def _put(self, role: Role, pieces: Sequence[Wire], tokens: int) -> None:
        """Add items; those of the model cost one overhead with the model's before them."""
        is_model = role is Role.ASSISTANT
        self.tokens += tokens - (MESSAGE_OVERHEAD if is_model and self._last_is_model else 0)
        self._last_is_model = is_model
        for item in pieces:
            wire_item = json_text.dump_payload(item)
            self._append(wire_item)
            content = item.get("content")
            if not is_model and isinstance(content, list) and content[-1]["type"] in _CACHEABLE:
                self._add_breakpoint(len(wire_item) - _AFTER_LAST_PART_BYTES)

    def _add_breakpoint(self, byte_offset: int) -> None:
        position = BreakpointPosition(
            self.stable_items - 1, byte_offset, self.tokens + self.summary_tokens
        )
        self._positions.append(position)
        last = self._fixed_positions[-1].item_index if self._fixed_positions else 0
        if position.item_index >= BREAKPOINT_INTERVAL + last:
            self._fixed_positions.append(position)

    def _keep_calls(self, row: LogRow, shown: Message, rendered: Sequence[Raw]) -> None:
        super()._keep_calls(row, shown, rendered)
        for call_id, fields in zip(row.call_ids, rendered, strict=False):
            self._running.pop(call_id, None)
            if fields.get("async") is True:
                self._running[call_id] = self._open_calls[call_id]

    def _add_tool_row(self, row: LogRow) -> None:
        if (wire_id := self._running.pop(row.call_ids[0], None)) is None:
            super()._add_tool_row(row)
        else:
            self._open_calls.pop(row.call_ids[0], None)
            self._add_result(row, wire_id)

    def _close_calls(self) -> None:
        self._put_answer()
        for call_id in self._running:
            self._open_calls.pop(call_id, None)
        super()._close_calls()


class InteractionsAssembler(ResponsesAssembler):
    """Payload steps for Gemini Interactions, which end with the user or with a result."""

    def _with_tail(self, tail: DynamicTexts) -> tuple[list[bytes], int, int, int]:
        wire_items, tokens, tail_items, tail_tokens = super()._with_tail(tail)
        if self._last_is_model:
            note = Message(Role.USER, (Text(CONTINUE_NOTE),))
            item = json_text.dump_payload(self.provider.wire(note))
            wire_items.insert(self.stable_items, item)
            tokens += count_visible(note, self.count, self.format)
        return wire_items, tokens, tail_items, tail_tokens


_ASSEMBLERS: Mapping[str, type[Assembler]] = {
    "chat": ChatAssembler,
    "responses": ResponsesAssembler,
    "anthropic": AnthropicAssembler,
    "gemini": GeminiAssembler,
    "interactions": InteractionsAssembler,
}


def assembler_of(format: FormatName) -> Callable[..., Assembler]:
    """Return what makes the assembler that a provider names."""
    provider = PROVIDERS[format]
    return partial(_ASSEMBLERS[provider.assembler], provider)
