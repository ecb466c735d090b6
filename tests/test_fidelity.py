"""The judge of compactions: what counts as kept or stale."""

from __future__ import annotations

from functools import cache
from itertools import chain
from typing import Any

import pytest

from benchmarks.fidelity import judge
from benchmarks.fidelity.planted.generated import Session, generated
from benchmarks.fidelity.planted.report_wording import WORDING
from benchmarks.fidelity.planted.wording import Kind, Plant

PORT = Plant(
    Kind.UPDATE,
    "The canary cache port is now 53474.",
    ("53474", "canary", "cache", "port"),
    old=("22446",),
)
NEWEST = "- The canary cache port is 53474.\n"


@cache
def session(name: str) -> Session:
    """Return the session of a seed."""
    return generated(WORDING, name)


def messages_of(name: str) -> list[dict[str, Any]]:
    """Return all messages of a session."""
    return list(chain.from_iterable(session(name).rounds))


@pytest.mark.parametrize("name", ["report-7", "report-8"])
def test_a_whole_conversation_keeps_everything_and_nothing_else_does(name: str) -> None:
    """All statements are found in the messages they stand in, and none in an empty payload."""
    messages = messages_of(name)
    text = judge.payload_text({"messages": messages})
    texts = {text for message in messages for text in judge.content_texts(message)}
    written = judge.written_text({"messages": messages}, texts)
    assert written == ""
    for plant in session(name).plants:
        assert judge.survives(plant, text), plant
        assert not judge.survives(plant, "")
        assert judge.stale_values(plant, text, written) == []


@pytest.mark.parametrize(
    ("written", "is_stale"),
    [
        (NEWEST, False),
        (f"{NEWEST}- The canary cache port is 22446.", True),
        (f"{NEWEST}- Earlier the canary cache port was 22446.", False),
        ("- The canary cache port is 53474 (22446 at first).", False),
        (f"## Superseded\n- canary cache port: 22446\n## Facts\n{NEWEST}", False),
        (f"## Superseded\n- Team: Oak\n## Facts\n- canary cache port: 22446\n{NEWEST}", True),
        ("- Earlier the canary cache port was 22446.", True),  # and the newest is not there
        (f"{NEWEST}{'x' * 300} 53474. The canary cache port is 22446.", True),
    ],
)
def test_an_old_value_is_stale_unless_it_is_named_as_history(written: str, is_stale: bool) -> None:
    """The old value is stale where it stands alone, or where the newest value is absent."""
    found = judge.stale_values(PORT, judge.flat(written), written)
    assert found == (["22446"] if is_stale else [])
