"""What a request needs for its provider's own compaction. [compaction.provider-item]

1. Anthropic takes a block that a threshold made only with the edit that made it, and a requested
   one only without [anthropic.compaction-requested] [anthropic.compaction-threshold].
2. Both are a beta of Anthropic's API, whose name goes into the header `anthropic-beta`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from app.conversations.compaction_results import ProviderCall
from app.conversations.provider_items import has_compaction
from app.conversations.view import ProviderItem, View
from app.formats.message import FormatName
from app.models.budget import Limits

THRESHOLD_BETA: Final = "compact-2026-01-12"
THRESHOLD_EDIT: Final = "compact_20260112"
REQUESTED_BETA: Final = "compact-2026-09-04"
MIN_THRESHOLD: Final = 50_000
"""The smallest threshold that Anthropic takes, in tokens of the input."""


@dataclass(frozen=True, slots=True)
class ProviderFields:
    """Fields of a request, and the betas that it needs."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    betas: tuple[str, ...] = ()


def provider_fields(
    format: FormatName, view: View, limits: Limits, threshold_ratio: float, *, compacts: bool
) -> ProviderFields:
    """Return what a payload needs to be sent with its item, and to be compacted if it `compacts`.

    The threshold is a share of the effective window.
    """
    threshold = int(threshold_ratio * limits.effective_window)
    item = view.sent_item
    if format is FormatName.OPENAI_RESPONSES and compacts:
        entry = {"type": "compaction", "compact_threshold": threshold}
        return ProviderFields({"context_management": [entry]})
    if format is not FormatName.ANTHROPIC or (item is None and not compacts):
        return ProviderFields()
    if item is not None and item.requested:
        return ProviderFields(betas=(REQUESTED_BETA,))
    edit = _edit(max(MIN_THRESHOLD, threshold))
    return ProviderFields({"context_management": {"edits": [edit]}}, (THRESHOLD_BETA,))


def provider_call(
    format: FormatName, model: str, item: ProviderItem | None, instructions: str | None
) -> ProviderCall | None:
    """Return the call with which the provider of a model compacts, None where it has none.

    Behind a block that a threshold made, Anthropic compacts only at a threshold (rule 1).
    """
    if not has_compaction(format, model):
        return None
    if format is FormatName.OPENAI_RESPONSES:
        sent = ("model", "input", "prompt_cache_key")
        return ProviderCall(format, "responses.compact", sent, {})
    asked = {"instructions": instructions} if instructions else {}
    fields = ("model", "max_tokens", "system", "messages", "tools")
    added: dict[str, Any] = {"compaction": {"type": "summarize", **asked}}
    betas = (REQUESTED_BETA,)
    if item is not None and not item.requested:
        edit = _edit(MIN_THRESHOLD) | {"pause_after_compaction": True, **asked}
        added, betas = {"context_management": {"edits": [edit]}}, (THRESHOLD_BETA,)
    return ProviderCall(format, "beta.messages.create", fields, added, betas)


def _edit(threshold: int) -> dict[str, Any]:
    return {"type": THRESHOLD_EDIT, "trigger": {"type": "input_tokens", "value": threshold}}
