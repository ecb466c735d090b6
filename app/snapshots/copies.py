"""Copies that a restore makes: messages of a snapshot as another conversation appends them.

1. The id of a copy is derived from its source and its target. A copy names its source in
   `restored_from` and has no timestamp of its own, so that it is new to the active window.
2. A call gets another id only if the target's window uses its id, and its results get the same.
   Gemini's calls without an id are identified by their position and stay without one.
3. A result whose call is not among the messages is copied as text of the user.
4. An entry of a snapshot is the message with `ENTRY_FIELDS` beside its own fields. Fields of the
   message with the same names are in `given`; `message_of` returns the original message.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any
from uuid import UUID, uuid5

from app.formats import LOG_PROVIDER, PROVIDERS, media
from app.formats.message import LOG_FORMAT, FormatName, Message, Role
from app.formats.tools import unnumbered

NAMESPACE = UUID("5f0b1f0e-6a52-5b3e-9d0c-3c1f4b7f2a10")
ENTRY_FIELDS = (
    *("id", "conversation_id", "seq", "format", "created_at"),
    *("output_ref", "content_truncated", "content_collected"),
)
"""The fields that an entry adds to its message."""


@dataclass(frozen=True, slots=True)
class SourceMessage:
    """A message to restore, with its full content and the public id of its conversation."""

    conversation_id: str
    id: str
    created_at: str
    format: FormatName
    message: Mapping[str, Any]
    size_bytes: int = 0

    def as_appended(self) -> dict[str, Any]:
        """Return the message as an import appends it: with its id, at its time."""
        message = PROVIDERS[self.format].enveloped(without_ref(self.message, self.format))
        return {"timestamp": self.created_at} | message | {"id": self.id}

    @property
    def is_result(self) -> bool:
        """Whether it answers earlier calls."""
        return bool(PROVIDERS[self.format].results(self.message))

    def ids_in(self, target_id: str, copy_id: str) -> tuple[str, ...]:
        """Return the ids that its parts may have in the log of a conversation."""
        own = (copy_id, self.id) if self.conversation_id == target_id else (copy_id,)
        count = len(PROVIDERS[self.format].split(self.message))
        return tuple(f"{id}#{at}" if at else id for id in own for at in range(count))

    @property
    def answers(self) -> tuple[str, ...]:
        """The ids of the calls that it answers."""
        parsed = PROVIDERS[self.format].parse(self.message, "")
        return tuple(message.tool_call_id for message in parsed if message.tool_call_id)

    @property
    def own_calls(self) -> tuple[str, ...]:
        """The ids of its calls, without those that have no id in it (rule 2)."""
        return PROVIDERS[self.format].named_calls(self.message)


def entry_of(message: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as an entry (rule 4)."""
    replaced = {name: message[name] for name in (*own, "given") if name in message}
    return {**message, **own, "given": replaced or None}


def message_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message of an entry."""
    bare = {key: value for key, value in entry.items() if key not in (*ENTRY_FIELDS, "given")}
    return bare | dict(entry["given"] or {})


def source_of(entry: Mapping[str, Any], size_bytes: int = 0) -> SourceMessage:
    """Return an entry as a message to restore."""
    names = entry["conversation_id"], entry["id"], entry["created_at"]
    return SourceMessage(*names, FormatName(entry["format"]), message_of(entry), size_bytes)


async def with_results_as_text(
    sources: AsyncIterator[SourceMessage],
) -> AsyncIterator[SourceMessage]:
    """Yield messages, with those of results replaced whose calls are not among them (rule 3)."""
    called: set[str] = set()
    async for source in sources:
        parsed = PROVIDERS[source.format].parse(source.message, "")
        called |= {unnumbered(call.id) for message in parsed for call in message.calls}
        is_paired = called.issuperset(map(unnumbered, source.answers))
        yield source if is_paired else _as_text(source, parsed)


def _as_text(source: SourceMessage, parsed: Sequence[Message]) -> SourceMessage:
    parts = (
        media.labelled_result(each) if each.role is Role.TOOL else each.parts for each in parsed
    )
    user = Message(Role.USER, tuple(chain.from_iterable(parts)))
    message = LOG_PROVIDER.wire(LOG_PROVIDER.adapt(user))
    if "timestamp" in source.message:
        message["timestamp"] = source.message["timestamp"]
    return replace(source, format=LOG_FORMAT, message=message)


def copy_id(target_id: str, source: SourceMessage) -> str:
    """Return the id of a message's copy in a conversation (rule 1)."""
    return str(uuid5(NAMESPACE, f"{target_id}/{source.conversation_id}/{source.id}"))


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
    source: SourceMessage, message_id: str, snapshot_id: str, calls: Mapping[str, str]
) -> dict[str, Any]:
    """Return a message as it is appended elsewhere, with its calls renamed (rule 1)."""
    message = with_calls(without_ref(source.message, source.format), source.format, calls)
    message = PROVIDERS[source.format].enveloped(message)
    origin = {
        "snapshot_id": snapshot_id,
        "conversation_id": source.conversation_id,
        "message_id": source.id,
    }
    if message.get("timestamp") is not None:
        origin["timestamp"] = message["timestamp"]
    rest = {key: value for key, value in message.items() if key != "timestamp"}
    return rest | {"id": message_id, "restored_from": origin}


def without_ref(message: Mapping[str, Any], format: FormatName) -> dict[str, Any]:
    """Return a message without `output_ref`: the target has no blob of that id."""
    if not any("output_ref" in holder for _, holder in PROVIDERS[format].results(message)):
        return dict(message)
    bare = deepcopy(dict(message))
    for _, holder in PROVIDERS[format].results(bare):
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
    for holder, key in PROVIDERS[format].call_id_fields(renamed):
        if isinstance(call_id := holder.get(key), str):
            holder[key] = ids.get(call_id, call_id)
    return renamed
