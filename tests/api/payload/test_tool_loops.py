"""Long tool loops of every family with reasoning, in a small window, driven through the API.

Each payload is judged by the SDKs' types and the providers' rules. [reasoning.running-loop,
agent-tools.from-the-start]
"""

from __future__ import annotations

import base64
import json
from itertools import cycle
from typing import Any

import httpx
import pytest

from tests.api.talk import append, calling, new_conversation, result, user
from tests.judge import Facts, errors, judge
from tests.judge.epochs import ITEMS

CHAT, RESPONSES, ANTHROPIC, GEMINI = "openai_chat", "openai_responses", "anthropic", "gemini"
INTERACTIONS = "gemini_interactions"
STEPS = 60
TOOL = {
    "name": "shell",
    "description": "Runs a command in the workspace.",
    "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}},
}
POLICY = {"budget": {"context_window": 8000, "max_output_tokens": 1000}}
LIMITS = {"context_window": 8000, "max_output_tokens": 1000}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "policy": ({"policy": POLICY, "tools": [TOOL]}, {}),
    "request": ({"tools": [TOOL]}, LIMITS),
    "no tools": ({"policy": POLICY}, {}),
}
"""Whose window it is, and whether the conversation has tools of its own."""
BOUND = "claude-fable-5-1"


def mark_of(step: int) -> str:
    """Return reasoning of a step, in base64; of some steps it is long."""
    return base64.b64encode(f"<thought: {step:04d}>".encode()).decode() * (
        60 if step % 7 == 3 else 9
    )


def anthropic_step(step: int) -> list[dict[str, Any]]:
    """Return a step of Claude in its own format."""
    thinking = {"type": "thinking", "thinking": "I look.", "signature": mark_of(step)}
    call = {"type": "tool_use", "id": f"c{step}", "name": "shell", "input": {"command": "ls"}}
    answer = {"type": "tool_result", "tool_use_id": f"c{step}", "content": output(step)}
    return [
        {"role": "assistant", "content": [thinking, call]},
        {"role": "user", "content": [answer]},
    ]


def responses_step(step: int) -> list[dict[str, Any]]:
    """Return a step of OpenAI in its own format."""
    return [
        {
            "type": "reasoning",
            "id": f"rs_{step}",
            "summary": [],
            "encrypted_content": mark_of(step),
        },
        {
            "type": "function_call",
            "id": f"fc_{step}",
            "call_id": f"c{step}",
            "name": "shell",
            "arguments": '{"command":"ls"}',
        },
        {"type": "function_call_output", "call_id": f"c{step}", "output": output(step)},
    ]


def gemini_step(step: int) -> list[dict[str, Any]]:
    """Return a step of Gemini in its own format."""
    call = {"id": f"c{step}", "name": "shell", "args": {"command": "ls"}}
    answer = {"id": f"c{step}", "name": "shell", "response": {"output": output(step)}}
    return [
        {"role": "model", "parts": [{"functionCall": call, "thoughtSignature": mark_of(step)}]},
        {"role": "user", "parts": [{"functionResponse": answer}]},
    ]


def interactions_step(step: int) -> list[dict[str, Any]]:
    """Return a step of Gemini Interactions."""
    call = {"type": "function_call", "id": f"c{step}", "name": "shell"}
    return [
        {"type": "thought", "signature": mark_of(step)},
        call | {"arguments": {"command": "ls"}},
        {"type": "function_result", "call_id": f"c{step}", "result": output(step)},
    ]


def chat_step(step: int, **fields: Any) -> list[dict[str, Any]]:
    """Return a step in the Chat format, with these fields of the message."""
    return [calling(f"c{step}") | fields, result(f"c{step}", output(step))]


def plain_step(step: int) -> list[dict[str, Any]]:
    """Return a step of DeepSeek, Kimi and others."""
    return chat_step(step, reasoning_content=mark_of(step))


def litellm_step(step: int) -> list[dict[str, Any]]:
    """Return a step of Claude as LiteLLM gives it."""
    thinking = {"type": "thinking", "thinking": "I look.", "signature": mark_of(step)}
    return chat_step(step, thinking_blocks=[thinking])


def openrouter_step(step: int) -> list[dict[str, Any]]:
    """Return a step of Claude as OpenRouter gives it."""
    detail = {"type": "reasoning.text", "text": "I look.", "signature": mark_of(step)}
    return chat_step(step, reasoning_details=[{**detail, "format": "anthropic-claude-v1"}])


def google_step(step: int) -> list[dict[str, Any]]:
    """Return a step of Gemini as Google's compatible endpoint gives it."""
    said, answer = chat_step(step)
    said["tool_calls"][0]["extra_content"] = {"google": {"thought_signature": mark_of(step)}}
    return [said, answer]


def output(step: int) -> str:
    """Return the result of a step, which is long every now and then."""
    lines = 400 if step % 13 == 5 else 12
    return "\n".join(f"{step}: file {line} of the workspace" for line in range(lines))


FAMILIES = {
    "claude": (ANTHROPIC, "claude-sonnet-4-5", anthropic_step),
    "bound claude": (ANTHROPIC, BOUND, anthropic_step),
    "openai": (RESPONSES, "gpt-5", responses_step),
    "gemini": (GEMINI, "gemini-3-pro-preview", gemini_step),
    "interactions": (INTERACTIONS, "gemini-3-pro-preview", interactions_step),
    "deepseek": (CHAT, "deepseek/deepseek-reasoner", plain_step),
    "moonshot": (CHAT, "moonshot/kimi-k2-thinking", plain_step),
    "vllm": (CHAT, "hosted_vllm/qwen3", plain_step),
    "litellm": (CHAT, "anthropic/claude-sonnet-4-5", litellm_step),
    "openrouter": (CHAT, "openrouter/anthropic/claude-sonnet-4.5", openrouter_step),
    "google": (CHAT, "gemini/gemini-3-pro-preview", google_step),
}


@pytest.mark.parametrize(("family", "case"), [*zip(FAMILIES, cycle(CASES), strict=False)])
async def test_reasoning_of_the_loop_is_in_every_payload(
    client: httpx.AsyncClient, family: str, case: str
) -> None:
    """Each shown step has its reasoning, whatever was compacted, cleared or cut before it.

    Only a model that binds its reasoning to the prefix lacks it, up to the last break, by name.
    """
    format, model, made = FAMILIES[family]
    settings, limits = CASES[case]
    path = await new_conversation(client, **settings)
    await append(client, path, user("List every file of the workspace."))
    asked = {"format": format, "model": model, **limits}
    tools, reasons, broken_at = [], [], 0
    for step in range(1, STEPS + 1):
        await append(client, path, *made(step), format=format)
        built = (await client.post(f"{path}/context", json=asked)).raise_for_status().json()
        payload, budget = built["payload"], built["diagnostics"]["budget"]
        facts = Facts(tokens=built["tokens_used"], capacity=7000, has_gateway=format == CHAT)
        assert errors(judge(format, payload, facts)) == []
        assert budget["tokens_used"] == built["tokens_used"]
        reasons.append(built["cache_break_reason"])
        broken_at = step if reasons[-1] is not None and step > 1 else broken_at
        wire = json.dumps(payload[ITEMS[format]])
        shown = [number for number in range(1, step + 1) if f'"c{number}"' in wire]
        assert step in shown and "List every file" in wire
        lost = [number for number in shown if mark_of(number) not in wire]
        allowed = [number for number in shown if model == BOUND and number <= broken_at]
        assert lost == allowed, (step, reasons[-1])
        assert ("reasoning_dropped" in built["degraded"]) == bool(lost)
        tools.append((payload["config"] if format == GEMINI else payload).get("tools"))
    assert all(defined == tools[0] for defined in tools)
    assert {"compaction", "tool_results_cleared"} & set(reasons)
    assert "tools_changed" not in reasons
