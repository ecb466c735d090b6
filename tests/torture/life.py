"""A life: a family of conversations, lived by one thread, each answer compared with the model."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from random import Random
from traceback import format_exc
from typing import Any
from urllib.parse import quote

from tests.judge import refusals
from tests.judge.epochs import ITEMS
from tests.payload_tokens import payload_tokens
from tests.torture.admin import Admin
from tests.torture.faults import Outages, Progress
from tests.torture.log import (
    Conversation,
    Entry,
    Held,
    Message,
    Shown,
    is_hidden,
    read_payload,
    system_texts,
)
from tests.torture.wire import MARK, Answer, Broken, Tamper, Wire

MODELS = {
    "openai_chat": "gpt-4.1",
    "openai_responses": "gpt-5.4",
    "anthropic": "claude-sonnet-4-5",
    "gemini": "gemini-2.5-flash",
    "gemini_interactions": "gemini-2.5-pro",
}
OUTPUT_TOKENS = 500
KEPT_LAST = 12
"""The messages that a sliding window shows."""
WINDOWS = (4_000, 6_000, 10_000)
STRATEGIES = ("sandwich", "retain_summary", "tree_summary", "chain", "sliding_window")
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": {}}},
    }
    for name in ("run", "look")
]
CONVERSATIONS = 4
"""The most that a life has at once."""
WORDS = ("the", "build", "of", "a", "page", "is", "late", "because", "nobody", "told", "it", "to")
NASTY = ("", "", "", " 続けて", " \u202e😀", " NUL\x00", ' "quoted\\" {}', " \ud800 half", "\r\n\t")
OFFLOADED = 4_096
"""Bytes of a result above which it is stored apart."""


@dataclass(slots=True)
class Snapshot:
    """A saved window: which seqs of which conversation."""

    id: str
    source: Conversation
    seqs: list[int]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a life needs of the world."""

    urls: Sequence[str]
    outages: Outages
    progress: Progress
    settle: Callable[[], None]
    """Wait until no statement of a request that had no answer runs any more."""
    admin: Admin | None = None
    """Without one, requests have no keys."""
    tamper: Tamper | None = None


Act = Callable[["Life", Conversation], None]


@dataclass(slots=True)
class Life:
    """One life; `number` and the seed decide what it does."""

    seed: int
    number: int
    surroundings: Surroundings
    tally: Counter[str] = field(default_factory=Counter)
    conversations: list[Conversation] = field(default_factory=list)
    deleted: list[Conversation] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)
    agent: str | None = None
    """The agent of some of its conversations."""
    revoked: list[tuple[str, float]] = field(default_factory=list)
    """Keys that are refused from a time on."""
    recent: deque[str] = field(default_factory=lambda: deque(maxlen=30))
    _named: int = 0
    _chance: Random = field(default_factory=Random)
    wire: Wire = field(init=False)

    def __post_init__(self) -> None:
        around = self.surroundings
        self.wire = Wire(around.urls, around.outages, self.tally, around.tamper)

    @property
    def tenant(self) -> str:
        """Its tenant, which no other life has."""
        return f"life-{self.number}"

    def other_wire(self, tally: Counter[str]) -> Wire:
        """Return further connections, for requests at the same time."""
        around = self.surroundings
        wire = Wire(around.urls, around.outages, tally, around.tamper)
        wire.key = self.wire.key
        return wire

    def at_once(self, *requests: Callable[[Wire], Answer]) -> list[Answer]:
        """Send several requests at the same time, over connections of their own."""
        tallies = [Counter[str]() for _ in requests]

        def send(place: int) -> Answer:
            with closing(self.other_wire(tallies[place])) as wire:
                return requests[place](wire)

        with ThreadPoolExecutor(len(requests)) as pool:
            answers = list(pool.map(send, range(len(requests))))
        for tally in tallies:
            self.tally.update(tally)
        return answers

    def broken_by(self, acts: Callable[[], None]) -> str | None:
        """Do something and return what is broken, None if all is well."""
        with closing(self.wire):
            try:
                acts()
            except Broken as broken:
                return self._told(str(broken))
            except (LookupError, TypeError, ValueError):
                return self._told(f"an answer cannot be read: {format_exc(limit=-3)}")
        return None

    def begin(self, act: str) -> None:
        """Begin an operation: its draws depend on the seed, the life and the operation alone."""
        self._chance = Random(f"{self.seed} {self.number} {act}")

    def _told(self, broken: str) -> str:
        done = "\n    ".join(self.recent)
        return f"seed {self.seed}, life {self.number}: {broken}\n  after\n    {done}"

    # --- what operations are made of ---------------------------------------------------------

    @property
    def chance(self) -> Random:
        """The draws of the operation under way."""
        return self._chance

    def name(self, kind: str) -> str:
        """Return a name that nothing else has."""
        self._named += 1
        return f"{kind}-{self.seed}-{self.number}-{self._named}"

    def mark(self) -> str:
        """Return a word that nothing else has."""
        self._named += 1
        number = (self.number % 16**4) * 16**4 + self._named
        return "zq" + "".join(chr(ord("a") + int(digit, 16)) for digit in f"{number:08x}")

    def check(self, holds: bool, what: str, answer: Answer | None = None) -> None:
        """Count a check; raises Broken where it does not hold."""
        self.tally["checks"] += 1
        if not holds:
            told = f": {answer.status} {answer.raw[:600]!r}" if answer is not None else ""
            raise Broken(f"{what}{told}")

    def equal(self, got: object, expected: object, what: str) -> None:
        """Count a check that two values are equal."""
        if got != expected and isinstance(got, list) and isinstance(expected, list):
            places = [at for at, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b]
            at = places[0] if places else min(len(got), len(expected))
            what = f"{what}: at {at} of {len(got)} and {len(expected)}"
            got, expected = got[at : at + 1], expected[at : at + 1]
        self.check(got == expected, f"{what}: {got!r:.2000}, not {expected!r:.2000}")

    def get(self, path: str, *, is_stream: bool = False) -> Answer:
        """Read."""
        return self.wire.send(self.chance, "GET", path, is_stream=is_stream)

    def send(
        self, method: str, path: str, body: object = None, *, may_be_unavailable: bool = False
    ) -> Answer:
        """Send what has no key; an earlier try without an answer is over when this returns."""
        answer = self.wire.send(
            self.chance, method, path, body, may_be_unavailable=may_be_unavailable
        )
        if answer.resent:
            self.surroundings.settle()
        return answer

    def create(self, path: str, body: object, place: str) -> Answer:
        """Create what is at `place` then; now and then again, which is refused by its id."""
        answer = self.send("POST", path, body)
        if answer.resent and answer.code == "CONFLICT":
            return self.get(place)  # an earlier try without an answer has made it
        if answer.ok and self.chance.random() < 0.08:
            again = self.send("POST", path, body)
            self.check(again.code == "CONFLICT", "an id is taken once", again)
        return answer

    def post(self, path: str, body: object, *, compares: bool = True) -> Answer:
        """Send with a key; now and then send it again, which gives the same answer."""
        key = self.name("key")
        answer = self.wire.send(self.chance, "POST", path, body, key=key)
        if answer.ok and self.chance.random() < 0.08:
            again = self.wire.send(self.chance, "POST", path, body, key=key)
            self.check(again.ok, "a repeated request is answered again", again)
            if compares:
                self.equal(again.body, answer.body, f"the answer to a repeated {path}")
        if answer.ok and self.chance.random() < 0.03:
            other = {**(body if isinstance(body, dict) else {}), "nonsense": True}
            again = self.wire.send(self.chance, "POST", path, other, key=key)
            self.check(again.status in (409, 422), "a key with another body is refused", again)
        return answer

    def pages(self, path: str) -> list[Any]:
        """Read all pages of a list."""
        found: list[Any] = []
        separator = "&" if "?" in path else "?"
        limit = self.chance.choice((3, 17, 100))
        cursor = ""
        while True:
            answer = self.get(f"{path}{separator}limit={limit}{cursor}")
            self.check(answer.ok, f"a page of {path}", answer)
            found += answer.body["data"]
            if answer.body["next_cursor"] is None:
                return found
            cursor = f"&cursor={quote(answer.body['next_cursor'])}"

    def words(self, count: int) -> str:
        """Return some words."""
        return " ".join(self.chance.choices(WORDS, k=count))

    def message(self, role: str, **fields: Any) -> Entry:
        """Return a message with a mark at its beginning and its end."""
        mark = self.mark()
        if "content" not in fields:
            words = self.words(self.chance.choice((3, 20, 60, 150)))
            fields["content"] = f"{mark} {words}{self.chance.choice(NASTY)} {mark}"
        return Entry({"id": self.name("m"), "role": role, **fields}, mark)

    def result(self, call_id: str) -> Entry:
        """Return a result; every third one is large."""
        mark = self.mark()
        lines = self.chance.choice((2, 2, 4, 8, 150, 400, 1500))
        said = self.words(6)
        text = "".join(f"{mark} {number} {said}\n" for number in range(lines))
        body = {"id": self.name("m"), "role": "tool", "tool_call_id": call_id, "content": text}
        return Entry(body, mark)

    def asks(self) -> Entry:
        """Return an assistant's message with one or two calls."""
        mark = self.mark()
        calls = [
            {
                "id": self.name("call"),
                "type": "function",
                "function": {
                    "name": self.chance.choice(("run", "look")),
                    "arguments": json.dumps({"path": f"{mark}/{number}", "n": number}),
                },
            }
            for number in range(self.chance.choice((1, 1, 2)))
        ]
        content = self.chance.choice((None, f"{mark} let me see {mark}"))
        body = {"id": self.name("m"), "role": "assistant", "content": content, "tool_calls": calls}
        return Entry(body, mark)

    def next_batch(self, conversation: Conversation) -> list[Entry]:
        """Return what may come next: results of open calls, a question, an answer, or more."""
        open_calls = list(conversation.open_calls)
        if open_calls and self.chance.random() < 0.9:
            some = open_calls if self.chance.random() < 0.8 else open_calls[:1]
            return [self.result(call_id) for call_id in some]
        draw = self.chance.random()
        if draw < 0.35:
            return [self.message("user")]
        if draw < 0.5:
            return [self.message("assistant")]
        asks = self.asks()
        if draw < 0.6:
            return [asks]
        results = [self.result(str(call["id"])) for call in asks.calls]
        if draw < 0.8:
            return [asks, *results]
        return [self.message("user"), asks, *results, self.message("assistant")]

    def appended(
        self, conversation: Conversation, batch: Iterable[Entry], answer: dict[str, Any]
    ) -> None:
        """Add a batch to the model, and compare where the answer says that it stands."""
        for entry, stored in zip(batch, answer["messages"], strict=True):
            conversation.add(entry)
            self.equal((stored["id"], stored["seq"]), (entry.id, conversation.head), "an append")
            size = len((entry.text or "").encode("utf-8", "surrogatepass"))
            if entry.role == "tool":
                self.equal(stored["output_ref"]["byte_size"], size, "the size of a result")
        self.equal(answer["head_seq"], conversation.head, "the head after an append")

    def build(
        self,
        conversation: Conversation,
        format: str,
        *,
        whole: bool = False,
        batch: Sequence[Entry] = (),
    ) -> None:
        """Build, perhaps as a delta, perhaps with an append, and judge the payload."""
        body: dict[str, Any] = {"format": format, "model": MODELS[format]}
        held = conversation.held.get(format)
        if held is not None and not whole:
            body["known"] = {"build_id": held.build_id}
            if self.chance.random() < 0.5:
                body["known"]["through_seq"] = held.through_seq
        if batch:
            bodies = [entry.body for entry in batch]
            body["append"] = {"messages": bodies, "format": "openai_chat"}
            answer = self.post(f"{path(conversation)}/context", body, compares=False)
        else:
            answer = self.send("POST", f"{path(conversation)}/context", body)
        if batch and answer.ok:
            self.appended(conversation, batch, answer.body["appended"])
        elif batch:
            self.check("appended" in answer.body, "what a refused build has appended", answer)
            for entry in batch:
                conversation.add(entry)
            told = answer.body["appended"]["head_seq"]
            self.equal(told, conversation.head, "the head after a refused build")
        if not conversation.active:
            self.check(answer.code == "VALIDATION_ERROR", "an empty window is refused", answer)
            return
        if answer.code == "CONTEXT_OVERFLOW" and conversation.pinned & conversation.active:
            return  # results of pinned calls came later, and nothing else can give way
        self.check(answer.ok, "a build", answer)
        built = answer.body
        self.tally["deltas"] += built["delta"]
        payload = self._whole_payload(conversation, format, built)
        self._judge(conversation, format, built, payload)

    def _whole_payload(
        self, conversation: Conversation, format: str, built: dict[str, Any]
    ) -> Message:
        """Return the full payload of an answer, and hold it for the next one."""
        name, tail = ITEMS[format], built["tail"]
        items = built["payload"][name]
        if built["delta"]:
            held = conversation.held[format]
            self.equal(built["epoch"], held.epoch, "the epoch of a delta")
            kept = [*held.items[: built["base_items"]], *items]
            rest = held.rest
        else:
            self.equal(items[len(items) - len(tail) :], tail, "the tail of a payload")
            kept = items[: len(items) - len(tail)]
            rest = {key: value for key, value in built["payload"].items() if key != name}
        ids = (built["epoch"], built["through_seq"], built["build_id"])
        conversation.held[format] = Held(*ids, rest, kept, tail)
        if built["delta"]:
            return {**rest, name: kept + tail}
        payload: Message = built["payload"]
        conversation.builds.append((built["build_id"], payload))
        return payload

    def _judge(
        self, conversation: Conversation, format: str, built: dict[str, Any], payload: Message
    ) -> None:
        where = f"{format} payload of {conversation.id}"
        self.check(not (wrong := refusals(format, payload)), f"{where}: {wrong[:3]}")
        room = conversation.window - OUTPUT_TOKENS
        self.equal(
            built["diagnostics"]["budget"]["effective_window"],
            room,
            f"{where}: the effective window",
        )
        self.check(built["tokens_used"] <= room, f"{where}: {built['tokens_used']} tokens")
        counted = payload_tokens(payload)
        self.check(counted <= room, f"{where}: {counted} tokens by our count, in {room}")
        self.equal(built["through_seq"], conversation.head, f"{where}: through_seq")
        shown = read_payload(conversation, format, payload, MARK)
        self.check(not shown.wrong, f"{where}: {shown.wrong[:3]}")
        system = str(payload) if format.startswith("openai") else system_texts(payload)
        for section in conversation.sections:
            self.check(section in system, f"{where}: a section is missing")
        self._judge_prefix(conversation, format, built, payload)
        self._judge_completeness(conversation, built, shown, where)

    def _judge_prefix(
        self, conversation: Conversation, format: str, built: dict[str, Any], payload: Message
    ) -> None:
        """What an epoch promised to keep begins the next payload of it."""
        items = [_unmarked(item) for item in payload[ITEMS[format]]]
        before = conversation.promised.get((format, built["epoch"]), [])
        self.equal(items[: len(before)], before, f"{format}: the stable items of an epoch")
        conversation.promised[format, built["epoch"]] = items[
            : built["diagnostics"]["stable_items"]
        ]

    def _judge_completeness(
        self, conversation: Conversation, built: dict[str, Any], shown: Shown, where: str
    ) -> None:
        """A message is shown, or hidden by a receipt, or left out as the answer says."""
        there = set(shown.seqs)
        missing = {
            seq
            for seq, entry in conversation.living()
            if seq not in there
            and not conversation.slides(seq)
            and (entry.role != "tool" or not shown.placeholders)
        }
        pinned = missing & conversation.pinned
        self.check(not pinned, f"{where}: pinned messages are not shown: {sorted(pinned)}")
        if built["degraded"]:
            # What was done to fit is told, but the newest user message is never dropped.
            users = [seq for seq, entry in conversation.living() if entry.role == "user"]
            missing &= set() if built["diagnostics"]["summary_used"] else set(users[-1:])
        if missing:
            made = self.pages(f"{path(conversation)}/compactions")
            lost = sorted(seq for seq in missing if not is_hidden(seq, made))
            self.check(not lost, f"{where}: nothing tells why {lost} are not shown")


def path(conversation: Conversation) -> str:
    """Return where a conversation is."""
    return f"/v1/conversations/{conversation.id}"


def _unmarked(item: Any) -> Any:
    """Return an item without cache marks, which move."""
    if isinstance(item, list):
        return [_unmarked(part) for part in item]
    if not isinstance(item, dict):
        return item
    marks = ("cache_control", "prompt_cache_breakpoint")
    return {key: _unmarked(value) for key, value in item.items() if key not in marks}
