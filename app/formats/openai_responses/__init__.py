"""OpenAI Responses items.

1. Consecutive items that the model made (reasoning, messages, calls, hosted calls, compaction) are
   one neutral message, because their calls are one group. `group_items` joins such neighbours of a
   batch to `{"role": "assistant", "output": [items]}`, which this format accepts as a message.
   Every other item is one message.
2. The block of a part that the model made is its original item, which is replayed verbatim, but
   for null fields: those that the provider requires are sent, and no others. The block of a result
   or of a user message is the item without its content.
3. A call that the client runs is a tool call, whatever its type, and its output has the type that
   belongs to the call. Hosted calls, whose output the provider holds, are opaque.
4. Reasoning and compaction are bound to the items before them. Where they are left out, items made
   after them lose the `id` that refers to them, and a label replaces hosted calls that need one.
   Reasoning whose output was stored apart is left out, too.
5. An item whose type its provider does not have was made by another: a label replaces it, and
   reasoning beside it is left out.
6. Optional ids are sent only where the provider made them: it refuses any other, and one that
   another item has.
"""

from __future__ import annotations

from app.formats.openai_responses.items import (
    CONFIGURATION,
    FUNCTION,
    RESULT_KEY,
    call_fields,
    call_types,
    group_items,
    is_configuration,
    is_item_group,
)
from app.formats.openai_responses.parsing import parse, results, split
from app.formats.openai_responses.rendering import (
    adapt,
    for_payload,
    render,
    tools_to_wire,
    unbound,
    without_foreign,
    without_repeated_ids,
)

__all__ = [
    "CONFIGURATION",
    "FUNCTION",
    "RESULT_KEY",
    "adapt",
    "call_fields",
    "call_types",
    "for_payload",
    "group_items",
    "is_configuration",
    "is_item_group",
    "parse",
    "render",
    "results",
    "split",
    "tools_to_wire",
    "unbound",
    "without_foreign",
    "without_repeated_ids",
]
