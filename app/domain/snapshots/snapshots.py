"""Snapshots: an active window as it was, to be read, carried elsewhere and restored (I1-I4).

1. A snapshot made here copies nothing, since the log never changes: its parts are spans of seqs.
   An imported one has its messages itself, for they are in no log here.
2. An entry is a message as it came, with the fields of `OWN_FIELDS` beside it; fields of the
   message with the same names stand in `given`. `message_of` gives the message back.
3. Every message of an import has an id and a conversation, made from its place where it names
   none, so that whoever restores it again finds what he restored.
4. The id of a copy follows from where it goes and what it is a copy of. A copy says so, and gives
   no time of its own: it is as new to its window as any message that comes in (B2).
5. A call gets another id only where the window it comes into uses that one, and its results get
   the same. Gemini's calls without an id are known by their place, and stay so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, assert_never
from uuid import UUID, uuid5

from app.domain.common import json_text
from app.domain.common.errors import UnpairedToolResult, ValidationError
from app.domain.common.messages import (
    File,
    FormatName,
    Message,
    Part,
    Role,
    Text,
    ToolCall,
    is_sendable,
)
from app.domain.common.policy import ToolOutputPolicy
from app.domain.conversations.active_window import time_from
from app.domain.conversations.log.batch import batch_shape
from app.domain.conversations.log.draft import Draft, draft
from app.domain.conversations.view import Span, count_in
from app.domain.formats import FORMATS, json_fields, openai_responses
from app.domain.tool_output.offloading import Terms

FAILED_SUMMARY = "(summary generation failed)"
"""What a snapshot says whose summary could not be made (I1)."""
FORGOTTEN_SUMMARY = "(the summary told of a conversation that was deleted)"
"""What a snapshot says that lost a part (A7)."""

OWN_FIELDS = (
    "id",
    "conversation_id",
    "seq",
    "format",
    "created_at",
    "output_ref",
    "content_truncated",
    "content_collected",
)
"""The fields that an entry has beside its message's."""

_COPIES = UUID("5f0b1f0e-6a52-5b3e-9d0c-3c1f4b7f2a10")
_AS_IT_CAME = Terms(replace(ToolOutputPolicy(), enabled=False))


@dataclass(frozen=True, slots=True)
class SnapshotModel:
    """The model that a conversation of a snapshot was built for."""

    conversation_id: str
    model: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is known of a snapshot besides its messages (I2, I3); `session_id` is S4's name.

    `models` has at most one entry for each conversation: none where no model was known.
    """

    session_id: str
    timestamp: datetime
    description: str | None
    summary: str
    message_count: int
    window_start: datetime
    window_end: datetime
    agent_id: str | None
    conversation_ids: tuple[str, ...]
    imported: bool = False
    models: tuple[SnapshotModel, ...] = ()

    def model_of(self, conversation_id: str) -> str | None:
        """Return the model that a conversation was built for, None where it is not known."""
        found = (item.model for item in self.models if item.conversation_id == conversation_id)
        return next(found, None)


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """What a snapshot holds of one conversation: ascending spans, none of them open (rule 1)."""

    conversation_id: str
    spans: tuple[Span, ...]

    @property
    def message_count(self) -> int:
        """How many messages it holds."""
        return count_in(self.spans)


@dataclass(frozen=True, slots=True)
class Imported:
    """A message of an import, on its way into the database; `body` is its entry's JSON text."""

    source_id: str
    body: str


@dataclass(frozen=True, slots=True)
class Source:
    """A message that is to be restored, whole and as it came."""

    conversation_id: str
    id: str
    format: FormatName
    message: Mapping[str, Any]
    size_bytes: int = 0

    @property
    def is_result(self) -> bool:
        """Whether it answers calls that came before it."""
        return bool(FORMATS[self.format].results(self.message))

    @property
    def pieces(self) -> int:
        """How many messages the log makes of it (A5)."""
        return len(FORMATS[self.format].split(self.message))

    @property
    def answers(self) -> tuple[str, ...]:
        """The ids of the calls that it answers."""
        parsed = FORMATS[self.format].parse(self.message, "")
        return tuple(message.tool_call_id for message in parsed if message.tool_call_id)

    @property
    def own_calls(self) -> tuple[str, ...]:
        """The ids of its calls, as far as they stand in it (rule 5)."""
        (*_, last) = FORMATS[self.format].parse(self.message, "")
        if self.format is not FormatName.GEMINI:
            return tuple(call.id for call in last.calls)
        parts = self.message["parts"]
        return tuple(call["id"] for call in _gemini(parts, *_GEMINI_CALL) if call.get("id"))


# --- what its summary is made of --------------------------------------------------------------

SUMMARY_PROMPT = """\
Say in 2 to 4 sentences what happened above: what was accomplished, which decisions were made, \
and what is unfinished. Where a line in brackets says that another conversation begins, speak of \
all of them. Plain sentences without headings or lists, in the language of the conversation."""
"""What is asked of the model beside the tags of every summary (I1, E3)."""
SUMMARY_TOKENS = 400
"""Room for those sentences in any language."""
MIN_SUMMARY_CHARS = 2_000
"""A summary of so many characters is accepted of the shortest window."""


def ends_of(pieces: Sequence[tuple[str, Span]], first: int, last: int) -> list[tuple[str, Span]]:
    """Return the spans of conversations without their middle, where they hold more messages.

    So many are left from the beginning, and so many from the end.
    """
    total = count_in(span for _, span in pieces)
    kept: list[tuple[str, Span]] = []
    at = 0
    for conversation_id, span in pieces:
        begins, ends = at, at + span.end - span.start
        at = ends
        if total <= first + last:
            kept.append((conversation_id, span))
            continue
        for start, end in ((begins, min(ends, first)), (max(begins, total - last), ends)):
            if start < end:
                shift = span.start - begins
                kept.append((conversation_id, Span(start + shift, end + shift)))
    return kept


def shortened(message: Message, most_chars: int) -> Message:
    """Return a message whose long texts have lost their middle."""
    return replace(message, parts=tuple(_short_part(part, most_chars) for part in message.parts))


def _short_part(part: Part, most_chars: int) -> Part:
    match part:
        case Text():
            return Text(_short(part.text, most_chars))
        case File(text=str(text)):
            return replace(part, text=_short(text, most_chars))
        case ToolCall():
            return replace(part, arguments=_short(part.arguments, most_chars))
    return part


def _short(text: str, most_chars: int) -> str:
    if len(text) <= most_chars:
        return text
    half = most_chars // 2
    return f"{text[:half]} […] {text[-half:]}"


# --- entries ----------------------------------------------------------------------------------


def entry_of(message: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as a snapshot shows it (rule 2)."""
    hidden = {name: message[name] for name in (*own, "given") if name in message}
    return {**message, **own, "given": hidden or None}


def message_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message of an entry; one without `given` is a bare message, and has its own id."""
    names = {*OWN_FIELDS, "given"} if "given" in entry else {*OWN_FIELDS} - {"id"}
    bare = {key: value for key, value in entry.items() if key not in names}
    return bare | dict(entry.get("given") or {})


def source_of(body: str) -> Source:
    """Read a stored entry of an import back as what is to be restored."""
    entry: dict[str, Any] = json_text.loads(body)
    return Source(
        entry["conversation_id"],
        entry["id"],
        FormatName(entry["format"]),
        message_of(entry),
        len(body),
    )


# --- importing --------------------------------------------------------------------------------


def read_import(entries: Sequence[Any], session_id: str) -> list[Imported]:
    """Check the messages of a snapshot as an append does, and return them as they are stored (I2).

    Raises ValidationError with the pointer of what is wrong; a result without its call is one.
    """
    found: list[Imported] = []
    ids: set[tuple[str, str]] = set()
    drafts: dict[str, list[Draft]] = {}
    for index, given in enumerate(entries):
        pointer = f"/messages/{index}"
        entry = json_fields.object_at(given, pointer)
        own = _own_fields(entry, pointer)
        own["conversation_id"] = own["conversation_id"] or bare_source_id(session_id)
        own["id"] = own["id"] or str(uuid5(_COPIES, f"{session_id}/{index}"))
        source_id, format = own["conversation_id"], FormatName(own["format"])
        if (source_id, own["id"]) in ids:
            raise ValidationError.at(f"{pointer}/id", "The id is used twice in its conversation")
        ids.add((source_id, own["id"]))
        message = without_ref(message_of(entry), format)
        drafts.setdefault(source_id, []).extend(draft(message, format, len, pointer, _AS_IT_CAME))
        found.append(Imported(source_id, json_text.dumps(entry_of(message, own))))
    for conversation in drafts.values():
        _check_pairs(conversation)
    return found


def models_of(
    given: Iterable[tuple[str | None, str]], messages: Iterable[Imported], session_id: str
) -> tuple[SnapshotModel, ...]:
    """Return the models of an import, an entry without a conversation being of bare messages.

    An entry for a conversation without messages is left out; the first of two counts.
    """
    there = {message.source_id for message in messages}
    models: dict[str, str] = {}
    for conversation_id, model in given:
        models.setdefault(conversation_id or bare_source_id(session_id), model)
    return tuple(SnapshotModel(key, model) for key, model in models.items() if key in there)


def bare_source_id(session_id: str) -> str:
    """Return the conversation of an import's messages that name none (rule 3)."""
    return str(uuid5(_COPIES, session_id))


def _own_fields(entry: Mapping[str, Any], pointer: str) -> dict[str, Any]:
    """Return the own fields of an entry, None for those it does not have."""
    own: dict[str, Any] = {name: entry.get(name) for name in OWN_FIELDS}
    own["format"] = own["format"] or FormatName.OPENAI_CHAT
    if own["format"] not in list(FormatName):
        raise ValidationError.at(f"{pointer}/format", f"must be one of {', '.join(FormatName)}")
    if own["id"] is not None and not _is_id(own["id"]):
        if own["format"] != FormatName.OPENAI_RESPONSES:
            raise ValidationError.at(f"{pointer}/id", "A string of 1 to 256 characters is needed")
        own["id"] = None  # an item's id is the provider's, who may make it of any length
    source = json_fields.optional_text_at(entry, "conversation_id", pointer)
    own["conversation_id"] = _uuid(source, f"{pointer}/conversation_id")
    created = json_fields.optional_text_at(entry, "created_at", pointer)
    if created is not None and time_from(created) is None:
        raise ValidationError.at(f"{pointer}/created_at", "A time in ISO 8601 is needed")
    seq = own["seq"]
    if seq is not None and (not isinstance(seq, int) or isinstance(seq, bool) or seq < 1):
        raise ValidationError.at(f"{pointer}/seq", "must be a whole number from 1 on")
    if entry.get("given") is not None:
        json_fields.object_at(entry["given"], f"{pointer}/given")
    return own | {name: bool(own[name]) for name in ("content_truncated", "content_collected")}


def _is_id(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 256 and is_sendable(value)


def _uuid(text: str | None, pointer: str) -> str | None:
    try:
        return str(UUID(text)) if text is not None else None
    except ValueError:
        raise ValidationError.at(pointer, "must be a UUID") from None


def _check_pairs(drafts: Sequence[Draft]) -> None:
    """Refuse a result that answers no open call of its conversation (A3)."""
    if _pairs(drafts):
        return
    low, high = 0, len(drafts)
    while low + 1 < high:  # so many first ones pair, and so many do not
        middle = (low + high) // 2
        low, high = (middle, high) if _pairs(drafts[:middle]) else (low, middle)
    found = drafts[high - 1]
    (call_id,) = found.call_ids
    detail = f"Tool result for call {call_id!r} answers no open call of its conversation"
    raise ValidationError.at(found.place, detail)


def _pairs(drafts: Sequence[Draft]) -> bool:
    try:
        return not batch_shape(drafts).required_calls
    except UnpairedToolResult:
        return False


# --- copying ----------------------------------------------------------------------------------


def copy_id(target_id: str, source: Source) -> str:
    """Return the id that a message has as a copy in a conversation (rule 4)."""
    return str(uuid5(_COPIES, f"{target_id}/{source.conversation_id}/{source.id}"))


def stand_in(tenant_id: str, conversation_id: str) -> str:
    """Return the id of the conversation that stands for one whose own id is not to be had."""
    return str(uuid5(_COPIES, f"{tenant_id}/{conversation_id}"))


def piece_ids(message_id: str, pieces: int) -> tuple[str, ...]:
    """Return the ids that a log gives to the messages it makes of one (A5)."""
    return (message_id, *(f"{message_id}#{number}" for number in range(1, pieces)))


def fresh_calls(calls: Iterable[str], used: Collection[str], origin: str) -> dict[str, str]:
    """Return other ids for those calls whose ids are in use, unused ones (rule 5)."""
    wanted = list(calls)
    taken = {*wanted, *used}
    fresh: dict[str, str] = {}
    for call in wanted:
        if call not in used or call in fresh:
            continue
        number = 0
        while (new := _fresh_id(f"{origin}/{call}/{number}")) in taken:
            number += 1
        taken.add(new)
        fresh[call] = new
    return fresh


def late_calls(
    calls: Iterable[str], open_calls: Collection[str], origin: str
) -> dict[str, str] | None:
    """Return the ids under which a copy's calls wait for results, None where one does not.

    `origin` is what those calls were renamed by, if they were.
    """
    found: dict[str, str] = {}
    for call in calls:
        names = (_fresh_id(f"{origin}/{call}/0"), call)
        name = next((name for name in names if name in open_calls), None)
        if name is None:
            return None
        found[call] = name
    return found


def _fresh_id(name: str) -> str:
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"call_{digest[:24]}"


def copied(
    source: Source, message_id: str, session_id: str, calls: Mapping[str, str]
) -> dict[str, Any]:
    """Return a message as it is appended elsewhere: named, marked, its calls renamed (rule 4)."""
    message = with_calls(without_ref(source.message, source.format), source.format, calls)
    origin = {
        "session_id": session_id,
        "conversation_id": source.conversation_id,
        "message_id": source.id,
    }
    if source.format is FormatName.OPENAI_RESPONSES:
        message = _gathered(message)
    if message.get("timestamp") is not None:
        origin["timestamp"] = message["timestamp"]
    rest = {key: value for key, value in message.items() if key != "timestamp"}
    return rest | {"id": message_id, "restored_from": origin}


def _gathered(message: dict[str, Any]) -> dict[str, Any]:
    """Put what the model made into an envelope, whose fields no payload has and no batch joins."""
    if _is_known_by_id(message):
        return message | {"call_id": message["id"]}
    (parsed,) = openai_responses.parse(message, "")
    if parsed.role is not Role.ASSISTANT:
        return message
    if not openai_responses.is_item_group(message):
        message = {"role": "assistant", "output": [message]}
    first, *others = message["output"] or [{}]
    if "timestamp" not in first:
        return message
    named = {"timestamp": first["timestamp"]} | message
    first = {key: value for key, value in first.items() if key != "timestamp"}
    return named | {"output": [first, *others]}


def without_ref(message: Mapping[str, Any], format: FormatName) -> dict[str, Any]:
    """Return a message whose results name no blob: where it goes there is none of that id."""
    if not any("output_ref" in holder for _, holder in FORMATS[format].results(message)):
        return dict(message)
    bare = deepcopy(dict(message))
    for _, holder in FORMATS[format].results(bare):
        if isinstance(holder, dict):
            holder.pop("output_ref", None)
    return bare


def with_calls(
    message: Mapping[str, Any], format: FormatName, ids: Mapping[str, str]
) -> dict[str, Any]:
    """Return a message that parses with the ids of its calls, or of the calls it answers, replaced.

    Nothing else of it changes.
    """
    named = dict(message)
    if not ids:
        return named
    named = deepcopy(named)
    for holder, key in _id_places(named, format):
        holder[key] = ids.get(holder[key], holder[key])
    return named


_GEMINI_CALL = ("functionCall", "function_call")
_GEMINI_RESPONSE = ("functionResponse", "function_response")


def _id_places(message: dict[str, Any], format: FormatName) -> list[tuple[dict[str, Any], str]]:
    """Return where the ids of calls stand in a message."""
    match format:
        case FormatName.OPENAI_CHAT:
            places = [(call, "id") for call in message.get("tool_calls") or []]
            places += [(message, "tool_call_id")]
        case FormatName.OPENAI_RESPONSES:
            items = message["output"] if openai_responses.is_item_group(message) else [message]
            places = [(item, "call_id") for item in items]
            places += [(item, "id") for item in items if _is_known_by_id(item)]
        case FormatName.ANTHROPIC:
            content = message.get("content")
            blocks = content if isinstance(content, list) else []
            places = [(block, "id") for block in blocks if block.get("type") == "tool_use"]
            places += [
                (block, "tool_use_id") for block in blocks if block.get("type") == "tool_result"
            ]
        case FormatName.GEMINI:
            parts = message["parts"]
            found = _gemini(parts, *_GEMINI_CALL) + _gemini(parts, *_GEMINI_RESPONSE)
            places = [(item, "id") for item in found]
        case _:
            assert_never(format)
    return [(holder, key) for holder, key in places if isinstance(holder.get(key), str)]


def _is_known_by_id(item: Mapping[str, Any]) -> bool:
    return item.get("type") == "local_shell_call_output" and "call_id" not in item


def _gemini(parts: Iterable[Mapping[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [part[name] for part in parts for name in names if part.get(name) is not None]
