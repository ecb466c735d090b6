"""Policies, logs and requests of builds, and what must hold for every payload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from app.context.build import ContextService
from app.context.schemas import Known
from app.formats.message import FormatName
from app.models.budget import Limits
from app.prompt.resolved_settings import RequestSettings
from tests.judge import refusals
from tests.services.fakes import ANTHROPIC, CHAT, CLAUDE, MODEL, TENANT, Build, Harness, says, user

SECTIONS = [
    {"name": "base", "content": "You are kind."},
    {"name": "rules", "content": "Never lie.", "kind": "rules"},
    {"name": "skill", "content": "You can dance.", "kind": "skill"},
]
TOOLS = [{"name": "read_file", "description": "Reads.", "parameters": {"type": "object"}}]
ASKS = {CHAT: RequestSettings(CHAT, MODEL), ANTHROPIC: RequestSettings(ANTHROPIC, CLAUDE)}


def policy(window: int = 1100, output: int = 100, **leaves: Any) -> dict[str, Any]:
    """Return a policy with a small window, of which agent tools and notes would take too much."""
    budget = {"context_window": window, "max_output_tokens": output, "notice_at": 1.0}
    budget |= leaves.pop("budget", {})
    compaction = {"threshold_ratio": 0.75, **leaves.pop("compaction", {})}
    return {"budget": budget, "compaction": compaction, "agent_tools": "none"} | leaves


def capacity_of(build: Build, exact: bool) -> int:
    """Return the most a payload may count."""
    budget = build["budget"]
    margin = 0.0 if exact else 0.05
    return Limits(budget.context_window, budget.max_output_tokens, 1, None, 1, 1, margin).capacity


def check(build: Build, exact: bool) -> None:
    """Assert what holds for every build: it fits, its numbers are true, a provider takes it."""
    budget = build["budget"]
    assert build["tokens_used"] == build.count() == budget.tokens_used
    assert build["tokens_used"] <= capacity_of(build, exact)
    parts = (
        budget.system_prompt,
        budget.skill_prompts,
        budget.tool_descriptions,
        budget.summary,
        budget.conversation,
    )
    assert sum(parts) == budget.tokens_used
    assert refusals(build["format"], build.payload) == []


def is_extension(later: Build, earlier: Build) -> bool:
    """Whether a payload's promised prefix opens a later payload."""
    stable = earlier["stable_items"]
    return (
        later.messages[:stable] == earlier.messages[:stable]
        and later.payload.get("tools") == earlier.payload.get("tools")
        and later.payload.get("system") == earlier.payload.get("system")
    )


async def both(
    harness: Harness, cid: str, asked: Mapping[FormatName, RequestSettings] = ASKS
) -> list[Build]:
    """Build in both formats, warm and cold, and check."""
    builds = []
    for format, ask in asked.items():
        build = await harness.build(cid, ask)
        check(build, exact=format is CHAT)
        cold = await harness.build(cid, ask, harness.cold())
        assert (cold.text, cold["epoch"]) == (build.text, build["epoch"])
        builds.append(build)
    return builds


async def fill(harness: Harness, cid: str, used: int) -> None:
    """Append small turns until the conversation counts at least so many tokens."""
    while (await harness.stored(cid)).state.tokens < used:
        await harness.append(cid, user("why " * 4), says("so " * 4))


RESPONSES, GEMINI = FormatName.OPENAI_RESPONSES, FormatName.GEMINI
MODELS = {
    CHAT: MODEL,
    RESPONSES: "gpt-5.6",
    ANTHROPIC: "claude-sonnet-4-5",
    GEMINI: "gemini-2.5-pro",
    FormatName.INTERACTIONS: "gemini-2.5-flash",
}


async def built(
    harness: Harness,
    conversation_id: str,
    ask: RequestSettings | None = None,
    known: Known | None = None,
    service: ContextService | None = None,
) -> dict[str, Any]:
    """Build, and return the answer as a client reads it, its diagnostics beside the rest."""
    service = service or harness.context
    answer = await service.build(TENANT, conversation_id, ask or RequestSettings(), known)
    read: dict[str, Any] = orjson.loads(orjson.dumps(answer))
    return {**read, **read["diagnostics"]}
