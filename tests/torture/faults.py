"""Faults: what is killed, frozen or cut, when, and what it excuses."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from threading import Condition, Event
from time import monotonic
from typing import Any

import psutil

from app.database.embedded import running
from tests.database_proxy import DatabaseProxy, ProxyThread
from tests.replay import Launched, Served

DATABASE = "database"
FREEZE = "freeze"
"""A frozen process may hold locks, for which others wait until they give up."""


@dataclass(slots=True)
class _Outage:
    what: str
    began: float
    ended: float | None = None


class Outages:
    """When what was down; times are monotonic."""

    def __init__(self) -> None:
        self._known: list[_Outage] = []

    @contextmanager
    def of(self, what: str) -> Iterator[None]:
        """Note that something is down during the block."""
        outage = _Outage(what, monotonic())
        self._known.append(outage)
        try:
            yield
        finally:
            outage.ended = monotonic()

    def met(self, since: float, *what: str, grace: float = 0.0) -> bool:
        """Return whether any of these was down after a time, or so many seconds before it."""
        return any(
            outage.what in what and (outage.ended is None or outage.ended + grace >= since)
            for outage in list(self._known)
        )


class Progress:
    """How many operations all lives have begun, which the faults wait for."""

    def __init__(self) -> None:
        self._count = 0
        self._is_over = False
        self._changed = Condition()

    def step(self) -> None:
        """Count one more operation."""
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    def end(self) -> None:
        """Let go of everybody who waits."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def reaches(self, count: int) -> bool:
        """Wait until so many operations have begun; False when there were fewer in the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._count >= count)
            return self._count >= count


@dataclass(slots=True)
class World:
    """All that faults are injected into."""

    data_dir: Path
    proxy: ProxyThread
    apis: list[Served]
    workers: list[Launched]
    stack: ExitStack
    outages: Outages = field(default_factory=Outages)

    def postmaster(self) -> psutil.Process:
        """Return the database's first process."""
        text = (self.data_dir / "postgres" / "postmaster.pid").read_text()
        return psutil.Process(int(text.split()[0]))

    def end_database(self, how: signal.Signals) -> None:
        """End PostgreSQL by a signal, and wait until it is gone."""
        server = self.postmaster()
        server.send_signal(how)
        with suppress(psutil.TimeoutExpired):
            server.wait(10)

    def start_database(self) -> None:
        """Start PostgreSQL again, which recovers by itself."""
        self.stack.enter_context(running(self.data_dir))


Inject = Callable[[World, "Fault"], None]
_pause = Event()


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: after how many operations, on which of two, and for how long."""

    name: str
    after: int
    which: int
    seconds: float


def _kill_api(world: World, fault: Fault) -> None:
    api = world.apis[fault.which]
    with world.outages.of(api.url):
        api.kill()
        _pause.wait(fault.seconds)
        api.start()


def _kill_worker(world: World, fault: Fault) -> None:
    worker = world.workers[fault.which]
    worker.kill()
    _pause.wait(fault.seconds)
    worker.start()


def _freeze(process: Launched, world: World, fault: Fault) -> None:
    with world.outages.of(FREEZE):
        process.send_signal(signal.SIGSTOP)
        _pause.wait(fault.seconds)
        process.send_signal(signal.SIGCONT)


def _end_database(how: signal.Signals) -> Inject:
    def inject(world: World, fault: Fault) -> None:
        with world.outages.of(DATABASE):
            world.end_database(how)
            _pause.wait(fault.seconds)
            world.start_database()

    return inject


def _cut(world: World, fault: Fault) -> None:
    with world.outages.of(DATABASE):
        world.proxy.do(DatabaseProxy.cut)


def _break(how: Callable[[DatabaseProxy], Any]) -> Inject:
    def inject(world: World, fault: Fault) -> None:
        with world.outages.of(DATABASE):
            world.proxy.do(how)
            _pause.wait(fault.seconds)
            world.proxy.do(DatabaseProxy.heal)

    return inject


def _kill_all(world: World, fault: Fault) -> None:
    """Kill both API processes, both workers and PostgreSQL, as a power cut does."""
    with ExitStack() as down:
        for what in (DATABASE, *(api.url for api in world.apis)):
            down.enter_context(world.outages.of(what))
        for process in (*world.apis, *world.workers):
            process.kill()
        world.end_database(signal.SIGKILL)
        world.start_database()
        for process in (*world.workers, *world.apis):
            process.start()


KINDS: Mapping[str, tuple[Inject, int, str]] = {
    "kill API": (_kill_api, 5, "kills"),
    "kill worker": (_kill_worker, 4, "kills"),
    "kill PostgreSQL": (_end_database(signal.SIGKILL), 2, "kills"),
    "restart PostgreSQL": (_end_database(signal.SIGINT), 2, "kills"),
    "kill everything": (_kill_all, 1, "kills"),
    "freeze API": (lambda world, fault: _freeze(world.apis[fault.which], world, fault), 2, "cuts"),
    "freeze worker": (
        lambda world, fault: _freeze(world.workers[fault.which], world, fault),
        2,
        "cuts",
    ),
    "cut database links": (_cut, 6, "cuts"),
    "refuse database connections": (_break(DatabaseProxy.refuse), 2, "cuts"),
    "blackhole database": (_break(DatabaseProxy.blackhole), 2, "cuts"),
}
"""Each fault by its name: how it is injected, its weight, and as what it counts."""


def plan(seed: int, gap: tuple[int, int], longest: float = 3.0) -> Iterator[Fault]:
    """Yield faults without end; the seed decides all of it."""
    chance = Random(f"faults {seed}")
    weights = [weight for _, weight, _ in KINDS.values()]
    after = 0
    while True:
        after += chance.randint(*gap)
        (name,) = chance.choices(list(KINDS), weights)
        yield Fault(name, after, chance.randrange(2), chance.uniform(0.1, longest))


def inject(world: World, faults: Iterator[Fault], progress: Progress, tally: Counter[str]) -> None:
    """Inject faults one after the other, each once so many operations have begun."""
    for fault in faults:
        if not progress.reaches(fault.after):
            return
        act, _, counted = KINDS[fault.name]
        act(world, fault)
        tally[fault.name] += 1
        tally[counted] += 1
