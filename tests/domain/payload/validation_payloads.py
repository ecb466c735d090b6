"""One rich payload per format that breaks no rule, and what is known beside each of them."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from app.domain.common.messages import FormatName
from app.domain.models.limits import ModelInfo
from app.domain.payload.validation.rules import Context

TRIMMED = "[tool output trimmed; ref=blob_9f86d081; 48,231 bytes; read with tool_output_cache]"
STORED = (
    '[Tool result stored — 48,231 bytes from "shell".\nFirst 200 chars: total 12]\n'
    'Use the "read_result" tool with ref_id="blob_9f86d081" to read specific portions.'
)
MARK = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}
BREAKPOINT = {"mode": "explicit"}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}
MODEL = ModelInfo(
    model="some-model",
    context_window=200_000,
    max_input_tokens=None,
    max_output_tokens=8192,
    tokenizer="unknown",
    exact=False,
    cache_minimum_tokens=1024,
    input_price=None,
    output_price=None,
    cache_read_price=None,
    cache_write_price=None,
    sources={},
    mid_conversation_system=True,
)


def thinking(number: int) -> dict[str, Any]:
    """Return a signed thinking block."""
    return {"type": "thinking", "thinking": f"step {number}", "signature": f"sig{number}"}


def chat_call(call_id: str, name: str = "shell") -> dict[str, Any]:
    """Return a call as OpenAI Chat has it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": '{"a":1}'}}


def _chat_tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA}}


CHAT: dict[str, Any] = {
    "model": "openai/some-model",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Go.", "cache_control": MARK}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [chat_call("c1"), chat_call("c2")],
            "thinking_blocks": [thinking(1)],
        },
        {"role": "tool", "tool_call_id": "c2", "content": TRIMMED},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": STORED}]},
        {"role": "assistant", "content": "Once more.", "tool_calls": [chat_call("c3")]},
        {"role": "tool", "tool_call_id": "c3", "content": "done"},
        {"role": "assistant", "content": "Done.", "thinking_blocks": [thinking(2)]},
        {"role": "user", "content": "And now?"},
    ],
    "tools": [_chat_tool("shell"), _chat_tool("tool_output_cache")],
    "max_completion_tokens": 1000,
}


def function_call(call_id: str, **more: Any) -> dict[str, Any]:
    """Return a call as OpenAI Responses has it."""
    call = {"type": "function_call", "call_id": call_id, "name": "shell", "arguments": "{}"}
    return call | more


def output(call_id: str, text: str = "done") -> dict[str, Any]:
    """Return an output as OpenAI Responses has it."""
    return {"type": "function_call_output", "call_id": call_id, "output": text}


REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "b3BhcXVl"}
COMPACTION = {"type": "compaction", "id": "cmp_1", "encrypted_content": "c3VtbWFyeQ=="}
ANSWER = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "phase": "final_answer",
    "content": [{"type": "output_text", "text": "Done.", "annotations": []}],
}
NAMESPACED = function_call("r3", id="fc_3", name="list_files", namespace="drive")
_LOADED = {"type": "function", "name": "list_files", "parameters": SCHEMA, "strict": False}
_DRIVE = {"type": "namespace", "name": "drive", "description": "Files.", "tools": [_LOADED]}
_HOSTED = {"call_id": None, "execution": "server"}
_CLIENT = {"call_id": "s1", "execution": "client"}


def _input_text(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "input_text", "text": text} | more


RESPONSES: dict[str, Any] = {
    "model": "some-model",
    "input": [
        {
            "type": "message",
            "role": "developer",
            "content": [_input_text("Be brief.", prompt_cache_breakpoint=BREAKPOINT)],
        },
        COMPACTION,
        {"role": "user", "content": [_input_text("Go.", prompt_cache_breakpoint=BREAKPOINT)]},
        REASONING,
        function_call("r1"),
        function_call("r2"),
        output("r2", TRIMMED),
        output("r1", STORED),
        {"type": "custom_tool_call", "call_id": "r4", "name": "sql", "input": "select 1"},
        {"type": "custom_tool_call_output", "call_id": "r4", "output": "1"},
        {"type": "tool_search_call", "arguments": {"query": "files"}, **_CLIENT},
        {"type": "tool_search_output", "tools": [_DRIVE], **_CLIENT},
        {"type": "tool_search_call", "arguments": {"paths": ["drive"]}, **_HOSTED},
        {"type": "tool_search_output", "tools": [_DRIVE], **_HOSTED},
        NAMESPACED,
        output("r3"),
        ANSWER,
        {"role": "user", "content": "And now?"},
    ],
    "tools": [
        {"type": "function", "name": "shell", "parameters": SCHEMA, "strict": False},
        {"type": "function", "name": "tool_output_cache", "parameters": SCHEMA, "strict": False},
    ],
    "max_output_tokens": 1000,
}


def tool_use(call_id: str, name: str = "shell") -> dict[str, Any]:
    """Return a call as Anthropic has it."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": {"a": 1}}


def tool_result(call_id: str, content: Any = "done") -> dict[str, Any]:
    """Return a result as Anthropic has it."""
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


def text(said: str, **more: Any) -> dict[str, Any]:
    """Return a text block of Anthropic."""
    return {"type": "text", "text": said} | more


SIGNED = {"type": "compaction", "content": "They planned.", "signature": "c2ln"}
_SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
_FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}

ANTHROPIC: dict[str, Any] = {
    "model": "some-model",
    "max_tokens": 1000,
    "system": [text("Be brief.", cache_control=HOUR)],
    "messages": [
        {"role": "assistant", "content": [SIGNED]},
        {"role": "user", "content": "Go."},
        {
            "role": "assistant",
            "content": [thinking(1), text("Looking."), tool_use("a1"), tool_use("a2")],
        },
        {
            "role": "user",
            "content": [
                tool_result("a2", TRIMMED),
                tool_result("a1", [text(STORED), {"type": "tool_reference", "tool_name": "late"}]),
                text("Go on.", cache_control=MARK),
            ],
        },
        {"role": "system", "content": "Answer in Norwegian."},
        {"role": "assistant", "content": [thinking(2), _SEARCH, _FOUND, tool_use("a3")]},
        {"role": "user", "content": [tool_result("a3")]},
        {"role": "assistant", "content": [thinking(3), text("Done.")]},
        {"role": "user", "content": [text("And now?", cache_control=MARK)]},
    ],
    "tools": [
        {"name": "shell", "input_schema": SCHEMA},
        {"name": "tool_output_cache", "input_schema": SCHEMA},
        {"name": "late", "input_schema": SCHEMA, "defer_loading": True},
    ],
}


def gemini_call(name: str = "shell", signature: str | None = None, **more: Any) -> dict[str, Any]:
    """Return a part with a call as Gemini has it."""
    part: dict[str, Any] = {"function_call": {"name": name, "args": {"a": 1}} | more}
    return part if signature is None else part | {"thought_signature": signature}


def gemini_response(name: str = "shell", text: str = "done", **more: Any) -> dict[str, Any]:
    """Return a part with a response as Gemini has it."""
    return {"function_response": {"name": name, "response": {"output": text}} | more}


def _said(text: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "parts": [{"text": text}]}


GEMINI: dict[str, Any] = {
    "model": "gemini-3-pro",
    "contents": [
        _said("Go."),
        {
            "role": "model",
            "parts": [gemini_call(signature="c2lnMQ==", id="g1"), gemini_call("sql", id="g2")],
        },
        {
            "role": "user",
            "parts": [gemini_response(text=TRIMMED, id="g1"), gemini_response("sql", id="g2")],
        },
        _said("Done.", "model"),
        _said("Once more."),
        {"role": "model", "parts": [{"text": "Well."}, gemini_call(signature="c2lnMg==")]},
        {"role": "user", "parts": [gemini_response(text=STORED)]},
    ],
    "config": {
        "system_instruction": "Be brief.",
        "tools": [{"function_declarations": [{"name": "shell"}, {"name": "tool_output_cache"}]}],
        "max_output_tokens": 1000,
    },
}

PAYLOADS = {
    FormatName.OPENAI_CHAT: CHAT,
    FormatName.OPENAI_RESPONSES: RESPONSES,
    FormatName.ANTHROPIC: ANTHROPIC,
    FormatName.GEMINI: GEMINI,
}


def payload_of(format: FormatName) -> dict[str, Any]:
    """Return a payload of one's own to break."""
    return deepcopy(PAYLOADS[format])


def context_of(format: FormatName) -> Context:
    """Return all that is known beside a format's payload, but for the build before."""
    return Context(tokens=5000, capacity=180_000, model=MODEL, betas=("compact-2026-09-04",))
