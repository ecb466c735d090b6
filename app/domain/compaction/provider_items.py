"""The compaction items of providers, as views show them. [compaction.provider-item]

The cost of an encrypted item is known to its provider only. Until its usage is reported, it counts
a token for every `BYTES_PER_TOKEN` bytes that are encrypted. A readable one counts its text.
"""

from __future__ import annotations

from typing import Final

from app.domain.common.messages import FormatName, Reasoning
from app.domain.conversations.view import ProviderItem
from app.domain.formats.compactions import encrypted_bytes, is_requested, readable_summary
from app.domain.models.tokens import MESSAGE_OVERHEAD, CountText

BYTES_PER_TOKEN: Final = 4


def provider_item(
    part: Reasoning, seq: int, format: FormatName, model: str, count: CountText
) -> ProviderItem:
    """Return the item of the message at a seq, which a model made, with its estimated cost."""
    text = readable_summary(part)
    tokens = count(text) if text else encrypted_bytes(part) // BYTES_PER_TOKEN
    return ProviderItem(seq, format, model, MESSAGE_OVERHEAD + tokens, is_requested(part))
