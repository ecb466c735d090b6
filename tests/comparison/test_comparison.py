"""Conversations run through strategies, over the real database.

[compaction.compare]
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import httpx
import pytest

from app.comparison.command import compare
from app.comparison.conversation import Appended, Export, Recorded, read
from app.comparison.replay import Options, Outcome, Source, Target
from app.comparison.report import as_json, table
from app.domain.common.messages import FormatName
from app.domain.common.policy import StrategyName
from app.domain.compaction.summaries.statements.statement import Kind
from app.main import create_app
from app.settings import Settings
from tests import fake_llm as behave
from tests.api.talk import append, new_conversation, talk
from tests.conftest import started
from tests.fake_llm import FakeLLM

FOLDER = Path(__file__).parents[1] / "conversations"
OPTIONS = Options("gpt-4.1", Target(share=0.3), 2)
SUMMARISING = ["sandwich", "tree_summary", "retain_summary", "chain"]
RULE = "From now on, deploy only to region eu-north-7."


def spoken(count: int = 60, rule_at: int = 6) -> Recorded:
    """Return a long talk with one standing instruction."""
    raws = talk(count, "We talked about the harbour, the trains and the weather in Bergen. " * 6)
    raws[rule_at] = {"role": "user", "content": RULE}
    messages = [Appended(FormatName.OPENAI_CHAT, raw) for raw in raws]
    return Recorded("talk", FormatName.OPENAI_CHAT, messages)


async def by_strategy(
    found: Recorded | Export, settings: Settings, options: Options = OPTIONS, *names: str
) -> tuple[Source, dict[str, Outcome]]:
    """Compare, and return the outcomes by strategy; all of them without names."""
    chosen = [StrategyName(name) for name in names] or list(StrategyName)
    source, outcomes = await compare(found, chosen, options, settings)
    return source, {outcome.strategy: outcome for outcome in outcomes}


@pytest.mark.parametrize(
    "name", ["coding-agent", "anthropic-debugging", "responses-analysis", "gemini-travel"]
)
async def test_conversations_of_all_formats_are_compared(settings: Settings, name: str) -> None:
    """The whole history keeps all and shares most; strategies that summarise are smaller."""
    source, found = await by_strategy(read(FOLDER / f"{name}.json", None, None), settings)
    whole = found["full_history"]
    assert source.statements and whole.statements
    assert all(kept.kept == kept.of for kept in whole.statements.values()), whole.lost
    assert whole.compactions == 0 and whole.cacheable is not None
    for outcome in found.values():
        last = outcome.rounds[-1]
        assert not outcome.failures and not outcome.refused_builds
        assert last.after_tokens is not None and last.before_tokens is not None
        assert outcome.cacheable is not None and 0 < outcome.cacheable <= whole.cacheable + 0.05
        assert {kind: kept.of for kind, kept in outcome.statements.items()} == {
            kind: len(texts) for kind, texts in source.statements.items()
        }
        if outcome.strategy in SUMMARISING:
            assert outcome.compactions >= 1 and last.after_tokens < last.before_tokens
    assert not whole.rounds[-1].is_met


async def test_what_survives_depends_on_the_strategy(settings: Settings) -> None:
    """A sliding window forgets an early rule, a summary keeps it; a pin keeps its message."""
    options = replace(OPTIONS, pins=frozenset({12}))
    source, found = await by_strategy(spoken(), settings, options)
    assert source.statements[Kind.STANDING] == [RULE]
    survived = {name: outcome.statements[Kind.STANDING].kept for name, outcome in found.items()}
    assert survived == {name: int(name != "sliding_window") for name in found}
    assert any(RULE in text for text in found["sliding_window"].lost)
    assert all((item.pinned.kept, item.pinned.of) == (1, 1) for item in found.values())
    for name in SUMMARISING:
        assert all(ended.is_met for ended in found[name].rounds), name
        assert found[name].rounds[-1].target_tokens == int(0.3 * source.whole_tokens)


async def test_the_cost_of_a_model_is_estimated_without_a_call(
    with_model: Settings, fake_llm: FakeLLM
) -> None:
    """As many tokens as a real run sends for its first compaction, and none reach the model."""
    once = replace(OPTIONS, rounds=1, summariser="openai/fake")
    _, estimated = await by_strategy(spoken(), with_model, once, *SUMMARISING)
    assert fake_llm.calls == 0
    calling = replace(once, calls_model=True)
    _, called = await by_strategy(spoken(), with_model, calling, *SUMMARISING)
    assert fake_llm.calls == sum(outcome.model_calls for outcome in called.values())
    for name in SUMMARISING:
        before, after = estimated[name], called[name]
        assert before.estimated and not after.estimated
        assert before.model_calls >= after.model_calls >= 1
        assert before.model_input_tokens > 1000
        assert after.model_input_tokens == 100 * after.model_calls  # as the fake model reports
        assert before.model_cost_usd is None and after.model_cost_usd is None
        assert before.statements[Kind.STANDING].kept == 1  # the built-in summariser kept it


async def test_a_failing_model_is_reported(with_model: Settings, fake_llm: FakeLLM) -> None:
    """The comparison goes on, and names what failed."""
    fake_llm.always(behave.no_tags())
    options = replace(OPTIONS, rounds=1, summariser="openai/fake", calls_model=True)
    source, found = await by_strategy(spoken(), with_model, options, "sandwich")
    outcome = found["sandwich"]
    assert outcome.compactions == 0 and len(outcome.failures) == 1
    assert "SERVICE_UNAVAILABLE" in outcome.failures[0]
    assert any("1 failed" in line for line in table(source, options, [outcome]))


async def test_a_window_makes_compactions_due(settings: Settings) -> None:
    """In a small window what is due is compacted in between; a whole history does not fit."""
    source, _ = await by_strategy(spoken(), settings, OPTIONS, "sandwich")
    window = source.tokens // 2 + 1_024
    options = replace(OPTIONS, context_window=window, rounds=1)
    _, found = await by_strategy(spoken(), settings, options, "sandwich", "full_history")
    assert found["sandwich"].compactions > 1 and not found["sandwich"].refused_builds
    whole = found["full_history"]
    assert whole.refused_builds > 0 and whole.rounds[-1].after_tokens is None
    assert any("builds refused" in line for line in table(source, options, list(found.values())))


async def test_an_export_is_compared_with_its_pins(settings: Settings) -> None:
    """Its messages, large outputs included, sections, policy and pins; nothing of it is stored."""
    call = {"id": "c", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    async with started(create_app(settings)) as client:
        sections = [{"name": "base", "content": "You are careful."}]
        path = await new_conversation(
            client, sections=sections, policy={"sandwich": {"preserve_top": 1}}
        )
        raws: list[dict[str, Any]] = [*talk(20), {"role": "assistant", "tool_calls": [call]}]
        raws.append({"role": "tool", "tool_call_id": "c", "content": "log line\n" * 9_000})
        stored = await append(client, path, *raws, *talk(20))
        pinned = stored["messages"][4]["id"]
        assert (await client.put(f"{path}/messages/{pinned}/pin")).status_code == 200
        data = (await client.get(f"{path}/export")).content
        await deleted(client, path)
    source, found = await by_strategy(Export("talk.ndjson", data), settings, OPTIONS, "sandwich")
    assert source.messages == 42 and source.recorded.sections[0]["content"] == "You are careful."
    assert source.recorded.policy == {"sandwich": {"preserve_top": 1}}
    assert len(str(source.recorded.messages[21].raw["content"])) == 81_000
    assert (found["sandwich"].pinned.kept, found["sandwich"].pinned.of) == (1, 1)


async def deleted(client: httpx.AsyncClient, path: str) -> None:
    """Delete a conversation."""
    assert (await client.delete(path)).status_code in (200, 204)


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        ({"role": "system", "content": "Late."}, "message 4/role: system text is not part"),
        ({"role": "user", "content": 5}, "message 4/content: "),
        ({"role": "tool", "tool_call_id": "x", "content": ""}, "UNPAIRED_TOOL_RESULT"),
    ],
)
async def test_a_message_that_is_not_valid_is_named(
    settings: Settings, raw: dict[str, Any], error: str
) -> None:
    """The error of the service names the message by its number."""
    messages = [*spoken(4, 0).messages[:3], Appended(FormatName.OPENAI_CHAT, raw)]
    wrong = replace(spoken(), messages=messages)
    with pytest.raises(click.ClickException, match=error):
        await by_strategy(wrong, settings, OPTIONS, "sandwich")


async def test_a_pin_needs_its_message(settings: Settings) -> None:
    """A position behind the last message is refused."""
    with pytest.raises(click.ClickException, match="no message 61 to pin: the last one is 60"):
        await by_strategy(spoken(), settings, replace(OPTIONS, pins=frozenset({61})), "chain")


async def test_the_report_has_a_column_for_each_strategy(settings: Settings) -> None:
    """The table and the JSON have the same figures."""
    source, found = await by_strategy(spoken(), settings, OPTIONS, "sandwich", "sliding_window")
    outcomes = list(found.values())
    lines = table(source, OPTIONS, outcomes)
    assert lines[2].split() == ["sandwich", "sliding_window"]
    (survived,) = (line for line in lines if line.startswith("standing instructions"))
    assert survived.split() == ["standing", "instructions", "1", "of", "1", "0", "of", "1"]
    first, second = as_json(source, OPTIONS, outcomes)["strategies"]
    assert first["statements"]["standing"] == {"kept": 1, "of": 1} and first["lost_total"] == 0
    assert f"Standing instructions: {RULE}" in second["lost"]
