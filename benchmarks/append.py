"""Append throughput under wrk, ours against floor B in alternating rounds [performance.append]."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from uuid import UUID, uuid4

import orjson
import uvloop

from benchmarks import floors
from benchmarks.connection import Connection
from benchmarks.figures import Section, p50, times
from benchmarks.processes import CpuMeter, Served, floor_b, service
from benchmarks.stage import create_conversation, database, report
from benchmarks.workload import Message, plain_message

CONVERSATIONS = 16
BODIES_EACH = 4
MESSAGE_CHARS = 1_000
BATCH = 100
APPROXIMATE_TOKENS = 220
"""What floor B stores as the count of a message of 1 KB; it does not count."""

_SCRIPT = """
local requests = {}
local at = 0
init = function(args)
  local headers = {["Content-Type"] = "application/json"}
  for line in io.lines(%s) do
    local method, path, body = line:match("^(%%S+) (%%S+) (.*)$")
    requests[#requests + 1] = wrk.format(method, path, headers, body)
  end
end
request = function()
  at = at %% #requests + 1
  return requests[at]
end
done = function(summary, latency, requests)
  io.write(string.format(
    "\\nFIGURES %%d %%d %%d %%d %%d %%d %%d\\n", summary.requests, summary.duration,
    summary.errors.status,
    summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout,
    latency:percentile(50), latency:percentile(95), latency:percentile(99)))
end
"""


@dataclass(frozen=True, slots=True)
class Round:
    """The results of one round, from wrk and the CPU times of the processes."""

    per_second: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    server_cpu_ms: float
    postgres_cpu_ms: float

    @property
    def cpu_ms(self) -> float:
        """CPU time of server and PostgreSQL for a message."""
        return self.server_cpu_ms + self.postgres_cpu_ms


class Load:
    """A fixed set of requests to one server, sent repeatedly; a line is method, path and body."""

    def __init__(self, folder: Path, name: str, server: Served, lines: Sequence[str]) -> None:
        bodies = folder / f"{name}.txt"
        bodies.write_text("\n".join(lines) + "\n", encoding="utf-8")
        self._script = folder / f"{name}.lua"
        self._script.write_text(_SCRIPT % json.dumps(str(bodies)), encoding="utf-8")
        self._server = server

    def run(self, meter: CpuMeter, connections: int, seconds: int, messages_each: int) -> Round:
        """Load the server for some seconds; raises RuntimeError if any answer is no 2xx."""
        before = meter.read(self._server)
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout=20s"]
        command += ["-s", str(self._script), f"http://127.0.0.1:{self._server.port}"]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        spent = meter.since(before, self._server)
        _, _, figures = printed.partition("FIGURES ")
        requests, micros, refused, broken, middle, slow, slowest = map(int, figures.split())
        if refused or broken or not requests:
            raise RuntimeError(f"{refused} refused, {broken} broken: {printed}")
        messages = requests * messages_each
        return Round(
            messages / (micros / 1e6),
            middle / 1000,
            slow / 1000,
            slowest / 1000,
            spent.server * 1000 / messages,
            spent.postgres * 1000 / messages,
        )


def measure(quick: bool) -> Section:
    """Run both loads and report them."""
    if shutil.which("wrk") is None:
        raise SystemExit("append: wrk is needed (Debian: apt-get install wrk).")
    seconds, rounds = (3, 3) if quick else (6, 5)
    section = Section("append", "messages per second, one uvicorn worker")
    with (
        database() as (data_dir, url, log),
        service(data_dir, "--no-worker", log=log) as served,
        floor_b(url, log) as floor,
        tempfile.TemporaryDirectory(prefix="bench-append-") as folder,
    ):
        loads = _loads(served, floor, url, Path(folder))
        meter = CpuMeter(data_dir)
        section.add_text(
            f"Messages of {MESSAGE_CHARS} characters into {CONVERSATIONS} conversations under wrk,"
            f" medians of {rounds} alternating rounds of {seconds} s; CPU in ms per message."
        )
        single = _rounds(loads, "one", meter, 16, seconds, rounds, 1)
        batches = _rounds(loads, "batch", meter, 4, seconds, rounds, BATCH)
        memory = served.memory_bytes
    section.add_text("One message per request, 16 connections:")
    _table(section, single)
    pairs = list(zip(single["ours"], single["floor B"], strict=True))
    ratios = [ours.per_second / bare.per_second for ours, bare in pairs]
    spent = [bare.cpu_ms / ours.cpu_ms for ours, bare in pairs]
    section.add_text(
        f"Of the {rounds} pairs of rounds: messages/s {times(min(ratios))} to"
        f" {times(max(ratios))}, median {times(p50(ratios))}; messages per second of CPU,"
        f" which other load on the machine moves less, {times(min(spent))} to"
        f" {times(max(spent))}, median {times(p50(spent))}."
    )
    goal = "against floor B under the same load ≥ 0.75x"
    section.goal("performance.append", goal, times(p50(ratios)), p50(ratios) >= 0.75)
    section.add_text(f"{BATCH} messages per request, 4 connections:")
    _table(section, batches)
    speed = _median(batches["ours"], "per_second")
    goal = "batches of 100 ≥ 20 000 messages/s"
    section.goal("performance.append", goal, f"{speed:.0f}/s", speed >= 20_000)
    section.add_text(f"Memory of the service process: {memory >> 20} MiB.")
    return section


def _loads(served: Served, floor: Served, url: str, folder: Path) -> dict[str, Load]:
    rng = Random(5)
    with Connection(served.port) as connection:
        ours = [create_conversation(connection) for _ in range(CONVERSATIONS)]
    bare = [uuid4() for _ in range(CONVERSATIONS)]
    uvloop.run(_start_floor(url, bare))

    def lines(path: Callable[[int], str], each: int, counted: bool) -> list[str]:
        made = []
        for _ in range(BODIES_EACH):
            for place in range(CONVERSATIONS):
                body: dict[str, object] = {"messages": _messages(rng, each)}
                if counted:
                    body["tokens"] = [APPROXIMATE_TOKENS] * each
                made.append(f"POST {path(place)} {orjson.dumps(body).decode()}")
        return made

    loads = {}
    for kind, each in (("one", 1), ("batch", BATCH)):
        our_lines = lines(lambda place: f"/v1/conversations/{ours[place]}/messages", each, False)
        floor_lines = lines(lambda place: f"/conversations/{bare[place]}/messages", each, True)
        loads[f"ours {kind}"] = Load(folder, f"ours-{kind}", served, our_lines)
        loads[f"floor B {kind}"] = Load(folder, f"floor-{kind}", floor, floor_lines)
    return loads


def _messages(rng: Random, count: int) -> list[Message]:
    return [
        plain_message(rng, "user" if place % 2 == 0 else "assistant", MESSAGE_CHARS)
        for place in range(count)
    ]


async def _start_floor(url: str, conversations: Sequence[UUID]) -> None:
    connection = await floors.connect(url)
    for conversation_id in conversations:
        await floors.FloorA(connection).start(conversation_id)
    await connection.close()


def _rounds(
    loads: dict[str, Load],
    kind: str,
    meter: CpuMeter,
    connections: int,
    seconds: int,
    rounds: int,
    messages_each: int,
) -> dict[str, list[Round]]:
    report(f"append: {rounds} rounds of {kind}")
    rounds_by_server: dict[str, list[Round]] = {"ours": [], "floor B": []}
    for name in rounds_by_server:
        loads[f"{name} {kind}"].run(meter, connections, 1, messages_each)
    for _ in range(rounds):
        for name, results in rounds_by_server.items():
            load = loads[f"{name} {kind}"]
            results.append(load.run(meter, connections, seconds, messages_each))
    return rounds_by_server


def _median(rounds: Sequence[Round], name: str) -> float:
    return p50([getattr(entry, name) for entry in rounds])


def _table(section: Section, rounds_by_server: dict[str, list[Round]]) -> None:
    ours = _median(rounds_by_server["ours"], "per_second")
    heads = ("system", "messages/s", "latency p50 ms", "p95 ms", "p99 ms", "server CPU")
    rows = []
    for name, rounds in rounds_by_server.items():
        speed = _median(rounds, "per_second")
        latencies = (f"{_median(rounds, f'{each}_ms'):.1f}" for each in ("p50", "p95", "p99"))
        cpu = (f"{_median(rounds, f'{each}_cpu_ms'):.3f}" for each in ("server", "postgres"))
        rows.append((name, f"{speed:.0f}", *latencies, *cpu, times(ours / speed)))
    section.add_table((*heads, "PostgreSQL CPU", "ours / it"), rows)
