"""The newest user message is in every payload of a long tool loop. [budget.user-text-kept]"""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from app.policy.policy import StrategyName
from app.prompt.resolved_settings import RequestSettings
from tests.domain.payload.builders import faults
from tests.services.fakes import Harness, asks, result, says, user
from tests.services.payload.builders import MODELS, built

STEPS, PROVIDERS = 40, list(MODELS)
SMALL = {"context_window": 4_000, "max_output_tokens": 500}


def loop_policy(strategy: str, mode: str) -> dict[str, Any]:
    """Return a policy for loops in a small window; `full_history` has a window for all of it."""
    is_whole = strategy == StrategyName.FULL_HISTORY
    budget = {"context_window": 200_000} if is_whole else SMALL
    compaction = {"mode": mode}
    return {"strategy": strategy, "budget": budget, "compaction": compaction}


@pytest.mark.parametrize("strategy", StrategyName)
@pytest.mark.parametrize("words", [40, 4_000], ids=["short", "long"])
async def test_the_newest_user_message_is_in_every_payload(
    harness: Harness, strategy: StrategyName, words: int
) -> None:
    """In every format, whatever is compacted: whole, or as head and tail where it is long."""
    random = Random(f"{strategy} {words}")
    mode = random.choice(("inline", "background"))
    cid = await harness.conversation(loop_policy(strategy, mode))
    await harness.talk(cid, 2)
    await harness.append(cid, user(f"BEGINNING {'of the task ' * (words // 3)} ENDING"))
    for step in range(STEPS):
        ids = [f"call_{step}_{number}" for number in range(random.choice((1, 1, 3)))]
        said = [says("I look further.")] if random.random() < 0.2 else []
        size = random.choice((5, 50, 50, 400))
        results = [result(call_id, f"found {step} " * size) for call_id in ids]
        await harness.append(cid, *said, asks(*ids), *results)
        if mode == "background" and strategy not in ("full_history", "sliding_window"):
            await harness.work(cid)
        format = PROVIDERS[step % len(PROVIDERS)]
        answer = await built(harness, cid, RequestSettings(format, MODELS[format]))
        text = json.dumps(answer["payload"])
        assert "BEGINNING of the task" in text and "of the task  ENDING" in text, step
        assert faults(format, answer["payload"]) == []
