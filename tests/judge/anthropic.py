"""Anthropic Messages: roles, blocks, calls, tools and sizes.

The modules beside it have thinking, compactions and cache breakpoints.

1. The first message is the user's, or has a compaction. User and assistant alternate. A system
   message follows the user's or a hosted tool's result, and precedes the assistant's.
2. No message is empty but for a last one of the assistant. No text block is blank. A last text of
   the assistant does not end with white space.
3. Every tool_use of an assistant's message has one tool_result in the next message, the user's.
   Results come before any other block there, and answer nothing else.
4. A server tool's result follows its call, in the same message or in a later one of the assistant.
   Until then the user's messages hold tool results alone.
5. Tools have names of their own; one is not deferred; each tool_reference names one of them, or one
   that a message adds.
6. Messages, bytes and images are within the limits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from anthropic.types import MessageParam
from anthropic.types.beta import BetaMessageParam
from anthropic.types.beta.message_create_params import (
    MessageCreateParamsNonStreaming as BetaMessageCreateParamsNonStreaming,
)
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming

from tests.judge.anthropic_cache import judge_breakpoints
from tests.judge.anthropic_thinking import (
    compactions,
    is_missing,
    judge_compactions,
    judge_thinking,
)
from tests.judge.findings import Facts, Finding, Findings, is_blank, is_empty, objects, repeated
from tests.judge.sdk_types import check_json, check_type

MAX_MESSAGES: Final = 100_000
MAX_BYTES: Final = 32_000_000
MAX_IMAGES: Final = 600
MAX_IMAGES_SMALL_WINDOW: Final = 100
SMALL_WINDOW: Final = 200_000
CHANGES_BETA: Final = "inline-tools-2026-09-15"
_CHANGES = frozenset(("tool_addition", "tool_removal"))
_SERVER_CALLS = frozenset(("server_tool_use", "mcp_tool_use"))
_BETA = frozenset(("betas", "compaction", "context_management", "mcp_servers"))
_ID = re.compile(r"[a-zA-Z0-9_-]+")

Message = dict[str, Any]


def judge(payload: dict[str, Any], facts: Facts) -> list[Finding]:
    """Return what is wrong with a request to Messages."""
    messages = payload.get("messages")
    if not isinstance(messages, list) or not messages:
        return [Finding("no-messages", "$.messages", "a non-empty array is required")]
    findings = Findings(check_json(payload))
    request = {**payload, "messages": []}
    if "model" not in payload:
        request |= {"model": "any", "max_tokens": 1}
    read = objects(messages)
    is_beta = bool(facts.betas or _BETA & payload.keys() or compactions(read))
    findings.found += check_type(
        request, BetaMessageCreateParamsNonStreaming if is_beta else MessageCreateParamsNonStreaming
    )
    for index, message in enumerate(messages):
        hint = BetaMessageParam if is_beta else MessageParam
        findings.found += check_type(message, hint, f"$.messages[{index}]")
    if findings.is_mistyped:
        return findings.found
    _judge_roles(payload, read, facts, findings)
    judge_compactions(payload, read, facts, findings)
    for index, message in enumerate(read):
        place = f"$.messages[{index}]"
        _judge_content(message, index == len(read) - 1, place, findings)
        judge_thinking(message, place, findings)
    _judge_server_tools(read, findings)
    _judge_calls(read, findings)
    _judge_pairs(read, findings)
    for index, block in enumerate(objects(payload.get("system"))):
        if is_blank(block.get("text")):
            findings.error("blank-text", f"$.system[{index}]", "the text is blank")
    _judge_tools(payload, read, findings)
    kinds = {block.get("type") for message in read for block in blocks_of(message)}
    if kinds & _CHANGES and is_missing(CHANGES_BETA, payload, facts):
        findings.error("beta-missing", "$.messages", f"changed tools need {CHANGES_BETA}")
    judge_breakpoints(payload, facts, findings)
    _judge_sizes(payload, read, facts, findings)
    return findings.found


def blocks_of(message: Message) -> list[dict[str, Any]]:
    """Return the blocks of a message; none where the content is a text."""
    return objects(message.get("content"))


def _is_server_result(kind: str) -> bool:
    return kind.endswith("_tool_result") and kind != "tool_result"


def _typed(message: Message, kind: str) -> list[dict[str, Any]]:
    return [block for block in blocks_of(message) if block.get("type") == kind]


def _judge_roles(
    payload: dict[str, Any], messages: Sequence[Message], facts: Facts, findings: Findings
) -> None:
    """Rule 1."""
    roles = [message.get("role") for message in messages]
    if roles[0] == "system":
        findings.error("system-first", "$.messages[0]", "it stands in `system`")
    elif roles[0] != "user" and not compactions(messages[:1]):
        findings.error("first-not-user", "$.messages[0]", "the user comes first")
    for index in range(1, len(roles)):
        place = f"$.messages[{index}]"
        if roles[index] == "system":
            _judge_system(messages[index - 1 : index + 2], place, facts, findings)
        elif roles[index] == roles[index - 1]:
            findings.error("roles-repeat", place, f"two messages of the {roles[index]}")
    is_open = bool(_SERVER_CALLS & {block.get("type") for block in blocks_of(messages[-1])})
    if roles[-1] != "assistant" or is_open or payload.get("compaction") or facts.prefill:
        return
    add = findings.warn if facts.prefill is None else findings.error
    add("last-is-assistant", "$.messages", "only some models go on from there")


def _judge_system(around: Sequence[Message], place: str, facts: Facts, findings: Findings) -> None:
    """Rule 1: a system message inside the conversation, with its neighbours."""
    if not facts.takes_system:
        add = findings.warn if facts.takes_system is None else findings.error
        add("system-inside", place, "only some models take it")
    kinds = [str(block.get("type")) for block in blocks_of(around[0])]
    is_hosted = any(kind in _SERVER_CALLS or _is_server_result(kind) for kind in kinds[-1:])
    if "tool_use" not in kinds and not is_hosted and around[0].get("role") != "user":
        findings.error("system-place", place, "it follows the user")
    elif around[2:] and around[2].get("role") == "user":
        findings.error("system-place", place, "it comes last, or before the assistant")


def _judge_content(message: Message, is_last: bool, place: str, findings: Findings) -> None:
    """Rule 2."""
    content, blocks = message.get("content"), blocks_of(message)
    is_answer = is_last and message.get("role") == "assistant"
    if is_empty(content):
        add = findings.warn if is_answer else findings.error
        add("empty-content", place, "the message is empty")
    for index, block in enumerate(blocks):
        parts = [block, *objects(block.get("content"))]
        if any(part.get("type") == "text" and is_blank(part.get("text")) for part in parts):
            findings.error("blank-text", f"{place}.content[{index}]", "the text is blank")
        if block.get("type") == "compaction" and block.get("content") == "":
            findings.error("empty-content", place, "the compaction says nothing")
    if not is_answer:
        return
    last = blocks[-1] if blocks else {"type": "text", "text": content}
    text = last.get("text")
    if last.get("type") == "text" and isinstance(text, str) and text != text.rstrip():
        findings.error("trailing-space", place, "the last text ends with white space")


def _judge_calls(messages: Sequence[Message], findings: Findings) -> None:
    """Rule 3: who calls and who answers, ids and names."""
    known: set[str] = set()
    for index, message in enumerate(messages):
        place = f"$.messages[{index}]"
        calls = _typed(message, "tool_use")
        if calls and message.get("role") != "assistant":
            findings.error("call-role", place, "only the assistant calls tools")
        if _typed(message, "tool_result") and message.get("role") != "user":
            findings.error("result-role", place, "results are the user's")
        for call in calls:
            call_id = call["id"]
            if not _ID.fullmatch(call_id):
                findings.error("call-id", place, f"{call_id!r} is no id")
            if call_id in known:
                findings.error("call-id-reused", place, f"{call_id!r} names an earlier call")
            known.add(call_id)
            findings.judge_name(call.get("name"), place)


def _judge_pairs(messages: Sequence[Message], findings: Findings) -> None:
    """Rule 3: each message answers the calls of the message before it, and nothing else."""
    waiting: list[Any] = []
    for index, message in enumerate([*messages, {}]):
        place, before = f"$.messages[{index}]", f"$.messages[{index - 1}]"
        answered = [block.get("tool_use_id") for block in _typed(message, "tool_result")]
        for call_id in waiting:
            if call_id not in answered:
                findings.error("call-unanswered", before, f"{call_id!r} has no result in the next")
        for call_id in dict.fromkeys(answered):
            if call_id not in waiting:
                findings.error("orphan-result", place, f"no call {call_id!r} right before")
        for call_id in repeated(answered):
            findings.error("second-result", place, f"{call_id!r} has several results")
        others = [block.get("type") != "tool_result" for block in blocks_of(message)]
        if others != sorted(others) and answered:
            findings.error("result-not-first", place, "results come before other blocks")
        is_caller = message.get("role") == "assistant"
        waiting = [call.get("id") for call in _typed(message, "tool_use")] if is_caller else []


def _judge_server_tools(messages: Sequence[Message], findings: Findings) -> None:
    """Rule 4."""
    waiting: dict[Any, None] = {}
    for index, message in enumerate(messages):
        place, kinds = f"$.messages[{index}]", {block.get("type") for block in blocks_of(message)}
        if waiting and message.get("role") != "assistant" and kinds != {"tool_result"}:
            findings.error("server-call-unanswered", place, f"{sorted(map(str, waiting))}")
        for block in blocks_of(message):
            kind = str(block.get("type"))
            if kind in _SERVER_CALLS:
                waiting[block.get("id")] = None
            elif _is_server_result(kind):
                if block.get("tool_use_id") not in waiting:
                    text = f"no call {block.get('tool_use_id')!r} before it"
                    findings.error("server-result-orphan", place, text)
                waiting.pop(block.get("tool_use_id"), None)


def _judge_tools(payload: dict[str, Any], messages: Sequence[Message], findings: Findings) -> None:
    """Rule 5."""
    tools = objects(payload.get("tools"))
    names = [tool.get("name") for tool in tools if tool.get("name")]
    for name in repeated(names):
        findings.error("tool-defined-twice", "$.tools", repr(name))
    for index, tool in enumerate(tools):
        findings.judge_name(tool.get("name"), f"$.tools[{index}]")
    if tools and all(tool.get("defer_loading") for tool in tools):
        findings.error("all-deferred", "$.tools", "one tool is not deferred")
    blocks = [block for message in messages for block in blocks_of(message)]
    references = {str(part.get("tool_name")) for block in blocks for part in _references(block)}
    added = [block.get("tool") or {} for block in blocks if block.get("type") == "tool_addition"]
    names += [(tool.get("definition") or {}).get("name") for tool in added]
    for unknown in sorted(references.difference(names)):
        findings.error("reference-unknown", "$.tools", f"no tool is named {unknown!r}")
    used = any(block.get("type") in ("tool_use", "tool_result") for block in blocks)
    if (used or references) and not (tools or payload.get("mcp_servers")):
        findings.warn("no-tools", "$.tools", "the history calls tools")


def _references(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the references to tools in a result, the provider's own search included."""
    content = block.get("content")
    found = content.get("tool_references") if isinstance(content, dict) else content
    for part in objects(found):
        if part.get("type") == "tool_reference":
            yield part


def _judge_sizes(
    payload: dict[str, Any], messages: Sequence[Message], facts: Facts, findings: Findings
) -> None:
    """Rule 6."""
    if len(messages) > MAX_MESSAGES:
        findings.error("too-many-messages", "$.messages", f"{len(messages)} messages")
    if len(json.dumps(payload, ensure_ascii=False).encode()) > MAX_BYTES:
        findings.error("too-many-bytes", "$", f"more than {MAX_BYTES}")
    blocks = [block for message in messages for block in blocks_of(message)]
    blocks += [part for block in blocks for part in objects(block.get("content"))]
    images = sum(block.get("type") == "image" for block in blocks)
    is_small = facts.context_window is not None and facts.context_window <= SMALL_WINDOW
    if images > (MAX_IMAGES_SMALL_WINDOW if is_small else MAX_IMAGES):
        findings.error("too-many-images", "$.messages", f"{images} images")
