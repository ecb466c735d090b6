"""Anthropic Messages: roles, blocks, calls, tools and sizes. Cache breakpoints stand beside it.

1. The first message is the user's. User and assistant alternate; `merge_roles` reads neighbours of
   one role as the API does, as one message. A system message does not open the conversation.
2. No message is empty but for a last one of the assistant. No text block is blank. A last text of
   the assistant does not end with white space.
3. Every tool_use of an assistant's message has one tool_result in the next message, the user's.
   Results come before any other block there, and answer nothing else.
4. A server tool's result follows its server_tool_use in the same message. One that has none yet
   ends the payload, or the user's next message holds tool results alone.
5. Thinking is the assistant's, has its signature, and comes before the calls it led to.
6. Tools have names of their own; one is not deferred; each tool_reference names one of them.
7. The beta API alone takes compactions. A block is the first one of the payload, in a message of
   the assistant. A signed one excludes `context_management`, any other one needs the edit for it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from anthropic.types import MessageParam
from anthropic.types.beta import BetaMessageParam
from anthropic.types.beta.message_create_params import (
    MessageCreateParamsNonStreaming as BetaMessageCreateParamsNonStreaming,
)
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming

from tests.judge.anthropic_cache import judge_breakpoints
from tests.judge.findings import Finding, Findings, is_blank, is_empty, objects, repeated
from tests.judge.sdk_types import check_json, check_type

MAX_MESSAGES: Final = 100_000
MAX_IMAGES: Final = 600
THINKING: Final = ("thinking", "redacted_thinking")
_ID = re.compile(r"[a-zA-Z0-9_-]+")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")

Message = dict[str, Any]


def judge(payload: dict[str, Any], *, merge_roles: bool = False) -> list[Finding]:
    """Return what is wrong with a request to Messages."""
    messages = payload.get("messages")
    if not isinstance(messages, list) or not messages:
        return [Finding("no-messages", "$.messages", "a non-empty array is required")]
    findings = Findings(check_json(payload))
    request = {**payload, "messages": []}
    if "model" not in payload:
        request |= {"model": "any", "max_tokens": 1}
    is_beta = "context_management" in payload or bool(_compactions(objects(messages)))
    findings.found += check_type(
        request,
        BetaMessageCreateParamsNonStreaming if is_beta else MessageCreateParamsNonStreaming,
    )
    for index, message in enumerate(messages):
        hint = BetaMessageParam if is_beta else MessageParam
        findings.found += check_type(message, hint, f"$.messages[{index}]")
    if findings.is_mistyped:
        return findings.found
    read = merged(objects(messages)) if merge_roles else objects(messages)
    _judge_roles(read, findings)
    _judge_compactions(payload, read, findings)
    for index, message in enumerate(read):
        place = f"$.messages[{index}]"
        _judge_content(message, index == len(read) - 1, place, findings)
        _judge_thinking(message, place, findings)
        _judge_server_tools(message, read[index + 1 : index + 2], place, findings)
    _judge_calls(read, findings)
    _judge_pairs(read, findings)
    for index, block in enumerate(objects(payload.get("system"))):
        if is_blank(block.get("text")):
            findings.error("blank-text", f"$.system[{index}]", "the text is blank")
    _judge_tools(payload, read, findings)
    judge_breakpoints({**payload, "messages": read}, findings)
    _judge_sizes(read, findings)
    return findings.found


def blocks_of(message: Message) -> list[dict[str, Any]]:
    """Return the blocks of a message; none where the content is a text."""
    return objects(message.get("content"))


def merged(messages: Sequence[Message]) -> list[Message]:
    """Join neighbours of one role, as the API does before it reads them."""
    found: list[Message] = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}] if content else []
        blocks = list(content or [])
        joins = found and message.get("role") in ("user", "assistant")
        if joins and found[-1].get("role") == message["role"]:
            found[-1]["content"] += blocks
        else:
            found.append({**message, "content": blocks})
    return found


def _typed(message: Message, kind: str) -> list[dict[str, Any]]:
    return [block for block in blocks_of(message) if block.get("type") == kind]


def _compactions(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [block for message in messages for block in _typed(message, "compaction")]


def _judge_compactions(
    payload: dict[str, Any], messages: Sequence[Message], findings: Findings
) -> None:
    """Rule 7."""
    found = _compactions(messages)
    if not found:
        return
    opening = messages[0]
    if len(found) > 1 or opening["role"] != "assistant" or blocks_of(opening)[0] is not found[0]:
        findings.error("compaction-not-first", "$.messages", "one block opens the payload")
    edits = objects(payload.get("context_management", {}).get("edits"))
    has_edit = any(edit.get("type") == "compact_20260112" for edit in edits)
    if found[0].get("signature") and "context_management" in payload:
        findings.error("signed-compaction", "$.context_management", "not beside a signed block")
    elif not found[0].get("signature") and not has_edit:
        findings.error("compaction-without-edit", "$.context_management", "the edit is missing")


def _judge_roles(messages: Sequence[Message], findings: Findings) -> None:
    """Rule 1."""
    roles = [message.get("role") for message in messages]
    if roles[0] == "system":
        findings.error("system-first", "$.messages[0]", "it stands in `system`")
    elif roles[0] != "user" and not _compactions(messages[:1]):
        findings.error("first-not-user", "$.messages[0]", "the user comes first")
    for index in range(1, len(roles)):
        place = f"$.messages[{index}]"
        if roles[index] == "system":
            findings.warn("system-inside", place, "only some models take it")
        elif roles[index] == roles[index - 1]:
            findings.error("roles-repeat", place, f"two messages of the {roles[index]}")
    if roles[-1] == "assistant":
        findings.warn("last-is-assistant", "$.messages", "only some models go on from there")


def _judge_content(message: Message, is_last: bool, place: str, findings: Findings) -> None:
    """Rule 2."""
    content, blocks = message.get("content"), blocks_of(message)
    is_answer = is_last and message.get("role") == "assistant"
    if is_empty(content):
        add = findings.warn if is_answer else findings.error
        add("empty-content", place, "the message is empty")
    for index, block in enumerate(blocks):
        if block.get("type") == "text" and is_blank(block.get("text")):
            findings.error("blank-text", f"{place}.content[{index}]", "the text is blank")
    if not is_answer:
        return
    last = blocks[-1] if blocks else {"type": "text", "text": content}
    text = last.get("text")
    if last.get("type") == "text" and isinstance(text, str) and text != text.rstrip():
        findings.error("trailing-space", place, "the last text ends with white space")


def _judge_thinking(message: Message, place: str, findings: Findings) -> None:
    """Rule 5."""
    kinds = [block.get("type") for block in blocks_of(message)]
    thoughts = [index for index, kind in enumerate(kinds) if kind in THINKING]
    if not thoughts:
        return
    if message.get("role") != "assistant":
        findings.error("thinking-role", place, "only the assistant thinks")
    if thoughts[0] != 0:
        findings.warn("thinking-not-first", place, "another block comes before the thinking")
    if "tool_use" in kinds and kinds.index("tool_use") < thoughts[-1]:
        findings.warn("thinking-after-call", place, "thinking comes before the calls")
    for block in blocks_of(message):
        if block.get("type") == "thinking" and not block.get("signature"):
            findings.error("thinking-unsigned", place, "the block has no signature")
        elif block.get("type") == "redacted_thinking" and not block.get("data"):
            findings.error("thinking-unsigned", place, "the block has no data")


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
            call_id, name = call.get("id"), call.get("name")
            if isinstance(call_id, str):
                if not _ID.fullmatch(call_id):
                    findings.error("call-id", place, f"{call_id!r} is no id")
                if call_id in known:
                    findings.error("call-id-reused", place, f"{call_id!r} names an earlier call")
                known.add(call_id)
            if isinstance(name, str) and not _NAME.fullmatch(name):
                findings.error("tool-name", place, f"{name!r} is no name of a tool")


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


def _judge_server_tools(
    message: Message, following: Sequence[Message], place: str, findings: Findings
) -> None:
    """Rule 4."""
    called: set[Any] = set()
    for block in blocks_of(message):
        kind = str(block.get("type"))
        if kind == "server_tool_use":
            called.add(block.get("id"))
        elif kind.endswith("_tool_result") and kind != "tool_result":
            if block.get("tool_use_id") not in called:
                text = f"no server_tool_use {block.get('tool_use_id')!r} before it"
                findings.error("server-result-orphan", place, text)
            called.discard(block.get("tool_use_id"))
    for after in following:
        kinds = {block.get("type") for block in blocks_of(after)}
        if called and kinds != {"tool_result"}:
            findings.error("server-call-unanswered", place, f"{sorted(map(str, called))}")


def _judge_tools(payload: dict[str, Any], messages: Sequence[Message], findings: Findings) -> None:
    """Rule 6."""
    tools = objects(payload.get("tools"))
    names = [tool.get("name") for tool in tools if tool.get("name")]
    for name in repeated(names):
        findings.error("tool-defined-twice", "$.tools", repr(name))
    for index, tool in enumerate(tools):
        place, tool_name = f"$.tools[{index}]", tool.get("name")
        if isinstance(tool_name, str) and not _NAME.fullmatch(tool_name):
            findings.error("tool-name", place, f"{tool_name!r} is no name of a tool")
    if tools and all(tool.get("defer_loading") for tool in tools):
        findings.error("all-deferred", "$.tools", "one tool is not deferred")
    blocks = [block for message in messages for block in blocks_of(message)]
    results = [block for block in blocks if block.get("type") == "tool_result"]
    nested = [part for block in results for part in objects(block.get("content"))]
    references = {
        str(part.get("tool_name")) for part in nested if part.get("type") == "tool_reference"
    }
    for unknown in sorted(references.difference(names)):
        findings.error("reference-unknown", "$.tools", f"no tool is named {unknown!r}")
    used = any(block.get("type") == "tool_use" for block in blocks)
    if not tools and (used or references):
        findings.warn("no-tools", "$.tools", "the history calls tools")


def _judge_sizes(messages: Sequence[Message], findings: Findings) -> None:
    if len(messages) > MAX_MESSAGES:
        findings.error("too-many-messages", "$.messages", f"{len(messages)} messages")
    blocks = [block for message in messages for block in blocks_of(message)]
    blocks += [part for block in blocks for part in objects(block.get("content"))]
    images = sum(block.get("type") == "image" for block in blocks)
    if images > MAX_IMAGES:
        findings.error("too-many-images", "$.messages", f"{images} images")
