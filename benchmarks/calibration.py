"""How soon estimates agree with what a provider charges that counts otherwise.

1. The provider is simulated: it charges 1.30 times our raw count of the payload it gets, in
   Anthropic's usage object, split as its cache would split it.
2. An agent appends, builds, and reports what it was charged, with the build's epoch and seq. A
   build's error is its `tokens_used` against the charge for it, before that is reported; the
   first build of another conversation with the same model is judged too.
3. A second provider differs from that by up to 3 % from call to call, by chance with a fixed seed.
   A third case has messages so small that what a message costs by itself is a large part of it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Any

import orjson

from app.formats import parse_tool
from app.formats.message import FormatName
from app.models.tokenizer import TiktokenTokenizer
from app.models.tokens import count_payload_messages, count_system, estimate_tool_defs_tokens
from benchmarks.connection import Connection, UnexpectedAnswer
from benchmarks.figures import Section
from benchmarks.processes import service
from benchmarks.provider_cache import MarkedCache, anthropic_pieces
from benchmarks.workload import Message, conversation
from tests.replay import Build

SURCHARGE = 1.30
MAX_REPORTS = 8
GOAL_REPORTS = 5
GOAL = 0.05
BATCH = 12
MINIMUM_TOKENS = 1_024
OUTPUT_TOKENS = 250
SYSTEM = "You work on the service in /srv. Read before you write, and run the tests."
TOLERANCE = 0.001


def small_talk(seed: int) -> Iterator[Message]:
    """Yield messages of a few tokens each, three results in a row."""
    for number in count(seed * 1_000_000):
        ids = [f"call_{number}_{place}" for place in range(3)]
        function = {"name": "look", "arguments": '{"at": 1}'}
        calls = [{"id": call_id, "type": "function", "function": function} for call_id in ids]
        yield {"role": "user", "content": "And the next three?"}
        yield {"role": "assistant", "content": None, "tool_calls": calls}
        for call_id in ids:
            yield {"role": "tool", "tool_call_id": call_id, "content": "fine"}
        yield {"role": "assistant", "content": "All three are fine."}


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is said, how far charges vary, and the models, whose tokenizer is not published."""

    name: str
    variance: float
    messages: Callable[[int], Iterator[Message]]
    models: Sequence[str]


SCENARIOS = (
    Scenario(
        "always 30 % more",
        0.0,
        conversation,
        ("claude-sonnet-4-5", "claude-opus-4-5", "claude-haiku-4-5"),
    ),
    Scenario(
        "30 % more, ± 3 % by call",
        0.03,
        conversation,
        ("claude-sonnet-4-6", "claude-opus-4-6", "claude-sonnet-5"),
    ),
    Scenario(
        "always 30 % more, messages of a few tokens",
        0.0,
        small_talk,
        ("claude-opus-4-7", "claude-opus-4-8", "claude-opus-5"),
    ),
)
"""Each with models of its own, whose calibration begins with nothing."""


@dataclass(slots=True)
class Errors:
    """Relative errors of builds after so many reports, by model."""

    same: list[list[float]] = field(default_factory=lambda: [[] for _ in range(MAX_REPORTS + 1)])
    other: list[list[float]] = field(default_factory=lambda: [[] for _ in range(MAX_REPORTS + 1)])
    factors: list[list[float]] = field(default_factory=lambda: [[] for _ in range(MAX_REPORTS + 1)])
    epochs: list[int] = field(default_factory=list)
    reports: int = 0
    learnt: int = 0


class _Provider:
    """Charges for payloads (rules 1, 3)."""

    def __init__(self, variance: float, seed: int) -> None:
        self._variance = variance
        self._rng = Random(seed)
        self._count = TiktokenTokenizer().count
        self._cache = MarkedCache(MINIMUM_TOKENS)

    def raw(self, build: Build) -> int:
        """Return our own count of a payload, from scratch."""
        tools = [parse_tool(tool, "/tools") for tool in build.tools]
        messages = build.payload["messages"]
        cost = count_payload_messages(FormatName.ANTHROPIC, messages, self._count)
        cost += estimate_tool_defs_tokens(tools, self._count)
        return cost + count_system(build.system_text, self._count)

    def charge(self, build: Build) -> int:
        """Return the input tokens that a call with this payload is charged."""
        chance = self._rng.uniform(-self._variance, self._variance)
        return round(self.raw(build) * SURCHARGE * (1 + chance))

    def usage(self, build: Build, charged: int) -> dict[str, Any]:
        """Return the usage object of such a call."""
        pieces = anthropic_pieces(build.payload, lambda body: self._count(body.decode()))
        split = self._cache.take(pieces)
        read, written = (
            charged * part // split.sent_tokens
            for part in (split.cache_read_tokens, split.cache_creation_tokens)
        )
        return {
            "input_tokens": charged - read - written,
            "cache_creation_input_tokens": written,
            "cache_read_input_tokens": read,
            "cache_creation": {
                "ephemeral_5m_input_tokens": written,
                "ephemeral_1h_input_tokens": 0,
            },
            "output_tokens": OUTPUT_TOKENS,
        }


class _Agent:
    """One conversation with a model."""

    def __init__(self, connection: Connection, model: str, messages: Iterator[Message]) -> None:
        self._connection = connection
        self._messages = messages
        self._body = {"format": FormatName.ANTHROPIC, "model": model}
        section = {"name": "base", "content": SYSTEM}
        created = self._post("/v1/conversations", {"model": model, "sections": [section]})
        self._path = f"/v1/conversations/{created['conversation_id']}"

    def build(self) -> Build:
        """Append the next messages and build."""
        batch = list(islice(self._messages, BATCH))
        self._post(f"{self._path}/messages", {"messages": batch})
        answer = self._post(f"{self._path}/context", self._body)
        if answer["estimate"]["tokens"] != answer["tokens_used"]:
            raise UnexpectedAnswer(f"estimate {answer['estimate']}, {answer['tokens_used']} used")
        return Build(answer, answer["budget"]["effective_window"], self._path, self._path)

    def report(self, build: Build, usage: Mapping[str, Any]) -> Any:
        """Report what a build's call was charged."""
        known = {name: build.answer[name] for name in ("epoch", "through_seq")}
        body = {"usage": usage, "format": FormatName.ANTHROPIC, **known}
        return self._post(f"{self._path}/usage", body)

    def _post(self, path: str, body: object) -> Any:
        return orjson.loads(self._connection.post(path, body))


def measure(quick: bool) -> Section:
    """Let agents report, and say how far builds are from what is charged."""
    errors_by_scenario: dict[str, Errors] = {}
    with (
        tempfile.TemporaryDirectory(prefix="context-service-bench-") as folder,
        service(Path(folder, "data"), "--no-worker", log=Path(folder, "log")) as served,
        Connection(served.port) as connection,
    ):
        for scenario in SCENARIOS:
            errors_by_scenario[scenario.name] = Errors()
            for seed, model in enumerate(scenario.models[: 1 if quick else None], 1):
                _learn(connection, scenario, model, seed, errors_by_scenario[scenario.name])
    return _section(errors_by_scenario)


def _learn(
    connection: Connection, scenario: Scenario, model: str, seed: int, errors: Errors
) -> None:
    provider = _Provider(scenario.variance, seed)
    agent = _Agent(connection, model, scenario.messages(seed))
    build = agent.build()
    _check_uncorrected(build, provider)
    for reports in range(MAX_REPORTS + 1):
        charged = provider.charge(build)
        errors.same[reports].append(_error(build, charged))
        errors.factors[reports].append(build.answer["estimate"]["factor"])
        first = _Agent(connection, model, scenario.messages(10 * seed + reports)).build()
        errors.other[reports].append(_error(first, provider.charge(first)))
        told = agent.report(build, provider.usage(build, charged))
        errors.reports += 1
        errors.learnt += told["is_calibrated"]
        build = agent.build()
    errors.epochs.append(build.answer["epoch"])


def _check_uncorrected(build: Build, provider: _Provider) -> None:
    """Make sure that the provider counts as the service does before anything is reported."""
    raw, used = provider.raw(build), build.answer["tokens_used"]
    if abs(used - raw) > TOLERANCE * raw:
        raise UnexpectedAnswer(f"{used} tokens used, {raw} from scratch")


def _error(build: Build, charged: int) -> float:
    return float(build.answer["tokens_used"] - charged) / charged


def _section(errors_by_scenario: Mapping[str, Errors]) -> Section:
    models = max(len(errors.epochs) for errors in errors_by_scenario.values())
    section = Section("calibration", f"estimates of a provider that charges {SURCHARGE:.2f} times")
    section.add_text(
        f"{models} models without our tokenizer for each case, every one from nothing; {BATCH}"
        " generated messages before each build, over HTTP. Errors are of `tokens_used`, which is"
        " `estimate.tokens`, against what is charged for that payload and reported after it, the"
        " largest of the models; another conversation's first build, with the same model, is"
        " never reported."
    )
    for name, errors in errors_by_scenario.items():
        section.add_text(
            f"{name[0].upper()}{name[1:]}; {errors.learnt} of {errors.reports} reports changed a"
            f" factor; epochs begun in a conversation: at most {max(errors.epochs)}."
        )
        section.add_table(
            ("reports", "factor", "error, same conversation", "error, another's first build"),
            (
                (
                    str(reports),
                    _spread(errors.factors[reports]),
                    f"{_worst(errors.same[reports]):+.1%}",
                    f"{_worst(errors.other[reports]):+.1%}",
                )
                for reports in range(MAX_REPORTS + 1)
            ),
        )
    for name, errors in errors_by_scenario.items():
        later = [*errors.same[GOAL_REPORTS:], *errors.other[GOAL_REPORTS:]]
        worst = max(abs(_worst(values)) for values in later)
        goal = f"{name}: error from {GOAL_REPORTS} reports on ≤ {GOAL:.0%}"
        section.goal("usage.calibration", goal, f"{worst:.1%}", worst <= GOAL)
    return section


def _worst(values: Sequence[float]) -> float:
    return max(values, key=abs)


def _spread(values: Sequence[float]) -> str:
    least, most = min(values), max(values)
    return f"{least:.3f}" if least == most else f"{least:.3f} to {most:.3f}"
