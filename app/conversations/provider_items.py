"""The compactions of providers: who has them, and their items. [compaction.provider-item]

The cost of an encrypted item is known to its provider only. Until its usage is reported, it counts
a token for every `BYTES_PER_TOKEN` bytes that are encrypted. A readable one counts its text.
"""

from __future__ import annotations

from typing import Final

from app.conversations.view import ProviderItem, View
from app.formats import PROVIDERS
from app.formats.base import Compaction
from app.formats.message import FormatName, Reasoning
from app.formats.provider_items import encrypted_bytes, is_requested, readable_summary
from app.formats.reasoning import OPENAI
from app.models.budget import Limits
from app.models.tokens import MESSAGE_OVERHEAD, CountText
from app.policy.policy import Policy, StrategyName

BYTES_PER_TOKEN: Final = 4
UNAVAILABLE: Final = "provider_compaction_unavailable"
"""`degraded`: the strategy is `provider`, but the provider of the format has no compaction."""


def leaves_user_messages(format: FormatName, model: str) -> bool:
    """Whether an item that is a message by itself stands for all but the user's messages.

    OpenAI's endpoint for compactions returns those beside it.
    """
    provider = PROVIDERS[format]
    return provider.keeps_user_messages and provider.accepted_families(model)[:1] in ((), (OPENAI,))


def has_compaction(format: FormatName, model: str) -> bool:
    """Whether the provider of a model compacts what it is sent in a format."""
    provider = PROVIDERS[format]
    return provider.accepted_families(model)[:1] in provider.compacting_families


def asks_provider(policy: Policy, format: FormatName, model: str) -> bool:
    """Whether a payload asks its provider to compact. [strategy.provider]"""
    compaction = policy.compaction
    is_asked = policy.strategy is StrategyName.PROVIDER and compaction.enabled and compaction.auto
    return is_asked and has_compaction(format, model)


def provider_item(
    part: Reasoning, seq: int, format: FormatName, model: str, count: CountText
) -> ProviderItem:
    """Return the item of the message at a seq, which a model made, with its estimated cost."""
    text = readable_summary(part)
    tokens = count(text) if text else encrypted_bytes(part) // BYTES_PER_TOKEN
    return ProviderItem(seq, format, model, MESSAGE_OVERHEAD + tokens, is_requested(part))


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
