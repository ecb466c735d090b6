"""Replays recorded conversations through the HTTP API, and judges every payload it answers with.

1. Each conversation is stored four times: with the policy's window at 8k, 32k and 128k tokens,
   so that real compactions happen, and once with the window named by each build.
2. After every so many messages, and at the end, payloads are built in every format: whole, and as a
   delta on the build before, which has to give the same. A whole payload is excused in its place
   only where a compaction's receipt has come between the two.
3. A payload is judged by the provider's own types and rules, by a count of it from scratch, by a
   count of its strings that shares no code with the service, by its window, and by the promised
   prefix of the build before it in its epoch.
4. In the end all messages are read back and compared with what was sent: how often each stands
   there, and where, field by field.

[delta.equals-full, budget.total, budget.within-window, epochs.extend, neutral.prefix-extends,
 log.identical-strings, log.atomic-batch]
"""

from __future__ import annotations

import re
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Protocol

import orjson

from app.cli.demo import Answer, Client, Trace, Unreachable
from app.conversations.view import SUMMARY_PREFIX
from app.formats import PROVIDERS, parse_tool
from app.formats.message import GOOGLE_FORMATS, File, FormatName, Image, Text
from app.models.tokenizer import LocalTokenizer
from app.models.tokens import (
    MESSAGE_OVERHEAD,
    count_payload_messages,
    count_system,
    estimate_tool_defs_tokens,
)
from app.payload.assembler import WINDOW_NOTE
from tests.commands import Launch, Process, environment, free_port, launched
from tests.judge import Facts, judge
from tests.judge.epochs import ITEMS
from tests.patience import PATIENCE_SECONDS
from tests.payload_tokens import payload_tokens
from tests.writers import difference

WINDOWS = (8_000, 32_000, 128_000)
MAX_OUTPUT_TOKENS = 1_024
MODELS = {
    FormatName.OPENAI_CHAT: ("gpt-4.1", "gpt-4.1-mini", "gpt-4.1-nano"),
    FormatName.OPENAI_RESPONSES: ("gpt-5.6", "gpt-5.5", "gpt-5.4"),
    FormatName.ANTHROPIC: ("claude-sonnet-4-5", "claude-haiku-4-5", "claude-opus-4-5"),
    FormatName.GEMINI: ("gemini-2.5-pro", "gemini-2.5-flash", "gemini-3.5-flash"),
    FormatName.INTERACTIONS: ("gemini-3.7-flash", "gemini-3-pro-preview", "gemini-3.6-flash"),
}
"""One for each window, so that each has its own lane; all are wider than the widest replayed."""
FIRST_FACTORS = {FormatName.ANTHROPIC: 1.2, **dict.fromkeys(GOOGLE_FORMATS, 1.12)}
"""What counts of these models are multiplied by before any report [decision 0002]."""
TOLERANCE = 0.005
MIN_COUNTED = 0.99
"""The least share of a payload's own texts that `tokens_used` may be."""
PAGE = 1000
TOLERATED = ("breakpoint-far", "last-is-assistant", "system-not-first", "tool-undefined")
"""Warnings about what was recorded, and about what the models of this replay accept."""
_MARKS = ("cache_control", "prompt_cache_breakpoint")


@dataclass(slots=True)
class Tally:
    """What a replay saw; every list but `refused` and `excused` is empty when all is well.

    Of the messages read back, `lost` ones stand there less often than they were acknowledged,
    `doubled` ones more often than they were sent. `overtaken` deltas came after a compaction.
    """

    conversations: int = 0
    messages: int = 0
    appends: int = 0
    read_back: int = 0
    complete: int = 0
    builds: Counter[str] = field(default_factory=Counter)
    warnings: Counter[str] = field(default_factory=Counter)
    degraded: Counter[str] = field(default_factory=Counter)
    epochs: Counter[str] = field(default_factory=Counter)
    compactions: int = 0
    compacted_tokens: int = 0
    largest_share: float = 0.0
    largest_miscount: float = 0.0
    largest_undercount: float = 0.0
    refused: list[str] = field(default_factory=list)
    excused: list[str] = field(default_factory=list)
    unexcused: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    over_window: list[str] = field(default_factory=list)
    miscounted: list[str] = field(default_factory=list)
    broken_prefixes: list[str] = field(default_factory=list)
    deltas: int = 0
    delta_items: int = 0
    whole_items: int = 0
    overtaken: int = 0
    wrong_deltas: list[str] = field(default_factory=list)
    lost: int = 0
    doubled: int = 0
    altered: list[str] = field(default_factory=list)
    append_seconds: list[float] = field(default_factory=list)
    build_seconds: list[float] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Take in what another replay saw."""
        for entry in fields(self):
            mine, theirs = getattr(self, entry.name), getattr(other, entry.name)
            most = entry.name.startswith("largest")
            setattr(self, entry.name, max(mine, theirs) if most else mine + theirs)

    @property
    def faults(self) -> list[str]:
        """Return everything that must not be."""
        kinds = (
            "unexcused",
            "violations",
            "over_window",
            "miscounted",
            "broken_prefixes",
            "wrong_deltas",
            "altered",
        )
        return [f"{kind}: {fault}" for kind in kinds for fault in getattr(self, kind)]


@dataclass(frozen=True, slots=True)
class Build:
    """One answer of a build; `copy` and `place` say in words where it belongs."""

    answer: Mapping[str, Any]
    effective_window: int
    copy: str
    place: str

    @property
    def format(self) -> FormatName:
        """The format of the payload."""
        return FormatName(self.answer["diagnostics"]["format"])

    @property
    def payload(self) -> dict[str, Any]:
        """The payload itself."""
        payload: dict[str, Any] = self.answer["payload"]
        return payload

    @property
    def items(self) -> list[bytes]:
        """The payload's messages as JSON, without cache marks: no part of the prefix."""
        return [orjson.dumps(_unmarked(item)) for item in self.payload[ITEMS[self.format]]]

    @property
    def system_text(self) -> str:
        """The system prompt where it stands beside the messages."""
        if text := self.payload.get("system_instruction"):  # of Gemini Interactions
            return str(text)
        instruction = self.config.get("system_instruction") or {"parts": []}
        blocks = self.payload.get("system") or instruction["parts"]
        return "\n\n".join(block["text"] for block in blocks)

    @property
    def config(self) -> dict[str, Any]:
        """What Gemini takes beside the contents."""
        config: dict[str, Any] = self.payload.get("config") or {}
        return config

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tool definitions, one by one."""
        wrapped = [tool["functionDeclarations"] for tool in self.config.get("tools") or ()]
        return [*(self.payload.get("tools") or ()), *(tool for some in wrapped for tool in some)]

    @property
    def resolved(self) -> bytes:
        """Everything of the payload that may not change inside an epoch, the items left out."""
        parts = ("system", "tools", "config", "system_instruction")
        return orjson.dumps([_unmarked(self.payload.get(part)) for part in parts])


@dataclass(frozen=True, slots=True)
class _Promise:
    """What the last build of an epoch said would stay."""

    stable: list[bytes]
    resolved: bytes
    payload: Mapping[str, Any]


class Judge:
    """Judges payloads; remembers what it found about messages it has seen before."""

    def __init__(self) -> None:
        self._count = lru_cache(maxsize=50_000)(LocalTokenizer().count)
        self._costs: dict[tuple[str, bytes], int] = {}
        self._promises: dict[tuple[str, str, int], _Promise] = {}

    def forget(self) -> None:
        """Drop what is remembered of one conversation."""
        self._costs.clear()
        self._promises.clear()

    def judge(self, build: Build, tally: Tally) -> int:
        """Add to `tally` what is wrong with a build, and return its tokens before any factor."""
        items = build.items
        before = self._judge_prefix(build, items, tally)
        _judge_rules(build, before, tally)
        counted = self._items_cost(build, items) + self._fixed_cost(build)
        _judge_count(build, counted, tally)
        _judge_texts(build, tally)
        return counted

    def _items_cost(self, build: Build, items: list[bytes]) -> int:
        """Count the items; those of one answer of a model cost one message's overhead together."""
        if "input" in build.payload:
            return count_payload_messages(build.format, build.payload["input"], self._count)
        return sum(self._cost(build.format, item) for item in items)

    def _cost(self, format: FormatName, item: bytes) -> int:
        key = (format, item)
        if key not in self._costs:
            message = orjson.loads(item)
            self._costs[key] = count_payload_messages(format, [message], self._count)
        return self._costs[key]

    def _fixed_cost(self, build: Build) -> int:
        tools = [parse_tool(tool, "/tools") for tool in build.tools]
        cost = estimate_tool_defs_tokens(tools, self._count)
        text = build.system_text
        return cost + count_system(text, self._count) if text else cost

    def _judge_prefix(self, build: Build, items: list[bytes], tally: Tally) -> _Promise | None:
        """The stable items of one build begin the next one of its epoch; returns its promise."""
        answer, payload, resolved = build.answer, build.payload, build.resolved
        stable = answer["diagnostics"]["stable_items"]
        payload_stream = (build.copy, f"{build.format}:{payload['model']}", answer["epoch"])
        before = self._promises.get(payload_stream)
        self._promises[payload_stream] = _Promise(items[:stable], resolved, payload)
        wrong = None
        if not 0 <= stable <= len(items):
            wrong = f"{stable} of {len(items)} items are stable"
        elif before is None:
            tally.epochs[str(answer["cache_break_reason"])] += 1
        elif resolved != before.resolved:
            wrong = "system or tools changed inside an epoch"
        elif items[: len(before.stable)] != before.stable:
            at = _first_difference(items, before.stable)
            wrong = f"item {at} of {len(before.stable)} stable ones changed inside an epoch"
        elif stable < len(before.stable):
            wrong = f"{stable} stable items after {len(before.stable)} inside an epoch"
        if wrong is not None:
            tally.broken_prefixes.append(f"{build.place}: {wrong}")
        return before


@dataclass(slots=True)
class _Copy:
    """One stored copy of a conversation; `window` None leaves it to each build.

    `receipt` names the newest compaction there was before the builds of the round under way.
    """

    conversation_id: str
    window: int | None
    sent: list[dict[str, Any]] = field(default_factory=list)
    last: dict[tuple[str, int], Mapping[str, Any]] = field(default_factory=dict)
    receipt: str | None = None

    @property
    def path(self) -> str:
        return f"/v1/conversations/{self.conversation_id}"


class Sender(Protocol):
    """Sends requests until there is an answer; a Client, or what stands before several."""

    def send(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send one request and return its answer."""
        ...


@dataclass(slots=True)
class Replay:
    """Replays conversations over one connection; building after every `every` messages."""

    client: Sender
    judge: Judge
    every: int = 10
    windows: Sequence[int] = WINDOWS

    def run(self, trace: Trace) -> Tally:
        """Replay one conversation and return what was seen."""
        tally = Tally(conversations=1)
        self.judge.forget()
        copies = [self._create(trace, window) for window in (*self.windows, None)]
        for start in range(0, len(trace.messages), self.every):
            for copy in copies:
                self._append(trace, copy, start, tally)
            for copy in copies:
                if copy.sent:
                    self._build_all(trace, copy, start + self.every, tally)
        for copy in copies:
            self._read_back(trace, copy, tally)
        tally.messages = len(copies[-1].sent)
        if any(copy.sent != copies[-1].sent for copy in copies):
            tally.altered.append(f"{trace.name}: batches and single messages fared differently")
        return tally

    def _create(self, trace: Trace, window: int | None) -> _Copy:
        budget: dict[str, Any] = {"max_output_tokens": MAX_OUTPUT_TOKENS}
        if window is not None:
            budget["context_window"] = window
        body = {
            "model": MODELS[FormatName.OPENAI_CHAT][0],
            "policy": {"budget": budget},
            "sections": trace.sections,
            "tools": trace.tools,
        }
        answer = self.client.send("POST", "/v1/conversations", body)
        if not answer.accepted:
            raise AssertionError(f"{trace.name}: {answer.reason}")
        return _Copy(answer.body["conversation_id"], window)

    def _append(self, trace: Trace, copy: _Copy, start: int, tally: Tally) -> None:
        """Append the next messages: one at a time, or as a batch where a policy has the window."""
        batch = trace.messages[start : start + self.every]
        if copy.window is not None and self._send(copy, batch, tally).accepted:
            return
        for offset, message in enumerate(batch):
            answer = self._send(copy, [message], tally)
            if not answer.accepted and copy.window is None:
                place = f"{trace.name} message {start + offset} ({message.get('role')})"
                tally.refused.append(f"{place}: {answer.reason}")

    def _send(self, copy: _Copy, messages: list[dict[str, Any]], tally: Tally) -> Answer:
        answer = self.client.send("POST", f"{copy.path}/messages", {"messages": messages})
        if answer.accepted:
            copy.sent += messages
            tally.appends += 1
            if len(messages) == 1:
                tally.append_seconds.append(answer.seconds)
        return answer

    def _build_all(self, trace: Trace, copy: _Copy, through: int, tally: Tally) -> None:
        whose = f"window {copy.window} by policy" if copy.window else "window by request"
        last = through >= len(trace.messages)
        copy.receipt = self._newest_receipt(copy)
        for format in FormatName:
            for window in (copy.window,) if copy.window else self.windows:
                place = f"{trace.name} through {through}, {format} {window}, {whose}"
                self._build(copy, format, window, place, tally, last)

    def _build(
        self, copy: _Copy, format: FormatName, window: int, place: str, tally: Tally, last: bool
    ) -> None:
        model = MODELS[format][self.windows.index(window)]
        body: dict[str, Any] = {"format": format, "model": model}
        if copy.window is None:
            body["context_window"] = window
        answer = self.client.send("POST", f"{copy.path}/context", body)
        if not answer.accepted:
            _judge_refusal(answer, place, tally)
            return
        built = answer.body
        whose = "policy" if copy.window else "request"
        tally.builds[f"{format} {window} by {whose}"] += 1
        tally.build_seconds.append(answer.seconds)
        tally.degraded.update(built["degraded"])
        compaction = built["diagnostics"]["compaction"]
        if compaction and compaction["compacted"]:
            tally.compactions += 1
            tally.compacted_tokens += compaction["before_tokens"] - compaction["after_tokens"]
        if built["through_seq"] != len(copy.sent):
            tally.broken_prefixes.append(f"{place}: through_seq {built['through_seq']}")
        build = Build(built, window - MAX_OUTPUT_TOKENS, copy.conversation_id, place)
        self._build_on(copy, build, body, (format, window), tally)
        counted = self.judge.judge(build, tally)
        if last:
            self._count_again(build, counted, tally)
            _judge_completeness(build, copy.sent, tally)

    def _build_on(
        self,
        copy: _Copy,
        build: Build,
        body: Mapping[str, Any],
        payload_stream: tuple[str, int],
        tally: Tally,
    ) -> None:
        """Build the same as a delta on the build before, where they are of one epoch."""
        before, copy.last[payload_stream] = copy.last.get(payload_stream), build.answer
        if before is None or before["epoch"] != build.answer["epoch"]:
            return
        known = {"build_id": before["build_id"]}
        answer = self.client.send("POST", f"{copy.path}/context", {**body, "known": known})
        judge_delta(
            before, build, answer, lambda: self._newest_receipt(copy) != copy.receipt, tally
        )

    def _newest_receipt(self, copy: _Copy) -> str | None:
        answer = self.client.send("GET", f"{copy.path}/compactions?limit=1")
        assert answer.accepted, answer.reason
        return next((receipt["compaction_id"] for receipt in answer.body["data"]), None)

    def _count_again(self, build: Build, counted: int, tally: Tally) -> None:
        """Let the service count the payload from scratch as well."""
        body = {
            "format": build.format,
            "messages": build.payload[ITEMS[build.format]],
            "tools": build.tools,
            "text": build.system_text,
        }
        answer = self.client.send("POST", "/v1/tokens/count", body)
        tokens = answer.body["token_count"] + MESSAGE_OVERHEAD * bool(build.system_text)
        if tokens != counted:
            tally.miscounted.append(f"{build.place}: {tokens} by /v1/tokens/count, not {counted}")

    def _read_back(self, trace: Trace, copy: _Copy, tally: Tally) -> None:
        judge_log(trace.name, copy.sent, read_messages(self.client, copy.conversation_id), tally)


def judge_delta(
    before: Mapping[str, Any],
    build: Build,
    answer: Answer,
    is_compacted: Callable[[], bool],
    tally: Tally,
) -> None:
    """A delta on the build before gives the same as the whole payload just built.

    That one is of the same epoch as the build before it, so it has seen no compaction since. All
    that may begin another epoch now is one that was applied meanwhile, which has a receipt.
    """
    if not answer.accepted:
        tally.wrong_deltas.append(f"{build.place}: {answer.reason}")
        return
    delta, key = answer.body, ITEMS[build.format]
    if delta["epoch"] != before["epoch"]:
        if not delta["delta"] and is_compacted():
            tally.overtaken += 1
            return
        reason = f"{delta['cache_break_reason']}, without a receipt"
        tally.wrong_deltas.append(f"{build.place}: a new epoch by {reason}")
        return
    if not delta["delta"]:
        tally.wrong_deltas.append(f"{build.place}: no delta inside epoch {delta['epoch']}")
        return
    held = before["payload"][key][: delta["base_items"]]
    whole = held + delta["payload"][key] + delta["tail"]
    tally.deltas += 1
    tally.delta_items += len(whole) - len(held)
    tally.whole_items += len(whole)
    if whole != build.payload[key] or _prefix_hash(delta) != _prefix_hash(build.answer):
        tally.wrong_deltas.append(f"{build.place}: it does not give the whole payload")


def _prefix_hash(answer: Mapping[str, Any]) -> Any:
    return answer["diagnostics"]["prefix_hash"]


def judge_log(
    name: str, sent: Sequence[dict[str, Any]], got: Sequence[dict[str, Any]], tally: Tally
) -> None:
    """Every acknowledged message stands in the log as it was sent, in order, just once."""
    tally.read_back += len(got)
    found = difference(sent, got)
    tally.lost += found.lost
    tally.doubled += found.doubled
    if len(got) != len(sent) or found.lost or found.doubled:
        tally.altered.append(f"{name}: {len(sent)} sent, {len(got)} read back, {found}")
    if len(got) != len(sent):
        return  # all that follows stands elsewhere
    for seq, (given, read) in enumerate(zip(sent, got, strict=True), 1):
        if read["seq"] != seq:
            tally.altered.append(f"{name}: seq {read['seq']} in the place of {seq}")
        changed = [key for key in given if key not in read or read[key] != given[key]]
        if changed:
            tally.altered.append(f"{name} message {seq}: {', '.join(changed)} differ")


def read_messages(client: Sender, conversation_id: str) -> list[dict[str, Any]]:
    """Return all messages of a conversation, page by page."""
    found: list[dict[str, Any]] = []
    cursor = ""
    while True:
        path = f"/v1/conversations/{conversation_id}/messages?limit={PAGE}{cursor}"
        answer = client.send("GET", path)
        if not answer.accepted:
            raise AssertionError(answer.reason)
        found += answer.body["data"]
        if answer.body["next_cursor"] is None:
            return found
        cursor = f"&cursor={answer.body['next_cursor']}"


class Launched:
    """A process of the command line that can be killed, and started again as it was."""

    def __init__(
        self, log: Path, environ: Mapping[str, str], *command: str, launch: Launch = launched
    ) -> None:
        self._log = log
        self._environ = environment(**environ)
        self._command = command
        self._launch = launch
        self._process: Process | None = None

    def start(self) -> None:
        """Start the process."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._process = self._launch(self._command, self._environ, self._log)

    def kill(self) -> None:
        """End it at once, as a crash would; what it has started stays."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in good order."""
        self._end(signal.SIGTERM)

    def wait_until(self, holds: Callable[[], bool], seconds: float, what: str) -> None:
        """Poll until `holds`; raises AssertionError after so many seconds, or when it has ended."""
        deadline = monotonic() + seconds
        while not holds():
            ended = self._process is not None and self._process.poll() is not None
            if ended or monotonic() > deadline:
                log = self._log.read_text(errors="replace")[-2000:]
                raise AssertionError(f"Not within {seconds} s: {what}\n{log}")
            sleep(0.02)

    def send_signal(self, number: signal.Signals) -> None:
        """Send the running process a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        process.send_signal(how)
        try:
            process.wait(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


class Served(Launched):
    """The service as a process of its own, with one port and one data directory for all starts."""

    def __init__(
        self, data_dir: Path, environ: Mapping[str, str] | None = None, *, launch: Launch = launched
    ) -> None:
        self.data_dir = data_dir
        port = str(free_port())
        options = ("--port", port, "--data-dir", str(data_dir))
        log = data_dir / "service.log"
        super().__init__(log, environ or {}, "serve", *options, launch=launch)
        self.url = f"http://127.0.0.1:{port}"

    def start(self) -> None:
        """Start the service and return once it is ready."""
        super().start()
        self.wait_until(lambda: self.status("/readyz") == 200, 30, "the service is ready")

    def status(self, path: str) -> int | None:
        """Return the status of a GET, None when nothing answers."""
        with suppress(Unreachable), closing(Client(self.url)) as client:
            return client.send("GET", path).status
        return None


def _judge_rules(build: Build, before: _Promise | None, tally: Tally) -> None:
    """No rule of the provider is broken, not even one that only costs."""
    facts = Facts(
        tokens=build.answer["tokens_used"],
        capacity=build.effective_window,
        prefill=False if build.format is FormatName.ANTHROPIC else None,
        takes_system=True,
    )
    if before is not None:
        facts = replace(facts, previous=before.payload, previous_stable=len(before.stable))
    for finding in judge(build.format, build.payload, facts):
        if finding.rule in TOLERATED and finding.severity == "warning":
            tally.warnings[f"{build.format} {finding.rule}"] += 1
        else:
            tally.violations.append(f"{build.place}: {finding}")


def _judge_count(build: Build, counted: int, tally: Tally) -> None:
    """What is said to be used is what is there, and inside the window."""
    answer, effective = build.answer, build.effective_window
    factor = FIRST_FACTORS.get(build.format)
    slack = 0 if factor is None else 5  # each part is rounded up
    counted = round(counted * (factor or 1))
    used, budget = answer["tokens_used"], answer["diagnostics"]["budget"]
    parts = ("system_prompt", "skill_prompts", "tool_descriptions", "summary", "conversation")
    if budget["tokens_used"] != used or sum(budget[part] for part in parts) != used:
        tally.miscounted.append(f"{build.place}: the budget's parts do not add up to {used}")
    if budget["effective_window"] != effective:
        tally.over_window.append(f"{build.place}: window {budget['effective_window']}")
    difference = abs(used - counted) / counted
    if max(used, counted) > effective:
        tally.over_window.append(f"{build.place}: {used} tokens, {counted} from scratch")
    if difference > TOLERANCE and abs(used - counted) > slack:
        tally.miscounted.append(f"{build.place}: {used} tokens, {counted} from scratch")
    tally.largest_miscount = max(tally.largest_miscount, difference)
    tally.largest_share = max(tally.largest_share, used / effective)


def _judge_texts(build: Build, tally: Tally) -> None:
    """The texts that stand in the payload are counted, and inside the window."""
    used, texts = build.answer["tokens_used"], payload_tokens(build.payload)
    if texts > build.effective_window:
        tally.over_window.append(f"{build.place}: {texts} tokens of text")
    if used < MIN_COUNTED * texts:
        tally.miscounted.append(f"{build.place}: {used} tokens, {texts} of text alone")
    tally.largest_undercount = max(tally.largest_undercount, texts / used - 1)


def _judge_completeness(build: Build, sent: Sequence[Mapping[str, Any]], tally: Tally) -> None:
    """A payload that leaves nothing out by its own account shows every text and every image."""
    texts, media = _contents(FormatName.OPENAI_CHAT, sent)
    shown_texts, shown_media = _contents(build.format, build.payload[ITEMS[build.format]])
    if (
        build.answer["diagnostics"]["summary_used"]
        or shown_texts[WINDOW_NOTE]
        or _is_reduced(shown_texts)
    ):
        return
    if "messages_shortened" in build.answer["degraded"]:
        return
    tally.complete += 1
    views = {text[:_OPENING] for text in shown_texts if _VIEW_NOTE.search(text)}
    everything = "\n".join(shown_texts)  # some formats join the texts of one result
    missing = [
        text
        for text in texts - shown_texts
        if text[:_OPENING] not in views and text not in everything
    ]
    if missing:
        tally.violations.append(f"{build.place}: {len(missing)} texts are not in the payload")
    if shown_media < media:
        tally.violations.append(f"{build.place}: {shown_media} of {media} media are shown")


_OPENING = 200
"""Characters by which a cut text is told from others: less than any line of a view has."""
_VIEW_NOTE = re.compile(r"cut: [\d,]+ of [\d,]+ bytes shown\. .* ref_id=\"blob_[0-9a-f]{24}\".*\]$")


def _contents(
    format: FormatName, messages: Sequence[Mapping[str, Any]]
) -> tuple[Counter[str], int]:
    """Return all texts of messages, and how many images and files they hold."""
    texts: Counter[str] = Counter()
    media = 0
    for raw in messages:
        if raw.get("role") in ("system", "developer"):
            continue
        for message in PROVIDERS[format].parse(raw, ""):
            for part in message.parts:
                media += isinstance(part, Image | File)
                if isinstance(part, Text) and part.text.strip():
                    texts[part.text] += 1
    return texts, media


def _is_reduced(texts: Mapping[str, int]) -> bool:
    starts = ("[tool output trimmed; ", SUMMARY_PREFIX)
    return any(text.startswith(starts) or text.endswith("to fit the window.]") for text in texts)


def _judge_refusal(answer: Answer, place: str, tally: Tally) -> None:
    """A payload may be refused only when the system prompt and tools leave it no room."""
    problem = answer.body if isinstance(answer.body, dict) else {}
    if problem.get("code") != "CONTEXT_OVERFLOW":
        tally.unexcused.append(f"{place}: {answer.reason}")
        return
    budget = problem["budget"]
    parts = ("system_prompt", "skill_prompts", "tool_descriptions")
    fixed = sum(budget[part] for part in parts)
    sizes = f"{fixed} tokens of system prompt and tools in {budget['effective_window']}"
    excused = fixed * 1.05 >= budget["effective_window"]
    (tally.excused if excused else tally.unexcused).append(f"{place}: CONTEXT_OVERFLOW, {sizes}")


def _unmarked(value: Any) -> Any:
    if isinstance(value, list):
        return [_unmarked(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _unmarked(item) if key in ("content", "output") else item
        for key, item in value.items()
        if key not in _MARKS
    }


def _first_difference(items: Sequence[bytes], before: Sequence[bytes]) -> int:
    pairs: Iterator[tuple[bytes, bytes]] = zip(items, before, strict=False)
    return next((at for at, (new, old) in enumerate(pairs) if new != old), len(items))
