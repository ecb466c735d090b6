"""Thinking and compactions of Anthropic Messages, and the settings that go with them.

1. Thinking is the assistant's, has its signature, comes before the calls it led to, and something
   follows it.
2. The beta API alone takes compactions. A block is the first one of the payload, in a message of
   the assistant. A signed one excludes `context_management` and what remains of a budget, any other
   one needs the edit for it, whose trigger is high. Both need their beta header.
3. A request for a compaction has no settings of a reply. Thinking is cleared by the first edit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from tests.judge.findings import THINKING, Facts, Findings, objects

COMPACT_EDIT: Final = "compact_20260112"
CLEAR_EDIT: Final = "clear_thinking_20251015"
MIN_TRIGGER: Final = 50_000
SIGNED_BETA: Final = "compact-2026-09-04"
EDIT_BETA: Final = "compact-2026-01-12"

Message = dict[str, Any]


def compactions(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return the compaction blocks of messages."""
    blocks = [block for message in messages for block in objects(message.get("content"))]
    return [block for block in blocks if block.get("type") == "compaction"]


def is_missing(beta: str, payload: Message, facts: Facts) -> bool:
    """Whether a beta header is missing; false where the headers are unknown."""
    own = payload.get("betas")
    is_known = own is not None or facts.betas is not None
    return is_known and beta not in (*(own or ()), *(facts.betas or ()))


def judge_thinking(message: Message, place: str, findings: Findings) -> None:
    """Rule 1."""
    blocks = objects(message.get("content"))
    kinds = [block.get("type") for block in blocks]
    thoughts = [index for index, kind in enumerate(kinds) if kind in THINKING]
    if not thoughts:
        return
    if message.get("role") != "assistant":
        findings.error("thinking-role", place, "only the assistant thinks")
    elif thoughts[-1] == len(kinds) - 1:
        findings.error("thinking-last", place, "nothing follows the thinking")
    if thoughts[0] != 0:
        findings.warn("thinking-not-first", place, "another block comes before the thinking")
    if "tool_use" in kinds and kinds.index("tool_use") < thoughts[-1]:
        findings.warn("thinking-after-call", place, "thinking comes before the calls")
    for block in (blocks[index] for index in thoughts):
        if not block.get("signature" if block.get("type") == "thinking" else "data"):
            findings.error("thinking-unsigned", place, "the block has no signature, or no data")


def judge_compactions(
    payload: Message, messages: Sequence[Message], facts: Facts, findings: Findings
) -> None:
    """Rules 2 and 3."""
    edits = objects((payload.get("context_management") or {}).get("edits"))
    _judge_edits(payload, edits, facts, findings)
    if payload.get("compaction"):
        _judge_request(payload, findings)
    found = compactions(messages)
    if not found:
        return
    opening = messages[0]
    if len(found) > 1 or opening["role"] != "assistant" or opening["content"][0] is not found[0]:
        findings.error("compaction-not-first", "$.messages", "one block opens the payload")
    if not found[0].get("signature"):
        if all(edit.get("type") != COMPACT_EDIT for edit in edits):
            findings.error("compaction-without-edit", "$.context_management", "it is missing")
        return
    if is_missing(SIGNED_BETA, payload, facts):
        findings.error("beta-missing", "$.messages", f"a signed block needs {SIGNED_BETA}")
    budget = (payload.get("output_config") or {}).get("task_budget") or {}
    if "context_management" in payload or budget.get("remaining") is not None:
        findings.error("signed-compaction", "$", "neither edits nor a rest of a budget beside it")


def _judge_edits(
    payload: Message, edits: Sequence[dict[str, Any]], facts: Facts, findings: Findings
) -> None:
    for index, edit in enumerate(edits):
        place = f"$.context_management.edits[{index}]"
        if edit.get("type") == COMPACT_EDIT:
            if ((edit.get("trigger") or {}).get("value") or MIN_TRIGGER) < MIN_TRIGGER:
                findings.error("trigger-low", place, f"it is at least {MIN_TRIGGER}")
            if is_missing(EDIT_BETA, payload, facts):
                findings.error("beta-missing", place, f"the edit needs {EDIT_BETA}")
        if index and edit.get("type") == CLEAR_EDIT:
            findings.error("clear-thinking-late", place, "it is the first edit")


def _judge_request(payload: Message, findings: Findings) -> None:
    """Rule 3; a call left open at the end is one without a result."""
    refused = {
        "stop_sequences": payload.get("stop_sequences"),
        "output_config.format": (payload.get("output_config") or {}).get("format"),
        "tool_choice": (payload.get("tool_choice") or {}).get("type") in ("any", "tool"),
    }
    for name in (name for name, value in refused.items() if value):
        findings.error("compaction-request", f"$.{name}", "does not go with a compaction")
