"""Compaction items of providers as boundaries of payloads. [compaction.provider-item]"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from app.formats.message import FormatName
from app.prompt.resolved_settings import RequestSettings
from tests.judge import Facts, refusals
from tests.services.fakes import ANTHROPIC, CHAT, CLAUDE, MODEL, Build, Harness
from tests.services.payload.builders import policy

RESPONSES, GEMINI = FormatName.OPENAI_RESPONSES, FormatName.GEMINI
GPT, GROK = "gpt-5", "xai/grok-4"
SECRET = "gAAAAB" + "x" * 400
ITEM = {"id": "cmp_1", "type": "compaction", "encrypted_content": SECRET}
BLOCK = {"type": "compaction", "content": "They fixed the parser. Use tabs."}
SIGNED = {**BLOCK, "signature": "sig"}
ROOM = {"budget": {"context_window": 200_000, "max_output_tokens": 1000}, "agent_tools": "none"}
CALL = {"type": "function_call", "call_id": "c1", "name": "read", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "42"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "thought"}


def says(text: str, format: FormatName = RESPONSES) -> dict[str, Any]:
    """Return an answer without an item."""
    if format is ANTHROPIC:
        return {"role": "assistant", "content": [{"type": "text", "text": text}]}
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "content": content}


def user(text: str, format: FormatName = RESPONSES) -> dict[str, Any]:
    """Return a message of the user."""
    return (
        {"role": "user", "content": text}
        if format is ANTHROPIC
        else {"type": "message", "role": "user", "content": text}
    )


def history_of(build: Build) -> list[dict[str, Any]]:
    """Return the messages or items after the system prompt."""
    payload = build.payload
    items = payload.get("messages") or payload.get("input") or payload["contents"]
    return [item for item in items if item.get("role") not in ("system", "developer")]


async def built(
    harness: Harness, conversation_id: str, format: FormatName, model: str, *, cold: bool = False
) -> Build:
    """Build a payload that the judge finds nothing wrong with."""
    service = harness.cold() if cold else None
    build = await harness.build(conversation_id, RequestSettings(format, model), service)
    facts = Facts(betas=build["betas"], prefill=False)
    assert not refusals(format, build.payload, facts), build.payload
    return build


@dataclass(frozen=True)
class Family:
    """A format with its items, its model, and how an item is appended with an answer."""

    format: FormatName
    model: str
    item: dict[str, Any]

    def answer(self, text: str) -> list[dict[str, Any]]:
        """Return the messages of an answer that begins with the item."""
        if self.format is ANTHROPIC:
            return [
                {"role": "assistant", "content": [self.item, *says(text, ANTHROPIC)["content"]]}
            ]
        return [self.item, says(text)]

    def first(self, build: Build) -> dict[str, Any]:
        """Return what a payload begins with."""
        first = history_of(build)[0]
        return first["content"][0] if self.format is ANTHROPIC else first


OPENAI = Family(RESPONSES, GPT, ITEM)
XAI = Family(RESPONSES, GROK, ITEM)
THRESHOLD = Family(ANTHROPIC, CLAUDE, BLOCK)
REQUESTED = Family(ANTHROPIC, CLAUDE, SIGNED)
FAMILIES = [OPENAI, XAI, THRESHOLD, REQUESTED]
OTHERS = {
    RESPONSES: [(CHAT, MODEL), (ANTHROPIC, CLAUDE), (GEMINI, "gemini-2.5-pro")],
    ANTHROPIC: [(CHAT, MODEL), (RESPONSES, GPT), (GEMINI, "gemini-2.5-pro")],
}


async def compacted(harness: Harness, family: Family, policy: dict[str, Any] | None = None) -> str:
    """Return a conversation whose provider compacted it, after a build for that provider."""
    conversation_id = await harness.conversation({**ROOM, **(policy or {})})
    format = family.format
    await harness.append(
        conversation_id,
        user("From now on use tabs. My number is 4711.", format),
        says("Noted.", format),
        *(
            user(f"Step {number}: read the next file. " + "Why? " * 40, format)
            for number in range(9)
        ),
        user("Go on.", format),
        format=format,
    )
    await built(harness, conversation_id, format, family.model)
    await harness.append(conversation_id, *family.answer("Going on."), format=format)
    await harness.append(conversation_id, user("And then?", format), format=format)
    return conversation_id


@pytest.mark.parametrize("family", FAMILIES)
async def test_payloads_of_its_family_begin_with_the_item(harness: Harness, family: Family) -> None:
    """[compaction.provider-item] The item is byte-exact, and nothing that it stands for is sent."""
    cid = await compacted(harness, family)
    build = await built(harness, cid, family.format, family.model)
    assert family.first(build) == family.item
    assert "4711" not in build.contents
    assert "Going on." in build.contents
    assert build["cache_break_reason"] == "provider_compacted"
    assert build["summary_used"]
    cold = await built(harness, cid, family.format, family.model, cold=True)
    assert cold.text == build.text


@pytest.mark.parametrize("family", FAMILIES)
async def test_other_families_get_a_summary(harness: Harness, family: Family) -> None:
    """[compaction.provider-family] No other family is sent the item."""
    cid = await compacted(harness, family)
    for format, model in OTHERS[family.format]:
        build = await built(harness, cid, format, model)
        assert "encrypted_content" not in build.contents
        assert '"compaction"' not in build.contents
        assert "Earlier summary, lossy" in build.contents
        assert "tabs" in build.contents
        assert "Going on." in build.contents
        cold = await built(harness, cid, format, model, cold=True)
        assert cold.text == build.text
    own = await built(harness, cid, family.format, family.model)
    assert family.first(own) == family.item


async def test_an_item_in_a_loop_brings_no_tools_and_keeps_reasoning(harness: Harness) -> None:
    """[reasoning.running-loop, agent-tools.enter-with-a-turn]"""
    cid = await harness.conversation({"budget": ROOM["budget"]})
    await harness.append(cid, user("What is it?"), format=RESPONSES)
    first = await built(harness, cid, RESPONSES, GPT)
    assert "tools" not in first.payload
    for number in range(2):
        item = {**ITEM, "id": f"cmp_{number}", "encrypted_content": f"secret {number}"}
        thought = {**THOUGHT, "id": f"rs_{number}"}
        call = {**CALL, "call_id": f"call{number}"}
        await harness.append(cid, item, thought, call, format=RESPONSES)
        await harness.append(cid, {**OUTPUT, "call_id": f"call{number}"}, format=RESPONSES)
        build = await built(harness, cid, RESPONSES, GPT)
        assert history_of(build)[0] == item
        assert thought in history_of(build)
        assert "tools" not in build.payload


@pytest.mark.parametrize("block", [{**BLOCK, "content": None}, {"type": "compaction"}])
async def test_a_failed_compaction_is_no_boundary(harness: Harness, block: dict[str, Any]) -> None:
    """[compaction.provider-item] A block without content stands for nothing, and is not sent."""
    cid = await harness.conversation(ROOM)
    answer = {"role": "assistant", "content": [block, {"type": "text", "text": "Yes."}]}
    await harness.append(cid, user("Is it?", ANTHROPIC), answer, format=ANTHROPIC)
    build = await built(harness, cid, ANTHROPIC, CLAUDE)
    assert [message["role"] for message in build.messages] == ["user", "assistant", "user"]
    assert build.messages[1]["content"] == [{"type": "text", "text": "Yes."}]
    assert "context_management" not in build.payload
    assert (await harness.stored(cid)).state.compaction_id is None


async def test_an_item_without_a_history_is_told_of(harness: Harness) -> None:
    """[compaction.provider-family] [payload.valid] Where the log has nothing but an item.

    What it stands for was never appended. Where it is not sent, a note says so.
    """
    for follows in ([], [user("And?")]):
        cid = await harness.conversation(ROOM)
        await harness.append(cid, ITEM, *follows, format=RESPONSES)
        own = await built(harness, cid, RESPONSES, MODEL)
        assert (OPENAI.first(own), own["degraded"]) == (ITEM, [])
        for format, model in OTHERS[RESPONSES]:
            build = await built(harness, cid, format, model)
            first = json.dumps(history_of(build)[0])
            assert "[Earlier messages are not shown.]" in first
            assert ("And?" in build.contents) == bool(follows)
        await harness.undo(cid)
        undone = await built(harness, cid, RESPONSES, MODEL)
        assert "[Earlier messages are not shown.]" in json.dumps(history_of(undone)[0])


@pytest.mark.parametrize("family", FAMILIES)
async def test_the_strategy_asks_the_provider(harness: Harness, family: Family) -> None:
    """[strategy.provider] The payload has the provider's own `context_management`."""
    policy = {**ROOM, "strategy": "provider", "compaction": {"threshold_ratio": 0.5}}
    cid = await harness.conversation(policy)
    await harness.append(cid, user("Hello.", family.format), format=family.format)
    build = await built(harness, cid, family.format, family.model)
    if family.format is RESPONSES:
        expected: Any = [{"type": "compaction", "compact_threshold": 99_500}]
        assert build["betas"] == ()
    else:
        trigger = {"type": "input_tokens", "value": 99_500}
        expected = {"edits": [{"type": "compact_20260112", "trigger": trigger}]}
        assert build["betas"] == ("compact-2026-01-12",)
    assert build.payload["context_management"] == expected
    await harness.append(cid, *family.answer("Hi."), format=family.format)
    after = await built(harness, cid, family.format, family.model)
    if family is REQUESTED:  # a signed block excludes the edit
        assert "context_management" not in after.payload
        assert after["betas"] == ("compact-2026-09-04",)
    else:
        assert after.payload["context_management"] == expected


EFFORT = {"type": "configuration_update", "reasoning": {"effort": "low"}}
CRANE = {"type": "function", "name": "crane", "strict": False, "parameters": {"type": "object"}}
MORE_TOOLS = {"type": "additional_tools", "role": "developer", "tools": [CRANE]}


@pytest.mark.parametrize("update", [EFFORT, MORE_TOOLS])
@pytest.mark.parametrize("format", [RESPONSES, ANTHROPIC])
async def test_settings_of_the_provider_survive_a_compaction(
    harness: Harness, format: FormatName, update: dict[str, Any]
) -> None:
    """A change of settings or tools is there again, once; other formats do not hear of it.

    [compaction.configuration]
    """
    cid = await harness.conversation(policy(20_000))
    await harness.talk(cid, 4)
    kind = update["type"]
    said = {"type": "message", "role": "assistant", "content": "so", "id": "msg_1"}
    await harness.append(cid, update, said, format=RESPONSES)
    await harness.talk(cid, 12, words=200)
    ask = RequestSettings(format, "gpt-5" if format is RESPONSES else CLAUDE)
    build = await harness.build(cid, ask)
    for _ in range(2):
        items = build.payload["input" if format is RESPONSES else "messages"]
        found = [item for item in items if item.get("type") == kind]
        assert found == ([update] if format is RESPONSES else [])
        assert kind not in str(build["degraded"])
        if format is not RESPONSES:
            assert kind not in build.contents
        await harness.compact(cid)
        build = await harness.build(cid, ask)
    assert build["summary_used"]
