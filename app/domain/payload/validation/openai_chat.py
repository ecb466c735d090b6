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
from app.domain.payload.validation.rules import Check
from app.domain.payload.validation.shapes import (
    Object,
    Shape,
    is_blank,
    is_empty,
    is_summary,
    list_of,
    object_of,
    string_of,
    texts_in,
)
from app.domain.prompt.resolved_settings import MAX_CHAT_TOOLS

MAX_ID_CHARS = 40
_SYSTEM = ("system", "developer")
_ROLES = (*_SYSTEM, "user", "assistant", "tool")
_THOUGHTS = ("thinking", "redacted_thinking")
_CONTENT_SUBSTITUTES = ("refusal", "audio", "function_call")
"""Fields that an assistant message may have instead of content."""


def judge(check: Check) -> None:
    """Judge the messages and tools of a payload."""
    _judge_start(check)
    _judge_pairs(check)
    for at, raw in check.objects():
        _judge_message(raw, at, check)
    _judge_tools(check)
    if check.payload.get("modify_params"):
        check.add("X2", "/modify_params", "lets LiteLLM change what is sent")


def _judge_start(check: Check) -> None:
    if not check.items:
        check.add("N5", check.items_at, "there is no message")
    for at, raw in check.objects():
        role = raw.get("role")
        if role == "assistant":
            check.add("N5", at, "the conversation starts with the assistant")
        if role not in _SYSTEM or is_summary(raw):
            return


def _judge_pairs(check: Check) -> None:
    """`B1`, `B2`: results follow their calls; `N1` to `N3`: ids pair one call with one result."""
    seen: set[str] = set()
    waiting: dict[str, str] = {}
    answered: set[str] = set()
    unanswered = "the call has no tool message right after its own"
    for at, raw in check.objects():
        if raw.get("role") == "tool":
            _judge_result(raw, at, waiting, answered, check)
            continue
        check.add_all("B1", waiting.values(), unanswered)
        waiting, answered = {}, set()
        if raw.get("role") != "assistant":
            continue
        for index, call in enumerate(list_of(raw.get("tool_calls"))):
            call_id, pointer = string_of(object_of(call).get("id")), f"{at}/tool_calls/{index}"
            if call_id in seen:
                check.add("N3", f"{pointer}/id", "another call has this id")
            if call_id:
                seen.add(call_id)
                waiting[call_id] = pointer
    check.add_all("B1", waiting.values(), unanswered)


def _judge_result(
    raw: Object, at: str, waiting: dict[str, str], answered: set[str], check: Check
) -> None:
    call_id = string_of(raw.get("tool_call_id"))
    if not call_id:
        check.add("N1", at, "the result names no call")
    elif call_id in waiting:
        del waiting[call_id]
        answered.add(call_id)
    elif call_id in answered:
        check.add("N2", at, "the call has a result already")
    else:
        check.add("B2", at, "no call of the assistant message before has this id")


def _judge_message(raw: Object, at: str, check: Check) -> None:
    role, content = raw.get("role"), raw.get("content")
    if not raw:
        check.add("N6", at, "is no message")
        return
    if role not in _ROLES:
        check.add("N5", f"{at}/role", f"a role is one of {', '.join(_ROLES)}")
        return
    if role == "assistant":
        _judge_assistant(raw, at, check)
    elif role == "tool":
        _judge_result_content(content, f"{at}/content", check)
    elif is_empty(content):
        check.add("N6", f"{at}/content", f"the {role} message is empty")
    for index, part in enumerate(content if isinstance(content, list) else ()):
        if role != "assistant" or object_of(part).get("type") not in _THOUGHTS:
            _judge_part(part, f"{at}/content/{index}", check)
    if "cache_control" in raw:
        check.add("X1", f"{at}/cache_control", "cache_control stands on content parts only")
    if "thinking_blocks" in raw and not (
        role == "assistant" and isinstance(raw["thinking_blocks"], list)
    ):
        message = "thinking_blocks are a list on an assistant message"
        check.add("X1", f"{at}/thinking_blocks", message)


def _judge_assistant(raw: Object, at: str, check: Check) -> None:
    content, calls = raw.get("content"), raw.get("tool_calls")
    if calls is not None and (not isinstance(calls, list) or not calls):
        check.add("B3", f"{at}/tool_calls", "tool_calls is a list with a call, or left out")
    elif (
        not calls and is_empty(content) and not any(raw.get(name) for name in _CONTENT_SUBSTITUTES)
    ):
        check.add("B3", at, "the assistant message has neither content nor calls")
    elif not isinstance(content, str | list | None) or content == []:
        check.add("N6", f"{at}/content", "the content is empty")
    for index, call in enumerate(list_of(calls)):
        _judge_call(call, f"{at}/tool_calls/{index}", check)


def _judge_call(value: Any, at: str, check: Check) -> None:
    call = object_of(value)
    call_id, kind = string_of(call.get("id")), string_of(call.get("type")) or "function"
    called = object_of(call.get(kind))
    arguments = called.get("input" if kind == "custom" else "arguments")
    if not 0 < len(call_id) <= MAX_ID_CHARS:
        check.add("B4", f"{at}/id", f"an id has 1 to {MAX_ID_CHARS} characters")
    if not is_name(string_of(called.get("name"))):
        check.add("B4", f"{at}/{kind}/name", f"a name matches {TOOL_NAME_PATTERN}")
    if not isinstance(arguments, str):
        check.add("B3", f"{at}/{kind}", "the arguments are a string")
    elif kind == "function" and arguments and not is_json(arguments):
        check.add("B3", f"{at}/{kind}/arguments", "the arguments are not JSON")
    if "cache_control" in call or "cache_control" in called:
        check.add("X1", at, "cache_control stands on content parts only")


def _judge_result_content(content: Any, at: str, check: Check) -> None:
    if content is None or content == []:
        check.add("N6", at, "the result is empty")
    elif not isinstance(content, str | list):
        check.add("B4", at, "a result is a string or text parts")
    for index, part in enumerate(content if isinstance(content, list) else ()):
        if object_of(part).get("type") != "text":
            check.add("B4", f"{at}/{index}", "a result has text parts only")


def _judge_part(value: Any, at: str, check: Check) -> None:
    part = object_of(value)
    kind = part.get("type")
    if not part or (kind == "text" and (is_blank(part.get("text")) or "text" not in part)):
        check.add("N6", at, "the part is empty")
    elif owners_of(kind, FormatName.OPENAI_CHAT):
        check.add("N12", at, f"only another provider understands a {kind} part")


def _judge_tools(check: Check) -> None:
    if check.payload.get("tools") == []:
        check.add("B4", check.tools_at, "tools is a list with a tool, or left out")
    if len(check.tools) > MAX_CHAT_TOOLS:
        check.add("B4", check.tools_at, f"at most {MAX_CHAT_TOOLS} tools are taken")
    names: set[str] = set()
    for at, tool in check.tool_objects():
        kind = "custom" if tool.get("type") == "custom" else "function"
        defined = object_of(tool.get(kind))
        name = string_of(defined.get("name"))
        if not is_name(name):
            check.add("B4", f"{at}/{kind}/name", f"a name matches {TOOL_NAME_PATTERN}")
        elif name in names:
            check.add("B4", f"{at}/{kind}/name", "another tool has this name")
        names.add(name)
        if "cache_control" in tool or "cache_control" in defined:
            check.add("X1", at, "cache_control stands on content parts only")


def _results(shape: Shape) -> Iterator[Result]:
    for at, raw in shape.objects():
        if raw.get("role") == "tool":
            yield at, "\n".join(texts_in(raw.get("content")))


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
