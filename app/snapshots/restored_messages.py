"""Copies that a restore makes: messages of a snapshot as another conversation appends them.

1. The id of a copy is derived from its source and its target. A copy names its source in
   `restored_from` and has no timestamp of its own, so that it is new to the active window.
2. A call gets another id only if the target's active window has its id; its results get the same.
   Gemini's calls without an id are identified by their position and stay without one.
3. A result whose call is not among the messages is copied as text of the user.
4. A saved message is the message with `SAVED_FIELDS` beside its own fields. Fields of the
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

from app.common.ids import public_id_from
from app.conversations.conversation import Conversation
from app.conversations.view import Span, count_in, spans_through
from app.formats import LOG_PROVIDER, PROVIDERS, media
from app.formats.message import LOG_FORMAT, FormatName, Message, Role
from app.formats.tools import unnumbered

NAMESPACE = UUID("5f0b1f0e-6a52-5b3e-9d0c-3c1f4b7f2a10")
SAVED_FIELDS = (
    *("id", "conversation_id", "seq", "format", "created_at"),
    *("output_ref", "content_truncated", "content_collected"),
)
"""The fields that a saved message has beside its own."""


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """The messages of one conversation in a snapshot: ascending spans of seqs, each with an end."""

    conversation_id: str
    public_id: str
    spans: tuple[Span, ...]

    @property
    def message_count(self) -> int:
        """The number of messages."""
        return count_in(self.spans)


def part_of(conversation: Conversation) -> SnapshotPart:
    """Return the messages in the active window of a conversation."""
    state = conversation.state
    spans = tuple(spans_through(state.window.spans, state.head_seq))
    return SnapshotPart(conversation.conversation_id, conversation.public_id, spans)


@dataclass(frozen=True, slots=True)
class SourceMessage:
    """A message to restore, with its full content and the public id of its conversation."""

    conversation_id: str
    id: str
    created_at: str
    format: FormatName
    message: Mapping[str, Any]
    size_bytes: int = 0

    @property
    def is_result(self) -> bool:
        """Whether it answers earlier calls."""
        return bool(PROVIDERS[self.format].results(self.message))

    @property
    def answers(self) -> tuple[str, ...]:
        """The ids of the calls that it answers."""
        parsed = PROVIDERS[self.format].parse(self.message, "")
        return tuple(message.tool_call_id for message in parsed if message.tool_call_id)

    @property
    def own_calls(self) -> tuple[str, ...]:
        """The ids of its calls, without those that have no id in it (rule 2)."""
        return PROVIDERS[self.format].named_calls(self.message)

    def bare(self, calls: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the message without the ref of its output, which the target has no blob of.

        `calls` are the new ids of calls that it makes or answers.
        """
        provider, message = PROVIDERS[self.format], deepcopy(dict(self.message))
        for _, holder in provider.results(message):
            if isinstance(holder, dict):
                holder.pop("output_ref", None)
        for holder, key in provider.call_id_fields(message) if calls else ():
            if isinstance(call_id := holder.get(key), str):
                holder[key] = (calls or {}).get(call_id, call_id)
        return message

    def imported(self) -> dict[str, Any]:
        """Return the message as an import appends it: with its id, at its time."""
        message = PROVIDERS[self.format].enveloped(self.bare())
        return {"timestamp": self.created_at} | message | {"id": self.id}

    def copied(self, id: str, snapshot_id: str, calls: Mapping[str, str]) -> dict[str, Any]:
        """Return the message as a restore appends it (rule 1)."""
        message = PROVIDERS[self.format].enveloped(self.bare(calls))
        origin = {
            "snapshot_id": snapshot_id,
            "conversation_id": self.conversation_id,
            "message_id": self.id,
        }
        if (timestamp := message.pop("timestamp", None)) is not None:
            origin["timestamp"] = timestamp
        return message | {"id": id, "restored_from": origin}


def saved_of(message: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as it is saved (rule 4)."""
    replaced = {name: message[name] for name in (*own, "given") if name in message}
    return {**message, **own, "given": replaced or None}


def message_of(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message that was saved."""
    bare = {key: value for key, value in saved.items() if key not in (*SAVED_FIELDS, "given")}
    return bare | dict(saved["given"] or {})


def source_of(saved: Mapping[str, Any]) -> SourceMessage:
    """Return a saved message as one to restore."""
    names = public_id_from(saved["conversation_id"]) or "", saved["id"], saved["created_at"]
    return SourceMessage(*names, FormatName(saved["format"]), message_of(saved))


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


def names_of(calls: Iterable[str], used: Collection[str], origin: str) -> dict[str, str]:
    """Return the ids that calls of the copy `origin` have where these ids are used (rule 2)."""
    return {call: _other_id(call, origin) if call in used else call for call in calls}


def new_copies(
    copies: Mapping[str, SourceMessage],
    existing: Collection[str],
    used: Collection[str],
    open_calls: Collection[str],
) -> list[tuple[str, SourceMessage, Mapping[str, str]]]:
    """Return the copies that a log does not have, by their ids, each with the new ids of calls.

    `used` are the ids of calls in its window. A result is left out whose call was copied before and
    is not open any more.
    """
    names: dict[str, str] = {}
    origin = ""
    new: list[tuple[str, SourceMessage, Mapping[str, str]]] = []
    for id, source in copies.items():
        if not source.is_result:
            origin = id
            names |= names_of(source.own_calls, used, origin)
        calls: Mapping[str, str] = names
        if source.is_result and origin in existing:
            calls = {
                call: name
                for call in source.answers
                for name in (call, _other_id(call, origin))
                if name in open_calls
            }
            if calls.keys() < {*source.answers}:
                continue
        if id not in existing:
            new.append((id, source, calls))
    return new


def _other_id(call: str, origin: str) -> str:
    name = f"{origin}/{call}/0"
    return f"call_{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"
