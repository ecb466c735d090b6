"""What prefix caches serve of each strategy's payloads, and what a replay costs.

1. Every recorded conversation is appended in order, with a build before each message of the
   assistant, as an agent calls its model, and one at the end; for each provider anew.
2. What two payloads in a row share could be served. What is served and charged, a simulation of
   the provider's own cache says (`provider_cache`). Tokens are o200k over each piece's JSON.
3. The best possible is the history that only grows, in a window that holds all of it.
4. Due compactions run inside the build: in the background they would end a little later.
5. Prices are the registry's, of the input alone: what a model answers is the same in all policies.
6. An image counts what the service counts for its pixels, not the tokens of its base64.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from app.demo import Client, Trace
from app.formats.message import FormatName, Image
from app.models.budget import ModelInfo
from app.models.registry import ModelRegistry
from app.models.tokenizer import TiktokenTokenizer
from app.models.tokens import image_tokens
from benchmarks.connection import Connection, request
from benchmarks.figures import Section
from benchmarks.processes import service
from benchmarks.provider_cache import (
    Cache,
    ImplicitCache,
    MarkedCache,
    Piece,
    anthropic_pieces,
    chat_pieces,
    input_cost,
    shared_prefix,
)
from benchmarks.recorded import Conversation, budget_of, recorded, run_all
from tests.recorded import source
from tests.replay import MAX_OUTPUT_TOKENS

WINDOW = 32_768
BEST = "append-only history"
BEST_WINDOW = 1_000_000
BEST_MODEL = "gpt-4.1"
TRIGGERS = ("sandwich", "retain_summary", "tree_summary", "chain")
OTHERS = ("sliding_window", "full_history")
QUICK_LIMIT = 1
QUICK_MESSAGES = 40
"""The longest conversation of a quick run."""
GOAL = 0.9
_IMAGE_DATA = re.compile(
    rb'(?:data:image/[\w.+-]+;base64,|"media_type":"image/[\w.+-]+","data":")([A-Za-z0-9+/=]+)'
)


@dataclass(frozen=True, slots=True)
class Provider:
    """Whose cache is simulated, and for which model."""

    title: str
    model: str
    pieces: Callable[[Mapping[str, Any], Callable[[bytes], int]], list[Piece]]
    new_cache: Callable[[ModelInfo], Cache]


PROVIDERS = {
    FormatName.OPENAI_CHAT: Provider(
        "OpenAI Chat", BEST_MODEL, chat_pieces, lambda _: ImplicitCache()
    ),
    FormatName.ANTHROPIC: Provider(
        "Anthropic",
        "claude-sonnet-4-5",
        anthropic_pieces,
        lambda info: MarkedCache(info.cache_minimum_tokens or 0),
    ),
}


@dataclass(slots=True)
class Shares:
    """What payloads had in common with the ones before them, and what was charged for them.

    Tokens and USD are over all builds. `summaries_usd` is what the compactions had cost if the
    same model had read the whole payload for each, uncached, and written the summary.
    """

    builds: int = 0
    refused: int = 0
    tokens: int = 0
    shared: int = 0
    read: int = 0
    written: int = 0
    usd: float = 0.0
    summaries_usd: float = 0.0
    compactions: int = 0
    epochs: int = 0

    @property
    def share(self) -> float:
        """The share of the input tokens that a prefix cache could serve."""
        return self.shared / max(1, self.tokens)

    def add(self, other: Shares) -> None:
        """Add the results of another conversation."""
        for entry in fields(self):
            mine = getattr(self, entry.name)
            setattr(self, entry.name, mine + getattr(other, entry.name))


Key = tuple[str, str, str]
"""Format, policy and conversation."""


@dataclass(slots=True)
class Table:
    """Shares by format, policy and conversation."""

    shares: dict[Key, Shares] = field(default_factory=dict)

    def add(self, other: Table) -> None:
        """Add the results of another run."""
        self.shares.update(other.shares)

    def total(self, format: str, policy_name: str, names: Sequence[str]) -> Shares:
        """Return the results of a policy over these conversations."""
        total = Shares()
        for name in names:
            total.add(self.shares[format, policy_name, name])
        return total


@dataclass(frozen=True, slots=True)
class Run:
    """One conversation under one policy, for one provider."""

    format: FormatName
    policy_name: str
    trace: Trace
    policy: Mapping[str, Any]


def policies() -> dict[str, dict[str, Any]]:
    """Return the policies to compare, by name; the best possible is never cut or cleared."""
    best = {
        "strategy": "full_history",
        "budget": budget_of(BEST_WINDOW),
        "tool_output": {"enabled": False},
    }
    policies: dict[str, dict[str, Any]] = {BEST: best}
    inline = {"mode": "inline"}
    for name in TRIGGERS:
        policies[name] = {"strategy": name, "budget": budget_of(WINDOW), "compaction": inline}
    for name in OTHERS:
        policies[name] = {"strategy": name, "budget": budget_of(WINDOW)}
    return policies


class _Replay:
    """Replays one conversation and adds up what its payloads share, and what they cost."""

    def __init__(self, client: Client, run: Run) -> None:
        self._provider = PROVIDERS[run.format]
        self._body = {"format": run.format, "model": self._provider.model}
        self._messages = run.trace.messages
        self._conversation = Conversation(client, run.trace, run.policy, self._provider.model)
        self._info = info_of(self._provider.model)
        self._cache = self._provider.new_cache(self._info)
        self._before: list[bytes] = []
        self._shares = Shares()

    def play(self) -> Shares:
        """Append and build as an agent would, and return the results (rule 1)."""
        waiting: list[dict[str, Any]] = []
        last = len(self._messages) - 1
        for place, message in enumerate(self._messages):
            waiting.append(message)
            if place == last or self._messages[place + 1]["role"] == "assistant":
                self._conversation.append(waiting)
                self._build()
                waiting = []
        piece_tokens.cache_clear()
        return self._shares

    def _build(self) -> None:
        shares = self._shares
        answer = self._conversation.send("POST", "/context", self._body)
        if not answer.accepted:
            shares.refused += 1
            return
        built = answer.body
        pieces = self._provider.pieces(built["payload"], piece_tokens)
        bodies = [piece.body for piece in pieces]
        common = shared_prefix(self._before, bodies)
        charged = self._cache.take(pieces)
        shares.builds += 1
        shares.tokens += charged.sent_tokens
        shares.shared += sum(piece.tokens for piece in pieces[:common])
        shares.read += charged.cache_read_tokens
        shares.written += charged.cache_creation_tokens
        shares.usd += input_cost(charged, self._info)
        if (made := built["compaction"]) and made["compacted"]:
            shares.compactions += 1
            cost = self._info.cost(made["before_tokens"], made["summary_tokens"])
            shares.summaries_usd += cost or 0.0
        shares.epochs = built["epoch"]
        self._before = bodies


def replay(client: Client, run: Run) -> Table:
    """Replay one conversation under one policy."""
    return Table({(run.format, run.policy_name, run.trace.name): _Replay(client, run).play()})


@cache
def info_of(model: str) -> ModelInfo:
    """Return the entry of the bundled registry for a model."""
    info = ModelRegistry().find(model)
    if info is None:
        raise SystemExit(f"The registry does not know {model}")
    return info


@cache
def piece_tokens(piece: bytes) -> int:
    """Return the tokens of a piece (rule 7)."""
    count = _counter()
    found = _IMAGE_DATA.findall(piece)
    images = sum(image_tokens(Image(data=data.decode()), count) for data in found)
    return images + count(_IMAGE_DATA.sub(b"", piece).decode())


@cache
def _counter() -> Callable[[str], int]:
    return TiktokenTokenizer().count


def measure(quick: bool) -> Section:
    """Replay every conversation under every policy and report the shares."""
    traces = recorded(QUICK_LIMIT if quick else None)
    if quick:
        traces = [trace for trace in traces if len(trace.messages) <= QUICK_MESSAGES]
    jobs = [
        Run(format, policy_name, trace, policy)
        for trace in traces
        for format in PROVIDERS
        for policy_name, policy in policies().items()
    ]
    with (
        tempfile.TemporaryDirectory(prefix="context-service-bench-") as folder,
        service(Path(folder, "data"), log=Path(folder, "processes.log")) as served,
    ):
        with Connection(served.port) as connection:
            for provider in PROVIDERS.values():
                _widen(connection, provider.model)
        url = f"http://127.0.0.1:{served.port}"
        table = run_all("prefix", url, replay, jobs, Table())
    return _section(table, [trace.name for trace in traces])


def _widen(connection: Connection, model: str) -> None:
    """Give a model the window that holds everything, for the best possible (rule 3)."""
    entry = orjson.dumps({"context_window": BEST_WINDOW})
    connection.send(request("PUT", f"/v1/models/{model}", entry))


def _section(table: Table, names: list[str]) -> Section:
    chat = FormatName.OPENAI_CHAT
    longest = [name for name in names if table.shares[chat, "full_history", name].refused]
    section = Section(
        "prefix", f"input tokens a prefix cache could serve, window {WINDOW:,}, {source()}"
    )
    section.add_text(
        f"{len(names)} recorded conversations, of which {len(longest)} outgrow the window; a build"
        " before each message of the assistant and one at the end, for each provider anew; o200k"
        f" over each item's or block's JSON; {MAX_OUTPUT_TOKENS:,} tokens kept for the answer;"
        " extractive summaries. Shares are of all input tokens, the first build's included:"
        " `could` is what a payload has in common with the one before it, `read` and `written`"
        " what the simulated cache charges. The best possible is the history that only grows, in a"
        " window that holds it all, with `tool_output` off. Costs are of the input at the"
        " registry's prices per million tokens ("
        + "; ".join(_prices(provider) for provider in PROVIDERS.values())
        + "), of entries that never expire. `summaries` is what the compactions had cost besides,"
        " had the same model read the whole payload for each, uncached, and written the summary."
        " Where builds are refused, the cost is of the others."
    )
    for format, provider in PROVIDERS.items():
        if longest:
            section.add_text(f"{provider.title}, the conversations that outgrow the window:")
            _table(section, table, format, longest)
        section.add_text(f"{provider.title}, all conversations:")
        _table(section, table, format, names)
    for format, provider in PROVIDERS.items():
        best = table.total(format, BEST, longest or names).share
        for policy_name in TRIGGERS:
            ratio = table.total(format, policy_name, longest or names).share / best
            goal = f"{provider.title}, {policy_name}, share against append-only history ≥ {GOAL}"
            section.goal("performance.cacheable-prefix", goal, f"{ratio:.3f}", ratio >= GOAL)
    return section


def _prices(provider: Provider) -> str:
    info = info_of(provider.model)
    prices = [
        f"{name} ${price * 1e6:g}"
        for name, price in (
            ("input", info.input_price),
            ("read", info.cache_read_price),
            ("write", info.cache_write_price),
        )
        if price is not None
    ]
    return f"{provider.model}: {', '.join(prices)}"


def _table(section: Section, table: Table, format: FormatName, names: Sequence[str]) -> None:
    best = table.total(format, BEST, names)
    rows = []
    for policy_name in policies():
        total = table.total(format, policy_name, names)
        tokens = max(1, total.tokens)
        rows.append(
            (
                policy_name,
                f"{total.builds:,}",
                f"{total.refused:,}",
                f"{total.compactions:,}",
                f"{total.epochs:,}",
                f"{total.tokens / 1e6:.1f}",
                f"{total.share:.3f}",
                f"{total.share / best.share:.3f}",
                f"{total.read / tokens:.3f}",
                f"{total.written / tokens:.3f}",
                f"{total.usd:.2f}",
                f"{total.usd / best.usd:.3f}",
                f"{total.summaries_usd:.2f}",
            )
        )
    header = ("strategy", "builds", "refused", "compactions", "epochs", "million tokens", "could")
    charged = ("of the best", "read", "written", "USD", "of the best's", "summaries")
    section.add_table((*header, *charged), rows)
