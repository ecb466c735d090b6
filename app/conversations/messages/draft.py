"""Messages on their way into the log: checked, offloaded and counted.

1. `body` is the message as the caller sent it. `chat_item` is its openai_chat payload item, None
   when the body itself is that item. A chat build reads the chat item where there is one, other
   builds read the body. A chat build also reads the body of a message with reasoning, with media
   in a tool result, or with a label. Of long media there is no second copy: it reads the body.
2. The conversation's counter counts a message once, when it is appended, as an openai_chat payload
   item. Builds for other formats count only what they send differently, such as arguments that
   were sent with white space.
3. A provider's compaction item costs nothing here: only a payload that begins with it has it. A
   message that is such an item alone is in no other payload.
4. A large tool result is offloaded: `body` then holds its preview, and `output` refers to the
   blob that holds the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from app.blobs.offloading import NewBlob, OffloadRules, offload_result
from app.blobs.stored_output import StoredOutput
from app.common import json_text
from app.common.errors import PayloadTooLarge, Problem, ValidationError
from app.common.texts import is_sendable, time_from
from app.conversations.turns import MAX_PLACEHOLDER_TOKENS
from app.formats import LOG_PROVIDER, PROVIDERS, require_own
from app.formats.media import clean
from app.formats.message import (
    LOG_FORMAT,
    File,
    FormatName,
    Image,
    Message,
    Opaque,
    Reasoning,
    Role,
    Text,
    ToolCall,
)
from app.formats.openai_responses import CONFIGURATIONS, is_configuration
from app.formats.reasoning import last_compaction, waiting_calls, without_compactions
from app.formats.tools import sendable_id
from app.models.tokens import (
    MESSAGE_OVERHEAD,
    CountText,
    count_reasoning,
    count_visible,
    media_overhead,
)

DEFAULT_RULES = OffloadRules()
"""The rules of the default policy, without known tool names and attached blobs."""
MAX_ID_CHARS = 256
MAX_TEXT_BYTES = 4 * 2**20
"""The maximum text of a message: what tokens are counted of, not its media."""
_MAX_PLAIN_CHARS = 16_000
"""The length of a plain text; a longer one is not even searched on the event loop."""
_MAX_MEDIA_CHARS = 2**16
"""The length of media up to which a chat item is stored beside the body."""
_OF_RESULT = ("output", "blobs", "attached_blob_id")
_PLAIN_ROLES = {role.value: role for role in (Role.USER, Role.ASSISTANT)}


@dataclass(frozen=True, slots=True)
class Draft:
    """A checked and counted message that is not stored yet.

    It belongs to the call group before it, if it `joins` that. `provider_calls` are the calls in it
    that its provider runs and that wait; `resolves` are those from before of which it has a result.
    `raw_message` is the message of the request, found there at the JSON pointer `pointer`. `blobs`
    are stored with it; `attached_blob_id` is the id of a blob that is stored already. `call_names`
    are the tools that it calls, in the order of `call_ids`. `compaction` is the last compaction
    item of a provider in it.
    """

    role: Role
    body: bytes
    tokens: int
    id: str | None = None
    chat_item: bytes | None = None
    reasoning_tokens: int = 0
    call_ids: tuple[str, ...] = ()
    needs_body: bool = False
    timestamp: str | None = None
    joins: bool = False
    provider_calls: tuple[str, ...] = ()
    resolves: tuple[str, ...] = ()
    output: StoredOutput | None = None
    blobs: tuple[NewBlob, ...] = ()
    attached_blob_id: str | None = None
    call_names: tuple[str, ...] = ()
    raw_message: Mapping[str, Any] = field(default_factory=dict)
    pointer: str = ""
    compaction: Reasoning | None = None

    @property
    def starts_turn(self) -> bool:
        """Whether a turn begins with the message."""
        return self.role is Role.USER and not self.joins

    @property
    def is_configuration(self) -> bool:
        """Whether it changes settings or tools of a provider. It is pinned, so that no compaction
        hides it [compaction.configuration].
        """
        return self.raw_message.get("type") in CONFIGURATIONS

    @property
    def columns(self) -> dict[str, Any]:
        """The columns of a row that follow from the message, and its place among calls."""
        return {
            "role": self.role,
            "body": self.body.decode(),
            "chat_item": self.chat_item.decode() if self.chat_item is not None else None,
            "tokens": self.tokens,
            "reasoning_tokens": self.reasoning_tokens,
            "call_ids": json_text.dumps(self.call_ids) if self.call_ids else None,
            "call_names": json_text.dumps(self.call_names) if self.call_names else None,
            "needs_body": self.needs_body,
            "joins": self.joins,
        }

    @property
    def sent_at(self) -> datetime | None:
        """The timestamp that the message has."""
        return time_from(self.timestamp) if self.timestamp is not None else None

    @property
    def blob_ids(self) -> tuple[str, ...]:
        """The blobs that the row refers to."""
        attached = (self.attached_blob_id,) if self.attached_blob_id is not None else ()
        return (*(blob.id for blob, _ in self.blobs), *attached)

    @property
    def stored_output(self) -> str | None:
        """The JSON of the output; None for a result too small to be cleared."""
        output = self.output
        if output is None or (output.ref is None and self.tokens <= MAX_PLACEHOLDER_TOKENS):
            return None
        return output.as_json()


def make_drafts(
    raw: Any,
    format: FormatName,
    count: CountText,
    pointer: str,
    rules: OffloadRules = DEFAULT_RULES,
) -> list[Draft]:
    """Return the drafts of one message of a request: checked, normalised, offloaded and counted.

    A user message with several tool results, as Anthropic and Gemini send them, becomes several
    drafts. Raises ValidationError with the pointer of the invalid field, PayloadTooLarge for too
    much text.
    """
    plain = plain_draft(raw, format, count, pointer)
    return [plain] if plain is not None else drafts_of_any(raw, format, count, pointer, rules)


def plain_draft(raw: Any, format: FormatName, count: CountText, pointer: str) -> Draft | None:
    """Return the draft of a message that has only a role and a short text and is sent as it is.

    Most messages are such; for these it returns what `drafts_of_any` does, in a tenth of the time.
    """
    if type(raw) is not dict or len(raw) != 2 or format is not LOG_FORMAT:
        return None
    role, text = raw.get("role"), raw.get("content")
    if type(text) is not str or type(role) is not str or role not in _PLAIN_ROLES:
        return None
    if not 0 < len(text) <= _MAX_PLAIN_CHARS or text.isspace() or not is_sendable(text):
        return None
    body, tokens = json_text.dump_stored(raw), MESSAGE_OVERHEAD + count(text)
    return Draft(_PLAIN_ROLES[role], body, tokens, raw_message=raw, pointer=pointer)


def drafts_of_any(
    raw: Any, format: FormatName, count: CountText, pointer: str, rules: OffloadRules
) -> list[Draft]:
    """Return the drafts of a message of any form, as `make_drafts`."""
    if not isinstance(raw, Mapping):
        raise ValidationError.at(pointer, "A message is a JSON object")
    codec = PROVIDERS[format]
    messages = codec.parse(raw, pointer)
    if any(isinstance(part, Opaque) for message in messages for part in message.parts):
        require_own(raw, format, pointer)
    message_id, timestamp = _id_and_timestamp(raw, format, pointer)
    for message in messages:
        _check_call_ids(message, pointer)
        require_short_text(message, pointer)
    results, drafts = codec.results(raw), []
    for index, (original, raw_message) in enumerate(zip(messages, codec.split(raw), strict=True)):
        message, stored, at = original, raw_message, pointer
        own: dict[str, Any] = {"timestamp": timestamp, "raw_message": raw_message}
        own["id"] = f"{message_id}#{index}" if index and message_id is not None else message_id
        if message.role is Role.TOOL:  # which may be offloaded (rule 4)
            at += results[index][0]
            result = offload_result(raw_message, message, format, rules, at)
            if (stored := result.raw_message) is not raw_message:
                (preview,) = codec.parse(stored, "")
                message = replace(preview, tool_call_id=message.tool_call_id)
            own |= {name: getattr(result, name) for name in _OF_RESULT}
        drafts.append(derive(stored, message, format, count, pointer=at, **own))
    return drafts


def derive(
    stored_raw: Mapping[str, Any],
    message: Message,
    format: FormatName,
    count: CountText,
    **own: Any,
) -> Draft:
    """Return what follows from a message alone, and `own`; `stored_raw` is its stored form."""
    cleaned = clean(message)
    visible = without_compactions(cleaned)
    sent = LOG_PROVIDER.for_payload(visible or cleaned)
    is_item = format is FormatName.OPENAI_CHAT and LOG_PROVIDER.is_faithful(stored_raw, message)
    media_chars = sum(len(part.data or "") for part in sent.parts if isinstance(part, Image | File))
    has_long_media = not is_item and media_chars > _MAX_MEDIA_CHARS
    # A chat build needs more than the item: media, a compaction, settings of another format.
    needs_body = visible is not cleaned or is_configuration(message)
    needs_body = needs_body or has_long_media or bool(LOG_PROVIDER.apart(sent))
    chat_item = None
    if not (is_item or has_long_media):
        chat_item = json_text.dump_payload(LOG_PROVIDER.wire(sent))
    provider_calls, resolves = waiting_calls(message)
    tokens = reasoning_tokens = 0
    if visible is not None:
        tokens = count_visible(sent, count) + media_overhead(LOG_FORMAT, sent, count)
        reasoning_tokens = count_reasoning(visible, count)
    return Draft(
        role=message.role,
        body=json_text.dump_stored(stored_raw),
        chat_item=chat_item,
        tokens=tokens,
        reasoning_tokens=reasoning_tokens,
        call_ids=_call_ids(message),
        needs_body=needs_body,
        provider_calls=provider_calls,
        resolves=resolves,
        call_names=tuple(call.name for call in message.calls),
        compaction=last_compaction(cleaned),
        **own,
    )


def _id_and_timestamp(
    raw: Mapping[str, Any], format: FormatName, pointer: str
) -> tuple[str | None, str | None]:
    """Return a message's id and timestamp."""
    provider = PROVIDERS[format]
    fields = provider.own_fields(raw)
    message_id, timestamp = fields.get("id"), fields.get("timestamp")
    if provider.makes_ids and not is_message_id(message_id):
        message_id = None  # one that cannot be stored is not used
    for name, value in (("id", message_id), ("timestamp", timestamp)):
        if value is not None and not is_message_id(value):
            raise ValidationError.at(f"{pointer}/{name}", "must be a string of 1 to 256 characters")
    if timestamp is not None and time_from(timestamp) is None:
        raise ValidationError.at(f"{pointer}/timestamp", "must be a time in ISO 8601")
    return message_id, timestamp


def _call_ids(message: Message) -> tuple[str, ...]:
    if message.role is Role.TOOL:
        return (message.tool_call_id or "",)
    return tuple(part.id for part in message.parts if isinstance(part, ToolCall))


def _check_call_ids(message: Message, pointer: str) -> None:
    """Refuse call ids that become equal when sent, or that PostgreSQL cannot store."""
    sent = [sendable_id(call.id) for call in message.calls]
    if len(set(sent)) < len(sent):
        raise ValidationError.at(pointer, "Two tool calls have equal ids after conversion")
    if not all(map(is_sendable, (*_call_ids(message), *waiting_calls(message)[0]))):
        raise ValidationError.at(
            pointer, "A tool call id holds NUL or a lone surrogate, which cannot be stored"
        )


def is_message_id(value: object) -> bool:
    """Whether a value may be the id or the name of a message."""
    return isinstance(value, str) and 0 < len(value) <= MAX_ID_CHARS and is_sendable(value)


def require_short_text(message: Message, pointer: str) -> None:
    """Raise PayloadTooLarge for a message with more text than `MAX_TEXT_BYTES`."""
    texts = (
        part.arguments if isinstance(part, ToolCall) else part.text or ""
        for part in message.parts
        if isinstance(part, Text | Reasoning | File | ToolCall)
    )
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    if size > MAX_TEXT_BYTES:
        raise PayloadTooLarge(
            f"A message has at most {MAX_TEXT_BYTES:,} bytes of text: upload a larger tool output"
            " with `POST /v1/conversations/{conversation_id}/blobs`, and refer to it by"
            " `output_ref`",
            {"limit": MAX_TEXT_BYTES, "found": size},
            (Problem(pointer, f"has {size:,} bytes of text"),),
        )
