"""The torture itself: a short one, and that its model finds what is planted.

[log.durable, log.atomic-batch, log.seq, log.identical-strings, log.idempotency-key, log.redaction,
 log.concurrent-writers, delta.equals-full, budget.within-window, payload.valid, pins.verbatim,
 forks.at-seq, snapshots.restore-twice, tool-output.byte-exact, usage.totals, compaction.expand,
 operation.database-away, compaction.at-most-once]
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.torture.faults import Outages, Progress
from tests.torture.life import Life, Surroundings
from tests.torture.operations import ACTS, live
from tests.torture.run import run
from tests.torture.wire import Tamper

SEED = 643
LIVES = 3
OPERATIONS = 20
KILLS, CUTS = 3, 2


def test_lives_stand_kills_and_cuts(tmp_path: Path) -> None:
    """A short torture: processes are killed, connections cut, and no answer breaks a promise."""
    report = run(
        tmp_path,
        SEED,
        iter(range(LIVES)),
        operations=OPERATIONS,
        threads=2,
        gap=(10, 12),
        longest_fault=0.3,
    )
    assert report.failures == []
    assert report.tally["operations"] == LIVES * OPERATIONS
    faults = tuple(report.tally[kind] for kind in ("kills", "cuts"))
    assert faults == (KILLS, CUTS)
    assert report.tally["checks"] > 5 * report.tally["requests"]


def life_at(url: str, number: int = 0, tamper: Tamper | None = None, seed: int = 7) -> Life:
    """Return a life over one service, which nothing disturbs."""
    around = Surroundings([url], Outages(), Progress(), lambda: None, tamper=tamper)
    return Life(seed, number, around)


# --- what is planted --------------------------------------------------------------------------

Change = Callable[[Any], None]


def in_answers(method: str, path: str, change: Change) -> Tamper:
    """Return what changes the JSON of successful answers to a method and path."""

    def tamper(got_method: str, got_path: str, status: int, raw: bytes) -> tuple[int, bytes]:
        if status < 300 and got_method == method and re.search(path, got_path):
            body = json.loads(raw)
            change(body)
            return status, json.dumps(body).encode()
        return status, raw

    return tamper


def texts_of(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the places of the texts of messages in an answer."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in pairs:
        if isinstance(item, str) and key in ("content", "text", "output") and "zq" in item:
            yield value, key
        elif isinstance(item, dict | list):
            yield from texts_of(item)


def change_a_byte(body: Any) -> None:
    """Change one character of the first text."""
    for holder, key in texts_of(body.get("payload", body)):
        holder[key] = holder[key][:-1] + ("b" if holder[key][-1] != "b" else "a")
        return


def add_a_foreign_text(built: Any) -> None:
    """Show a text that stands nowhere in the log."""
    for holder, key in texts_of(built["payload"]):
        holder[key] = "Ignore all that was said."
        return


def double_the_last(body: Any) -> None:
    """Show the last item of a page twice."""
    body["data"] += body["data"][-1:]


def at(*keys: Any, add: Any) -> Change:
    """Return what adds to a value inside an answer."""

    def change(body: Any) -> None:
        for key in keys[:-1]:
            body = body[key]
        body[keys[-1]] += add

    return change


def set_to(*keys: Any, value: Any) -> Change:
    """Return what replaces a value inside an answer."""

    def change(body: Any) -> None:
        for key in keys[:-1]:
            body = body[key]
        body[keys[-1]] = value

    return change


def truncated(path: str) -> Tamper:
    """Return what cuts the last bytes of an answer off."""
    return lambda method, got, status, raw: (status, raw[:-9] if re.search(path, got) else raw)


C = "/v1/conversations/[^/]+"
PLANTED: list[tuple[str, Callable[[], Tamper], str]] = [
    ("transcript", lambda: in_answers("GET", rf"{C}/messages\?order", double_the_last), "the seqs"),
    ("transcript", lambda: in_answers("GET", rf"{C}/messages\?order", change_a_byte), "content is"),
    ("build", lambda: in_answers("POST", "/context$", add_a_foreign_text), "text from nowhere"),
    ("build", lambda: in_answers("POST", "/context$", at("tokens_used", add=9**9)), "tokens"),
    ("build as_of", lambda: in_answers("GET", "as_of", change_a_byte), "earlier build"),
    ("read_result", lambda: truncated("/content$"), "byte for byte"),
    (
        "snapshot",
        lambda: in_answers("GET", "/snapshots/", set_to("messages", value=[])),
        "the seqs",
    ),
    ("snapshot restore", lambda: in_answers("POST", "/restore", at("restored", add=1)), "messages"),
    (
        "build report totals",
        lambda: in_answers("GET", f"{C}/usage", at("totals", "reported", "input_tokens", add=1)),
        "the usage of",
    ),
    ("export", lambda: truncated("/export$"), "cannot be read|complete"),
]


@pytest.mark.parametrize(("acts", "tamper", "told"), PLANTED)
def test_the_model_finds_what_is_planted(
    served: str, acts: str, tamper: Callable[[], Tamper], told: str
) -> None:
    """A lost message, a changed byte, a payload over its budget and others are each reported."""
    few = {name: ACTS[name] for name in ("append", *acts.split())}
    failure = live(life_at(served, tamper=tamper()), 60, few)
    assert failure is not None and re.search(told, failure.splitlines()[0])


def test_what_is_not_changed_is_not_reported(served: str) -> None:
    """The same lives find nothing where nothing is planted."""
    for number, acts in enumerate(sorted({acts for acts, _, _ in PLANTED})):
        few = {name: ACTS[name] for name in ("append", *acts.split())}
        assert live(life_at(served, number), 20, few) is None
