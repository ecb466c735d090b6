"""What every answer says is used is what the next payload has. [budget.one-number]"""

from __future__ import annotations

from typing import Any

import pytest

from app.context.epoch import MIN_UNSTORED_CHANGE
from app.conversations.schemas import ConversationPatch
from app.formats.message import FormatName
from app.prompt.resolved_settings import RequestSettings
from tests.services.fakes import CHAT, CLAUDE, MODEL, TENANT, Harness, user

RESPONSES, ANTHROPIC = FormatName.OPENAI_RESPONSES, FormatName.ANTHROPIC


async def used_by_all(harness: Harness, cid: str) -> list[int]:
    """Return what the budget and an append say, in the process of the build and in another."""
    numbers = []
    for service in (harness.context, harness.cold()):
        status = await service.budget(TENANT, cid)
        assert status is not None
        numbers.append(status.budget.used_tokens)
    return numbers


@pytest.mark.parametrize("format", [CHAT, RESPONSES, ANTHROPIC])
async def test_all_say_what_the_next_build_says(harness: Harness, format: FormatName) -> None:
    """Reasoning, search results and reductions of one build count everywhere as in the payload."""
    budget = {"context_window": 7_000, "max_output_tokens": 1_000}
    policy: dict[str, Any] = {"budget": budget, "compaction": {"auto": False}}
    cid = await harness.conversation(policy | {"agent_tools": "none"})
    model = CLAUDE if format is ANTHROPIC else MODEL
    await harness.conversations.change(TENANT, cid, ConversationPatch(model=model))
    for turn in range(12):
        await harness.append(cid, user(f"{turn} " + "why " * 300))
        if format is RESPONSES:
            sealed = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA" * 400}
            said = {"role": "assistant", "content": "because " * 200}
            await harness.append(cid, sealed, said, format=RESPONSES)
        else:
            await harness.append(cid, {"role": "assistant", "content": "because " * 200})
        build = await harness.build(cid, RequestSettings(format))
        for used in await used_by_all(harness, cid):
            assert abs(used - build["tokens_used"]) < MIN_UNSTORED_CHANGE, turn
        grown = await harness.append(cid, user("more " * 50))
        assert grown.budget is not None
        added = grown.budget.used_tokens - build["tokens_used"]
        assert abs(added - 54) < MIN_UNSTORED_CHANGE
