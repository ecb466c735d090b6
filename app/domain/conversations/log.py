"""Rows of the log: what is stored of each message, and what a build needs of it.

1. A row is written once and never changes (A1). `seq` starts at 1 and has no gaps (decision 1).
2. `body` is the message as it came; `fragment` is its openai_chat payload item, absent when the
   body itself is that item. A chat build reads whichever is the item, others read the body. So
   does a chat build of a message with reasoning, with media of a result, or with a label.
3. Counts are made once, at append, by the conversation's counter: what the message costs as an
   openai_chat payload item (J1, decision 12). Other formats count anew only what they send
   in another way, such as arguments that came with white space.
4. A large tool result is offloaded: `body` then holds its view, and `output` says where the rest
   is (F1). Without blobs at hand nothing else of a row changes.
5. A batch is judged as a whole before anything is stored (A2, A3): `fold_batch` says which
   calls its leading results must find open, and which calls it leaves open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import accumulate, takewhile
from typing import Any

from app.domain.common import json_text
from app.domain.common.errors import UnpairedToolResult, ValidationError
from app.domain.common.messages import (
    FormatName,
    Message,
    Opaque,
    Role,
    Text,
    ToolCall,
    clean,
    is_sendable,
)
from app.domain.conversations.active_window import time_from
from app.domain.conversations.turns import TRIMMED_TOKENS
from app.domain.formats import FORMATS, block_types, openai_chat, openai_responses
from app.domain.formats.json_fields import sendable_id
from app.domain.models.tokens import (
    CountText,
    count_reasoning,
    count_visible,
    media_message_overhead,
)
from app.domain.tool_output.offloading import NewBlob, Output, Taken, Terms, output_from, take

NO_TERMS = Terms()


@dataclass(slots=True, eq=False)
class LogRow:
    """One stored message as a build reads it: `text` is JSON in `format`.

    `tokens` is its cost in a payload; `reasoning_tokens` come on top where its reasoning is
    replayed. `stored_output` is the JSON of a tool result's `Output`; a text may be empty where
    the build that reads it shows a placeholder.
    """

    id: str
    seq: int
    role: Role
    tokens: int
    reasoning_tokens: int
    call_ids: tuple[str, ...]
    has_media: bool
    format: FormatName
    text: bytes
    stored_output: str | None = None

    @property
    def output(self) -> Output | None:
        """What the row says of its result; None for a small one, and for other messages."""
        return output_from(self.stored_output) if self.stored_output is not None else None

    def message(self) -> Message:
        """Return the neutral message, fit to be sent."""
        message = clean(parse_stored(self.text, self.format))
        if self.format is FormatName.GEMINI and message.tool_call_id not in (None, *self.call_ids):
            return replace(message, tool_call_id=self.call_ids[0])  # it was known by its place
        return message


@dataclass(frozen=True, slots=True)
class Draft:
    """A message checked and counted, on its way into the log.

    `piece` is what it came as, and stood at the pointer `place` of the request. `blobs` are to be
    stored with it, `attaches` names one that is there already. `call_names` are the tools that it
    calls, in the order of `call_ids`.
    """

    id: str | None
    role: Role
    body: bytes
    fragment: bytes | None
    tokens: int
    reasoning_tokens: int
    call_ids: tuple[str, ...]
    has_media: bool
    continues: bool
    timestamp: str | None
    output: Output | None = None
    blobs: tuple[NewBlob, ...] = ()
    attaches: str | None = None
    call_names: tuple[str, ...] = ()
    piece: Mapping[str, Any] = field(default_factory=dict)
    place: str = ""

    @property
    def given_at(self) -> datetime | None:
        """The time that the message gives for itself."""
        return time_from(self.timestamp) if self.timestamp is not None else None

    @property
    def blob_ids(self) -> tuple[str, ...]:
        """The blobs that the row refers to."""
        attached = (self.attaches,) if self.attaches is not None else ()
        return (*(blob.id for blob, _ in self.blobs), *attached)

    @property
    def kept_output(self) -> Output | None:
        """What is stored of the output: of a result too small to be trimmed nothing."""
        output = self.output
        if output is None or output.ref is not None or self.tokens > TRIMMED_TOKENS:
            return output
        return None


@dataclass(frozen=True, slots=True)
class BatchShape:
    """What a batch asks of the open calls before it, and leaves to those after.

    `needs` are the call ids its leading results answer. `resets` tells that a user or assistant
    message ends the group that was open; then `leaves` are the calls open at its end.
    """

    needs: tuple[str, ...]
    resets: bool
    leaves: tuple[str, ...]
    turns: int


def parse_stored(body: bytes, format: FormatName) -> Message:
    """Parse one stored body back into the neutral message it was stored for."""
    raw = json_text.loads(body)
    return FORMATS[format].parse(raw, "")[0]


def draft(
    raw: Mapping[str, Any],
    format: FormatName,
    count: CountText,
    pointer: str,
    terms: Terms = NO_TERMS,
) -> list[Draft]:
    """Check, normalise, offload and count one message as it came in the request.

    A user message with several results, as Anthropic and Gemini have them, becomes several drafts
    (A5). Raises ValidationError with the pointer of the field that is wrong.
    """
    if not isinstance(raw, Mapping):
        raise ValidationError.at(pointer, "A message is a JSON object")
    codec = FORMATS[format]
    try:
        messages = codec.parse(raw, pointer)
    except ValidationError as error:
        raise block_types.doubted(error, raw, format) from error
    if any(isinstance(part, Opaque) for message in messages for part in message.parts):
        block_types.require_own(raw, format, pointer)
    message_id, timestamp = _named(raw, format, pointer)
    _check_ids(messages, pointer)
    places = [pointer + place for place, _ in codec.results(raw)]
    drafts = []
    for index, (message, piece) in enumerate(zip(messages, codec.split(raw), strict=True)):
        own_id = message_id if index == 0 or message_id is None else f"{message_id}#{index}"
        place, taken = pointer, None
        if message.role is Role.TOOL:
            place = places[index]
            taken = take(piece, message, format, terms, place)
        continues = index > 0
        made = _draft(message, piece, taken, format, count, own_id, continues, timestamp, place)
        drafts.append(made)
    return drafts


def _draft(
    message: Message,
    piece: dict[str, Any],
    taken: Taken | None,
    format: FormatName,
    count: CountText,
    message_id: str | None,
    continues: bool,
    timestamp: str | None,
    place: str,
) -> Draft:
    """Count a message as it will be shown."""
    shown = piece
    if taken is not None and taken.piece is not piece:
        shown = taken.piece
        (as_shown,) = FORMATS[format].parse(shown, "")
        message = replace(as_shown, tool_call_id=message.tool_call_id)
    cleaned = clean(message)
    sent = openai_chat.adapt(cleaned)
    visible = count_visible(sent, count)
    fragment = None
    if format is not FormatName.OPENAI_CHAT or not openai_chat.is_faithful(shown, message):
        fragment = json_text.dump_payload(openai_chat.render(cleaned))
    return Draft(
        id=message_id,
        role=message.role,
        body=json_text.dump_stored(shown),
        fragment=fragment,
        tokens=visible + media_message_overhead(sent, count),
        reasoning_tokens=count_reasoning(cleaned, count),
        call_ids=_call_ids(message),
        has_media=_needs_body(sent),
        continues=continues,
        timestamp=timestamp,
        output=taken.output if taken is not None else None,
        blobs=taken.blobs if taken is not None else (),
        attaches=taken.attaches if taken is not None else None,
        call_names=tuple(call.name for call in message.calls),
        piece=piece,
        place=place,
    )


def _needs_body(sent: Message) -> bool:
    """Whether the Chat item alone does not say all: media stand apart, labels stand for others."""
    labelled = any(isinstance(part, Text) and part.stands_for for part in sent.parts)
    return labelled or bool(openai_chat.tool_media(sent))


def fold_batch(drafts: Sequence[Draft]) -> BatchShape:
    """Check the pairing inside a batch (A3) and say what it asks of the log before it.

    Raises UnpairedToolResult for a result that no log could make right.
    """
    needs: list[str] = []
    open_calls: list[str] | None = None
    turns = 0
    for entry in drafts:
        if entry.role is Role.TOOL:
            (call_id,) = entry.call_ids
            if open_calls is None:
                if call_id in needs:
                    raise unpaired(call_id, "is answered twice in this batch")
                needs.append(call_id)
            elif call_id in open_calls:
                open_calls.remove(call_id)
            else:
                raise unpaired(call_id, "answers no open call")
        else:
            open_calls = list(entry.call_ids)
            turns += entry.role is Role.USER
    return BatchShape(
        needs=tuple(needs),
        resets=open_calls is not None,
        leaves=tuple(open_calls or ()),
        turns=turns,
    )


@dataclass(frozen=True, slots=True)
class Times:
    """When the messages of a batch are from, as the active window sees them (B2).

    `given` are the times they give themselves; whoever gives none, or one that is yet to come, is
    from `now`. `newest` is the newest time up to each, so that it never falls. The first
    `answering` messages are results of calls from before the batch.
    """

    now: datetime
    given: tuple[datetime | None, ...]
    newest: tuple[datetime, ...]
    answering: int

    @property
    def oldest_given(self) -> datetime | None:
        """The oldest time that a message gives."""
        return min(filter(None, self.given), default=None)

    @property
    def oldest_given_after(self) -> datetime | None:
        """The same of what follows the first results."""
        return min(filter(None, self.given[self.answering :]), default=None)

    @property
    def only_answers(self) -> bool:
        """Whether there is nothing but such results."""
        return self.answering == len(self.given)


def times_of(drafts: Sequence[Draft], now: datetime) -> Times:
    """Return the times of a batch that is received now."""
    times = (draft.given_at for draft in drafts)
    given = tuple(at if at is not None and at < now else None for at in times)
    newest = tuple(accumulate((at or now for at in given), max))
    answering = sum(1 for _ in takewhile(lambda draft: draft.role is Role.TOOL, drafts))
    return Times(now, given, newest, answering)


def unpaired(call_id: str, what: str) -> UnpairedToolResult:
    """Return the refusal of a tool result, naming the call it claims to answer."""
    return UnpairedToolResult(
        f"Tool result for call {call_id!r} {what}; nothing was stored", {"tool_call_id": call_id}
    )


def _named(
    raw: Mapping[str, Any], format: FormatName, pointer: str
) -> tuple[str | None, str | None]:
    """Return a message's own id and timestamp, those of its first item where it has several.

    A Responses item's id is the provider's, who may make it of any length: such a one is no id.
    """
    if format is not FormatName.OPENAI_RESPONSES:
        return _text_field(raw, "id", pointer), _timestamp(raw, pointer)
    if openai_responses.is_gathered(raw) and raw["output"]:
        raw = {**raw["output"][0], **raw}
    return raw.get("id") if _is_id(raw.get("id")) else None, _timestamp(raw, pointer)


def _timestamp(raw: Mapping[str, Any], pointer: str) -> str | None:
    text = _text_field(raw, "timestamp", pointer)
    if text is not None and time_from(text) is None:
        raise ValidationError.at(f"{pointer}/timestamp", "A time in ISO 8601 is needed")
    return text


def _call_ids(message: Message) -> tuple[str, ...]:
    if message.role is Role.TOOL:
        return (message.tool_call_id or "",)
    return tuple(part.id for part in message.parts if isinstance(part, ToolCall))


def _check_ids(messages: Sequence[Message], pointer: str) -> None:
    """Refuse call ids that could not be told apart, or that no database text can hold."""
    for message in messages:
        sent = [sendable_id(call.id) for call in message.calls]
        if len(set(sent)) < len(sent):
            raise ValidationError.at(pointer, "Two tool calls have ids that providers confuse")
        for call_id in _call_ids(message):
            if not is_sendable(call_id):
                raise ValidationError.at(
                    pointer, "A tool call id holds NUL or a lone surrogate, which cannot be stored"
                )


def _is_id(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 256 and is_sendable(value)


def _text_field(raw: Mapping[str, Any], name: str, pointer: str) -> str | None:
    value = raw.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not _is_id(value):
        raise ValidationError.at(f"{pointer}/{name}", "A string of 1 to 256 characters is needed")
    return value
