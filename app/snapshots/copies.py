"""Copies: messages of a snapshot as they are appended to another conversation.

1. The id of a copy is derived from its source and its target. A copy names its source in
   `restored_from` and has no timestamp of its own, so that it is new to the active window.
2. A call gets another id only if the target's window uses its id, and its results get the same.
   Gemini's calls without an id are identified by their position and stay without one.
3. A result whose call is not among the messages is copied as text of the user.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, assert_never
from uuid import UUID, uuid5

from app.formats import FORMATS, labels, openai_chat, openai_responses
from app.formats.message import FormatName, Message, Role
from app.formats.tool_calls import unnumbered

NAMESPACE = UUID("5f0b1f0e-6a52-5b3e-9d0c-3c1f4b7f2a10")

_GEMINI_CALL = ("functionCall", "function_call")
_GEMINI_RESPONSE = ("functionResponse", "function_response")


@dataclass(frozen=True, slots=True)
class SourceMessage:
    """A message to restore, with its full content and the public id of its conversation."""

    conversation_id: str
    id: str
    format: FormatName
    message: Mapping[str, Any]
    size_bytes: int = 0

    @property
    def is_result(self) -> bool:
        """Whether it answers earlier calls."""
        return bool(FORMATS[self.format].results(self.message))

    @property
    def split_count(self) -> int:
        """The number of messages that the log splits it into."""
        return len(FORMATS[self.format].split(self.message))

    @property
    def answers(self) -> tuple[str, ...]:
        """The ids of the calls that it answers."""
        parsed = FORMATS[self.format].parse(self.message, "")
        return tuple(message.tool_call_id for message in parsed if message.tool_call_id)

    @property
    def own_calls(self) -> tuple[str, ...]:
        """The ids of its calls, without those that have no id in it (rule 2)."""
        (*_, last) = FORMATS[self.format].parse(self.message, "")
        if self.format is not FormatName.GEMINI:
            return tuple(call.id for call in last.calls)
        parts = self.message["parts"]
        return tuple(call["id"] for call in _gemini(parts, *_GEMINI_CALL) if call.get("id"))


async def with_results_as_text(
    sources: AsyncIterator[SourceMessage],
) -> AsyncIterator[SourceMessage]:
    """Yield messages, with those of results replaced whose calls are not among them (rule 3)."""
    called: set[str] = set()
    async for source in sources:
        parsed = FORMATS[source.format].parse(source.message, "")
        called |= {unnumbered(call.id) for message in parsed for call in message.calls}
        is_paired = called.issuperset(map(unnumbered, source.answers))
        yield source if is_paired else _as_text(source, parsed)


def _as_text(source: SourceMessage, parsed: Sequence[Message]) -> SourceMessage:
    parts = (
        labels.labelled_result(each) if each.role is Role.TOOL else each.parts for each in parsed
    )
    user = Message(Role.USER, tuple(chain.from_iterable(parts)))
    message = openai_chat.render(openai_chat.adapt(user))
    if "timestamp" in source.message:
        message["timestamp"] = source.message["timestamp"]
    return replace(source, format=FormatName.OPENAI_CHAT, message=message)


def copy_id(target_id: str, source: SourceMessage) -> str:
    """Return the id of a message's copy in a conversation (rule 1)."""
    return str(uuid5(NAMESPACE, f"{target_id}/{source.conversation_id}/{source.id}"))


def split_ids(message_id: str, count: int) -> tuple[str, ...]:
    """Return the ids of the `count` messages that the log splits a message into."""
    return (message_id, *(f"{message_id}#{number}" for number in range(1, count)))


def renamed_calls(calls: Iterable[str], used: Collection[str], origin: str) -> dict[str, str]:
    """Return unused ids for those calls whose ids are in use (rule 2)."""
    call_ids = list(calls)
    unavailable = {*call_ids, *used}
    renamed: dict[str, str] = {}
    for call in call_ids:
        if call not in used or call in renamed:
            continue
        number = 0
        while (new := _call_id(f"{origin}/{call}/{number}")) in unavailable:
            number += 1
        unavailable.add(new)
        renamed[call] = new
    return renamed


def pending_calls(
    calls: Iterable[str], open_calls: Collection[str], origin: str
) -> dict[str, str] | None:
    """Return the ids under which copied calls are open, None if one of them is not.

    `origin` is the `origin` of their `renamed_calls`.
    """
    pending: dict[str, str] = {}
    for call in calls:
        names = (_call_id(f"{origin}/{call}/0"), call)
        name = next((name for name in names if name in open_calls), None)
        if name is None:
            return None
        pending[call] = name
    return pending


def _call_id(name: str) -> str:
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"call_{digest[:24]}"


def copy_of(
    source: SourceMessage, message_id: str, session_id: str, calls: Mapping[str, str]
) -> dict[str, Any]:
    """Return a message as it is appended elsewhere, with its calls renamed (rule 1)."""
    message = with_calls(without_ref(source.message, source.format), source.format, calls)
    origin = {
        "session_id": session_id,
        "conversation_id": source.conversation_id,
        "message_id": source.id,
    }
    if source.format is FormatName.OPENAI_RESPONSES:
        message = _wrapped(message)
    if message.get("timestamp") is not None:
        origin["timestamp"] = message["timestamp"]
    rest = {key: value for key, value in message.items() if key != "timestamp"}
    return rest | {"id": message_id, "restored_from": origin}


def _wrapped(message: dict[str, Any]) -> dict[str, Any]:
    """Wrap an item of the model in an envelope: payloads leave out its fields, appends its join."""
    if _has_call_id_as_id(message):
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
    """Return a message without `output_ref`: the target has no blob of that id."""
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
    """Return a message with the ids of its calls, or of the calls it answers, replaced."""
    if not ids:
        return dict(message)
    renamed = deepcopy(dict(message))
    for holder, key in _call_id_fields(renamed, format):
        holder[key] = ids.get(holder[key], holder[key])
    return renamed


def _call_id_fields(
    message: dict[str, Any], format: FormatName
) -> list[tuple[dict[str, Any], str]]:
    match format:
        case FormatName.OPENAI_CHAT:
            id_fields = [(call, "id") for call in message.get("tool_calls") or []]
            id_fields += [(message, "tool_call_id")]
        case FormatName.OPENAI_RESPONSES:
            items = message["output"] if openai_responses.is_item_group(message) else [message]
            id_fields = [(item, "call_id") for item in items]
            id_fields += [(item, "id") for item in items if _has_call_id_as_id(item)]
        case FormatName.ANTHROPIC:
            content = message.get("content")
            blocks = content if isinstance(content, list) else []
            id_fields = [(block, "id") for block in blocks if block.get("type") == "tool_use"]
            id_fields += [
                (block, "tool_use_id") for block in blocks if block.get("type") == "tool_result"
            ]
        case FormatName.GEMINI:
            parts = message["parts"]
            items = _gemini(parts, *_GEMINI_CALL) + _gemini(parts, *_GEMINI_RESPONSE)
            id_fields = [(item, "id") for item in items]
        case _:
            assert_never(format)
    return [(holder, key) for holder, key in id_fields if isinstance(holder.get(key), str)]


def _has_call_id_as_id(item: Mapping[str, Any]) -> bool:
    return item.get("type") == "local_shell_call_output" and "call_id" not in item


def _gemini(parts: Iterable[Mapping[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [part[name] for part in parts for name in names if part.get(name) is not None]
