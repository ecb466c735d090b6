"""A build that extends a cached payload equals a build that reads everything.

[payload.deterministic, epochs.extend]
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.common.errors import ContextOverflow, ValidationError
from app.context import choose_view as rendering
from app.context.repository import ContextRepository
from app.conversations.messages.row import RawBatch
from app.conversations.messages.service import StoredBatch
from app.formats.message import FormatName
from app.prompt.resolved_settings import RequestSettings
from app.prompt.sections import PromptSection, SectionKind
from tests.services.fakes import ANTHROPIC, CHAT, TENANT, Harness, asks, result, says, user
from tests.services.payload.builders import ASKS, RESPONSES, SECTIONS, TOOLS

APPENDS = st.sampled_from(["user", "user", "says", "output", "large_output"])
CHANGES = st.sampled_from(["pin", "unpin", "compact", "policy", "sections", "tools"])
MODELS = st.sampled_from(
    [
        *((format, ask.model) for format, ask in ASKS.items()),
        *((ANTHROPIC, "claude-opus-5"), (RESPONSES, "gpt-5.6")),
    ]
)
OWN = st.fixed_dictionaries(
    {
        "strategy": st.sampled_from(["sandwich", "sliding_window", "full_history"]),
        "dynamic_position": st.sampled_from(["tail", "before_window", "system"]),
        "tool_output": st.sampled_from([{}, {"context_budget_tokens": 400}]),
        "budget": st.fixed_dictionaries(
            {"context_window": st.sampled_from([1200, 2500]), "max_output_tokens": st.just(100)}
        ),
    }
)


async def _append(harness: Harness, cid: str, kind: str, number: int) -> StoredBatch:
    call = f"call_{number}"
    messages: tuple[Any, ...] = {
        "user": (user(f"question {number} " + "why " * 40),),
        "says": (says(f"answer {number} " + "because " * 40),),
        "output": (asks(call), result(call, "short")),
        "large_output": (asks(call), result(call, f"{number} " + "row of the table " * 60)),
    }[kind]
    return await harness.log.append(TENANT, cid, RawBatch(messages))


async def _change(harness: Harness, cid: str, kind: str, head_seq: int) -> None:
    match kind:
        case "pin":
            with suppress(ValidationError):  # more pins than half of the window
                await harness.pin(cid, 1 + head_seq // 2)
        case "unpin":
            await harness.unpin(cid, 1 + head_seq // 2)
        case "compact":
            await harness.compact(cid)
        case "policy":
            await harness.set_policy(cid, {"budget": {"notice_at": 0.2 + head_seq % 5 / 10}})
        case "sections":
            await harness.patch(cid, sections=SECTIONS[head_seq % 2 : 2 + head_seq % 3 // 2])
        case "tools":
            await harness.patch(
                cid, tools=[*TOOLS, {"name": f"tool_{head_seq % 3}"}][head_seq % 2 :]
            )


@pytest.mark.parametrize("thread_bytes", [200_000, 300], ids=["in place", "in a copy"])
@given(
    own=OWN,
    asked=MODELS,
    steps=st.lists(
        st.tuples(
            APPENDS,
            st.none() | st.none() | CHANGES,
            st.sampled_from([None, None, "Busy.", "Free."]),
            st.sampled_from([{}, {}, {}, {"context_window": 900}, {"max_output_tokens": 77}]),
        ),
        min_size=3,
        max_size=14,
    ),
)
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
async def test_it_equals_a_build_that_reads_everything(
    harness: Harness,
    thread_bytes: int,
    own: dict[str, Any],
    asked: tuple[FormatName, str],
    steps: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever happens between two builds, the answer is the same as from a new process.

    Another process makes some of them. [epochs.changes]
    """
    monkeypatch.setattr(rendering, "_THREAD_BYTES", thread_bytes)
    cid = await harness.conversation(own, SECTIONS, TOOLS)
    format, model = asked
    services = (harness.context, harness.cold())
    for number, (append, change, status, limits) in enumerate(steps):
        appended: StoredBatch | None = await _append(harness, cid, append, number)
        if change is not None:
            appended = None  # as in a later request
            await _change(harness, cid, change, (await harness.stored(cid)).state.head_seq)
        note = (PromptSection("pad", f"Note {number // 3}.", SectionKind.SCRATCHPAD),)
        ask = RequestSettings(format, model, status=status, dynamic=note, **limits)
        try:
            warm = await services[number % 3 // 2].build(TENANT, cid, ask, appended=appended)
        except ContextOverflow:
            with pytest.raises(ContextOverflow):
                await harness.cold().build(TENANT, cid, ask)
            continue
        cold = await harness.cold().build(TENANT, cid, ask)
        assert _lasting(warm) == _lasting(cold)


async def test_a_step_after_a_step_reads_nothing(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build with the batch of its own request needs no read, in any epoch but the first."""
    cid, ask = await harness.conversation({}, SECTIONS, TOOLS), RequestSettings(CHAT)
    await harness.append(cid, user("Hello."))
    first = await harness.context.build(TENANT, cid, ask)
    appended = await _append(harness, cid, "large_output", 1)
    with monkeypatch.context() as patched:
        patched.delattr(ContextRepository, "read_build_input")
        built = await harness.context.build(TENANT, cid, ask, appended=appended)
    assert (built["epoch"], built["through_seq"]) == (first["epoch"], 3)
    appended = await _append(harness, cid, "user", 2)
    await harness.pin(cid, 1)
    await harness.context.build(TENANT, cid, ask)  # it reads the pin
    appended = await _append(harness, cid, "user", 3)
    with monkeypatch.context() as patched:
        patched.delattr(ContextRepository, "read_build_input")
        built = await harness.context.build(TENANT, cid, ask, appended=appended)
    assert _lasting(built) == _lasting(await harness.cold().build(TENANT, cid, ask))


def _lasting(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer as JSON, without what only the first build of an epoch has."""
    found: dict[str, Any] = orjson.loads(orjson.dumps(answer))
    once = ("cache_break_reason", "compaction")
    found |= found.pop("diagnostics")
    return {name: value for name, value in found.items() if name not in once}
