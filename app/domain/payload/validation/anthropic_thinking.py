"""Thinking and compaction blocks of Anthropic Messages (`A9` to `A13`).

1. A compaction block with a signature was asked for; one without came from a threshold.
2. Thinking is bound to everything before it. Inside an epoch nothing of that changes (`N9`); where
   another epoch began, what still stands after a change breaks `A10`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.domain.common.messages import FormatName
from app.domain.payload.validation.neutral import has_other_model
from app.domain.payload.validation.rules import Context, Findings
from app.domain.payload.validation.shapes import (
    Object,
    Shape,
    alike,
    blocks_of,
    first_difference,
    list_of,
    object_of,
    read,
    word,
)

THINKING: Final = ("thinking", "redacted_thinking")
ON_DEMAND_BETA: Final = "compact-2026-09-04"
THRESHOLD_BETA: Final = "compact-2026-01-12"
THRESHOLD_EDIT: Final = "compact_20260112"
BINDING_BETA: Final = "thinking-binding-controls-2026-08-01"
MIN_TRIGGER: Final = 50_000

Placed = tuple[int, str, Object]
"""A block with its pointer and the index of its message."""


def judge(shape: Shape, context: Context, found: Findings) -> None:
    """Judge thinking and compaction blocks, and the settings that concern them."""
    placed = list(blocks_in(shape, *THINKING))
    _judge_places(shape, placed, found)
    if not _drops_unbound(shape, context):
        _judge_binding(shape, placed, context, found)
    compactions = list(blocks_in(shape, "compaction"))
    _judge_on_demand(shape, compactions, context, found)
    _judge_threshold(shape, compactions, context, found)


def blocks_in(shape: Shape, *kinds: str) -> Iterator[Placed]:
    """Yield all blocks of these types."""
    for index, item in enumerate(shape.items):
        for place, block in blocks_of(item):
            if block.get("type") in kinds:
                yield index, f"{shape.at}/{index}{place}", block


def signature_of(block: Object) -> str:
    """Return what tells a thinking block from all others: its signature, or redacted data."""
    return word(block.get("signature")) or word(block.get("data"))


def _judge_places(shape: Shape, placed: list[Placed], found: Findings) -> None:
    """`A9`: thinking is the assistant's, signed, and stands before the call it led to."""
    for index in dict.fromkeys(index for index, _, _ in placed):
        item = shape.items[index]
        kinds = [block.get("type") for _, block in blocks_of(item)]
        thoughts = [place for place, kind in enumerate(kinds) if kind in THINKING]
        at = f"{shape.at}/{index}"
        if object_of(item).get("role") != "assistant":
            found.add("A9", at, "thinking stands in an assistant message")
        elif thoughts[-1] == len(kinds) - 1:
            found.add("A9", f"{at}/content/{thoughts[-1]}", "nothing follows the thinking")
        elif "tool_use" in kinds[: thoughts[0]]:
            found.add("A9", f"{at}/content/{thoughts[0]}", "a call stands before its thinking")
    for _, pointer, block in placed:
        if not signature_of(block):
            found.add("A9", pointer, "the thinking is not signed")


def _drops_unbound(shape: Shape, context: Context) -> bool:
    """Whether the provider is asked to leave out thinking whose prefix has changed."""
    thinking = object_of(shape.payload.get("thinking"))
    binding = object_of(thinking.get("block_binding"))
    betas = betas_of(shape, context)
    asked = binding.get("prefix_mismatch_behavior") == "drop_block"
    return asked and (betas is None or BINDING_BETA in betas)


def _judge_binding(shape: Shape, placed: list[Placed], context: Context, found: Findings) -> None:
    """`A10`: nothing changed before the thinking that another epoch takes over."""
    if context.previous is None:
        return
    old = read(context.previous, FormatName.ANTHROPIC)
    if not has_other_model(shape, old):
        return
    before = {signature_of(block) for _, _, block in blocks_in(old, *THINKING)}
    changed = first_difference(shape, old, None)
    if not (alike(shape.system, old.system) and alike(shape.tools, old.tools)):
        changed = -1
    for index, pointer, block in placed:
        if changed is not None and index > changed and signature_of(block) in before:
            found.add("A10", pointer, "what stood before the thinking has changed")
            return


def betas_of(shape: Shape, context: Context) -> frozenset[str] | None:
    """Return the beta headers sent, None where nobody says."""
    own = shape.payload.get("betas")
    if context.betas is None and own is None:
        return None
    return frozenset(context.betas or ()) | {word(beta) for beta in list_of(own)}


def _lacks(shape: Shape, context: Context, beta: str) -> bool:
    betas = betas_of(shape, context)
    return betas is not None and beta not in betas


def _judge_on_demand(
    shape: Shape, compactions: list[Placed], context: Context, found: Findings
) -> None:
    """`A12`: a compaction that was asked for comes first and alone, in a request of its kind."""
    signed = [(pointer, index) for index, pointer, block in compactions if block.get("signature")]
    if not signed:
        return
    pointer, index = signed[0]
    if index or pointer != f"{shape.at}/0/content/0":
        found.add("A12", pointer, "the compaction block comes first")
    for other, _ in signed[1:]:
        found.add("A12", other, "there is one compaction block")
    if _lacks(shape, context, ON_DEMAND_BETA):
        found.add("A12", pointer, f"the block needs the beta {ON_DEMAND_BETA}")
    if shape.payload.get("context_management") is not None:
        found.add("A12", "/context_management", "does not go with a compaction block")
    budget = object_of(object_of(shape.payload.get("output_config")).get("task_budget"))
    if budget.get("remaining") is not None:
        message = "does not go with a compaction block"
        found.add("A12", "/output_config/task_budget/remaining", message)


def _judge_threshold(
    shape: Shape, compactions: list[Placed], context: Context, found: Findings
) -> None:
    """`A13`: a compaction at a threshold, and the edit that asks for it."""
    edits = list_of(object_of(shape.payload.get("context_management")).get("edits"))
    asked = None
    for index, edit in enumerate(map(object_of, edits)):
        if edit.get("type") == THRESHOLD_EDIT:
            asked = f"/context_management/edits/{index}"
            value = object_of(edit.get("trigger")).get("value")
            if isinstance(value, int) and value < MIN_TRIGGER:
                found.add("A13", f"{asked}/trigger", f"the trigger is at least {MIN_TRIGGER:,}")
    unsigned = [pointer for _, pointer, block in compactions if not block.get("signature")]
    if unsigned and asked is None:
        found.add("A13", unsigned[0], f"the block needs the edit {THRESHOLD_EDIT}")
    elif asked is not None and _lacks(shape, context, THRESHOLD_BETA):
        found.add("A13", asked, f"the edit needs the beta {THRESHOLD_BETA}")
    for _, pointer, block in compactions:
        if block.get("content") == "":
            found.add("N6", pointer, "the compaction says nothing")
