"""What a provider says of the prefix of a call: removed reasoning, and why its cache missed.

1. OpenAI names removed reasoning by the id of its item, Anthropic by its path in the request.
   Entries of other types say nothing about what was removed.
2. The prefix of what a model made afterwards has the removed reasoning in it. So where the provider
   compares prefixes, all reasoning so far goes with it, or what is left would be removed next.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.common.answer_schemas import answer
from app.formats.json_fields import Fields

MAX_REMOVED = 1000
"""How many items a report may have."""
ALL_SO_FAR = 2**62
"""Stands for the newest message of the next build."""
_PATH = re.compile(r"messages\.(\d{1,6})\.content\.\d{1,6}")
_ALONE = frozenset(("model_mismatch", "model_binding_mismatch", "turn_boundary"))
"""Reasons that say nothing about later reasoning."""


@answer()
@dataclass(frozen=True, slots=True)
class RemovedReasoning:
    """Reasoning that the provider removed from the payload."""

    seq: int | None
    """The message that it belongs to; null where it was not found."""
    reason: str
    """Why, in the provider's words."""


@answer()
@dataclass(frozen=True, slots=True)
class CacheMiss:
    """Why the provider did not read the whole prefix from its cache."""

    reason: str
    """In the provider's words."""
    missed_tokens: int | None
    """About how many tokens it would have read; null where it does not say."""


@dataclass(frozen=True, slots=True)
class Removal:
    """An item of a report, with the id of an item or the index of a message in the payload."""

    reason: str
    item_id: str | None = None
    index: int | None = None


def read_removals(items: Sequence[Any]) -> list[Removal]:
    """Read `input_transformations` (rule 1); raises ValidationError."""
    found = []
    for number, raw in enumerate(items):
        item = Fields(raw, f"/input_transformations/{number}")
        if item.get("type") == "thinking_dropped":
            match = _PATH.fullmatch(item.text("path"))
            index = int(match[1]) if match is not None else None
            found.append(Removal(item.filled_text("reason"), index=index))
        elif (item.get("type"), item.get("action")) == ("reasoning", "removed"):
            found.append(Removal(item.filled_text("reason"), item.filled_text("id")))
    return found


def read_cache_miss(raw: Mapping[str, Any]) -> CacheMiss | None:
    """Read OpenAI's or Anthropic's diagnostics, None for a hit; raises ValidationError."""
    read = Fields(raw, "/cache_diagnostics")
    if raw.get("type") == "cache_miss":
        reason, tokens = read.filled_text("reason"), raw.get("cache_missed_tokens")
    elif raw.get("type") == "cache_hit":
        return None
    elif raw.get("type") is not None:
        reason, tokens = read.filled_text("type"), None
    elif raw.get("cache_miss_reason") is None:  # Anthropic has not compared yet
        return None
    else:
        miss = read.object("cache_miss_reason")
        reason, tokens = miss.filled_text("type"), miss.get("cache_missed_input_tokens")
    is_count = type(tokens) is int and 0 <= tokens <= ALL_SO_FAR
    return CacheMiss(reason, tokens if is_count else None)


def removed_through(removed: Sequence[RemovedReasoning]) -> int:
    """Return up to which seq reasoning is not sent again (rule 2), 0 without any."""
    seqs = (item.seq if item.reason in _ALONE else None for item in removed)
    return max((ALL_SO_FAR if seq is None else seq for seq in seqs), default=0)
