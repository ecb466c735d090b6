"""Replays a conversation under one strategy, and says what came of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from app.comparison.conversation import Appended, Recorded
from app.comparison.judge import detected, payload_text, stays, survives
from app.comparison.service import Client, Conversation, Refused
from app.comparison.steps import neutral, pieces_of, rounds_of, segments
from app.domain.common.messages import FormatName
from app.domain.common.policy import StrategyName
from app.domain.compaction.summaries.model_calls import EXTRACTIVE
from app.domain.compaction.summaries.statements.statement import Kind
from app.domain.formats import FORMATS

LARGEST_WINDOW = 100_000_000
WINDOW_SHARE = 2
"""The window by default, relative to the whole payload: nothing becomes due in it."""
MAX_OUTPUT_TOKENS = 1_024


@dataclass(frozen=True, slots=True)
class Target:
    """What compactions aim for: tokens, or a share of a payload with all messages so far."""

    tokens: int | None = None
    share: float | None = None

    def of(self, tokens: int) -> int:
        """Return the target for a conversation of so many tokens."""
        return self.tokens or max(1, int(tokens * (self.share or 1.0)))

    def __str__(self) -> str:
        if self.share is None:
            return f"{self.tokens:,} tokens"
        return f"{self.share * 100:g} % of the whole payload so far"


@dataclass(frozen=True, slots=True)
class Options:
    """How a conversation is compared.

    `context_window` is None for one that the whole conversation fits. `summariser` is the model
    whose calls are estimated or, with `calls_model`, made; None for none.
    """

    model: str
    target: Target
    rounds: int
    context_window: int | None = None
    pins: frozenset[int] = frozenset()
    summariser: str | None = None
    calls_model: bool = False


@dataclass(frozen=True, slots=True)
class Kept:
    """How many of so many survive."""

    kept: int
    of: int


@dataclass(frozen=True, slots=True)
class Round:
    """The end of a round: the payload before and after its compaction, in tokens.

    They are None where no payload could be built. `reason` says why nothing was compacted, `over`
    what kept the payload over the target.
    """

    target_tokens: int
    before_tokens: int | None
    after_tokens: int | None
    reason: str | None = None
    over: tuple[str, ...] = ()

    @property
    def is_met(self) -> bool:
        """Whether the payload is within the target."""
        return self.after_tokens is not None and self.after_tokens <= self.target_tokens


@dataclass(slots=True)
class Outcome:
    """What came of a conversation under one strategy.

    `model_…` are what was sent to a model, or with `estimated` would be. `cacheable` is the
    share of the payloads' bytes that each has in common with the one before it from its start.
    Times are in seconds.
    """

    strategy: str
    rounds: list[Round] = field(default_factory=list)
    builds: int = 0
    refused_builds: int = 0
    compactions: int = 0
    failures: list[str] = field(default_factory=list)
    pinned: Kept = Kept(0, 0)
    statements: dict[Kind, Kept] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    estimated: bool = False
    model_calls: int = 0
    model_input_tokens: int = 0
    model_output_tokens: int = 0
    model_cost_usd: float | None = 0.0
    cacheable: float | None = None
    compaction_seconds: float = 0.0
    build_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """A conversation, and what is the same under every strategy.

    `fixed_tokens` are those of a payload besides its messages.
    """

    recorded: Recorded
    fixed_tokens: int
    tokens: int
    messages: int
    statements: Mapping[Kind, Sequence[str]]

    @property
    def whole_tokens(self) -> int:
        """Tokens of a payload with all messages."""
        return self.fixed_tokens + self.tokens


async def measured(client: Client, recorded: Recorded, options: Options) -> Source:
    """Return the conversation with its size; raises Refused for a message that is not valid."""
    policy = {"budget": _budget(options.context_window or LARGEST_WINDOW)}
    conversation = await Conversation.create(client, recorded, options.model, policy)
    first = next(segments(recorded.messages))
    stored = await conversation.append(first)
    built = await conversation.build()
    fixed_tokens = built["tokens_used"] - _tokens_of(stored) if built is not None else 0
    stored += await conversation.append(recorded.messages[len(first) :])
    statements = detected(neutral(recorded.messages))
    return Source(recorded, max(0, fixed_tokens), _tokens_of(stored), len(stored), statements)


def _budget(context_window: int) -> dict[str, int]:
    return {"context_window": context_window, "max_output_tokens": MAX_OUTPUT_TOKENS}


def _tokens_of(stored: Sequence[Mapping[str, Any]]) -> int:
    return sum(message["token_count"] for message in stored)


class Replay:
    """Replays a conversation under one strategy."""

    def __init__(
        self, client: Client, source: Source, options: Options, name: StrategyName
    ) -> None:
        self._client = client
        self._conversation: Conversation
        self._source = source
        self._options = options
        self._outcome = Outcome(name.value)
        self._head = self._tokens = 0
        self._pinned: list[int] = []
        self._before: list[bytes] = []
        self._bytes = self._shared = 0
        self._times: list[float] = []
        self._wants_due = True

    async def play(self) -> Outcome:
        """Replay the conversation; raises Refused for what cannot be replayed at all."""
        options, outcome, source = self._options, self._outcome, self._source
        outcome.estimated = options.summariser is not None and not options.calls_model
        model = options.summariser if options.calls_model else None
        whole = int(WINDOW_SHARE * source.whole_tokens) + MAX_OUTPUT_TOKENS
        policy = {
            "strategy": outcome.strategy,
            "budget": _budget(options.context_window or whole),
            "compaction": {"auto": False, "model": model or EXTRACTIVE},
        }
        self._conversation = await Conversation.create(
            self._client, source.recorded, options.model, policy
        )
        for part in rounds_of(list(segments(source.recorded.messages)), options.rounds):
            await self._round(part)
        if self._times:
            outcome.builds, outcome.build_seconds = len(self._times), median(self._times)
            outcome.cacheable = self._shared / self._bytes
        await self._judge()
        return outcome

    async def _round(self, part: Sequence[list[Appended]]) -> None:
        self._wants_due = True
        before: int | None = None
        for segment in part:
            await self._append(segment)
            built = await self._build()
            before = built["tokens_used"] if built is not None else None
            if built is not None and built["pressure"] != "ok" and self._wants_due:
                result = await self._compact(None)
                self._wants_due = result is not None and result["compacted"]
        target = self._options.target.of(self._source.fixed_tokens + self._tokens)
        result = await self._compact(target)
        built = await self._conversation.build()
        after = built["tokens_used"] if built is not None else None
        reason, over = None, ()
        if result is not None:
            reason = result["reason"]
            over = () if after is None or after <= target else tuple(result["degraded"])
        self._outcome.rounds.append(Round(target, before, after, reason, over))

    async def _append(self, segment: Sequence[Appended]) -> None:
        stored = await self._conversation.append(segment)
        self._tokens += _tokens_of(stored)
        self._head += len(stored)
        # A message of the file may become several of the log, none of which is pinned alone.
        pinned = {seq for seq in self._options.pins if self._head - len(stored) < seq <= self._head}
        if len(stored) == len(segment):
            first = self._head - len(stored) + 1
            pinned |= {first + at for at, message in enumerate(segment) if message.pinned}
        for seq in sorted(pinned):
            message_id = stored[seq - 1 - self._head + len(stored)]["id"]
            await self._conversation.ask("PUT", f"/messages/{message_id}/pin")
            self._pinned.append(seq)

    async def _build(self) -> Any:
        """Build as an agent does; None where no payload fits."""
        started = time.perf_counter()
        built = await self._conversation.build()
        if built is None:
            self._outcome.refused_builds += 1
            return None
        self._times.append(time.perf_counter() - started)
        pieces = list(pieces_of(built["payload"]))
        common = 0
        for before, after in zip(self._before, pieces, strict=False):
            if before != after:
                break
            common += len(after)
        self._bytes += sum(map(len, pieces))
        self._shared += common
        self._before = pieces
        made = built["compaction"]
        self._outcome.compactions += bool(made and made["compacted"])
        return built

    async def _compact(self, target: int | None) -> Any:
        """Compact, after an estimate of what a model would be sent; None where it failed."""
        options, outcome = self._options, self._outcome
        body: dict[str, Any] = {} if target is None else {"target_tokens": target}
        started = time.perf_counter()
        try:
            if outcome.estimated:
                asked = {**body, "dry_run": True, "model": options.summariser}
                shown = await self._conversation.ask("POST", "/compact", asked)
                self._add_usage(shown, shown["planned_calls"])
                started = time.perf_counter()
            result = await self._conversation.ask("POST", "/compact", body)
        except Refused as exc:
            outcome.failures.append(f"{exc.code}: {exc.reason}")
            return None
        finally:
            outcome.compaction_seconds += time.perf_counter() - started
        outcome.compactions += result["compacted"]
        return result

    def _add_usage(self, usage: Mapping[str, Any], calls: int) -> None:
        outcome = self._outcome
        outcome.model_calls += calls
        outcome.model_input_tokens += usage["input_tokens"]
        outcome.model_output_tokens += usage["output_tokens"]
        cost = usage["cost_usd"] if calls else 0.0
        known = outcome.model_cost_usd is not None and cost is not None
        outcome.model_cost_usd = (outcome.model_cost_usd or 0.0) + (cost or 0.0) if known else None

    async def _judge(self) -> None:
        """Judge the payload that the next call of a model would get."""
        outcome = self._outcome
        if self._options.calls_model:
            await self._add_receipts()
        built = await self._conversation.build()
        if built is None:
            return
        text = payload_text(built["payload"])
        pinned = [await self._shows(seq, text) for seq in self._pinned]
        outcome.pinned = Kept(sum(pinned), len(pinned))
        for kind, statements in self._source.statements.items():
            lost = [statement for statement in statements if not survives(statement, text)]
            outcome.statements[kind] = Kept(len(statements) - len(lost), len(statements))
            outcome.lost += [f"{kind.value}: {statement}" for statement in lost]

    async def _shows(self, seq: int, text: str) -> bool:
        query = f"after_seq={seq - 1}&limit=1&content=view"
        (shown,) = (await self._conversation.ask("GET", f"/messages?{query}"))["data"]
        messages = FORMATS[FormatName(shown["format"])].parse(shown, "")
        return all(stays(message, text) for message in messages)

    async def _add_receipts(self) -> None:
        cursor = ""
        while True:
            page = await self._conversation.ask("GET", f"/compactions?limit=200{cursor}")
            for receipt in page["data"]:
                self._add_usage(receipt, receipt["calls"])
            if page["next_cursor"] is None:
                return
            cursor = f"&cursor={page['next_cursor']}"
