"""Recorded conversations through the served API, every payload judged.

`python -m benchmarks.replay` does the same with all conversations of `CONTEXT_TRACES_DIR`.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

import httpx
import pytest

from app.cli.demo import Client, Trace
from app.formats.message import FormatName
from tests.judge import refusals
from tests.patience import PATIENCE_SECONDS
from tests.recorded import (
    CHAT,
    Conversation,
    committed,
    is_external,
    named_traces,
    trace_files,
    traces_dir,
)
from tests.replay import MODELS, Judge, Replay

ROUNDS = 5
"""How often payloads are built of a conversation, in each format and window."""


def sample() -> list[Any]:
    """Return the conversations of the repository; of another folder, two of each file."""
    found: list[Trace] = []
    for path in trace_files(traces_dir()):
        traces = sorted(named_traces(path), key=lambda trace: len(trace.messages))
        found += traces if not is_external() else [traces[0], traces[len(traces) // 2]]
    return [pytest.param(trace, id=trace.name) for trace in found]


@pytest.fixture(scope="module")
def judge() -> Judge:
    """One judge for all: it remembers what messages cost."""
    return Judge()


@pytest.mark.parametrize("trace", sample())
def test_real_conversations_build_valid_payloads(trace: Trace, judge: Judge, served: str) -> None:
    """Every payload is valid, fits, counts right and extends the last one [log.append-only]."""
    with closing(Client(served)) as client:
        total = Replay(client, judge, 1 + len(trace.messages) // ROUNDS).run(trace)
    assert not total.faults, "\n".join(total.faults[:20])
    assert total.read_back == 4 * total.messages > 0
    assert sum(total.builds.values()) > 0


@pytest.mark.parametrize(
    "conversation", [pytest.param(one, id=one.name) for one in committed() if one.format != CHAT]
)
def test_native_conversations_build_valid_payloads(conversation: Conversation, served: str) -> None:
    """What one provider said goes to each of the others, as the conversation grows."""
    count = len(conversation.messages)
    with httpx.Client(base_url=served, timeout=PATIENCE_SECONDS) as client:
        created = client.post("/v1/conversations", json={"model": "gpt-4.1"}).json()
        path = f"/v1/conversations/{created['conversation_id']}"
        for number, message in enumerate(conversation.messages, 1):
            sent = {"format": conversation.format, "messages": [message]}
            answer = client.post(f"{path}/messages", json=sent)
            assert answer.status_code == 201, answer.text
            if number % (1 + count // ROUNDS) and number < count:
                continue
            for format, models in MODELS.items():
                asked = {"format": format, "model": models[0]}
                built = client.post(f"{path}/context", json=asked)
                assert built.status_code == 200, built.text
                assert refusals(format, built.json()["payload"]) == []


@pytest.mark.parametrize(
    "conversation",
    [
        pytest.param(one, id=one.name)
        for one in committed()
        if one.format in ("anthropic", "openai_responses")
    ],
)
def test_native_reasoning_fits_in_a_small_window(conversation: Conversation, served: str) -> None:
    """Every build of a conversation with reasoning fits in a window of 8 000 tokens.

    With its reasoning a payload may bring a notice and the tool that it names, without it none.
    """
    settings = {
        "model": MODELS[FormatName(conversation.format)][0],
        "tools": conversation.tools,
        "policy": {"budget": {"context_window": 8_000}},
    }
    with httpx.Client(base_url=served, timeout=PATIENCE_SECONDS) as client:
        created = client.post("/v1/conversations", json=settings).json()
        path = f"/v1/conversations/{created['conversation_id']}"
        for message in conversation.messages:
            sent = {"format": conversation.format, "messages": [message]}
            answer = client.post(f"{path}/messages", json=sent)
            assert answer.status_code == 201, answer.text
            built = client.post(f"{path}/context", json={"format": conversation.format})
            assert built.status_code == 200, built.text
            assert refusals(conversation.format, built.json()["payload"]) == []
