"""Epochs: series of payloads that extend each other. Why one ends: `context/epoch_reasons.py`.

1. An epoch belongs to a payload stream: one format and one model of a conversation.
2. It has one set of resolved settings and one view. While both stay the same, every payload extends
   the one before. When either changes, a new epoch starts, with the reason, but for rule 3.
3. Changed sections and tools may also be items of the epoch, after its prefix, where the provider
   has such items. They are part of the system prompt and the tools of the next epoch.
4. Its start, these changes, and up to where its provider removed reasoning are stored. Each of its
   payloads follows from them, the log, and the stored tails.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from app.common import json_text
from app.conversations.view import View
from app.models.budget import ContextWindow
from app.prompt.resolved_settings import NO_PAYLOAD_TOOLS, PayloadTools, RequestSettings

NO_REQUESTED_CONTEXT_WINDOW = 0
"""The `requested_context_window` of an epoch whose context window is that of the policy."""


_BUILD_ID = re.compile(
    r"(?P<epoch_id>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
    r"\.(?P<through_seq>[1-9][0-9]{0,17})(?:-(?P<changes>[1-9][0-9]?))?"
    r"(?:\.(?P<tail_hash>[0-9a-f]{64}))?"
)

PROVIDER_COMPACTED: Final = "provider_compacted"
"""The cause of a view that begins with a provider's compaction item."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """The start of an epoch: all inputs of a payload except for newer messages.

    `start_json` holds the view and the limits. `requested_context_window` is the context window in
    tokens that the request asks for, 0 for that of the policy. Up to the seq `reasoning_removed`
    the provider has removed reasoning from its payloads, which ends it. `changes` is the JSON of
    its `PromptChange`s.
    """

    epoch: int
    epoch_id: str
    payload_stream: str
    format: str
    requested_context_window: int
    reason: str | None
    start_seq: int
    view_version: int
    start_json: str
    sections_hash: str
    tools_hash: str
    policy_hash: str
    reasoning_removed: int = 0
    changes: str = "[]"


@dataclass(frozen=True, slots=True)
class PromptChange:
    """Other sections or tools than before, and the items that say so, after a message."""

    after_seq: int
    sections_hash: str
    tools_hash: str
    items: tuple[dict[str, Any], ...] = ()
    tokens: int = 0


def changes_json(changes: Sequence[PromptChange]) -> str:
    """Return the JSON of changes that is stored with their epoch."""
    return json_text.dumps([*map(asdict, changes)])


@dataclass(frozen=True, slots=True)
class EpochStart:
    """What is stored when an epoch begins; with the log it gives every payload of the epoch.

    `tools` are the agent tools of the payload and the deferred tools. `degraded` lists what the
    view lacks. Token counts are multiplied by `factor`. `dynamic_hash` is the hash of the dynamic
    text before the history, empty without any.
    """

    view: View
    context_window: int
    max_output_tokens: int
    tools: PayloadTools = NO_PAYLOAD_TOOLS
    degraded: tuple[str, ...] = ()
    factor: float = 1.0
    dynamic_hash: str = ""

    @property
    def limits(self) -> ContextWindow:
        """The context window, with the reserved output."""
        return ContextWindow(self.context_window, self.max_output_tokens)

    def as_json(self) -> str:
        """Return the JSON that is stored with the epoch."""
        return json_text.dumps(asdict(self) | {"view": self.view.as_stored()})


class BuildId(NamedTuple):
    """The parts of a build's id: its epoch, the seq of its newest message, and its tail.

    `changes` is the number of the epoch's changes after that message.
    """

    epoch_id: str
    through_seq: int
    tail_hash: str | None = None
    changes: int = 0

    def __str__(self) -> str:
        """Return the id as clients see it."""
        text = f"{self.epoch_id}.{self.through_seq}" + (f"-{self.changes}" if self.changes else "")
        return text if self.tail_hash is None else f"{text}.{self.tail_hash}"


def parse_build_id(build_id: str) -> BuildId | None:
    """Parse a build's id; None for any other text."""
    match = _BUILD_ID.fullmatch(build_id)
    if match is None:
        return None
    seq, changes = int(match["through_seq"]), int(match["changes"] or 0)
    return BuildId(match["epoch_id"], seq, match["tail_hash"], changes)


def payload_stream_of(settings: RequestSettings, model: str) -> str:
    """Return the name of the payload stream, as the select of a build computes it."""
    return f"{settings.format}:{model}"


def model_in(payload_stream: str) -> str:
    """Return the model of a payload stream."""
    return payload_stream.partition(":")[2]


def requested_context_window(settings: RequestSettings) -> int:
    """Return the requested context window, NO_REQUESTED_CONTEXT_WINDOW where the policy decides."""
    return settings.context_window or NO_REQUESTED_CONTEXT_WINDOW
