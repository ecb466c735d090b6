"""Builds of any log report at least the tokens of their payload, within the window.

The counter shares no code with the service. Windows are small, so that tool results are cleared,
messages are compacted and views are reduced.

[budget.total, budget.within-window, tokens.what-counts]
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.common.errors import ContextError, ContextOverflow
from app.context.state import KnownPayload
from app.formats.message import FormatName
from app.prompt.resolved_settings import RequestSettings
from app.repositories import Database
from tests.domain.histories import IMAGE_DATA, raw_logs
from tests.domain.payload.builders import IMAGE, ITEMS, LEAST
from tests.payload_tokens import payload_tokens
from tests.services.fakes import Harness, WatchedDatabase
from tests.services.payload.builders import MODELS, built

SECTIONS = [{"name": "base", "content": 'Say "so".\n\n\n\tNever 日本語. ' * 20}]
DESCRIBED = {"description": "Reads\n\na\tfile.", "parameters": {"type": "object", "x": "\n \t" * 9}}
TOOLS = [{"name": "read_file", **DESCRIBED}]
POLICIES = st.fixed_dictionaries(
    {
        "strategy": st.sampled_from(["sandwich", "sliding_window", "tree_summary"]),
        "tool_output": st.fixed_dictionaries(
            {"context_budget_tokens": st.sampled_from([100, 2_000]), "clear_at_least": st.just(0)}
        ),
        "budget": st.fixed_dictionaries(
            {
                "context_window": st.sampled_from([1_500, 4_000, 60_000]),
                "max_output_tokens": st.just(200),
            }
        ),
    }
)


@pytest.fixture
def harness(database: Database) -> Harness:
    """One process's services on this test's database."""
    return Harness(WatchedDatabase(database))


def judge(answer: dict[str, Any], payload: dict[str, Any]) -> None:
    """Fail where a payload has more tokens than reported, or than its window."""
    sent = payload_tokens(payload)
    sent += IMAGE * orjson.dumps(payload).count(IMAGE_DATA.encode())
    assert answer["tokens_used"] >= LEAST * sent, f"{answer['tokens_used']} said, {sent} sent"
    assert sent <= answer["budget"]["effective_window"]


@settings(
    max_examples=7,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(log=raw_logs(8), own=POLICIES, compacts=st.integers(0, 12))
async def test_no_payload_has_more_tokens_than_its_build_reports(
    harness: Harness, log: Any, own: dict[str, Any], compacts: int
) -> None:
    """It holds for warm, cold, delta and compacted builds in every format [budget.total]."""
    cid = await harness.conversation(own, SECTIONS, TOOLS)
    held: dict[FormatName, dict[str, Any]] = {}
    for number, (given_as, raw) in enumerate(log.messages):
        await harness.append(cid, raw, format=given_as)
        if number == compacts:
            with suppress(ContextError):  # there may be nothing to compact
                await harness.compact(cid)
        for format in FormatName:
            with suppress(ContextOverflow):
                held[format] = await judged(harness, cid, format, held.get(format))


async def judged(
    harness: Harness, cid: str, format: FormatName, before: dict[str, Any] | None
) -> dict[str, Any]:
    """Build warm, cold and as a delta on the build before; return the warm one."""
    ask = RequestSettings(format, MODELS[format])
    answer = await built(harness, cid, ask)
    judge(answer, answer["payload"])
    cold = await built(harness, cid, ask, service=harness.cold())
    assert cold["tokens_used"] == answer["tokens_used"]
    judge(cold, cold["payload"])
    if before is not None:
        known = KnownPayload(before["epoch"], before["through_seq"])
        delta = await built(harness, cid, ask, known)
        key = ITEMS[format]
        shown = before["payload"][key][: delta["base_items"]] + delta["payload"][key]
        whole = delta["payload"]
        if delta["delta"]:
            whole = before["payload"] | {key: shown + delta["tail"]}
        judge(delta, whole)
    return answer
