"""Thinking and compaction blocks of Anthropic Messages (`A9` to `A13`).

1. A compaction block with a signature was requested; one without came from a threshold.
2. Thinking is bound to everything before it. Inside an epoch nothing of that changes (`N9`); where
   another epoch began, what still stands after a change breaks `A10`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.domain.payload.provider_compaction import (
    MIN_THRESHOLD,
    REQUESTED_BETA,
    THRESHOLD_BETA,
    THRESHOLD_EDIT,
)
from app.domain.payload.validation.rules import Check
from app.domain.payload.validation.shapes import (
    Object,
    Shape,
    blocks_of,
    first_difference,
    list_of,
    object_of,
    same_on_wire,
    string_of,
)

THINKING: Final = ("thinking", "redacted_thinking")
BINDING_BETA: Final = "thinking-binding-controls-2026-08-01"

LocatedBlock = tuple[int, str, Object]
"""A block with its pointer and the index of its message."""


def judge(check: Check) -> None:
    """Judge thinking and compaction blocks, and the settings that concern them."""
    thinking = list(blocks_in(check, *THINKING))
    _judge_positions(thinking, check)
    _judge_binding(thinking, check)
    compactions = list(blocks_in(check, "compaction"))
    _judge_on_demand(compactions, check)
    _judge_threshold(compactions, check)


def blocks_in(shape: Shape, *kinds: str) -> Iterator[LocatedBlock]:
    """Yield all blocks of these types."""
    for index, (at, raw) in enumerate(shape.objects()):
        for path, block in blocks_of(raw):
            if block.get("type") in kinds:
                yield index, f"{at}{path}", block


def signature_of(block: Object) -> str:
    """Return what identifies a thinking block: its signature, or its redacted data."""
    return string_of(block.get("signature")) or string_of(block.get("data"))


def _judge_positions(thinking: list[LocatedBlock], check: Check) -> None:
    """`A9`: thinking is the assistant's, signed, and stands before the call it led to."""
    for index in dict.fromkeys(index for index, _, _ in thinking):
        item = check.items[index]
        kinds = [block.get("type") for _, block in blocks_of(item)]
        thoughts = [block_index for block_index, kind in enumerate(kinds) if kind in THINKING]
        at = f"{check.items_at}/{index}"
        if object_of(item).get("role") != "assistant":
            check.add("A9", at, "thinking stands in an assistant message")
        elif thoughts[-1] == len(kinds) - 1:
            check.add("A9", f"{at}/content/{thoughts[-1]}", "nothing follows the thinking")
        elif "tool_use" in kinds[: thoughts[0]]:
            check.add("A9", f"{at}/content/{thoughts[0]}", "a call stands before its thinking")
    for _, pointer, block in thinking:
        if not signature_of(block):
            check.add("A9", pointer, "the thinking is not signed")


def _judge_binding(thinking: list[LocatedBlock], check: Check) -> None:
    """`A10`: nothing changed before the thinking that another epoch takes over.

    Not judged where the request lets the provider leave out thinking whose prefix has changed.
    """
    old = check.previous
    if old is None or not check.has_other_model:
        return
    binding = object_of(object_of(check.payload.get("thinking")).get("block_binding"))
    is_dropped = binding.get("prefix_mismatch_behavior") == "drop_block"
    if is_dropped and not _lacks(check, BINDING_BETA):
        return
    earlier_signatures = {signature_of(block) for _, _, block in blocks_in(old, *THINKING)}
    changed = first_difference(check.items, old.items)
    if not (same_on_wire(check.system, old.system) and same_on_wire(check.tools, old.tools)):
        changed = -1
    for index, pointer, block in thinking:
        if changed is not None and index > changed and signature_of(block) in earlier_signatures:
            check.add("A10", pointer, "what stood before the thinking has changed")
            return


def _lacks(check: Check, beta: str) -> bool:
    """Whether a beta header is missing; false where the headers are unknown."""
    own, sent = check.payload.get("betas"), check.context.betas
    if own is None and sent is None:
        return False
    return beta not in {*(sent or ()), *map(string_of, list_of(own))}


def _judge_on_demand(compactions: list[LocatedBlock], check: Check) -> None:
    """`A12`: a compaction that was requested comes first and alone, in a request of its kind."""
    signed = [(pointer, index) for index, pointer, block in compactions if block.get("signature")]
    if not signed:
        return
    pointer, index = signed[0]
    if index or pointer != f"{check.items_at}/0/content/0":
        check.add("A12", pointer, "the compaction block comes first")
    for other, _ in signed[1:]:
        check.add("A12", other, "there is one compaction block")
    if _lacks(check, REQUESTED_BETA):
        check.add("A12", pointer, f"the block needs the beta {REQUESTED_BETA}")
    if check.payload.get("context_management") is not None:
        check.add("A12", "/context_management", "does not go with a compaction block")
    budget = object_of(object_of(check.payload.get("output_config")).get("task_budget"))
    if budget.get("remaining") is not None:
        message = "does not go with a compaction block"
        check.add("A12", "/output_config/task_budget/remaining", message)


def _judge_threshold(compactions: list[LocatedBlock], check: Check) -> None:
    """`A13`: a compaction at a threshold, and the edit that requests it."""
    edits = list_of(object_of(check.payload.get("context_management")).get("edits"))
    edit_at = None
    for index, edit in enumerate(map(object_of, edits)):
        if edit.get("type") == THRESHOLD_EDIT:
            edit_at = f"/context_management/edits/{index}"
            value = object_of(edit.get("trigger")).get("value")
            if isinstance(value, int) and value < MIN_THRESHOLD:
                check.add("A13", f"{edit_at}/trigger", f"the trigger is at least {MIN_THRESHOLD:,}")
    unsigned = [pointer for _, pointer, block in compactions if not block.get("signature")]
    if unsigned and edit_at is None:
        check.add("A13", unsigned[0], f"the block needs the edit {THRESHOLD_EDIT}")
    elif edit_at is not None and _lacks(check, THRESHOLD_BETA):
        check.add("A13", edit_at, f"the edit needs the beta {THRESHOLD_BETA}")
    for _, pointer, block in compactions:
        if block.get("content") == "":
            check.add("N6", pointer, "the compaction says nothing")
