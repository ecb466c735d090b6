"""The rules of OpenAI Chat Completions, and of LiteLLM's dialect of it (X).

LiteLLM adds `thinking_blocks` to assistant messages and `cache_control` to content parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from app.domain.common.messages import FormatName
from app.domain.formats.block_types import owners_of
from app.domain.formats.tool_calls import TOOL_NAME_PATTERN, is_json, is_name
from app.domain.payload.validation.neutral import Dialect, Result, call_key, calls_of
from app.domain.payload.validation.rules import Context, Findings
from app.domain.payload.validation.shapes import (
    Object,
    Shape,
    is_blank,
    is_empty,
    is_summary,
    list_of,
    object_of,
    texts_in,
    word,
)
from app.domain.prompt.resolved_settings import MAX_CHAT_TOOLS

MAX_ID = 40
_SYSTEM = ("system", "developer")
_ROLES = (*_SYSTEM, "user", "assistant", "tool")
_THOUGHTS = ("thinking", "redacted_thinking")
_INSTEAD = ("refusal", "audio", "function_call")
"""Fields that an assistant message may have instead of content."""


def judge(shape: Shape, context: Context, found: Findings) -> None:
    """Judge the messages and tools of a payload."""
    _judge_start(shape, found)
    _judge_pairs(shape, found)
    for index, item in enumerate(shape.items):
        _judge_message(item, f"{shape.at}/{index}", found)
    _judge_tools(shape, found)
    if shape.payload.get("modify_params"):
        found.add("X2", "/modify_params", "lets LiteLLM change what is sent")


def _judge_start(shape: Shape, found: Findings) -> None:
    if not shape.items:
        found.add("N5", shape.at, "there is no message")
    for index, item in enumerate(shape.items):
        role = object_of(item).get("role")
        if role == "assistant":
            found.add("N5", f"{shape.at}/{index}", "the conversation starts with the assistant")
        if role not in _SYSTEM or is_summary(item):
            return


def _judge_pairs(shape: Shape, found: Findings) -> None:
    """`B1`, `B2`: results follow their calls; `N1` to `N3`: ids pair one call with one result."""
    seen: set[str] = set()
    waiting: dict[str, str] = {}
    answered: set[str] = set()
    unanswered = "the call has no tool message right after its own"
    for index, item in enumerate(shape.items):
        at, raw = f"{shape.at}/{index}", object_of(item)
        if raw.get("role") == "tool":
            _judge_result(raw, at, waiting, answered, found)
            continue
        found.add_all("B1", waiting.values(), unanswered)
        waiting, answered = {}, set()
        if raw.get("role") != "assistant":
            continue
        for place, call in enumerate(list_of(raw.get("tool_calls"))):
            call_id, pointer = word(object_of(call).get("id")), f"{at}/tool_calls/{place}"
            if call_id in seen:
                found.add("N3", f"{pointer}/id", "another call has this id")
            if call_id:
                seen.add(call_id)
                waiting[call_id] = pointer
    found.add_all("B1", waiting.values(), unanswered)


def _judge_result(
    raw: Object, at: str, waiting: dict[str, str], answered: set[str], found: Findings
) -> None:
    call_id = word(raw.get("tool_call_id"))
    if not call_id:
        found.add("N1", at, "the result names no call")
    elif call_id in waiting:
        del waiting[call_id]
        answered.add(call_id)
    elif call_id in answered:
        found.add("N2", at, "the call has a result already")
    else:
        found.add("B2", at, "no call of the assistant message before has this id")


def _judge_message(item: Any, at: str, found: Findings) -> None:
    raw = object_of(item)
    role, content = raw.get("role"), raw.get("content")
    if not raw:
        found.add("N6", at, "is no message")
        return
    if role not in _ROLES:
        found.add("N5", f"{at}/role", f"a role is one of {', '.join(_ROLES)}")
        return
    if role == "assistant":
        _judge_assistant(raw, at, found)
    elif role == "tool":
        _judge_result_content(content, f"{at}/content", found)
    elif is_empty(content):
        found.add("N6", f"{at}/content", f"the {role} message is empty")
    for index, part in enumerate(content if isinstance(content, list) else ()):
        if role != "assistant" or object_of(part).get("type") not in _THOUGHTS:
            _judge_part(part, f"{at}/content/{index}", found)
    if "cache_control" in raw:
        found.add("X1", f"{at}/cache_control", "cache_control stands on content parts only")
    if "thinking_blocks" in raw:
        _judge_thinking(raw, f"{at}/thinking_blocks", found)


def _judge_thinking(raw: Object, at: str, found: Findings) -> None:
    if raw.get("role") != "assistant" or not isinstance(raw["thinking_blocks"], list):
        found.add("X1", at, "thinking_blocks are a list on an assistant message")


def _judge_assistant(raw: Object, at: str, found: Findings) -> None:
    content, calls = raw.get("content"), raw.get("tool_calls")
    if calls is not None and (not isinstance(calls, list) or not calls):
        found.add("B3", f"{at}/tool_calls", "tool_calls is a list with a call, or left out")
    elif not calls and is_empty(content) and not any(raw.get(name) for name in _INSTEAD):
        found.add("B3", at, "the assistant message has neither content nor calls")
    elif not isinstance(content, str | list | None) or content == []:
        found.add("N6", f"{at}/content", "the content is empty")
    for index, call in enumerate(list_of(calls)):
        _judge_call(call, f"{at}/tool_calls/{index}", found)


def _judge_call(value: Any, at: str, found: Findings) -> None:
    call = object_of(value)
    call_id, kind = word(call.get("id")), word(call.get("type")) or "function"
    called = object_of(call.get(kind))
    given = called.get("input" if kind == "custom" else "arguments")
    if not 0 < len(call_id) <= MAX_ID:
        found.add("B4", f"{at}/id", f"an id has 1 to {MAX_ID} characters")
    if not is_name(word(called.get("name"))):
        found.add("B4", f"{at}/{kind}/name", f"a name matches {TOOL_NAME_PATTERN}")
    if not isinstance(given, str):
        found.add("B3", f"{at}/{kind}", "the arguments are a string")
    elif kind == "function" and given and not is_json(given):
        found.add("B3", f"{at}/{kind}/arguments", "the arguments are not JSON")
    if "cache_control" in call or "cache_control" in called:
        found.add("X1", at, "cache_control stands on content parts only")


def _judge_result_content(content: Any, at: str, found: Findings) -> None:
    if content is None or content == []:
        found.add("N6", at, "the result is empty")
    elif not isinstance(content, str | list):
        found.add("B4", at, "a result is a string or text parts")
    for index, part in enumerate(content if isinstance(content, list) else ()):
        if object_of(part).get("type") != "text":
            found.add("B4", f"{at}/{index}", "a result has text parts only")


def _judge_part(value: Any, at: str, found: Findings) -> None:
    part = object_of(value)
    kind = part.get("type")
    if not part or (kind == "text" and (is_blank(part.get("text")) or "text" not in part)):
        found.add("N6", at, "the part is empty")
    elif owners_of(kind, FormatName.OPENAI_CHAT):
        found.add("N12", at, f"only another provider understands a {kind} part")


def _judge_tools(shape: Shape, found: Findings) -> None:
    if shape.payload.get("tools") == []:
        found.add("B4", shape.tools_at, "tools is a list with a tool, or left out")
    if len(shape.tools) > MAX_CHAT_TOOLS:
        found.add("B4", shape.tools_at, f"at most {MAX_CHAT_TOOLS} tools are taken")
    names: set[str] = set()
    for index, item in enumerate(shape.tools):
        at, tool = f"{shape.tools_at}/{index}", object_of(item)
        kind = "custom" if tool.get("type") == "custom" else "function"
        defined = object_of(tool.get(kind))
        name = word(defined.get("name"))
        if not is_name(name):
            found.add("B4", f"{at}/{kind}/name", f"a name matches {TOOL_NAME_PATTERN}")
        elif name in names:
            found.add("B4", f"{at}/{kind}/name", "another tool has this name")
        names.add(name)
        if "cache_control" in tool or "cache_control" in defined:
            found.add("X1", at, "cache_control stands on content parts only")


def _results(shape: Shape) -> Iterator[Result]:
    for index, item in enumerate(shape.items):
        raw = object_of(item)
        if raw.get("role") == "tool":
            text = "\n".join(texts_in(raw.get("content")))
            yield f"{shape.at}/{index}", text


def _groups(shape: Shape) -> Iterator[tuple[bytes, ...]]:
    for item in shape.items:
        calls = calls_of(item, "tool_calls")
        if calls:
            yield tuple(map(call_key, calls))


def _changed_rule(old: Any, new: Any) -> str:
    """`B5`: instructions are appended, not edited or inserted."""
    roles = object_of(old).get("role"), object_of(new).get("role")
    return "B5" if any(role in _SYSTEM for role in roles) else "N9"


DIALECT = Dialect(judge, _results, _groups, _changed_rule)
