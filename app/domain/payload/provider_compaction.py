"""What a request needs for its provider's own compaction. [compaction.provider-item]

1. Anthropic takes a block that a threshold made only with the edit that made it, and a requested
   one only without [anthropic.compaction-requested] [anthropic.compaction-threshold].
2. Both are a beta of Anthropic's API, whose name goes into the header `anthropic-beta`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from app.domain.common.messages import FormatName
from app.domain.conversations.view import View
from app.domain.models.budget import Limits

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
    trigger = {"type": "input_tokens", "value": max(MIN_THRESHOLD, threshold)}
    edit = {"type": THRESHOLD_EDIT, "trigger": trigger}
    return ProviderFields({"context_management": {"edits": [edit]}}, (THRESHOLD_BETA,))
