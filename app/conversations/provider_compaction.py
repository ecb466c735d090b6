"""What a request needs for its provider's own compaction. [compaction.provider-item]

1. Anthropic takes a block that a threshold made only with the edit that made it, and a requested
   one only without [anthropic.compaction-requested] [anthropic.compaction-threshold].
2. Both are a beta of Anthropic's API, whose name goes into the header `anthropic-beta`.
"""

from __future__ import annotations

from app.conversations.compaction_results import ProviderCall
from app.conversations.provider_items import has_compaction
from app.conversations.view import ProviderItem, View
from app.formats import PROVIDERS
from app.formats.message import FormatName
from app.formats.requests import Compaction
from app.models.budget import Limits


def provider_fields(
    format: FormatName, view: View, limits: Limits, threshold_ratio: float, *, compacts: bool
) -> Compaction:
    """Return what a payload needs to be sent with its item, and to be compacted if it `compacts`.

    The threshold is a share of the effective window.
    """
    item = view.sent_item
    threshold = int(threshold_ratio * limits.effective_window)
    requested = item.requested if item is not None else None
    return PROVIDERS[format].compaction(threshold, requested, asks=compacts)


def provider_call(
    format: FormatName, model: str, item: ProviderItem | None, instructions: str | None
) -> ProviderCall | None:
    """Return the call with which the provider of a model compacts, None where it has none."""
    if not has_compaction(format, model):
        return None
    requested = item.requested if item is not None else None
    made = PROVIDERS[format].compaction_call(requested, instructions)
    return ProviderCall(format, made.method, made.fields, made.added, made.betas)
