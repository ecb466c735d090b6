"""A step of an agent loop: one request against three.

1. A step appends an assistant message with a tool call and its result, reports the usage of the
   last call, and builds the next payload, as a delta.
2. Two conversations have the same messages. One sends `append` and `usage` with the build, the
   other three requests one after the other. Both take their steps in turn, the first one first and
   then the other, so that ratios hold on a busy machine.
3. A delay before each request stands for the network between backend and service.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from benchmarks.connection import Connection
from benchmarks.figures import Section, ms, p50, p95, times
from benchmarks.stage import create_conversation, report, stage

STEPS, QUICK_STEPS = 300, 60
DELAYS_MS = (0, 5)
TEXT = "The file has no further lines; nothing else was written to it. " * 20

Post = Callable[[str, object], Mapping[str, Any]]


def measure(*, quick: bool) -> Section:
    """Return the times of a step in one request and in three."""
    section = Section("steps", "a step of an agent loop in one request and in three")
    steps = QUICK_STEPS if quick else STEPS
    rows = []
    with stage() as running, Connection(running.service.port) as connection:
        for delay_ms in DELAYS_MS:
            report(f"steps: {delay_ms} ms between backend and service")
            one, three = _compare(connection, steps, delay_ms / 1000)
            figures = [ms(of(took)) for took in (one, three) for of in (p50, p95)]
            rows.append((f"{delay_ms} ms", *figures, times(p50(three) / p50(one))))
    section.add_text(f"{steps} steps each; requests for a step: 1 and 3.")
    section.add_table(
        ("delay per request", "one, p50", "p95", "three, p50", "p95", "three / one"), rows
    )
    return section


def _compare(
    connection: Connection, steps: int, delay_seconds: float
) -> tuple[list[float], list[float]]:
    def post(path: str, body: object) -> Mapping[str, Any]:
        time.sleep(delay_seconds)
        answer: Mapping[str, Any] = orjson.loads(connection.post(path, body))
        return answer

    paths = [f"/v1/conversations/{create_conversation(connection)}" for _ in range(2)]
    question = {"messages": [{"role": "user", "content": "What is in the file?"}]}
    built = [post(f"{path}/context", {"append": question}) for path in paths]
    took: tuple[list[float], list[float]] = ([], [])
    for number in range(steps):
        for place in (number % 2, 1 - number % 2):
            begin = time.perf_counter()
            built[place] = _STEPS[place](post, paths[place], number, built[place])
            took[place].append(time.perf_counter() - begin)
    assert built[0]["through_seq"] == built[1]["through_seq"]
    return took


def _messages(number: int) -> list[dict[str, Any]]:
    function = {"name": "read_file", "arguments": "{}"}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": TEXT},
    ]


def _usage(built: Mapping[str, Any]) -> dict[str, Any]:
    used = built["tokens_used"]
    usage = {"prompt_tokens": used, "completion_tokens": 20, "total_tokens": used + 20}
    return {"usage": usage, "build_id": built["build_id"]}


def _known(built: Mapping[str, Any]) -> dict[str, Any]:
    return {name: built[name] for name in ("epoch", "through_seq", "build_id")}


def _one(post: Post, path: str, number: int, built: Mapping[str, Any]) -> Mapping[str, Any]:
    append = {"messages": _messages(number)}
    return post(
        f"{path}/context", {"append": append, "usage": _usage(built), "known": _known(built)}
    )


def _three(post: Post, path: str, number: int, built: Mapping[str, Any]) -> Mapping[str, Any]:
    post(f"{path}/messages", {"messages": _messages(number)})
    post(f"{path}/usage", _usage(built))
    return post(f"{path}/context", {"known": _known(built)})


_STEPS = (_one, _three)
