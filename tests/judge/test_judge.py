"""The judge itself: one payload per provider that it accepts, and one broken payload per rule.

`FINDINGS` says which findings report a rule of `docs/provider-rules.md`; each of them is made here.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming

from tests.judge import Facts, check_type, errors, judge, refusals

Json = dict[str, Any]
Change = Callable[[Json], object]

HOUR = {"type": "ephemeral", "ttl": "1h"}
MINUTES = {"type": "ephemeral"}
SCHEMA: Json = {"type": "object", "properties": {"path": {"type": "string"}}}
SIGNATURE = "c2lnbmVk"
THINKING: Json = {"type": "thinking", "thinking": "Hm.", "signature": SIGNATURE}
COMPACTION: Json = {"type": "compaction", "content": "They read a.py."}


def chat_call(call_id: str, name: str = "read_file", arguments: Any = '{"path": "a.py"}') -> Json:
    """Return a call of Chat Completions."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def function_call(call_id: str, **more: Any) -> Json:
    """Return a call of Responses."""
    call = {"type": "function_call", "call_id": call_id, "name": "read_file", "arguments": "{}"}
    return call | more


SEARCH: Json = {
    "type": "tool_search_call",
    "arguments": {"paths": ["drive"]},
    "call_id": None,
    "execution": "server",
}
DRIVE: Json = {
    "type": "namespace",
    "name": "drive",
    "description": "Files.",
    "tools": [{"type": "function", "name": "read_file", "parameters": SCHEMA, "strict": False}],
}
SEARCHED: Json = {
    "type": "tool_search_output",
    "tools": [DRIVE],
    "call_id": None,
    "execution": "server",
}


def compacted(block: Json) -> Json:
    """Return a message of Anthropic Messages that a compaction opens."""
    return {"role": "assistant", "content": [block]}


def tool_use(call_id: str, **more: Any) -> Json:
    """Return a call of Anthropic Messages."""
    return {"type": "tool_use", "id": call_id, "name": "read_file", "input": {}} | more


def tool_result(call_id: str, content: Any = "done") -> Json:
    """Return a result of Anthropic Messages."""
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


def gemini_call(call_id: str, **part: Any) -> Json:
    """Return a call of Gemini."""
    return {"function_call": {"id": call_id, "name": "read_file", "args": {}}} | part


def gemini_result(call_id: str, name: str = "read_file") -> Json:
    """Return a response of Gemini."""
    return {"function_response": {"id": call_id, "name": name, "response": {"output": "done"}}}


GOOD: dict[str, Json] = {
    "openai_chat": {
        "model": "gpt-4.1",
        "max_completion_tokens": 100,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Read both."}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [chat_call("c1"), chat_call("c2")],
            },
            {"role": "tool", "tool_call_id": "c2", "content": "two"},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "one"}]},
            {"role": "assistant", "content": "Both read."},
            {"role": "user", "content": "Thanks."},
        ],
        "tools": [{"type": "function", "function": {"name": "read_file", "parameters": SCHEMA}}],
    },
    "openai_responses": {
        "model": "gpt-5.5",
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": "Read it."},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "b3BhcXVl"},
            function_call("c1", id="fc_1"),
            {"type": "function_call_output", "call_id": "c1", "output": "done"},
            {"type": "custom_tool_call", "call_id": "c2", "name": "sql", "input": "select 1"},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": "1"},
            {"role": "assistant", "content": [{"type": "output_text", "text": "Read."}]},
            {"role": "user", "content": [{"type": "input_text", "text": "Thanks."}]},
        ],
        "tools": [{"type": "function", "name": "read_file", "parameters": SCHEMA}],
    },
    "anthropic": {
        "model": "claude-sonnet-4-5",
        "max_tokens": 100,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": HOUR}],
        "tools": [
            {"name": "read_file", "input_schema": SCHEMA},
            {"name": "late", "input_schema": SCHEMA, "defer_loading": True},
        ],
        "messages": [
            {"role": "user", "content": "Read both."},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Two files.", "signature": SIGNATURE},
                    {"type": "server_tool_use", "id": "srv1", "name": "web_search", "input": {}},
                    {"type": "web_search_tool_result", "tool_use_id": "srv1", "content": []},
                    tool_use("t1"),
                    tool_use("t2"),
                ],
            },
            {
                "role": "user",
                "content": [
                    tool_result("t1"),
                    tool_result("t2", [{"type": "tool_reference", "tool_name": "late"}]),
                    {"type": "text", "text": "And?", "cache_control": MINUTES},
                ],
            },
            {"role": "assistant", "content": "Both read."},
            {"role": "user", "content": "Thanks."},
        ],
    },
    "gemini": {
        "model": "gemini-3.5-flash",
        "contents": [
            {"role": "user", "parts": [{"text": "Read both."}]},
            {"role": "model", "parts": [gemini_call("g0")]},
            {"role": "user", "parts": [gemini_result("g0")]},
            {"role": "model", "parts": [{"text": "Read."}]},
            {"role": "user", "parts": [{"text": "Again."}]},
            {
                "role": "model",
                "parts": [gemini_call("g1", thought_signature=SIGNATURE), gemini_call("g2")],
            },
            {"role": "user", "parts": [gemini_result("g1"), gemini_result("g2")]},
        ],
        "config": {
            "system_instruction": {"parts": [{"text": "Be brief."}]},
            "tools": [
                {"function_declarations": [{"name": "read_file", "parameters_json_schema": SCHEMA}]}
            ],
            "max_output_tokens": 100,
        },
    },
    "gemini_interactions": {
        "model": "gemini-3.5-flash",
        "store": False,
        "system_instruction": "Be brief.",
        "input": [
            {"type": "user_input", "content": [{"type": "text", "text": "Read both."}]},
            {"type": "thought", "signature": SIGNATURE},
            {"type": "retrieval_call", "id": "r1", "arguments": {"queries": ["both"]}},
            {"type": "retrieval_result", "call_id": "r1"},
            {"type": "function_call", "id": "c1", "name": "read_file", "arguments": {}},
            {"type": "function_call", "id": "c2", "name": "read_file", "arguments": {}},
            {"type": "function_result", "call_id": "c1", "name": "read_file", "result": "one"},
            {"type": "function_result", "call_id": "c2", "result": {"rows": [2]}},
            {"type": "model_output", "content": [{"type": "text", "text": "Read."}]},
            {"type": "user_input", "content": [{"type": "text", "text": "Thanks."}]},
        ],
        "tools": [{"type": "function", "name": "read_file", "parameters": SCHEMA}],
        "generation_config": {"max_output_tokens": 100},
    },
}


KNOWN = Facts(tokens=5_000, capacity=180_000, context_window=200_000, cache_minimum=1_024)


def broken(format: str, change: Change) -> Json:
    """Return the good payload of a format after a change."""
    payload = copy.deepcopy(GOOD[format])
    change(payload)
    return payload


def same(_payload: Json) -> None:
    """Change nothing."""


def found(format: str, change: Change, severity: str, facts: Facts = KNOWN) -> set[str]:
    """Return the rules that a changed payload breaks."""
    findings = judge(format, broken(format, change), facts)
    return {finding.rule for finding in findings if finding.severity == severity}


def at(path: str, do: Callable[[Any, Any], object]) -> Change:
    """Return a change of a place such as `messages.1.content`: of its object or array, and key."""

    def change(payload: Json) -> None:
        value: Any = payload
        *steps, key = (int(step) if step.isdigit() else step for step in path.split("."))
        for step in steps:
            value = value[step]
        do(value, key)

    return change


def put(path: str, new: Any) -> Change:
    """Return a change that sets the value at a place."""
    return at(path, lambda holder, key: holder.__setitem__(key, new))


def drop(path: str) -> Change:
    """Return a change that removes what stands at a place."""
    return at(path, lambda holder, key: holder.__delitem__(key))


def insert(path: str, new: Any) -> Change:
    """Return a change that puts a value into an array, before a place."""
    return at(path, lambda items, index: items.insert(index, copy.deepcopy(new)))


def double(path: str) -> Change:
    """Return a change that repeats an item of an array."""
    return at(path, lambda items, index: items.insert(index, copy.deepcopy(items[index])))


def cut(path: str) -> Change:
    """Return a change that ends an array before a place."""
    return at(path, lambda items, index: items.__delitem__(slice(index, None)))


def both(*changes: Change) -> Change:
    """Return several changes as one."""

    def change(payload: Json) -> None:
        for one in changes:
            one(payload)

    return change


def put_all(**fields: Any) -> Change:
    """Return a change that sets fields of the payload."""
    return lambda payload: payload.update(copy.deepcopy(fields))


def edits(*items: Json) -> Change:
    """Return a change that sets Anthropic's edits of the context."""
    return put_all(context_management={"edits": list(items)})


def before(format: str, *changes: Change, stable: int | None = None, **known: Any) -> Facts:
    """Return facts of which one is the build before: the good payload after changes."""
    return Facts(previous=broken(format, both(*changes)), previous_stable=stable, **known)


NOTE: Json = {"role": "system", "content": "Answer in Norwegian."}
REMOVED: Json = {"type": "tool_reference", "name": "read_file"}
WITHOUT: Json = {"role": "system", "content": [{"type": "tool_removal", "tool": REMOVED}]}
EDIT: Json = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 50_000}}
CLEARING: Json = {"type": "clear_thinking_20251015"}
ASKED: Json = {"type": "summarize"}
CHAT: list[tuple[str, Change]] = [
    ("no-messages", put("messages", [])),
    ("not-json", put("messages.1.content", float("nan"))),
    ("lone-surrogate", put("messages.1.content", "\ud83d")),
    ("sdk-type", put("messages.1.role", "human")),
    ("call-unanswered", drop("messages.3")),
    ("orphan-result", drop("messages.2")),
    ("second-result", double("messages.3")),
    ("empty-content", put("messages.1.content", [])),
    ("empty-tool-calls", put("messages.5.tool_calls", [])),
    ("no-content", put("messages.5.content", None)),
    ("call-id-reused", put("messages.2.tool_calls.1.id", "c1")),
    ("call-id-long", put("messages.2.tool_calls.0.id", "c" * 41)),
    ("call-without-id", put("messages.2.tool_calls.0.id", "")),
    ("tool-name", put("messages.2.tool_calls.0.function.name", "read file")),
    ("tool-defined-twice", double("tools.0")),
    ("empty-tools", put("tools", [])),
    (
        "too-many-tools",
        put("tools", [{"type": "function", "function": {"name": f"tool_{n}"}} for n in range(129)]),
    ),
]
RESPONSES: list[tuple[str, Change]] = [
    ("no-input", put("input", [])),
    ("lone-surrogate", put("input.0.content", "\udc00")),
    ("sdk-type", put("instructions", ["Be brief."])),
    ("role-tool", insert("input.8", {"role": "tool", "content": "done"})),
    ("assistant-part", put("input.6.content.0.type", "input_text")),
    ("call-unanswered", drop("input.3")),
    ("orphan-result", drop("input.4")),
    ("second-result", double("input.3")),
    ("output-type", put("input.4", function_call("c2"))),
    ("call-id-reused", insert("input.4", function_call("c1"))),
    ("call-id-long", put("input.2.call_id", "c" * 65)),
    ("tool-name", put("input.2.name", "read file")),
    ("tool-defined-twice", double("tools.0")),
    ("item-id-reused", put("input.2.id", "rs_1")),
    (
        "reasoning-alone",
        both(
            drop("input.2"),
            drop("input.2"),
            insert("input.2", {"role": "user", "content": "Go on."}),
        ),
    ),
    ("trigger-not-last", insert("input.0", {"type": "compaction_trigger"})),
    ("orphan-search", insert("input.8", SEARCHED)),
    ("search-unanswered", insert("input.8", SEARCH)),
    ("no-namespace", both(put("tools.0", DRIVE), put("input.2.name", "read_file"))),
    ("two-histories", both(put("previous_response_id", "r1"), put("conversation", "v1"))),
]
ANTHROPIC: list[tuple[str, Change]] = [
    ("no-messages", put("messages", [])),
    ("sdk-type", drop("max_tokens")),
    ("first-not-user", drop("messages.0")),
    ("system-first", insert("messages.0", {"role": "system", "content": "Be brief."})),
    ("compaction-not-first", insert("messages.1.content.0", COMPACTION)),
    ("compaction-without-edit", insert("messages.0", compacted(COMPACTION))),
    (
        "empty-content",
        both(insert("messages.0", compacted({**COMPACTION, "content": ""})), edits(EDIT)),
    ),
    ("trigger-low", edits({**EDIT, "trigger": {"type": "input_tokens", "value": 49_999}})),
    ("clear-thinking-late", edits({"type": "clear_tool_uses_20250919"}, CLEARING)),
    ("compaction-request", put_all(compaction=ASKED, stop_sequences=["x"])),
    (
        "signed-compaction",
        both(
            insert("messages.0", compacted({**COMPACTION, "signature": SIGNATURE})),
            put("output_config", {"task_budget": {"type": "tokens", "total": 9, "remaining": 5}}),
        ),
    ),
    ("system-place", insert("messages.4", NOTE)),
    ("blank-text", put("messages.2.content.1.content", [{"type": "text", "text": ""}])),
    ("thinking-last", insert("messages.3", {"role": "assistant", "content": [THINKING]})),
    ("orphan-result", insert("messages.2.content.0", tool_result("srv1"))),
    ("roles-repeat", double("messages.0")),
    ("trailing-space", both(cut("messages.4"), put("messages.3.content", "Read. "))),
    ("call-unanswered", drop("messages.2.content.0")),
    ("second-result", double("messages.2.content.0")),
    ("result-not-first", insert("messages.2.content.1", {"type": "text", "text": "So."})),
    ("call-id-reused", put("messages.3.content", [tool_use("t1")])),
    ("call-id", put("messages.1.content.3.id", "t.1")),
    ("call-role", put("messages.4.content", [tool_use("t3")])),
    ("result-role", put("messages.3.content", [tool_result("t1")])),
    ("tool-name", put("messages.1.content.3.name", "read file")),
    ("thinking-role", put("messages.4.content", [THINKING])),
    ("thinking-unsigned", put("messages.1.content.0.signature", "")),
    ("server-result-orphan", drop("messages.1.content.1")),
    ("server-call-unanswered", drop("messages.1.content.2")),
    ("tool-defined-twice", put("tools.1.name", "read_file")),
    ("all-deferred", put("tools.0.defer_loading", True)),
    ("reference-unknown", drop("tools.1")),
    ("breakpoint-on-deferred", put("tools.1.cache_control", HOUR)),
    (
        "breakpoint-on-blank",
        both(
            put("messages.2.content.1.content", [{"type": "text", "text": ""}]),
            put("messages.2.content.1.content.0.cache_control", MINUTES),
        ),
    ),
    (
        "breakpoint-ttl",
        put("messages.4.content", [{"type": "text", "text": "Thanks.", "cache_control": HOUR}]),
    ),
    (
        "too-many-breakpoints",
        both(
            put("cache_control", MINUTES),
            *(put(f"messages.2.content.{n}.cache_control", MINUTES) for n in (0, 1)),
        ),
    ),
    (
        "too-many-images",
        put(
            "messages.0.content",
            [
                {"type": "image", "source": {"type": "url", "url": f"https://example.com/{n}.png"}}
                for n in range(601)
            ],
        ),
    ),
]
GEMINI: list[tuple[str, Change]] = [
    ("no-contents", put("contents", [])),
    ("lone-surrogate", put("contents.0.parts.0.text", "\ud83d")),
    ("sdk-type", put("tools", [])),
    ("first-not-user", drop("contents.0")),
    ("role", put("contents.3.role", "assistant")),
    ("empty-content", put("contents.0.parts", [])),
    ("blank-text", put("contents.0.parts.0.text", "")),
    ("empty-part", put("contents.0.parts.0", {})),
    ("part-of-two-kinds", put("contents.1.parts.0.text", "So.")),
    ("call-unanswered", drop("contents.6")),
    ("call-place", drop("contents.4")),
    ("call-role", put("contents.5.role", "user")),
    ("orphan-result", drop("contents.5")),
    ("response-role", put("contents.2.role", "model")),
    ("result-name", put("contents.6.parts.0", gemini_result("g1", "grep"))),
    ("result-id", put("contents.6.parts", [gemini_result("g2"), gemini_result("g1")])),
    ("call-id-reused", put("contents.5.parts.1", gemini_call("g1"))),
    ("tool-name", put("contents.5.parts.1.function_call.name", "7zip")),
    ("no-signature", drop("contents.5.parts.0.thought_signature")),
    ("tool-defined-twice", double("config.tools.0")),
]
INTERACTIONS: list[tuple[str, Change]] = [
    ("no-steps", put("input", [])),
    ("lone-surrogate", put("system_instruction", "\ud83d")),
    ("sdk-type", put("input.4.arguments", "{}")),
    ("sdk-type", put("max_output_tokens", 100)),
    ("stored", put("store", True)),
    ("stored", put("previous_interaction_id", "v1_1")),
    ("tool-name", put("tools.0.name", "7zip")),
    ("tool-name", put("input.5.name", "7zip")),
    ("tool-defined-twice", double("tools.0")),
    ("first-not-user", drop("input.0")),
    ("empty-content", put("input.9.content", [])),
    ("blank-text", put("input.8.content.0.text", " ")),
    ("unsigned-thought", put("input.1.signature", "")),
    ("no-signature", drop("input.1")),
    ("call-id-reused", put("input.5.id", "c1")),
    ("call-unanswered", drop("input.7")),
    ("orphan-result", drop("input.5")),
    ("orphan-result", drop("input.2")),
    ("result-name", put("input.6.name", "grep")),
]
BROKEN = [
    pytest.param(format, rule, change, id=f"{format}-{rule}-{number}")
    for format, cases in {
        "openai_chat": CHAT,
        "openai_responses": RESPONSES,
        "anthropic": ANTHROPIC,
        "gemini": GEMINI,
        "gemini_interactions": INTERACTIONS,
    }.items()
    for number, (rule, change) in enumerate(cases)
]
CACHED: Json = {
    "type": "input_text",
    "text": "Thanks.",
    "prompt_cache_breakpoint": {"mode": "explicit"},
}
COSTLY: list[tuple[str, Change]] = [
    ("gemini_interactions last-is-model", drop("input.9")),
    ("openai_chat nul-character", put("messages.1.content", "a\0b")),
    ("openai_chat system-not-first", insert("messages.6", GOOD["openai_chat"]["messages"][0])),
    ("openai_chat first-not-user", drop("messages.1")),
    ("openai_chat no-user", both(drop("messages.6"), drop("messages.1"))),
    ("openai_chat last-is-assistant", cut("messages.6")),
    ("openai_chat blank-text", put("messages.1.content.0.text", " ")),
    ("openai_chat empty-content", put("messages.6.content", "")),
    ("openai_chat arguments-not-json", put("messages.2.tool_calls.0.function.arguments", "{")),
    ("openai_chat arguments-not-object", put("messages.2.tool_calls.0.function.arguments", "[]")),
    ("openai_chat tool-undefined", put("tools.0.function.name", "grep")),
    ("openai_chat placeholder", put("messages.3.content", "[tool output trimmed; ref=x]")),
    (
        "gemini placeholder",
        put(
            "contents.2.parts.0.function_response.response.output",
            '[Tool result stored — 5,000 bytes from "read_file".\nFirst 200 chars: total',
        ),
    ),
    ("openai_responses empty-content", put("input.0.content", "")),
    ("openai_responses first-not-user", drop("input.0")),
    ("openai_responses cached-instructions", put("input.7.content", [CACHED])),
    (
        "openai_responses result-not-adjacent",
        insert("input.3", {"role": "user", "content": "Wait."}),
    ),
    (
        "openai_responses cache-breakpoints",
        both(drop("instructions"), put("input.7.content", [CACHED] * 4)),
    ),
    ("anthropic last-is-assistant", cut("messages.4")),
    ("anthropic no-tools", both(drop("tools"), drop("messages.2.content.1.content"))),
    ("anthropic system-inside", insert("messages.5", {"role": "system", "content": "Be brief."})),
    (
        "anthropic thinking-not-first",
        insert("messages.1.content.0", {"type": "text", "text": "So."}),
    ),
    ("anthropic thinking-after-call", insert("messages.1.content.4", THINKING)),
    (
        "anthropic breakpoint-far",
        put(
            "messages.4.content",
            [
                *({"type": "text", "text": f"Line {n}."} for n in range(21)),
                {"type": "text", "text": "End.", "cache_control": MINUTES},
            ],
        ),
    ),
    ("gemini last-is-model", insert("contents.7", GOOD["gemini"]["contents"][3])),
]


OTHER = put("model", "another-model")
MARKED: Json = {"type": "text", "text": "End.", "cache_control": MINUTES}
LONG = [{"type": "text", "text": f"line {number}"} for number in range(25)]
SIGNED = insert("messages.0", compacted({**COMPACTION, "signature": SIGNATURE}))
COMPACTED: Json = {"type": "compaction", "id": "cmp_1", "encrypted_content": "c3VtbWFyeQ=="}
DROPPING: Json = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
BINDING = "thinking-binding-controls-2026-08-01"
GATEWAY = Facts(has_gateway=True)
KNOWING: list[tuple[str, Change, Facts]] = [
    *(
        (f"{format} error too-long", same, Facts(tokens=180_001, capacity=180_000))
        for format in GOOD
    ),
    (
        "openai_chat error group-split",
        both(drop("messages.4"), drop("messages.2.tool_calls.0")),
        before("openai_chat", OTHER),
    ),
    (
        "openai_responses error group-split",
        drop("input.4"),
        before("openai_responses", OTHER, insert("input.3", function_call("c3"))),
    ),
    (
        "anthropic error group-split",
        both(drop("messages.2.content.0"), drop("messages.1.content.3")),
        before("anthropic", OTHER),
    ),
    (
        "gemini error group-split",
        both(drop("contents.6.parts.1"), drop("contents.5.parts.1")),
        before("gemini", OTHER),
    ),
    (
        "openai_chat warning prefix-changed",
        put("messages.4.content", "other"),
        before("openai_chat"),
    ),
    (
        "openai_chat warning tools-changed",
        put("tools.0.function.description", "x"),
        before("openai_chat"),
    ),
    (
        "openai_chat warning instructions-changed",
        put("messages.0.content", "Be long."),
        before("openai_chat"),
    ),
    (
        "openai_responses warning prefix-changed",
        put("input.5.output", "2"),
        before("openai_responses"),
    ),
    (
        "openai_responses warning item-extended",
        put("input.0.content", "Read it. Please."),
        before("openai_responses"),
    ),
    ("anthropic warning prefix-changed", put("messages.0.content", "Stop."), before("anthropic")),
    ("anthropic warning system-changed", put("system.0.text", "Be long."), before("anthropic")),
    (
        "anthropic warning tools-changed",
        lambda payload: payload["tools"].reverse(),
        before("anthropic"),
    ),
    (
        "gemini warning system-changed",
        put("config.system_instruction", "Be long."),
        before("gemini"),
    ),
    ("gemini warning prefix-changed", put("contents.3.parts.0.text", "Not yet."), before("gemini")),
    ("anthropic error last-is-assistant", cut("messages.4"), Facts(prefill=False)),
    ("anthropic error system-inside", insert("messages.5", NOTE), Facts(takes_system=False)),
    ("anthropic warning prefix-short", same, Facts(tokens=1_000, cache_minimum=1_024)),
    (
        "anthropic warning breakpoint-unreached",
        both(
            drop("messages.2.content.2.cache_control"), put("messages.4.content", [*LONG, MARKED])
        ),
        before("anthropic", stable=4),
    ),
    (
        "anthropic error thinking-unbound",
        put("messages.0.content", "Stop."),
        before("anthropic", OTHER),
    ),
    ("anthropic error beta-missing", SIGNED, Facts(betas=())),
    ("anthropic error beta-missing", insert("messages.5", WITHOUT), Facts(betas=(BINDING,))),
    (
        "anthropic error too-many-images",
        put(
            "messages.0.content",
            [{"type": "image", "source": {"type": "url", "url": "https://x.test/"}}] * 101,
        ),
        KNOWN,
    ),
    ("anthropic error too-many-bytes", put("messages.0.content", "x" * 32_000_000), KNOWN),
    (
        "anthropic warning instruction-lost",
        same,
        before("anthropic", OTHER, insert("messages.5", NOTE)),
    ),
    (
        "openai_responses error compaction-tail",
        both(insert("input.0", COMPACTED), drop("input.6"), drop("input.5")),
        before("openai_responses", OTHER, insert("input.0", COMPACTED)),
    ),
    (
        "openai_responses error instructions-missing",
        drop("instructions"),
        before("openai_responses"),
    ),
    ("gemini warning foreign-signature", same, before("gemini", OTHER)),
    ("openai_chat error sdk-type", put("messages.6.cache_control", MINUTES), GATEWAY),
    ("openai_chat warning modify-params", put("modify_params", True), GATEWAY),
]
FINDINGS: dict[str, str] = {
    "neutral.results-refer-to-calls": "orphan-result",
    "neutral.calls-have-results": "call-unanswered second-result result-not-adjacent",
    "neutral.unique-call-ids": "call-id-reused call-id call-id-long item-id-reused",
    "neutral.whole-turns": "group-split",
    "neutral.user-first": "first-not-user no-user no-messages no-input no-contents",
    "neutral.no-empty-content": "empty-content blank-text empty-part no-content",
    "neutral.within-limit": "too-long",
    "neutral.prefix-extends": "prefix-changed tools-changed system-changed",
    "neutral.placeholders": "placeholder",
    "neutral.opaque-family": "sdk-type foreign-signature",
    "anthropic.first-and-last": "first-not-user last-is-assistant system-first roles-repeat",
    "anthropic.calls-answered-next": "call-unanswered call-role",
    "anthropic.results-first": "result-not-first roles-repeat",
    "anthropic.results-match": "orphan-result second-result call-id-reused result-role",
    "anthropic.server-tools": "orphan-result server-result-orphan server-call-unanswered",
    "anthropic.tools-present": "no-tools reference-unknown all-deferred",
    "anthropic.breakpoint-limits": "too-many-breakpoints breakpoint-ttl breakpoint-on-blank"
    " breakpoint-on-deferred sdk-type",
    "anthropic.breakpoint-reach": "breakpoint-far breakpoint-unreached prefix-short",
    "anthropic.latest-thinking": "thinking-after-call thinking-last thinking-role thinking-unsigned"
    " thinking-not-first",
    "anthropic.thinking-unbroken": "thinking-unbound",
    "anthropic.compaction-requested": "signed-compaction compaction-not-first beta-missing",
    "anthropic.tool-changes": "beta-missing all-deferred",
    "anthropic.compaction-threshold": "compaction-without-edit trigger-low beta-missing",
    "anthropic.compaction-request": "compaction-request call-unanswered",
    "anthropic.clear-thinking-first": "clear-thinking-late",
    "anthropic.system-messages": "system-place system-inside",
    "anthropic.input-object": "sdk-type",
    "anthropic.no-empty-text": "blank-text trailing-space",
    "anthropic.sizes": "tool-name tool-defined-twice too-many-images too-many-bytes",
    "anthropic.stable-prefix": "tools-changed system-changed",
    "anthropic.restated-changes": "instruction-lost",
    "openai-chat.calls-answered-next": "call-unanswered",
    "openai-chat.results-match": "orphan-result",
    "openai-chat.assistant-content": "no-content empty-tool-calls sdk-type arguments-not-json"
    " arguments-not-object",
    "openai-chat.sizes": "call-id-long call-without-id tool-name tool-defined-twice empty-tools"
    " too-many-tools sdk-type",
    "openai-chat.system-first": "system-not-first instructions-changed",
    "openai-responses.calls-match-outputs": "call-unanswered orphan-result output-type role-tool",
    "openai-responses.reasoning-followed": "reasoning-alone",
    "openai-responses.compaction-items": "compaction-tail",
    "openai-responses.compaction-trigger": "trigger-not-last",
    "openai-responses.one-state": "two-histories instructions-missing",
    "openai-responses.own-items": "sdk-type",
    "openai-responses.items-kept": "assistant-part sdk-type",
    "openai-responses.additional-tools": "sdk-type",
    "openai-responses.tool-search": "orphan-search search-unanswered no-namespace",
    "openai-responses.breakpoints": "cache-breakpoints cached-instructions sdk-type",
    "openai-responses.append-only": "item-extended",
    "gemini.names": "tool-name",
    "gemini.responses-follow": "call-unanswered orphan-result result-name result-id call-place"
    " call-role response-role",
    "gemini.thought-signatures": "no-signature",
    "gemini.roles": "first-not-user last-is-model role no-contents",
    "gemini.signatures-by-model": "foreign-signature",
    "gemini-interactions.results-match": "call-unanswered orphan-result result-name call-id-reused",
    "gemini-interactions.thoughts-verbatim": "unsigned-thought",
    "gemini-interactions.signed-calls": "no-signature",
    "gemini-interactions.server-tools": "orphan-result",
    "gemini-interactions.user-first": "first-not-user last-is-model no-steps",
    "gemini-interactions.not-stored": "stored",
    "litellm.chat-dialect": "sdk-type",
    "litellm.no-modify-params": "modify-params",
}
"""The findings that report each rule of the providers, in the formats that it is about."""
UNSEEN = {
    "neutral.same-bytes": "Whether two payloads have the same inputs is not visible in them.",
    "neutral.summary-ranges": "Which messages a summary stands for is not visible in a payload.",
    "neutral.untrusted-role": "Which texts are untrusted is not visible in a payload.",
    "anthropic.thinking-never-returns": "What an earlier build left out is not visible.",
    "openai-chat.reasoning-demanded": "Whether a model thinks is not visible in a payload.",
    "litellm.images-not-fetched": "How images are counted is not visible in a payload.",
}
"""The rules that no payload can show to be broken, with the reason."""
DOCUMENTED = re.findall(
    r"^- \*\*`([\w.-]+)`\*\* \((?:error|warning)\)",
    (Path(__file__).parents[2] / "docs/provider-rules.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)


def test_every_rule_of_the_providers_is_judged() -> None:
    """Each documented rule has findings that a case makes, or a reason why it cannot have any."""
    named = [case[0] for case in COSTLY] + [case[0] for case in KNOWING]
    made = {(what.split()[0], what.split()[-1]) for what in named}
    tables = {"openai_chat": CHAT, "openai_responses": RESPONSES, "anthropic": ANTHROPIC}
    for format, cases in {**tables, "gemini": GEMINI, "gemini_interactions": INTERACTIONS}.items():
        made |= {(format, rule) for rule, _ in cases}
    assert sorted(DOCUMENTED) == sorted([*FINDINGS, *UNSEEN])
    for documented, rules in FINDINGS.items():
        area = documented.partition(".")[0].replace("-", "_").replace("litellm", "openai_chat")
        for rule in rules.split():
            formats = GOOD if area == "neutral" else (area,)
            assert any((format, rule) in made for format in formats), (documented, rule)
    unnamed = {rule for _, rule in made} - {
        rule for found in FINDINGS.values() for rule in found.split()
    }
    assert unnamed == {
        "lone-surrogate",
        "not-json",
        "nul-character",
        "tool-undefined",
        "part-of-two-kinds",
    }


@pytest.mark.parametrize(
    ("what", "change", "facts"), [pytest.param(*case, id=case[0]) for case in KNOWING]
)
def test_facts_beside_the_payload(what: str, change: Change, facts: Facts) -> None:
    """A rule that needs a fact is judged with it alone."""
    format, severity, rule = what.split()
    assert rule in found(format, change, severity, facts)
    if facts not in (KNOWN, GATEWAY):
        assert rule not in found(format, change, severity, Facts())


@pytest.mark.parametrize("format", GOOD)
def test_a_good_payload_stays_good_beside_the_build_before(format: str) -> None:
    """Nothing is wrong with the same build again, or with one that goes on from it."""
    for stable in (None, 2):
        facts = before(format, stable=stable, tokens=5_000, capacity=180_000, betas=())
        assert judge(format, GOOD[format], facts) == []
    if not format.startswith("gemini"):  # another model does not get the signatures
        assert errors(judge(format, GOOD[format], before(format, OTHER))) == []


def test_thinking_that_the_provider_may_leave_out() -> None:
    """With the setting and its beta, thinking whose prefix has changed is no error."""
    change = both(put_all(thinking=DROPPING), put("messages.0.content", "Stop."))
    facts = before("anthropic", OTHER, betas=(BINDING,))
    assert found("anthropic", change, "error", facts) == set()


def test_a_placeholder_names_all() -> None:
    """Ref, size and the tool that reads it."""
    stored = '[Tool result stored — 5,000 bytes from "x".\nFirst 9 chars: total]\nref_id="blob_1"'
    trimmed = "[tool output trimmed; ref=x; 5,000 bytes; read with tool_output_cache]"
    for text in (stored, trimmed, trimmed.replace("; read with tool_output_cache", "")):
        assert found("openai_chat", put("messages.3.content", text), "warning") == set()


@pytest.mark.parametrize("format", GOOD)
def test_a_good_payload_has_no_finding(format: str) -> None:
    """Each provider accepts its payload, with and without the model and the limit of the output."""
    payload = GOOD[format]
    assert judge(format, payload) == []
    bare = {key: payload[key] for key in payload.keys() - {"model", "max_tokens"}}
    assert judge(format, bare) == []


@pytest.mark.parametrize(("format", "rule", "change"), BROKEN)
def test_a_broken_payload_is_refused(format: str, rule: str, change: Change) -> None:
    """Each rule is broken by one payload at least, and named."""
    assert rule in found(format, change, "error")
    assert refusals(format, broken(format, change))


@pytest.mark.parametrize(
    ("format", "rule", "change"), [(*what.split(), change) for what, change in COSTLY]
)
def test_a_costly_payload_is_warned_of(format: str, rule: str, change: Change) -> None:
    """What a provider accepts at a cost is no error."""
    assert rule in found(format, change, "warning")
    assert found(format, change, "error") <= {"call-unanswered", "orphan-result"}


@pytest.mark.parametrize(
    "hint",
    [
        CompletionCreateParamsNonStreaming,
        ResponseCreateParamsNonStreaming,
        MessageCreateParamsNonStreaming,
    ],
)
def test_requests_are_closed(hint: Any) -> None:
    """Every hint of a request is understood, and an unknown key at any depth is an error."""
    assert "unknown" in str(check_type({"unknown": 1}, hint))
    assert check_type([], hint)


def imports_of(path: Path) -> set[str]:
    """Return the modules that a file imports, anywhere in it."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {node.module or "." for node in nodes if isinstance(node, ast.ImportFrom)}


def test_the_judge_imports_nothing_of_the_service() -> None:
    """It shares no code with what it judges: there are only itself, the SDKs and libraries."""
    modules = [path for path in Path(__file__).parent.glob("*.py") if path != Path(__file__)]
    imported = {name for path in modules for name in imports_of(path)}
    ours = {name for name in imported if name.split(".")[0] in ("app", "tests", "benchmarks", "")}
    assert modules
    assert all(name.startswith("tests.judge") for name in ours), ours
