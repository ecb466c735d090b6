"""Whatever is appended, built and compacted: a summary's request begins as the newest payload.

[summary.prefix]
"""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.compaction.summaries.payload_prefix import NOT_USED
from app.formats.message import FormatName
from app.models.model_calls import ModelCall
from app.prompt.resolved_settings import RequestSettings
from app.repositories import Database
from tests.services.fakes import (
    MODEL,
    Build,
    Harness,
    ScriptedGateway,
    WatchedDatabase,
    asks,
    result,
    says,
    unmarked,
    user,
)

ITEMS = {
    FormatName.OPENAI_CHAT: "messages",
    FormatName.OPENAI_RESPONSES: "input",
    FormatName.ANTHROPIC: "messages",
}
POLICY: dict[str, Any] = {
    "budget": {"context_window": 8_000, "max_output_tokens": 200},
    "compaction": {"summary_input": "prefix"},
}
SECTIONS = [
    {"name": "role", "content": "You help. " * 10},
    {"name": "now", "content": "It is noon.", "stability": "dynamic"},
]
WORDS = "why so " * 30


def steps() -> st.SearchStrategy[list[str]]:
    """Return what is done with a conversation."""
    return st.lists(
        st.sampled_from(["turn", "calls", "open", "build", "compact", "pin"]),
        min_size=4,
        max_size=14,
    )


@pytest.fixture
def agents_model(database: Database) -> Harness:
    """Services whose agents' model may summarise."""
    return Harness(WatchedDatabase(database), ScriptedGateway(), model=MODEL)


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    done=steps(),
    format=st.sampled_from(list(ITEMS)),
    strategy=st.sampled_from(["sandwich", "retain_summary", "chain"]),
    position=st.sampled_from(["tail", "system", "before_window"]),
)
async def test_a_request_begins_as_the_newest_payload(
    agents_model: Harness, done: list[str], format: FormatName, strategy: str, position: str
) -> None:
    """Its stable items, tools and system prompt; otherwise a transcript was summarised."""
    harness = agents_model
    policy = POLICY | {"strategy": strategy, "dynamic_position": position}
    cid = await harness.conversation(policy, SECTIONS)
    await harness.talk(cid, 8, words=60)
    newest: Build | None = None
    for number, step in enumerate(("turn", *done, "build", "turn", "compact")):
        match step:
            case "turn":
                await harness.append(cid, user(f"{number} {WORDS}"), says(f"{number} {WORDS}"))
            case "calls":
                name = f"call_{number}"
                texts = (user(f"{number}"), asks(name), result(name, WORDS * 4), says(WORDS))
                await harness.append(cid, *texts)
            case "open":
                await harness.append(cid, user(f"{number}"), asks(f"open_{number}"))
                await harness.append(cid, result(f"open_{number}"))
            case "build":
                newest = await harness.build(cid, RequestSettings(format=format))
            case "pin":
                await harness.pin(cid, 3)
            case _:
                harness.gateway.calls.clear()
                done_now = await harness.compact(cid)
                for call in harness.gateway.calls:
                    check(call, newest, format)
                if not harness.gateway.calls:
                    continue
                is_prefix = harness.gateway.calls[-1].native is not None
                assert is_prefix is not any(NOT_USED in item for item in done_now.degraded)


def check(call: ModelCall, newest: Build | None, format: FormatName) -> None:
    """Assert that a request with a payload begins as the newest one."""
    if call.native is None:
        return
    assert newest is not None and call.native.format is format
    name, sent, built = ITEMS[format], call.native.body, newest.payload
    stable = unmarked(built[name][: newest["stable_items"]])
    begins = unmarked(sent[name])[: len(stable)]
    if format is FormatName.ANTHROPIC and stable:
        # The newest message may have got more blocks: results, or the instruction.
        blocks = len(stable[-1]["content"])
        begins[-1] = {**begins[-1], "content": begins[-1]["content"][:blocks]}
    assert orjson.dumps(begins) == orjson.dumps(stable)
    for field in ("tools", "system", "prompt_cache_key"):
        assert orjson.dumps(sent.get(field)) == orjson.dumps(built.get(field))


async def test_a_background_compaction_reads_the_payload(agents_model: Harness) -> None:
    """The worker reads that of the build before. [compaction.background]"""
    harness = agents_model
    cid = await harness.conversation(POLICY)
    await harness.talk(cid, 50, words=40)
    await harness.build(cid)
    await harness.talk(cid, 15, words=40)
    await harness.work(cid)
    receipt = await harness.receipt(cid)
    assert receipt.trigger == "background"
    assert (receipt.summary_input, receipt.model) == ("prefix", MODEL)


async def test_a_build_of_a_smaller_window_does_not_serve(agents_model: Harness) -> None:
    """It leaves out messages that are summarised. [compaction.policy-window-only]"""
    harness = agents_model
    cid = await harness.conversation(POLICY)
    await harness.talk(cid, 30, words=40)
    await harness.build(cid, RequestSettings(max_context_tokens=2_000))
    await harness.compact(cid)
    assert f"{NOT_USED}:not_shown" in (await harness.receipt(cid)).degraded
