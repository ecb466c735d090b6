"""What builds tell a conversation of its agent's others. [agents.status-preamble]"""

from __future__ import annotations

from typing import Any

import pytest

from tests.services.fakes import Harness, asks, user

PLAIN = {"agent_tools": "none", "status_preamble": "auto", "budget": {"notice_at": 1.0}}
pytestmark = pytest.mark.services(service_policy=PLAIN)


async def two(harness: Harness, **policy: Any) -> tuple[str, str]:
    """Return two conversations of an agent, the second waiting for a tool."""
    agent = await harness.agent(3600, policy)
    cid, other = [await harness.conversation(agent_id=agent) for _ in range(2)]
    await harness.append(cid, user("hello"))
    await harness.append(other, user("a secret"), asks("c1"))
    return cid, other


async def test_context_includes_thread_status(harness: Harness) -> None:
    """A build names the agent's other active conversations, after its docs [payload.order]."""
    cid, other = await two(harness)
    docs = {"name": "guide", "kind": "docs", "content": "How we work."}
    await harness.patch(cid, sections=[docs, {"name": "base", "content": "You help."}])
    build = await harness.build(cid)
    assert build.messages[0]["content"] == "You help.\n\nHow we work."
    status = build.messages[-1]["content"]
    told = f"[Status]\nOther conversations of this agent:\n- {other}: last message 2"
    assert status.startswith(told) and status.endswith("UTC; waiting for read_file")
    assert "secret" not in build.contents
    assert build["tail"] and build.count() == build["tokens_used"]
    assert build["stable_items"] == 2


async def test_a_status_does_not_break_the_prefix(harness: Harness) -> None:
    """It changes with the messages of the others, and the epoch continues.

    [sections.dynamic-in-tail, epochs.prefix-hash]
    """
    cid, other = await two(harness)
    first = await harness.build(cid)
    harness.clock.pass_seconds(120)
    await harness.append(other, user("more"))
    second = await harness.build(cid)
    assert second["tail"] != first["tail"]
    assert (second["epoch"], second["prefix_hash"]) == (first["epoch"], first["prefix_hash"])
