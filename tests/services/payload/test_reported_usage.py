"""UsageService on a real database: stored, calibrated by, judged.

[usage.judged-by-larger, usage.calibration, usage.answer]
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import pytest

from app.common.errors import NotFound
from app.context.schemas import UsageAnswer, UsageRequest
from app.context.usage_service import UsageService
from app.models.usage import ReportItem
from tests.conftest import execute
from tests.services.fakes import TENANT, Harness, asks, result, says, user

SECTIONS = [{"name": "base", "content": "You are a careful assistant. " * 20}]
TOOLS = [{"name": "read_file", "description": "Reads.", "parameters": {"type": "object"}}]


@pytest.fixture
def service(harness: Harness) -> UsageService:
    """The service of that process."""
    return harness.usage


def policy(window: int = 20_000, output: int = 1_000, **leaves: Any) -> dict[str, Any]:
    """Return a policy with this window and no agent tools."""
    budget = {"context_window": window, "max_output_tokens": output}
    return {"budget": budget, "agent_tools": "none"} | leaves


def chat(sent: int, output: int = 0, cached: int = 0) -> dict[str, Any]:
    """Return OpenAI's usage object."""
    return {
        "prompt_tokens": sent,
        "completion_tokens": output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


async def report(service: UsageService, cid: str, usage: Any = None, **told: Any) -> UsageAnswer:
    """Report usage of a build at the log's head, or have the last one judged again."""
    if usage is not None and "through_seq" not in told and "build_id" not in told:
        async with service._database.session() as session:
            found = await session.conversations.find(TENANT, cid)
        told["through_seq"] = found.state.head_seq if found is not None else None
    return await service.report(TENANT, cid, UsageRequest(usage=usage, **told))


async def talk(harness: Harness, own: Mapping[str, Any] | None = None, **more: Any) -> str:
    """Return a conversation of some 2,000 tokens."""
    cid = await harness.conversation(own or policy(), **more)
    await harness.talk(cid, 30)
    return cid


async def last(harness: Harness, cid: str) -> ReportItem:
    """Return the report that was stored last."""
    async with harness.database.session() as session:
        found = await session.usage.newest(cid)
    assert found is not None
    return found


async def is_due(harness: Harness, cid: str) -> bool:
    """Whether a compaction of the conversation is due."""
    return (await harness.stored(cid)).state.is_due


# --- taking in ------------------------------------------------------------------------------


async def test_a_report_beside_a_deletion_leaves_nothing(
    harness: Harness, service: UsageService, database_url: str
) -> None:
    """A report is stored before its conversation's deletion or not at all."""
    cid = await talk(harness)
    reports = (report(service, cid, chat(5)) for _ in range(4))
    *answers, deleted = await asyncio.gather(
        *reports, harness.conversations.remove(TENANT, cid), return_exceptions=True
    )
    stored = sum(isinstance(answer, UsageAnswer) for answer in answers)
    assert all(isinstance(answer, UsageAnswer | NotFound) for answer in answers), answers
    assert isinstance(deleted, dict)
    assert deleted["usage_reports"] == stored
    left = await execute(database_url, "SELECT count(*) FROM usage_reports")
    assert left[0][0] == 0


# --- calibrating ----------------------------------------------------------------------------


async def test_a_report_has_the_count_of_its_payload(
    harness: Harness, service: UsageService
) -> None:
    """The count is that of the build, by region, also after newer messages and a compaction.

    [usage.current-epoch-only]
    """
    cid = await harness.conversation(policy(6_000), SECTIONS, TOOLS)
    await harness.append(cid, user("read it"), asks("a", "b"), result("a"), result("b"))
    for turns in (10, 40, 1):
        await harness.talk(cid, turns)
        if turns == 40:
            assert (await harness.compact(cid)).compacted
            assert not (await report(service, cid)).current
        build = await harness.build(cid)
        told = {"epoch": build["epoch"], "through_seq": build["through_seq"]}
        await harness.append(cid, says("an answer, appended before its usage is told"))
        await report(service, cid, chat(10), **told)
        stored = await last(harness, cid)
        assert stored.estimated_tokens == build["tokens_used"]
        assert stored.regions is not None
        for region, tokens in asdict(stored.regions).items():
            assert tokens == getattr(build["budget"], region), region


# --- judging --------------------------------------------------------------------------------


async def test_tokens_appended_after_the_report_are_added(
    harness: Harness, service: UsageService
) -> None:
    """Tokens appended since count on top, but the answer itself only once."""
    cid = await talk(harness)
    build = await harness.build(cid)
    sent = build["tokens_used"]
    await report(service, cid, chat(sent, 40), epoch=1, through_seq=60)
    raw = (await harness.stored(cid)).state.tokens
    await harness.append(cid, says("short"))
    assert (await report(service, cid)).judged_tokens == sent + 40
    await harness.append(cid, user("why " * 500))
    appended = (await harness.stored(cid)).state.tokens - raw
    assert (await report(service, cid)).judged_tokens == sent + appended
