"""Errors of callers while a database, a model or a process is unavailable, and the recovery time.

1. Probers append and build all the time, and send again what was not acknowledged, as a careful
   backend does. Afterwards their logs are read back: what was acknowledged stands there once, what
   was not at most once, told by what the messages say; and no payload may break a rule.
2. One fault at a time, for some seconds; recovery is counted from its end until the last prober
   has had a 2xx. Requests may be answered with 503 meanwhile, with nothing else.
3. Then recorded conversations are replayed over two API processes and two workers, of which one
   at random is killed with -9 every few seconds. Every payload is judged, every delta compared with
   the whole, and what is lost or doubled is told from the transcripts read back.
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from random import Random
from statistics import median

import asyncpg
import psutil

from app.database.embedded import running
from app.demo import Answer, Client, Trace, Unreachable
from benchmarks.figures import Section, counts
from benchmarks.processes import Served as ModelServer
from benchmarks.processes import model_server, service, summarised_by
from benchmarks.stage import report
from tests.database_proxy import DatabaseProxy, ProxyThread
from tests.judge import Facts, refusals
from tests.recorded import named_traces, source, trace_files, traces_dir
from tests.replay import (
    Judge,
    Launched,
    Replay,
    Served,
    Tally,
    read_messages,
)
from tests.writers import Difference, Message, Writer, writing

PROBERS = 4
WINDOW = 8_192
MAX_OUTPUT_TOKENS = 512
MAX_RECOVERY_SECONDS = 90.0
_PAUSE_SECONDS = 0.02
_EVERY = 10


class Prober(Writer):
    """Builds after each message as well, and judges what it gets."""

    def __init__(self, url: str) -> None:
        budget = {"context_window": WINDOW, "max_output_tokens": MAX_OUTPUT_TOKENS}
        super().__init__(url, {"policy": {"budget": budget}}, MAX_RECOVERY_SECONDS)
        self.violations: list[str] = []
        self.degraded: Counter[str] = Counter()

    def next_batch(self, number: int) -> list[Message]:
        """Return the next message, the user's and the assistant's in turn."""
        role = "user" if number % 2 == 0 else "assistant"
        return [{"id": f"m{number}", "role": role, "content": f"{number} " + "word " * 120}]

    def delivered(self) -> None:
        """Build once; a refused build is no error."""
        answer = self.send("/context", {})
        if answer is None or not answer.accepted:
            return
        built = answer.body
        self.degraded.update(built["degraded"])
        facts = Facts(capacity=WINDOW - MAX_OUTPUT_TOKENS, tokens=built["tokens_used"])
        self.violations += refusals("openai_chat", built["payload"], facts)
        if built["through_seq"] != len(self.sent):
            self.violations.append(f"through_seq {built['through_seq']} of {len(self.sent)}")


@dataclass(frozen=True, slots=True)
class FaultTarget:
    """The database, the proxy and the processes that faults are injected into."""

    data_dir: Path
    url: str
    proxy: ProxyThread
    model: ModelServer
    stack: ExitStack

    def postmaster(self) -> psutil.Process:
        """Return the database's first process."""
        text = (self.data_dir / "postgres" / "postmaster.pid").read_text()
        return psutil.Process(int(text.split()[0]))

    def execute(self, sql: str) -> None:
        """Run a statement past the proxy, also where all is read-only."""

        async def run() -> None:
            connection = await asyncpg.connect(
                self.url, server_settings={"default_transaction_read_only": "off"}
            )
            try:
                await connection.execute(sql)
            finally:
                await connection.close()

        asyncio.run(run())

    def start_database(self) -> None:
        """Start the database again, which recovers by itself."""
        self.stack.enter_context(running(self.data_dir))


Fault = tuple[str, Callable[[FaultTarget], None], Callable[[FaultTarget], None]]


def _signal_all(process: psutil.Process, number: signal.Signals) -> None:
    for one in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            one.send_signal(number)


def _kill_database(target: FaultTarget) -> None:
    server = target.postmaster()
    server.kill()
    with suppress(psutil.TimeoutExpired):
        server.wait(5)


def _stop_database(target: FaultTarget) -> None:
    server = target.postmaster()
    server.send_signal(signal.SIGINT)
    with suppress(psutil.TimeoutExpired):
        server.wait(10)


def _set_read_only(target: FaultTarget, value: str) -> None:
    target.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
    target.execute("SELECT pg_reload_conf()")


FAULTS: Sequence[Fault] = (
    ("PostgreSQL killed (-9), started again", _kill_database, FaultTarget.start_database),
    ("PostgreSQL stopped (fast), started again", _stop_database, FaultTarget.start_database),
    (
        "PostgreSQL frozen (SIGSTOP)",
        lambda target: _signal_all(target.postmaster(), signal.SIGSTOP),
        lambda target: _signal_all(target.postmaster(), signal.SIGCONT),
    ),
    (
        "network blackholed",
        lambda target: target.proxy.do(DatabaseProxy.blackhole),
        lambda target: target.proxy.do(DatabaseProxy.heal),
    ),
    (
        "connections refused",
        lambda target: target.proxy.do(DatabaseProxy.refuse),
        lambda target: target.proxy.do(DatabaseProxy.heal),
    ),
    (
        "PostgreSQL read-only",
        lambda target: _set_read_only(target, "on"),
        lambda target: _set_read_only(target, "off"),
    ),
    (
        "model hangs (SIGSTOP)",
        lambda target: target.model.process.send_signal(signal.SIGSTOP),
        lambda target: target.model.process.send_signal(signal.SIGCONT),
    ),
    (
        "model's server gone (-9)",
        lambda target: target.model.process.kill(),
        lambda target: None,
    ),
)


@dataclass(slots=True)
class Outcome:
    """The results of one fault; `wrong` lists the broken promises."""

    name: str
    good: int = 0
    refused: int = 0
    other: int = 0
    wrong: list[str] = field(default_factory=list)
    longest: float = 0.0
    recovery: float = 0.0
    acknowledged: int = 0
    lost: int = 0
    doubled: int = 0
    violations: int = 0
    degraded: Counter[str] = field(default_factory=Counter)


def measure(quick: bool) -> Section:
    """Inject all faults, one after the other, then kill processes during a replay."""
    section = Section("faults", "outages of the database, the model and processes")
    seconds, minutes = (3.0, 0.5) if quick else (10.0, 10.0)
    outcomes = _faults(seconds)
    section.add_text(
        f"{PROBERS} probers append and build all the time, in windows of {WINDOW:,} tokens that"
        f" are compacted through a model; each fault lasts {seconds:.0f} s. Recovery: from its end"
        " until the last prober has had a 2xx. Longest: the longest request of all."
    )
    section.add_table(
        ("fault", "2xx", "503", "other", "longest", "recovery", "lost", "doubled", "violations"),
        [
            (
                outcome.name,
                f"{outcome.good:,}",
                f"{outcome.refused:,}",
                str(outcome.other),
                f"{outcome.longest:.2f} s",
                f"{outcome.recovery:.2f} s",
                f"{outcome.lost} of {outcome.acknowledged:,}",
                str(outcome.doubled),
                str(outcome.violations),
            )
            for outcome in outcomes
        ],
    )
    for outcome in outcomes:
        if outcome.degraded:
            section.add_text(f"Degraded, {outcome.name}: {counts(outcome.degraded)}.")
        for wrong in outcome.wrong[:5]:
            section.add_text(f"WRONG, {outcome.name}: {wrong}")
    killed = replay_under_kills(minutes)
    for line in killed.lines():
        section.add_text(line)
    _judge(section, outcomes, killed)
    return section


def _judge(section: Section, outcomes: Sequence[Outcome], killed: KillResults) -> None:
    tally = killed.tally
    lost = sum(outcome.lost for outcome in outcomes) + tally.lost
    doubled = sum(outcome.doubled for outcome in outcomes) + tally.doubled
    violations = sum(outcome.violations for outcome in outcomes) + len(tally.violations)
    broken = sum(len(outcome.wrong) for outcome in outcomes) + len(killed.faults)
    section.goal("log.durable", "acknowledged messages lost 0", str(lost), lost == 0)
    section.goal("log.message-id", "messages doubled 0", str(doubled), doubled == 0)
    section.goal("payload.valid", "payload violations 0", str(violations), violations == 0)
    section.goal(
        "budget.within-window, compaction.receipt, epochs.extend, delta.equals-full",
        "promises broken 0, of any kind",
        str(broken),
        broken == 0,
    )


def _faults(seconds: float) -> list[Outcome]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-faults-")))
        data_dir, log = folder / "data", folder / "log"
        url = stack.enter_context(running(data_dir))
        proxy = ProxyThread(url)
        model = stack.enter_context(model_server(0.2, log))
        environ = summarised_by(model) | {
            "CONTEXT_DATABASE_URL": proxy.url,
            "CONTEXT_SUMMARIZER_TIMEOUT_SECONDS": "3",
            "CONTEXT_POOL_MAX_SIZE": "8",
        }
        served = stack.enter_context(service(data_dir, environ=environ, log=log))
        target = FaultTarget(data_dir, url, proxy, model, stack)
        address = f"http://127.0.0.1:{served.port}"
        return [_run_fault(target, address, fault, seconds) for fault in FAULTS]


def _run_fault(target: FaultTarget, address: str, fault: Fault, seconds: float) -> Outcome:
    name, begin, end = fault
    report(f"faults: {name}")
    with writing([Prober(address) for _ in range(PROBERS)]) as probers:
        time.sleep(2)
        begin(target)
        time.sleep(seconds)
        end(target)
        ended = time.monotonic()
        recovery = max(_recovered(prober, ended) for prober in probers)
        time.sleep(2)
        for prober in probers:
            prober.leave()
    return _outcome(name, probers, recovery)


def _recovered(prober: Prober, ended: float) -> float:
    """Return the seconds from the end of a fault to the first good answer to what came after."""
    while time.monotonic() < ended + MAX_RECOVERY_SECONDS:
        for seen in list(prober.seen)[::-1]:
            if seen.ended < ended:
                break
            if seen.is_good:
                good = [one for one in prober.seen if one.ended >= ended and one.is_good]
                return good[0].ended - ended
        time.sleep(_PAUSE_SECONDS)
    raise RuntimeError(f"Not recovered within {MAX_RECOVERY_SECONDS} s")


def _outcome(name: str, probers: Sequence[Prober], recovery: float) -> Outcome:
    outcome = Outcome(name, recovery=recovery)
    for prober in probers:
        for seen in prober.seen:
            outcome.longest = max(outcome.longest, seen.seconds)
            outcome.good += seen.is_good
            outcome.refused += seen.status == 503
            if not seen.is_good and not seen.is_put_off:
                outcome.other += 1
                outcome.wrong.append(f"{seen.status} after {seen.seconds:.2f} s")
        log = read_messages(prober.client, prober.conversation_id)
        prober.client.close()
        found = prober.difference(log)
        outcome.lost += found.lost
        outcome.doubled += found.doubled
        outcome.wrong += [str(found)] * (found != Difference())
        outcome.wrong += [f"{name} stands elsewhere" for name in prober.misplaced(log)]
        outcome.acknowledged += len(prober.acknowledged)
        outcome.violations += len(prober.violations)
        outcome.wrong += prober.violations
        outcome.degraded += prober.degraded
    return outcome


class PatientClient:
    """Sends to one of several processes, and again to the next one until it is answered.

    Creations and appends carry an idempotency key, as a careful backend's do.
    """

    def __init__(self, urls: Sequence[str], key: str) -> None:
        self._clients = [Client(url) for url in urls]
        self._turn = 0
        self._key = key
        self._number = 0
        self.retries: Counter[str] = Counter()
        self.longest_gap = 0.0

    def send(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send until there is an answer other than 503."""
        given = dict(headers or {})
        if method == "POST" and path.endswith(("/messages", "/v1/conversations")):
            self._number += 1
            given["Idempotency-Key"] = f"{self._key}-{self._number}"
        began = time.monotonic()
        while True:
            self._turn += 1
            client = self._clients[self._turn % len(self._clients)]
            try:
                answer = client.send(method, path, body, given)
            except Unreachable:
                self.retries["unanswered"] += 1
            else:
                if answer.status != 503:
                    self.longest_gap = max(self.longest_gap, time.monotonic() - began)
                    return answer
                self.retries["503"] += 1
            if time.monotonic() > began + MAX_RECOVERY_SECONDS:
                raise RuntimeError(f"No answer to {method} {path} in {MAX_RECOVERY_SECONDS} s")
            time.sleep(_PAUSE_SECONDS)

    def close(self) -> None:
        """Close all connections."""
        for client in self._clients:
            client.close()


@dataclass(slots=True)
class KillResults:
    """The results of a replay whose processes were killed."""

    minutes: float
    tally: Tally = field(default_factory=Tally)
    kills: Counter[str] = field(default_factory=Counter)
    ready_after: list[float] = field(default_factory=list)
    retries: Counter[str] = field(default_factory=Counter)
    longest_gap: float = 0.0
    receipts: int = 0
    holes: int = 0
    overlapping: int = 0

    @property
    def faults(self) -> list[str]:
        """All errors of payloads, transcripts and rows."""
        rows = (
            (self.holes, "seqs of a log without a message"),
            (self.overlapping, "times two receipts after the same one"),
        )
        return [*self.tally.faults, *(f"{count} {what}" for count, what in rows if count)]

    def lines(self) -> list[str]:
        """Return the results as lines of text."""
        tally = self.tally
        ready = self.ready_after or [0.0]
        lines = [
            f"Replay of {self.minutes:g} minutes over two API processes and two workers, one of"
            f" them killed with -9 every few seconds ({counts(self.kills)}) and started again:"
            f" {tally.conversations} conversations of {source()}, each stored four times,"
            f" {tally.appends:,}"
            f" appends and {sum(tally.builds.values()):,} builds acknowledged,"
            f" {self.receipts:,} compactions; {counts(self.retries)} were sent again.",
            f"Read back: {tally.read_back:,} messages, {tally.lost} lost, {tally.doubled} doubled,"
            f" {len(tally.altered)} otherwise than sent; {self.holes} seqs of the logs have no"
            f" message, {self.overlapping} times two compactions follow the same one.",
            f"Of the payloads {len(tally.violations)} broke a rule, {len(tally.over_window)} were"
            f" over their window, {len(tally.miscounted)} were miscounted,"
            f" {len(tally.broken_prefixes)} broke a promised prefix."
            f" {tally.deltas:,} deltas were put together, {tally.overtaken} more came whole, as a"
            f" compaction was applied after the payload they were to equal;"
            f" {len(tally.wrong_deltas)} were wrong.",
            f"A killed API process was ready again {median(ready):.2f} s (median; longest"
            f" {max(ready):.2f} s) after its new start; a caller that goes on to the other process"
            f" waited {self.longest_gap:.2f} s at the longest for any answer.",
        ]
        return lines + [f"WRONG: {fault}" for fault in self.faults[:20]]


def _launched_processes(url: str, model: ModelServer, folder: Path) -> dict[str, Launched]:
    """Return two API processes and two workers over one database, not started yet."""
    environ = summarised_by(model) | {"CONTEXT_DATABASE_URL": url, "CONTEXT_WORKER": "false"}
    return {
        "api 1": Served(folder / "api 1", environ),
        "api 2": Served(folder / "api 2", environ),
        "worker 1": Launched(folder / "worker 1.log", environ, "worker"),
        "worker 2": Launched(folder / "worker 2.log", environ, "worker"),
    }


def replay_under_kills(minutes: float, writers: int = 3, seed: int = 7) -> KillResults:
    """Replay recorded conversations for so many minutes while processes are killed at random."""
    killed = KillResults(minutes)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-kills-")))
        url = stack.enter_context(running(folder / "data"))
        model = stack.enter_context(model_server(0.5, folder / "log"))
        herd = _launched_processes(url, model, folder)
        for process in herd.values():
            stack.callback(process.stop)
            process.start()
        urls = [process.url for process in herd.values() if isinstance(process, Served)]
        clients = [PatientClient(urls, f"writer-{number}") for number in range(writers)]
        stopping = threading.Event()
        pool = stack.enter_context(ThreadPoolExecutor(writers + 1))
        stack.callback(stopping.set)
        until = time.monotonic() + minutes * 60
        killing = pool.submit(_kill_at_random, herd, killed, stopping, seed)
        replays = [
            pool.submit(_replay, client, _share(number, writers, seed), until)
            for number, client in enumerate(clients)
        ]
        for replay in replays:
            killed.tally.add(replay.result())
        stopping.set()
        killing.result()
        for client in clients:
            killed.retries += client.retries
            killed.longest_gap = max(killed.longest_gap, client.longest_gap)
        asyncio.run(_check_rows(url, killed))
    return killed


def _replay(client: PatientClient, traces: Iterator[Trace], until: float) -> Tally:
    """Replay again and again, to the end of the conversation that the time ends in."""
    judge, tally = Judge(), Tally()
    with closing(client):
        while time.monotonic() < until:
            tally.add(Replay(client, judge, _EVERY).run(next(traces)))
    return tally


def _share(number: int, writers: int, seed: int) -> Iterator[Trace]:
    """Return a share of the recorded conversations, in an order of its own, without end."""
    found = [trace for path in trace_files(traces_dir()) for trace in named_traces(path)]
    # The longest would go on for minutes after the time is over.
    short = [trace for trace in found if len(trace.messages) <= 120][number::writers]
    Random(seed + number).shuffle(short)
    return cycle(short)


def _kill_at_random(
    herd: Mapping[str, Launched], killed: KillResults, stopping: threading.Event, seed: int
) -> None:
    chance = Random(seed)
    while not stopping.wait(chance.uniform(3, 9)):
        name = chance.choice(list(herd))
        process = herd[name]
        process.kill()
        killed.kills[name.partition(" ")[0]] += 1
        stopping.wait(chance.uniform(0, 2))
        began = time.monotonic()
        process.start()
        if isinstance(process, Served):
            killed.ready_after.append(time.monotonic() - began)


async def _check_rows(url: str, killed: KillResults) -> None:
    """Count what may not be: seqs without a message, and two receipts after the same one."""
    connection = await asyncpg.connect(url)
    try:
        killed.holes = await connection.fetchval(
            "SELECT coalesce(sum(h.head_seq - coalesce(m.there, 0)), 0)::int"
            " FROM heads h LEFT JOIN ("
            "  SELECT conversation_id, count(*) AS there FROM messages GROUP BY 1"
            ") AS m USING (conversation_id)"
        )
        killed.receipts = await connection.fetchval("SELECT count(*) FROM compactions")
        killed.overlapping = await connection.fetchval(
            "SELECT count(*) FROM ("
            "  SELECT conversation_id, parent_id FROM compactions"
            "  GROUP BY 1, 2 HAVING count(*) > 1"
            ") AS twice"
        )
    finally:
        await connection.close()
