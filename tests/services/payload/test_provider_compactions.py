"""Compaction items of providers as boundaries of payloads. [compaction.provider-item]"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.adapters.postgres.database import PostgresDatabase
from app.domain.common.errors import ServiceUnavailable
from app.domain.common.messages import FormatName
from app.domain.conversations.compaction_receipt import Trigger
from app.domain.prompt.resolved_settings import RequestSettings
from tests.judge import refusals
from tests.services.fakes import (
    ANTHROPIC,
    CHAT,
    CLAUDE,
    MODEL,
    SUMMARISER,
    Build,
    Harness,
    ScriptedGateway,
    WatchedDatabase,
)

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
    if format is ANTHROPIC:
        return {"role": "assistant", "content": [{"type": "text", "text": text}]}
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "content": content}


def user(text: str, format: FormatName = RESPONSES) -> dict[str, Any]:
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
    service = harness.cold() if cold else None
    build = await harness.build(conversation_id, RequestSettings(format, model), service)
    assert not refusals(format, build.payload), build.payload
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
        assert "Earlier conversation summary" in build.contents
        assert "tabs" in build.contents
        assert "Going on." in build.contents
        cold = await built(harness, cid, format, model, cold=True)
        assert cold.text == build.text
    own = await built(harness, cid, family.format, family.model)
    assert family.first(own) == family.item


async def test_a_model_of_another_family_in_the_same_format_gets_a_summary(
    harness: Harness,
) -> None:
    """[compaction.provider-family] xAI cannot read OpenAI's item, another model of OpenAI can."""
    cid = await compacted(harness, OPENAI)
    grok = await built(harness, cid, RESPONSES, GROK)
    assert SECRET not in grok.contents
    assert "tabs" in grok.contents
    other = await built(harness, cid, RESPONSES, "gpt-5-mini")
    assert OPENAI.first(other) == ITEM
