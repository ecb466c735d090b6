"""OpenAI Chat Completions.

1. The tool messages that answer an assistant's calls follow it at once, one for each call, in any
   order. A tool message anywhere else is an orphan.
2. An assistant message has a content, a refusal, audio or at least one call. `tool_calls: []` and
   `tools: []` are refused.
3. The ids of calls are unique in the payload and have at most 40 characters. Names have at most 64
   letters, digits, `_` and `-`. There are at most 128 tools, each with a name of its own.
4. System and developer messages come first, and a user message is there: other endpoints that
   speak this dialect want it so.
5. Gateways such as LiteLLM add fields for reasoning to the assistant's messages and calls, thinking
   to its content, and `cache_control` to content parts, and to nothing else.
"""

from __future__ import annotations

import json
from typing import Any, Final

from openai.types.chat import ChatCompletionMessageParam
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming

from tests.judge.findings import (
    THINKING,
    Facts,
    Finding,
    Findings,
    is_blank,
    is_empty,
    objects,
    occurrences,
    repeated,
)
from tests.judge.sdk_types import check_json, check_type

MAX_ID_CHARS: Final = 40
MAX_TOOLS: Final = 128
MAX_BREAKPOINTS: Final = 4
INSTRUCTIONS: Final = ("system", "developer")
_GATEWAY_FIELDS = (
    *("reasoning_content", "reasoning", "reasoning_details", "thinking_blocks"),
    *("extra_content", "provider_specific_fields"),
)


def judge(payload: dict[str, Any], facts: Facts) -> list[Finding]:
    """Return what is wrong with a request to Chat Completions."""
    messages = payload.get("messages")
    if not isinstance(messages, list) or not messages:
        return [Finding("no-messages", "$.messages", "a non-empty array is required")]
    findings = Findings(check_json(payload))
    if facts.has_gateway:
        messages = [_without_gateway(message) for message in messages]
        if payload.pop("modify_params", False):
            findings.warn("modify-params", "$", "lets the gateway change what is sent")
    request = {"model": "any", **payload, "messages": []}
    findings.found += check_type(request, CompletionCreateParamsNonStreaming)
    for index, message in enumerate(messages):
        findings.found += check_type(message, ChatCompletionMessageParam, f"$.messages[{index}]")
    if findings.is_mistyped:
        return findings.found
    read = objects(messages)
    for index, message in enumerate(read):
        _judge_content(message, f"$.messages[{index}]", findings)
    _judge_calls(read, findings)
    _judge_order(read, findings)
    if payload.get("tools") is not None:
        _judge_tools(read, payload["tools"], findings)
    if occurrences(messages, "prompt_cache_breakpoint") > MAX_BREAKPOINTS:
        findings.warn("cache-breakpoints", "$.messages", "only the last four are written")
    return findings.found


def _without_gateway(message: Any) -> Any:
    """Return a message without what rule 5 allows; the SDK's types refuse what is left."""
    if not isinstance(message, dict):
        return message
    is_answer = message.get("role") == "assistant"
    content = message.get("content")
    if content and isinstance(content, list):
        thinking = THINKING if is_answer else ()
        parts = [part for part in objects(content) if part.get("type") not in thinking]
        message = message | {"content": [_less(part, "cache_control") for part in parts] or None}
    if not is_answer:
        return message
    message = _less(message, *_GATEWAY_FIELDS)
    if isinstance(calls := message.get("tool_calls"), list):
        message["tool_calls"] = [_less(call, *_GATEWAY_FIELDS) for call in objects(calls)]
        for call in message["tool_calls"]:
            if isinstance(called := call.get("function"), dict):
                call["function"] = _less(called, *_GATEWAY_FIELDS)
    return message


def _less(value: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: item for key, item in value.items() if key not in keys}


def _judge_content(message: dict[str, Any], place: str, findings: Findings) -> None:
    """Rule 2, and texts without a character."""
    role, content = message.get("role"), message.get("content")
    if content == []:
        findings.error("empty-content", place, "the content is an empty array")
    for index, part in enumerate(objects(content)):
        if part.get("type") == "text" and is_blank(part.get("text")):
            findings.warn("blank-text", f"{place}.content[{index}]", "the text part is blank")
    if role != "assistant":
        if content != [] and is_empty(content):
            findings.warn("empty-content", place, f"the {role} message is empty")
        return
    if message.get("tool_calls") == []:
        findings.error("empty-tool-calls", place, "the key is left out where there is no call")
    others = ("tool_calls", "refusal", "audio", "function_call")
    if any(message.get(key) for key in others):
        return
    if content is None:
        findings.error("no-content", place, "an assistant message needs a content or a call")
    elif content == "":
        findings.warn("empty-content", place, "the assistant message is empty")


def _judge_calls(messages: list[dict[str, Any]], findings: Findings) -> None:
    """Rules 1 and 3."""
    caller, waiting, answered = "", set[str](), set[str]()
    known: set[str] = set()
    for index, message in enumerate(messages):
        place = f"$.messages[{index}]"
        if message.get("role") == "tool":
            call_id = message.get("tool_call_id")
            if call_id in waiting:
                waiting.remove(call_id)
                answered.add(call_id)
            elif call_id in answered:
                findings.error("second-result", place, f"{call_id!r} already has a result")
            else:
                findings.error("orphan-result", place, f"no call {call_id!r} stands before it")
            continue
        _judge_unanswered(caller, waiting, findings)
        caller, waiting, answered = place, set(), set()
        if message.get("role") == "assistant":
            for number, call in enumerate(objects(message.get("tool_calls"))):
                _judge_call(call, f"{place}.tool_calls[{number}]", known, findings)
                if isinstance(call.get("id"), str) and call["id"]:
                    waiting.add(call["id"])
            known |= waiting
    _judge_unanswered(caller, waiting, findings)


def _judge_unanswered(caller: str, waiting: set[str], findings: Findings) -> None:
    for call_id in sorted(waiting):
        findings.error("call-unanswered", caller, f"no result of {call_id!r} follows at once")


def _judge_call(call: dict[str, Any], place: str, known: set[str], findings: Findings) -> None:
    call_id = call.get("id")
    if not isinstance(call_id, str) or not call_id:
        findings.error("call-without-id", place, "a call needs an id")
        return
    if call_id in known:
        findings.error("call-id-reused", place, f"{call_id!r} names an earlier call")
    known.add(call_id)
    if len(call_id) > MAX_ID_CHARS:
        findings.error("call-id-long", place, f"{len(call_id)} characters")
    (called, *_) = [*objects([call.get("function") or call.get("custom")]), {}]
    findings.judge_name(called.get("name"), place)
    if call.get("type") == "function":
        judge_arguments(called.get("arguments"), place, findings)


def judge_arguments(arguments: object, place: str, findings: Findings) -> None:
    """Arguments that are no JSON object cannot go to Anthropic or Gemini."""
    if not isinstance(arguments, str):
        return  # an error of its type
    try:
        read = json.loads(arguments or "{}")
    except ValueError:
        findings.warn("arguments-not-json", place, "the arguments cannot be read")
        return
    if not isinstance(read, dict):
        findings.warn("arguments-not-object", place, "the arguments are no object")


def _judge_order(messages: list[dict[str, Any]], findings: Findings) -> None:
    """Rule 4."""
    roles = [message.get("role") for message in messages]
    opening = next((at for at, role in enumerate(roles) if role not in INSTRUCTIONS), len(roles))
    for index in range(opening, len(roles)):
        if roles[index] in INSTRUCTIONS:
            findings.warn("system-not-first", f"$.messages[{index}]", "not every endpoint takes it")
    if opening < len(roles) and roles[opening] != "user":
        findings.warn("first-not-user", f"$.messages[{opening}]", "the conversation starts so")
    if roles[-1] == "assistant":
        findings.warn("last-is-assistant", f"$.messages[{len(roles) - 1}]", "nothing to answer")
    if "user" not in roles:
        findings.warn("no-user", "$.messages", "there is no user message")


def _judge_tools(messages: list[dict[str, Any]], tools: object, findings: Findings) -> None:
    """Rule 3, and calls of tools that are not defined."""
    if tools == []:
        findings.error("empty-tools", "$.tools", "the key is left out where there is no tool")
    defined = objects(tools)
    if len(defined) > MAX_TOOLS:
        findings.error("too-many-tools", "$.tools", f"{len(defined)} tools")
    names = [_name(tool) for tool in defined]
    for name in repeated(names):
        findings.error("tool-defined-twice", "$.tools", repr(name))
    for name in names:
        findings.judge_name(name, "$.tools")
    calls = [call for message in messages for call in objects(message.get("tool_calls"))]
    for name in sorted({called for call in calls if isinstance(called := _name(call), str)}):
        if name not in names:
            findings.warn("tool-undefined", "$.tools", f"{name!r} was called")


def _name(tool: dict[str, Any]) -> Any:
    """Return the name of a call's or a definition's tool."""
    return objects([tool.get("function") or tool.get("custom")])[0].get("name")
