"""How much of each payload a prefix cache could serve, per strategy (P8).

1. Every recorded conversation is appended message by message, with a build before each message
   of the assistant, as an agent calls its model, and one at the end.
2. What two payloads share is counted item by item: tools, then the messages with the system
   prompt among them, up to the first that differs. Tokens are o200k over the item's JSON.
3. The best possible is the history that only grows, in a window that holds all of it.
4. Due compactions run inside the build: in the background they would end a little later.
5. Without hysteresis a compaction aims just below its trigger, and any gain is worth it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from app.adapters.tokenizer import TiktokenTokenizer
from app.demo import Client, Trace
from benchmarks.figures import Section
from benchmarks.processes import service
from benchmarks.recorded import Conversation, budget_of, recorded, run_all
from tests.replay import MAX_OUTPUT_TOKENS

WINDOW = 32_768
BEST = "append-only history"
BEST_WINDOW = 1_000_000
BEST_MODEL = "gpt-4.1"
TRIGGERS = {"sandwich": 0.7, "retain_summary": 0.8, "tree_summary": 0.8, "chain": 0.8}
OTHERS = ("sliding_window", "full_history")
BELOW_TRIGGER = 0.01
WITHOUT = ", no hysteresis"
QUICK_LIMIT = 2
GOAL = 0.9


@dataclass(slots=True)
class Shares:
    """What payloads had in common with the ones before them; tokens over all builds."""

    builds: int = 0
    refused: int = 0
    tokens: int = 0
    shared: int = 0
    compactions: int = 0
    epochs: int = 0

    @property
    def share(self) -> float:
        """The share of the input tokens that a prefix cache could serve."""
        return self.shared / max(1, self.tokens)

    def add(self, other: Shares) -> None:
        """Take in what another conversation came to."""
        for entry in fields(self):
            mine = getattr(self, entry.name)
            setattr(self, entry.name, mine + getattr(other, entry.name))


@dataclass(slots=True)
class Table:
    """Shares by lane and conversation."""

    shares: dict[tuple[str, str], Shares] = field(default_factory=dict)

    def add(self, other: Table) -> None:
        """Take in what another run saw."""
        self.shares.update(other.shares)

    def total(self, lane: str, names: Sequence[str]) -> Shares:
        """Return what a lane came to over these conversations."""
        total = Shares()
        for name in names:
            total.add(self.shares[lane, name])
        return total


@dataclass(frozen=True, slots=True)
class Run:
    """One conversation under one policy."""

    lane: str
    trace: Trace
    policy: Mapping[str, Any]


def lanes() -> dict[str, dict[str, Any]]:
    """Return the policies to compare, by name."""
    best = {"strategy": "full_history", "budget": budget_of(BEST_WINDOW)}
    found: dict[str, dict[str, Any]] = {BEST: best}
    inline = {"mode": "inline"}
    for name, trigger in TRIGGERS.items():
        policy = {"strategy": name, "budget": budget_of(WINDOW), "compaction": inline}
        eager = {**inline, "target": trigger - BELOW_TRIGGER, "min_gain": 0}
        found[name] = policy
        found[name + WITHOUT] = {**policy, "compaction": eager}
    for name in OTHERS:
        found[name] = {"strategy": name, "budget": budget_of(WINDOW)}
    return found


def shared_prefix(before: Sequence[bytes], after: Sequence[bytes]) -> int:
    """Return how many items two payloads have in common from their start."""
    pairs = zip(before, after, strict=False)
    return next(
        (at for at, (one, other) in enumerate(pairs) if one != other), min(len(before), len(after))
    )


def items_of(payload: Mapping[str, Any]) -> list[bytes]:
    """Return what a provider reads, in its order, each item as its JSON."""
    tools = payload.get("tools") or []
    return [orjson.dumps(item) for item in (*tools, *payload["messages"])]


def replay(client: Client, run: Run) -> Table:
    """Replay one conversation and add up what its payloads share."""
    shares = Shares()
    conversation = Conversation(client, run.trace, run.policy)
    body = {"model": BEST_MODEL} if run.lane == BEST else {}
    before: list[bytes] = []
    epoch = 0
    messages = run.trace.messages
    for place, message in enumerate(messages):
        conversation.append([message])
        if place + 1 < len(messages) and messages[place + 1]["role"] != "assistant":
            continue
        answer = conversation.send("POST", "/context", body)
        if not answer.accepted:
            shares.refused += 1
            continue
        built = answer.body
        items = items_of(built["payload"])
        common = shared_prefix(before, items)
        sizes = [_tokens(item) for item in items]
        shares.builds += 1
        shares.tokens += sum(sizes)
        shares.shared += sum(sizes[:common])
        shares.compactions += bool(built["compaction"] and built["compaction"]["compacted"])
        before, epoch = items, built["epoch"]
    shares.epochs = epoch
    _tokens.cache_clear()
    return Table({(run.lane, run.trace.name): shares})


@cache
def _tokens(item: bytes) -> int:
    return _counter()(item.decode())


@cache
def _counter() -> Callable[[str], int]:
    return TiktokenTokenizer().count


def measure(quick: bool) -> Section:
    """Replay every conversation under every policy and report the shares."""
    traces = recorded(QUICK_LIMIT if quick else None)
    policies = lanes()
    jobs = [Run(lane, trace, policy) for trace in traces for lane, policy in policies.items()]
    with (
        tempfile.TemporaryDirectory(prefix="context-service-bench-") as folder,
        service(Path(folder, "data"), log=Path(folder, "processes.log")) as served,
    ):
        url = f"http://127.0.0.1:{served.port}"
        table = run_all("prefix", url, replay, jobs, Table())
    return _section(table, [trace.name for trace in traces], list(policies))


def _section(table: Table, names: list[str], policies: list[str]) -> Section:
    longest = [name for name in names if table.shares["full_history", name].refused]
    section = Section("prefix", f"input tokens a prefix cache could serve, window {WINDOW:,}")
    section.say(
        f"{len(names)} recorded conversations, of which {len(longest)} outgrow the window; a build"
        " before each message of the assistant and one at the end; gpt-4o, o200k over each item's"
        f" JSON; {MAX_OUTPUT_TOKENS:,} tokens kept for the answer; extractive summaries. A share is"
        " of all input tokens, the first build's included. The best possible is the history that"
        " only grows, in a window that holds it all. Without hysteresis: the target"
        f" {BELOW_TRIGGER} below the trigger, min_gain 0."
    )
    section.say("The conversations that outgrow the window:")
    _table(section, table, longest, policies)
    section.say("All conversations:")
    _table(section, table, names, policies)
    best = table.total(BEST, longest).share
    for lane in TRIGGERS:
        ratio = table.total(lane, longest).share / best
        goal = f"{lane}, share against append-only history ≥ {GOAL}"
        section.goal("P8", goal, f"{ratio:.3f}", ratio >= GOAL)
    return section


def _table(section: Section, table: Table, names: list[str], policies: list[str]) -> None:
    best = table.total(BEST, names).share
    rows = []
    for lane in policies:
        total = table.total(lane, names)
        rows.append(
            (
                lane,
                f"{total.share:.3f}",
                f"{total.share / best:.3f}",
                f"{total.builds:,}",
                f"{total.refused:,}",
                f"{total.tokens / 1e6:.1f}",
                f"{total.compactions:,}",
                f"{total.epochs:,}",
            )
        )
    header = ("strategy", "share", "of the best", "builds", "refused", "million tokens")
    section.table((*header, "compactions", "epochs"), rows)
