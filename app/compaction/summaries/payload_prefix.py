"""Payloads as the input of a summary, which a provider reads from its prompt cache.

1. The payload is that of the newest build, with the messages that came since. Nothing in it
   changes: neither tools nor cache breakpoints. What the user's instruction says comes last.
2. It is used only where it shows what is summarised as the view does. [summary.prefix]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from app.conversations.view import Span, View, minus
from app.formats.message import FormatName

NOT_USED = "prefix_not_used"
"""`degraded`: the summary was made of a transcript, for the reason after the colon."""


class PrefixProblem(StrEnum):
    """Why a payload cannot be the input of a summary.

    A call that failed has the reason of its failure instead.
    """

    STRATEGY = "strategy"
    """The strategy makes several summaries at once."""
    NO_BUILD = "no_build"
    """Nothing was built since the view changed."""
    NOT_SHOWN = "not_shown"
    """The newest payload does not show all that is summarised."""
    OTHER_MODEL = "other_model"
    """The caller asks for another model than that of the newest build."""
    MODEL_NOT_ALLOWED = "model_not_allowed"
    """The model of the newest build may not summarise."""
    FORMAT = "format"
    """A payload in this format cannot be sent to this model unchanged."""
    TOO_LONG = "too_long"
    """Payload, instruction and answer exceed the context window of the model."""


@dataclass(frozen=True, slots=True)
class SentPayload:
    """A payload that its model has seen, but for the newest messages; `tokens` are its size."""

    format: FormatName
    model: str
    body: Mapping[str, Any]
    build_id: str
    tokens: int


def shows_part(payload_view: View, view: View, spans: Sequence[Span]) -> bool:
    """Return whether a payload shows the messages in these spans as another view does (rule 2)."""
    if payload_view.sent_item is not None or view.sent_item is not None:
        return False
    if any(span.holds(message.seq) for message in payload_view.shortened for span in spans):
        return False
    cleared = (payload_view.results_cleared_through, payload_view.uncleared_results)
    return (
        bool(spans)
        and not minus(spans, payload_view.spans)
        and payload_view.summary_texts() == view.summary_texts()
        and cleared in ((0, ()), (view.results_cleared_through, view.uncleared_results))
    )
