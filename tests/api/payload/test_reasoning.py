"""Reasoning in Chat messages: to whom it goes back, and what providers make of it.

Tokens are counted by tiktoken alone.

[neutral.opaque-family]
"""

from __future__ import annotations

import json
from typing import Any, get_args, get_type_hints

import httpx
import pytest
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import ResponseInputItemParam
from pydantic import TypeAdapter

from app.formats.openai_responses import ITEM_TYPES
from tests.api.talk import append, new_conversation, result, user
from tests.judge import Facts, judge
from tests.payload_tokens import payload_tokens

ENDS = ("last-is-assistant", "warning")
TOOLS = [{"name": "shell", "input_schema": {"type": "object", "properties": {}}}]
SIGNED = "ErUBCkYIBxgCIkDk" + "ab+/" * 40 + "=="
OTHER_SIGNED = "EqQBCgIYAhIkM2Yz" + "cd01" * 40 + "=="
GEMINI_SIGNED = "CpcHAdHtim9" + "Zz09" * 40 + "a"


def thinking(text: str, signature: str) -> dict[str, Any]:
    """Return a block as Anthropic makes it."""
    return {"type": "thinking", "thinking": text, "signature": signature}


def call(call_id: str, **more: Any) -> dict[str, Any]:
    """Return a call of the shell."""
    function = {"name": "shell", "arguments": '{"command": "ls"}'}
    return {"id": call_id, "type": "function", "function": function, **more}


def step(call_id: str | None, text: Any = None, **fields: Any) -> dict[str, Any]:
    """Return an assistant message, with a call or without."""
    said: dict[str, Any] = {"role": "assistant", "content": text, **fields}
    if call_id is not None:
        said["tool_calls"] = [call(call_id)]
    return said


def google(signature: str) -> dict[str, Any]:
    """Return the field in which Google's compatible endpoint gives a signature."""
    return {"extra_content": {"google": {"thought_signature": signature}}}


def litellm_sign(signature: str) -> dict[str, Any]:
    """Return the field in which LiteLLM gives the signature of a call."""
    return {"provider_specific_fields": {"thought_signature": signature}}


def signed_step(call_id: str, text: str | None, field: dict[str, Any]) -> dict[str, Any]:
    """Return a step whose call has a signature."""
    return {"role": "assistant", "content": text, "tool_calls": [call(call_id, **field)]}


REDACTED = {"type": "redacted_thinking", "data": "EroB/v7+" * 20}
CLAUDE_LITELLM = (
    step(
        "c1",
        reasoning_content="First I look.",
        thinking_blocks=[thinking("First I look.", SIGNED), REDACTED],
    ),
    step("c2", "And now:", thinking_blocks=[thinking("", OTHER_SIGNED)]),
    step(None, "All done.", thinking_blocks=[thinking("It is clear.", SIGNED)]),
)
CLAUDE_THOUGHT = {"thinking_blocks": [thinking("", SIGNED)]}


def details(**fields: Any) -> dict[str, Any]:
    """Return reasoning as OpenRouter gives it: encrypted without a text."""
    kind = "reasoning.text" if "text" in fields else "reasoning.encrypted"
    return {"reasoning_details": [{"type": kind, **fields}]}


DONE = step(None, "All done.")
OPENROUTER_CLAUDE = (
    step(
        "c1",
        reasoning="First I look.",
        **details(text="First I look.", signature=SIGNED, format="anthropic-claude-v1", index=0),
    ),
    step("c2", **details(data="c2VhbGVk", format="anthropic-claude-v1")),
    DONE,
)
SEALED = details(data="gAAAAABo" * 20, format="openai-responses-v1", id="rs_1")
OPENROUTER_OPENAI = (step("c1", **SEALED), step("c2"), DONE)
OF_GEMINI = details(data=GEMINI_SIGNED, format="google-gemini-v1", id="c1")
OPENROUTER_GEMINI = (step("c1", **OF_GEMINI), step("c2"), DONE)
PLAIN = (
    step("c1", reasoning_content="I should look around."),
    step("c2", "One more.", reasoning_content=""),
    step(None, "All done.", reasoning_content="Now I know."),
)
VLLM = (step("c1", reasoning="I should look."), step("c2", reasoning="More."), step(None, "Done."))
MINIMAX = (
    step("c1", **details(text="Hm", index=0)),
    step("c2", **details(text="So", index=0)),
    step(None, "Done."),
)
GEMINI_GOOGLE = (
    signed_step("c1", None, google(GEMINI_SIGNED)),
    signed_step("c2", "And:", google("c2ln" * 30)),
    step(None, "All done.", **google("dGV4dA==" * 8)),
)
GEMINI_LITELLM = (
    {
        **signed_step("c1", None, litellm_sign(GEMINI_SIGNED)),
        "reasoning_content": "I look.",
        "provider_specific_fields": {"thought_signatures": [GEMINI_SIGNED]},
    },
    signed_step("c2", "And:", litellm_sign("c2ln" * 30)),
    {**step(None, "All done."), "provider_specific_fields": {"thought_signatures": ["dGV4" * 8]}},
)
Loop = tuple[dict[str, Any], ...]
FAMILIES: dict[str, tuple[Loop, tuple[str, ...]]] = {
    "claude by litellm": (
        CLAUDE_LITELLM,
        (
            "claude-sonnet-4-5",
            "anthropic/claude-opus-4-6",
            "bedrock/us.anthropic.claude-sonnet-4-20250514-v1:0",
            "vertex_ai/claude-sonnet-4@20250514",
            "openrouter/anthropic/claude-sonnet-4.5",
        ),
    ),
    "claude by openrouter": (OPENROUTER_CLAUDE, ("openrouter/anthropic/claude-sonnet-4.5",)),
    "openai by openrouter": (OPENROUTER_OPENAI, ("openrouter/openai/gpt-5", "openai/gpt-5")),
    "gemini by openrouter": (OPENROUTER_GEMINI, ("openrouter/google/gemini-3-pro-preview",)),
    "gemini by google": (GEMINI_GOOGLE, ("gemini-3-pro-preview", "gemini/gemini-3-pro-preview")),
    "gemini by litellm": (GEMINI_LITELLM, ("gemini/gemini-3-pro", "vertex_ai/gemini-3-pro")),
    "plain": (
        PLAIN,
        (
            "deepseek/deepseek-reasoner",
            "deepseek-v4-pro",
            "moonshot/kimi-k2-thinking",
            "Qwen/Qwen3-235B-A22B-Thinking",
            "hosted_vllm/my-model",
            "zai/glm-4.7",
        ),
    ),
    "vllm": (VLLM, ("hosted_vllm/qwen3", "openai/gpt-oss-120b")),
    "minimax": (MINIMAX, ("minimax/MiniMax-M2",)),
}
OTHERS = {
    "claude": "claude-sonnet-4-5",
    "gemini": "gemini/gemini-3-pro",
    "openai": "gpt-5",
    "plain": "deepseek/deepseek-chat",
    "unknown": "my-model",
}
REASONING = ("thinking_blocks", "reasoning_content", "reasoning", "reasoning_details")


def whole(loop: Loop) -> list[dict[str, Any]]:
    """Return a tool loop, and the next turn after it."""
    first, second, last = loop
    return [
        user("What is here?"),
        first,
        result("c1", "a.txt"),
        second,
        result("c2", "b.txt"),
        last,
        user("Thanks. And there?"),
    ]


async def build(client: httpx.AsyncClient, path: str, model: str, **more: Any) -> dict[str, Any]:
    """Build for a model and check what holds of every answer."""
    asked = {"model": model, "context_window": 100_000, "max_output_tokens": 4000, **more}
    answer = await client.post(f"{path}/context", json=asked)
    assert answer.status_code == 200, answer.text
    built: dict[str, Any] = answer.json()
    if "known" not in more:
        assert built["tokens_used"] >= 0.99 * payload_tokens(built["payload"]), model
        facts = Facts(prefill=False, takes_system=True, has_gateway=True)
        # OpenAI takes a conversation that ends with an answer.
        found = judge(built["diagnostics"]["format"], built["payload"], facts)
        assert [item for item in found if (item.rule, item.severity) != ENDS] == []
    return built


async def log_of(client: httpx.AsyncClient, messages: list[dict[str, Any]], **more: Any) -> str:
    """Store messages and return the conversation's path."""
    path = await new_conversation(client, tools=TOOLS, **more)
    await append(client, path, *messages)
    return path


CASES = [(name, model) for name, (_, models) in FAMILIES.items() for model in models]


@pytest.mark.parametrize(("name", "model"), CASES)
async def test_reasoning_returns_to_its_own_family(
    client: httpx.AsyncClient, name: str, model: str
) -> None:
    """A tool loop and the turn after it are returned unchanged, field by field.

    Also behind a new prefix: no provider but Anthropic binds it, from 5.1 on.
    [reasoning.running-loop]
    """
    messages = whole(FAMILIES[name][0])
    path = await log_of(client, messages)
    built = await build(client, path, model)
    assert built["payload"]["messages"] == messages
    assert built["degraded"] == []
    TypeAdapter(list[ChatCompletionMessageParam]).validate_python(built["payload"]["messages"])
    after = await build(client, path, model, sections=[{"name": "rules", "content": "Be brief."}])
    assert after["cache_break_reason"] == "sections_changed"
    assert (after["payload"]["messages"][1:], after["degraded"]) == (messages, [])


@pytest.mark.parametrize("name", FAMILIES)
async def test_reasoning_never_goes_to_others(client: httpx.AsyncClient, name: str) -> None:
    """No field, no text and no signature of it is in a payload for another family.

    [reasoning.family-only]
    """
    messages = whole(FAMILIES[name][0])
    path = await log_of(client, messages)
    own = {"vllm": "plain", "minimax": "plain"}.get(name, name.partition(" ")[0])
    fields = (*REASONING, "extra_content", "provider_specific_fields", SIGNED, GEMINI_SIGNED)
    for model in (model for family, model in OTHERS.items() if family != own):
        built = await build(client, path, model)
        said = json.dumps(built["payload"], ensure_ascii=False)
        assert [field for field in fields if field in said] == []
        assert [m["role"] for m in built["payload"]["messages"]] == [m["role"] for m in messages]


# --- what providers make of it ------------------------------------------------------------------


async def test_a_signature_joined_to_an_id_goes_back(client: httpx.AsyncClient) -> None:
    """LiteLLM joins signatures to ids, and such an id is too long; it finds them all the same."""
    joined = f"call_1__thought__{GEMINI_SIGNED}"
    messages = [user("go"), step(joined), result(joined), user("on")]
    path = await log_of(client, messages)
    payload = (await build(client, path, "gemini/gemini-3-pro-preview"))["payload"]
    (sent,) = payload["messages"][1]["tool_calls"]
    assert sent["id"] == payload["messages"][2]["tool_call_id"]
    assert len(sent["id"]) <= 40
    assert sent["provider_specific_fields"] == {"thought_signature": GEMINI_SIGNED}


# --- when it is let go --------------------------------------------------------------------------


async def test_a_new_prefix_drops_bound_reasoning_for_good(client: httpx.AsyncClient) -> None:
    """After new sections, thinking from before never comes back."""
    path = await log_of(client, whole(CLAUDE_LITELLM))
    model = "anthropic/claude-fable-5-1"
    before = await build(client, path, model)
    assert SIGNED in json.dumps(before["payload"])
    changed = {"sections": [{"name": "rules", "content": "Be brief."}]}
    after = await build(client, path, model, **changed)
    assert after["cache_break_reason"] == "sections_changed"
    assert after["degraded"] == ["reasoning_dropped"]
    assert "thinking_blocks" not in json.dumps(after["payload"])
    back = await build(client, path, model)
    assert "thinking_blocks" not in json.dumps(back["payload"])
    await append(client, path, step(None, "Sure.", thinking_blocks=[thinking("", OTHER_SIGNED)]))
    newer = await build(client, path, model)
    assert json.dumps(newer["payload"]).count("thinking_blocks") == 1


async def test_reasoning_that_fits_no_window_is_left_out(client: httpx.AsyncClient) -> None:
    """Where only a payload without reasoning fits, it is sent, and `degraded` lists that."""
    policy = {"strategy": "full_history"}
    thought = step("c1", reasoning_content="because " * 9000)
    messages = [user("go"), thought, result("c1"), user("on")]
    path = await log_of(client, messages, policy=policy)
    asked = {"context_window": 9000, "max_output_tokens": 1000}
    for _ in range(2):
        built = await build(client, path, "deepseek/deepseek-reasoner", **asked)
        assert built["degraded"] == ["reasoning_dropped"]
        assert built["payload"]["messages"][1]["reasoning_content"] == " "
        assert built["tokens_used"] <= 8000
    await append(client, path, step(None, "Done.", reasoning_content="New."))
    built = await build(client, path, "deepseek/deepseek-reasoner", **asked)
    assert built["payload"]["messages"][-1]["reasoning_content"] == "New."


ITEM_SAID = {
    **{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"},
    **{"content": [{"type": "output_text", "text": "Well.", "annotations": []}]},
}
THOUGHTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "anthropic": (
        "claude-sonnet-4-5",
        {"role": "assistant", "content": [thinking("Look.", SIGNED)]},
        {"role": "assistant", "content": [{"type": "text", "text": "Well."}]},
    ),
    "gemini": (
        "gemini-3-pro-preview",
        {
            "role": "model",
            "parts": [{"text": "Look.", "thought": True, "thoughtSignature": GEMINI_SIGNED}],
        },
        {"role": "model", "parts": [{"text": "Well."}]},
    ),
    "openai_responses": (
        "gpt-5",
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAAB"},
        ITEM_SAID,
    ),
    "openai_chat": (
        "deepseek/deepseek-reasoner",
        {"role": "assistant", "content": None, "reasoning_content": "Look."},
        step(None, "Well."),
    ),
}


@pytest.mark.parametrize("format", THOUGHTS)
@pytest.mark.parametrize("follows", [True, False])
async def test_reasoning_in_a_message_of_its_own_begins_the_next(
    client: httpx.AsyncClient, format: str, follows: bool
) -> None:
    """Nothing is invented beside it, and it is left out where the model said nothing after it.

    [neutral.no-empty-content, anthropic.latest-thinking]
    """
    model, thought, said = THOUGHTS[format]
    path = await log_of(client, [user("hi")])
    for message in (thought, *([said] if follows else [])):
        await append(client, path, message, format=format)
    await append(client, path, user("on"))
    built = await build(client, path, model, format=format)
    wire = json.dumps(built["payload"])
    assert ("Look." in wire or "gAAAAB" in wire) is follows
    assert built["degraded"] == ["reasoning_dropped"] * (not follows)
    for other in THOUGHTS:
        build_of_other = await build(client, path, OTHERS["openai"], format=other)
        wire += json.dumps(build_of_other["payload"])
    assert "[reasoning]" not in wire
    assert "[empty message]" not in wire


# --- what a model demands, and what it does not know --------------------------------------------


@pytest.mark.parametrize(
    "model", ["deepseek/deepseek-reasoner", "deepseek-v4-pro", "moonshot/kimi-k2-thinking"]
)
async def test_every_message_of_a_loop_has_the_reasoning_that_a_model_demands(
    client: httpx.AsyncClient, model: str
) -> None:
    """Also those that another model made without any. [openai-chat.reasoning-demanded]"""
    turns = [
        [user("go"), step("c1"), result("c1"), step(None, "So.")],
        [user("on"), step(None, "First"), step("c2", reasoning_content="Hm."), result("c2")],
        [step("c3", reasoning="Why?"), result("c3"), step("c4", **CLAUDE_THOUGHT), result("c4")],
    ]
    path = await log_of(client, [message for turn in turns for message in turn])
    built = await build(client, path, model)
    said = [m for m in built["payload"]["messages"] if m["role"] == "assistant"]
    assert [m["reasoning_content"] for m in said] == [" ", " ", " ", "Hm.", "Why?", " "]
    other = await build(client, path, "zai/glm-4.7")
    assert json.dumps(other["payload"]).count("reasoning_content") == 1


async def test_items_that_a_provider_does_not_have_are_labels(client: httpx.AsyncClient) -> None:
    """OpenAI gets no item of xAI, nor the reasoning beside it, and xAI none of OpenAI.

    [openai-responses.own-items]
    """
    sealed = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "xyz"}
    search = {
        **{"type": "x_search_call", "id": "xs_1", "call_id": "xs_call", "status": "completed"},
        **{"name": "x_keyword_search", "arguments": '{"query": "fjords"}'},
    }
    image = {"type": "image_generation_call", "id": "ig_1", "result": "aGk=", "status": "completed"}
    said = ITEM_SAID
    form = {"format": "openai_responses"}
    for model, kept, lost in (("gpt-5", image, search), ("xai/grok-4", search, image)):
        path = await log_of(client, [user("hi")])
        await append(client, path, sealed, search, said, **form)
        await append(client, path, user("on"))
        await append(client, path, {**sealed, "id": "rs_2"}, image, {**said, "id": "msg_2"}, **form)
        built = (
            await client.post(
                f"{path}/context", json={"model": model, "context_window": 50_000, **form}
            )
        ).json()
        items = built["payload"]["input"]
        assert kept in items
        assert lost["type"] not in [item["type"] for item in items]
        assert [item["id"] for item in items if item["type"] == "reasoning"] == (
            ["rs_2"] if kept is image else ["rs_1"]
        )


def test_the_items_of_openai_are_those_of_its_sdk() -> None:
    """A type that is missing here would be replaced by a label."""
    kinds = {
        kind
        for item in get_args(ResponseInputItemParam)
        for kind in get_args(get_type_hints(item)["type"])
    }
    requested = {"compaction_trigger", "item_reference"}
    assert {kind for kind in kinds if isinstance(kind, str)} - requested <= set(
        ITEM_TYPES["openai"]
    )
