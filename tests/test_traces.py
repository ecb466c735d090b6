"""A fixed sample of real conversations through the served API, every payload judged.

`python -m benchmarks.replay` does the same with all of them.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from app.demo import Client, Trace
from tests.replay import Judge, Replay, Tally, named_traces, traces_dir

SAMPLE = {
    "claude_code": (12,),
    "functionchat_ko": (0, 44),
    "inspect_ai": (0, 2),
    "livemcpbench": (18,),
    "openhands": (1,),
    "swe_agent_demos": (9,),
    "tau_airline": (23,),
}
"""Conversations by file and line: with images, re-used ids, pending calls, scripts, overflows."""


@pytest.fixture(scope="module")
def folder() -> Path:
    """The folder of the traces; the tests are skipped where it is absent."""
    found = traces_dir()
    if not found.is_dir():
        pytest.skip(f"No recorded conversations in {found}; set CONTEXT_TRACES_DIR")
    if not (found.parent / "tools" / "provider_validate.py").exists():
        pytest.skip(f"No provider_validate.py in {found.parent / 'tools'}")
    return found


@pytest.fixture(scope="module")
def judge(folder: Path) -> Judge:
    """One judge for all, since it takes a while to load the providers' types."""
    return Judge(folder)


def sample(folder: Path, name: str) -> list[Trace]:
    """Return the chosen conversations of a file."""
    traces = named_traces(folder / f"{name}.jsonl")
    return [traces[line] for line in SAMPLE[name]]


@pytest.mark.parametrize("name", SAMPLE)
def test_real_conversations_build_valid_payloads(
    name: str, folder: Path, judge: Judge, served: str
) -> None:
    """Every payload is valid, fits, counts right and extends the last one (A1, C1, C4, G3, K1)."""
    total = Tally()
    with closing(Client(served)) as client:
        for trace in sample(folder, name):
            total.add(Replay(client, judge).run(trace))
    assert not total.faults, "\n".join(total.faults[:20])
    assert total.conversations == len(SAMPLE[name])
    assert total.read_back == 4 * total.messages > 0
    assert sum(total.builds.values()) > 0
