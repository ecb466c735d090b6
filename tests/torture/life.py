"""A life: a family of conversations, lived by one thread, each answer compared with the model."""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import sha256
from random import Random
from traceback import format_exc
from typing import Any
from urllib.parse import quote

from tests.judge import refusals
from tests.payload_tokens import payload_tokens
from tests.torture.faults import Outages, Progress
from tests.torture.log import (
    ITEMS,
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
    tamper: Tamper | None = None


Act = Callable[["Life", Conversation], None]
ACTS: dict[str, tuple[Act, int]] = {}


def act(weight: int) -> Callable[[Act], Act]:
    """Register an operation with how often it is done."""

    def register(done: Act) -> Act:
        ACTS[done.__name__] = (done, weight)
        return done

    return register


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
    recent: deque[str] = field(default_factory=lambda: deque(maxlen=30))
    _named: int = 0
    _chance: Random = field(default_factory=Random)
    wire: Wire = field(init=False)

    def __post_init__(self) -> None:
        around = self.surroundings
        self.wire = Wire(around.urls, around.outages, self.tally, around.tamper)

    def live(self, operations: int) -> str | None:
        """Do so many operations, then look at everything; returns what is broken, None if well."""

        def all_of_it() -> None:
            for step in range(operations):
                self._step(step)
            self.inquest()

        return self._broken_by(all_of_it)

    def look_again(self) -> str | None:
        """Look at everything once more; returns what is broken, None if all is well."""
        return self._broken_by(self.inquest)

    def _broken_by(self, acts: Callable[[], None]) -> str | None:
        with closing(self.wire):
            try:
                acts()
            except Broken as broken:
                return self._told(str(broken))
            except (LookupError, TypeError, ValueError):
                return self._told(f"an answer cannot be read: {format_exc(limit=-3)}")
        return None

    def inquest(self) -> None:
        """Compare all that can be read with the model."""
        self._chance = Random(f"{self.seed} {self.number} inquest")
        for conversation in self.conversations:
            self.recent.append(f"inquest of {conversation.id}")
            transcript(self, conversation)
            totals(self, conversation)
            receipts(self, conversation)
            export(self, conversation)
            if conversation.active:
                self.build(conversation, self._chance.choice(list(MODELS)), whole=True)
        for conversation in self.deleted:
            answer = self.get(f"{path(conversation)}")
            self.check(answer.status == 404, "a deleted conversation is not there", answer)
        for mark in self._chance.sample(sorted(self.wire.gone), min(3, len(self.wire.gone))):
            answer = self.get(f"/v1/search?q={mark}")
            self.check(answer.ok and answer.body["data"] == [], f"{mark} is not found", answer)

    def _step(self, step: int) -> None:
        self._chance = Random(f"{self.seed} {self.number} {step}")
        self.surroundings.progress.step()
        self.tally["operations"] += 1
        name = "create"
        if not self.conversations:
            create(self)
        else:
            conversation = self._chance.choice(self.conversations)
            weights = [weight for _, weight in ACTS.values()]
            (name,) = self._chance.choices(list(ACTS), weights)
            self.recent.append(f"{step} {name} {conversation.id} (head {conversation.head})")
            ACTS[name][0](self, conversation)
        self.tally[f"op {name}"] += 1

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
        self.check(got == expected, f"{what}: {got!r:.400}, not {expected!r:.400}")

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
            body["known"] = {"epoch": held.epoch, "through_seq": held.through_seq}
            if self.chance.random() < 0.5:
                body["known"]["build_id"] = held.build_id
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
        conversation.held[format] = Held(*ids, rest, kept)
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
        self.equal(built["budget"]["effective_window"], room, f"{where}: the effective window")
        self.check(built["tokens_used"] <= room, f"{where}: {built['tokens_used']} tokens")
        counted = payload_tokens(payload)
        self.check(counted <= room, f"{where}: {counted} tokens by our count, in {room}")
        self.equal(built["through_seq"], conversation.head, f"{where}: through_seq")
        shown = read_payload(conversation, format, payload, MARK)
        self.check(not shown.wrong, f"{where}: {shown.wrong[:3]}")
        system = system_texts(payload) if format in ("anthropic", "gemini") else str(payload)
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
        conversation.promised[format, built["epoch"]] = items[: built["stable_items"]]

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
            missing &= set() if built["summary_used"] else set(users[-1:])
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


# --- operations ----------------------------------------------------------------------------------


def create(life: Life) -> None:
    """Begin a conversation."""
    chance, id = life.chance, life.name("c")
    window, strategy = chance.choice(WINDOWS), chance.choice(STRATEGIES)
    sections = [f"You are {id}. {life.words(20)}", f"Rules: {life.words(10)}"]
    policy = {
        "budget": {"context_window": window, "max_output_tokens": OUTPUT_TOKENS},
        "strategy": strategy,
        "sliding_window": {"keep_last_n": KEPT_LAST},
        "compaction": {"mode": chance.choice(("background", "background", "inline"))},
        "tool_output": {"max_message_bytes": chance.choice((2_000, 8_000, 51_200))},
        "agent_tools": chance.choice(("auto", "none")),
    }
    body = {
        "conversation_id": id,
        "model": MODELS["openai_chat"],
        "policy": policy,
        "sections": [
            {"name": "base", "kind": "base", "content": sections[0]},
            {"name": "rules", "kind": "rules", "content": sections[1]},
        ],
        "tools": TOOLS,
    }
    answer = life.post("/v1/conversations", body)
    life.check(answer.status == 201, "a conversation is created", answer)
    kept = KEPT_LAST if strategy == "sliding_window" else None
    life.conversations.append(Conversation(id, window, sections, kept))


@act(30)
def append(life: Life, conversation: Conversation) -> None:
    """Append a batch."""
    batch = life.next_batch(conversation)
    body: dict[str, Any] = {"messages": [entry.body for entry in batch]}
    if life.chance.random() < 0.3:
        body["expected_seq"] = conversation.head
    answer = life.post(f"{path(conversation)}/messages", body)
    life.check(answer.status == 201, "an append", answer)
    life.appended(conversation, batch, answer.body)


@act(22)
def step(life: Life, conversation: Conversation) -> None:
    """Append and build in one request."""
    batch = life.next_batch(conversation)
    life.build(conversation, life.chance.choice(list(MODELS)), batch=batch)


@act(14)
def build(life: Life, conversation: Conversation) -> None:
    """Build; and build whole after a delta, which gives the same."""
    format = life.chance.choice(list(MODELS))
    life.build(conversation, format)
    held = conversation.held.get(format)
    if held is not None and conversation.active and life.chance.random() < 0.4:
        life.build(conversation, format, whole=True)
        now = conversation.held[format]
        if now.epoch == held.epoch:
            life.tally["deltas compared"] += 1
            life.equal(now.items, held.items, "the items of a delta on what was held")
            life.equal(now.rest, held.rest, "the rest of a payload inside an epoch")


@act(5)
def transcript(life: Life, conversation: Conversation) -> None:
    """Read the whole log, forwards or backwards."""
    order = life.chance.choice(("asc", "desc"))
    content = life.chance.choice(("", "", "&content=full"))
    read = life.pages(f"{path(conversation)}/messages?order={order}{content}")
    read = read if order == "asc" else read[::-1]
    seqs = [message["seq"] for message in read]
    life.equal(seqs, list(range(1, conversation.head + 1)), "the seqs of a log")
    for entry, shown in zip(conversation.entries, read, strict=True):
        where = f"seq {shown['seq']} of {conversation.id}"
        life.equal(shown["id"], entry.id, f"the id of {where}")
        wrong = entry.difference(shown, is_whole=bool(content))
        life.check(wrong is None, f"{where}: {wrong}")
        life.equal(
            shown["pinned"], shown["seq"] in conversation.pinned, f"whether {where} is pinned"
        )
        is_outside = shown["visibility"]["state"] == "outside"
        if not conversation.slides(shown["seq"]):
            is_active = shown["seq"] in conversation.active
            life.equal(is_outside, not is_active, f"whether {where} is outside")
    life.tally["messages read back"] += len(read)


@act(3)
def search(life: Life, conversation: Conversation) -> None:
    """Search for the mark of a message: it is found, unless it is gone."""
    if not conversation.entries:
        return
    entry = life.chance.choice(conversation.entries)
    found = life.pages(f"{path(conversation)}/messages?q={entry.mark}&content=view")
    expected = [] if entry.is_redacted else [entry.id]
    life.equal([message["id"] for message in found], expected, f"the hits for {entry.mark}")
    hits = life.pages(f"/v1/search?q={entry.mark}")
    here = {hit["id"] for hit in hits if hit["conversation_id"] == conversation.id}
    life.equal(here, set(expected), f"the hits for {entry.mark} in all conversations")


@act(6)
def read_result(life: Life, conversation: Conversation) -> None:
    """Read a large result whole, in slices, and by a search."""
    large = [
        (seq, entry)
        for seq, entry in enumerate(conversation.entries, 1)
        if entry.role == "tool" and not entry.is_redacted and len(entry.text or "") > OFFLOADED
    ]
    if not large:
        return
    seq, entry = life.chance.choice(large)
    data = (entry.text or "").encode("utf-8", "surrogatepass")
    shown = life.get(f"{path(conversation)}/messages/{quote(entry.id)}")
    life.check(shown.ok, "a message", shown)
    blob = f"{path(conversation)}/blobs/{shown.body['output_ref']['id']}"
    whole = life.get(f"{blob}/content", is_stream=True)
    life.check(whole.ok and whole.raw == data, f"the result at seq {seq}, byte for byte")
    start = life.chance.randrange(len(data))
    part = life.get(f"{blob}/bytes?offset={start}&limit=1000")
    life.equal(part.body["text"], data[start : start + 1000].decode(), "a slice of a result")
    lines = life.get(f"{blob}/lines?offset=2&limit=2")
    numbered = [f"{at:6}\t{line}" for at, line in enumerate((entry.text or "").split("\n")[:-1], 1)]
    life.equal(lines.body["text"].rstrip("\n"), "\n".join(numbered[2:4]), "two lines of a result")
    found = life.get(f"{blob}/grep?pattern={entry.mark}%20149%20&limit=5")
    count = len(re.findall(f"^{entry.mark} 149 ".encode(), data, re.MULTILINE))
    life.check(len(found.body["matches"]) == count, f"{count} matches", found)


@act(4)
def pin(life: Life, conversation: Conversation) -> None:
    """Pin a message with its group, or its turn; or unpin one."""
    if not conversation.entries:
        return
    seq = life.chance.randint(1, conversation.head)
    is_off = bool(conversation.pinned) and life.chance.random() < 0.4
    if is_off:
        seq = life.chance.choice(sorted(conversation.pinned))
    scope = "?scope=turn" if life.chance.random() < 0.2 else ""
    where = f"{path(conversation)}/messages/{quote(conversation.entry(seq).id)}/pin{scope}"
    answer = life.send("DELETE" if is_off else "PUT", where)
    if answer.code == "VALIDATION_ERROR" and not is_off:
        return  # pins would take too much of the window
    life.check(answer.ok, "a pin", answer)
    seqs = set(answer.body["seqs"])
    life.check(seq in seqs, f"seq {seq} is among the pinned", answer)
    conversation.pinned = conversation.pinned - seqs if is_off else conversation.pinned | seqs


@act(3)
def fork(life: Life, conversation: Conversation) -> None:
    """Fork at any seq; the fork has the source's messages up to there."""
    if len(life.conversations) >= CONVERSATIONS or not conversation.entries:
        return
    at = life.chance.choice((conversation.head, life.chance.randint(1, conversation.head)))
    id = life.name("f")
    body = {"at_seq": at, "conversation_id": id}
    answer = life.post(f"{path(conversation)}/fork", body)
    life.check(answer.status == 201, "a fork", answer)
    life.equal(answer.body["head_seq"], at, "the head of a fork")
    made = conversation.fork(id, at)
    life.conversations.append(made)
    transcript(life, made)


@act(3)
def snapshot(life: Life, conversation: Conversation) -> None:
    """Save the window; what is saved are its messages."""
    answer = life.send("POST", f"{path(conversation)}/snapshots", {"description": "torture"})
    if not conversation.active:
        life.check(answer.code == "VALIDATION_ERROR", "an empty window is not saved", answer)
        return
    life.check(answer.status == 201, "a snapshot", answer)
    seqs = sorted(conversation.active)
    life.equal(answer.body["message_count"], len(seqs), "the messages of a snapshot")
    saved = Snapshot(answer.body["session_id"], conversation, seqs)
    life.snapshots.append(saved)
    _read_snapshot(life, saved)


def _read_snapshot(life: Life, saved: Snapshot) -> None:
    query = life.chance.choice(("", "?download=true"))
    answer = life.get(f"/v1/snapshots/{saved.id}{query}", is_stream=True)
    life.check(answer.ok, "a snapshot", answer)
    messages = answer.body["messages"]
    life.equal([message["seq"] for message in messages], saved.seqs, "the seqs of a snapshot")
    for message in messages:
        entry = saved.source.entry(message["seq"])
        wrong = entry.difference(message, is_whole=bool(query))
        life.check(wrong is None, f"seq {message['seq']} of a snapshot: {wrong}")


@act(4)
def restore(life: Life, conversation: Conversation) -> None:
    """Restore a snapshot into its source, now and then after a clear; twice adds nothing."""
    if not life.snapshots:
        return
    saved = life.chance.choice(life.snapshots)
    if life.chance.random() < 0.5:
        clear(life, saved.source)
    _read_snapshot(life, saved)
    active, saved.source.is_moved = saved.source.active, True
    for _ in range(life.chance.choice((1, 2))):
        answer = life.send("POST", f"/v1/snapshots/{saved.id}/restore", {})
        life.check(answer.ok, "a restore", answer)
        counts = (answer.body["restored"], answer.body["skipped"])
        life.equal(sum(counts), len(saved.seqs), "the messages of a restore")
        if not answer.resent:
            new = len(set(saved.seqs) - active)
            life.equal(counts, (new, len(saved.seqs) - new), "restored and skipped messages")
        active |= set(saved.seqs)


@act(1)
def restore_elsewhere(life: Life, conversation: Conversation) -> None:
    """Restore a snapshot into a new conversation, which has copies of its messages."""
    if not life.snapshots or len(life.conversations) >= CONVERSATIONS:
        return
    saved = life.chance.choice(life.snapshots)
    create(life)
    target = life.conversations[-1]
    body = {"conversation_id": target.id}
    for _ in range(life.chance.choice((1, 2))):
        answer = life.send("POST", f"/v1/snapshots/{saved.id}/restore", body)
        life.check(answer.ok, "a restore elsewhere", answer)
    read = life.pages(f"{path(target)}/messages?content=full")
    life.equal(len(read), len(saved.seqs), "the copies of a snapshot")
    for seq, shown in zip(saved.seqs, read, strict=True):
        source = saved.source.entry(seq)
        life.equal(shown["restored_from"]["message_id"], source.id, "where a copy is from")
        if not source.is_redacted:
            content = source.body.get("content")
            life.equal(shown.get("content"), content, f"the content of the copy of {seq}")
        kept = ("id", "role", "content", "tool_calls", "tool_call_id")
        fields = {name: shown[name] for name in kept if name in shown}
        copy = Entry(fields, source.mark, source.is_redacted)
        target.add(copy)


@act(1)
def clear(life: Life, conversation: Conversation) -> None:
    """Empty the window."""
    answer = life.send("POST", f"{path(conversation)}/clear")
    life.check(answer.ok, "a clear", answer)
    life.equal(answer.body["head_seq"], conversation.head, "the seq of a clear")
    conversation.active.clear()
    conversation.is_moved = True


@act(2)
def redact(life: Life, conversation: Conversation) -> None:
    """Delete the content of a message for good."""
    if not conversation.entries:
        return
    entry = life.chance.choice(conversation.entries)
    answer = life.send("POST", f"{path(conversation)}/messages/{quote(entry.id)}/redact", {})
    life.check(answer.ok, "a redaction", answer)
    entry.is_redacted = True
    for other in life.conversations:
        if entry in other.entries:
            other.builds.clear()
    _forget(life, [entry])


@act(1)
def delete(life: Life, conversation: Conversation) -> None:
    """Delete a conversation; its forks live on, its part of snapshots does not."""
    if len(life.conversations) < 2:
        return
    answer = life.send("DELETE", path(conversation))
    gone = answer.resent and answer.status == 404
    life.check(answer.ok or gone, "a deletion", answer)
    life.conversations.remove(conversation)
    life.deleted.append(conversation)
    life.snapshots = [saved for saved in life.snapshots if saved.source is not conversation]
    _forget(life, conversation.entries)


def _forget(life: Life, entries: Iterable[Entry]) -> None:
    """Let no answer have the marks of messages that stand nowhere any more."""
    kept = {
        entry.mark
        for other in life.conversations
        for entry in other.entries
        if not entry.is_redacted
    }
    life.wire.gone |= {entry.mark for entry in entries} - kept


@act(5)
def compact(life: Life, conversation: Conversation) -> None:
    """Compact now, or by a job; the model may fail, then nothing has changed."""
    if life.chance.random() < 0.3:
        answer = life.send("POST", f"{path(conversation)}/compact?wait=false", {})
        life.check(answer.status == 202, "a job", answer)
        conversation.jobs.append(answer.body["job_id"])
        return
    answer = life.send("POST", f"{path(conversation)}/compact", {}, may_be_unavailable=True)
    if answer.status == 503:
        life.tally["compactions without a model"] += 1
        return
    if not conversation.active:
        return
    life.check(answer.ok, "a compaction", answer)
    made = answer.body
    life.tally["compactions asked for"] += made["compacted"]
    if made["compacted"]:
        life.check(made["compaction_id"] is not None, "a compaction has a receipt", answer)


@act(4)
def receipts(life: Life, conversation: Conversation) -> None:
    """Expand a receipt: the messages that it hides are those of the log."""
    made = life.pages(f"{path(conversation)}/compactions")
    life.equal(
        sum(receipt["status"] == "active" for receipt in made) <= 1, True, "one active receipt"
    )
    for receipt in made[:2]:
        where = f"{path(conversation)}/compactions/{receipt['compaction_id']}/messages"
        read = life.pages(where)
        hidden = {*range(*receipt["hidden_range"])} if receipt["hidden_range"] else set()
        seqs = [message["seq"] for message in read]
        life.check(seqs == sorted({*seqs} & hidden), f"what a receipt hides: {seqs}")
        if not conversation.is_moved:  # else it has what was in the window then
            life.equal({*seqs}, hidden, "all that a receipt hides")
        for message in read:
            wrong = conversation.entry(message["seq"]).difference(message)
            life.check(wrong is None, f"seq {message['seq']} of a receipt: {wrong}")
        life.tally["receipts expanded"] += 1


@act(1)
def undo(life: Life, conversation: Conversation) -> None:
    """Undo the newest compaction."""
    made = life.pages(f"{path(conversation)}/compactions")
    active = [receipt for receipt in made if receipt["status"] == "active"]
    if not active:
        return
    where = f"{path(conversation)}/compactions/{active[0]['compaction_id']}"
    answer = life.send("POST", f"{where}/undo")
    # A worker may have compacted meanwhile, and a try without an answer may have undone it.
    life.check(answer.ok or answer.code == "CONFLICT", "an undo", answer)
    if answer.ok:
        life.equal(answer.body["status"], "undone", "the status of what was undone")


@act(6)
def report(life: Life, conversation: Conversation) -> None:
    """Report the usage of a call; totals have it once."""
    chance = life.chance
    given, cached, out = chance.randint(100, 3000), chance.randint(0, 100), chance.randint(1, 500)
    usage = {
        "prompt_tokens": given,
        "completion_tokens": out,
        "total_tokens": given + out,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    body: dict[str, Any] = {"usage": usage}
    if conversation.held and chance.random() < 0.7:
        body["build_id"] = chance.choice(sorted(conversation.held.items()))[1].build_id
    answer = life.post(f"{path(conversation)}/usage", body, compares=False)
    life.check(answer.ok, "a report", answer)
    conversation.usage += Counter(
        calls=1,
        input_tokens=given - cached,
        output_tokens=out,
        cache_read_tokens=cached,
        total_tokens=given + out,
    )


@act(2)
def totals(life: Life, conversation: Conversation) -> None:
    """The totals are the sum of what was reported."""
    answer = life.get(f"{path(conversation)}/usage")
    life.check(answer.ok, "usage totals", answer)
    told = answer.body["totals"]["reported"]
    names = ("calls", "input_tokens", "output_tokens", "cache_read_tokens", "total_tokens")
    life.equal(
        {name: told[name] for name in names},
        {name: conversation.usage[name] for name in names},
        f"the usage of {conversation.id}",
    )


@act(3)
def race(life: Life, conversation: Conversation) -> None:
    """Two writers append at once: both are stored, or with the same expected seq one is."""
    pair = [life.message("user"), life.message("user")]
    is_strict = life.chance.random() < 0.5
    chances = [Random(life.chance.random()) for _ in pair]
    keys = [life.name("key") for _ in pair]

    def write(place: int) -> Answer:
        body: dict[str, Any] = {"messages": [pair[place].body]}
        if is_strict:
            body["expected_seq"] = conversation.head
        around = life.surroundings
        wire = Wire(around.urls, around.outages, tallies[place], around.tamper)
        with closing(wire):
            where = f"{path(conversation)}/messages"
            return wire.send(chances[place], "POST", where, body, key=keys[place])

    tallies = [Counter[str](), Counter[str]()]
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(write, range(2)))
    for tally in tallies:
        life.tally.update(tally)
    won = [place for place, answer in enumerate(answers) if answer.ok]
    for answer in answers:
        fine = answer.ok or (is_strict and answer.code == "CONFLICT")
        life.check(fine, "a writer of two", answer)
    life.equal(len(won), 1 if is_strict else 2, "the writers that were stored")
    won.sort(key=lambda place: answers[place].body["messages"][0]["seq"])
    for place in won:
        body = answers[place].body
        conversation.add(pair[place])
        life.equal(body["messages"][0]["seq"], conversation.head, "the seq of a writer of two")


@act(3)
def refused(life: Life, conversation: Conversation) -> None:
    """What must be refused is, and stores nothing."""
    where = f"{path(conversation)}/messages"
    kind = life.chance.choice(("orphan", "seq", "id", "system"))
    entry, body = life.message("user"), dict[str, Any]()
    code = "CONFLICT"
    if kind == "orphan":
        entry, code = life.result(life.name("call")), "UNPAIRED_TOOL_RESULT"
        body["messages"] = [life.message("user").body, entry.body]
    elif kind == "seq":
        body = {"messages": [entry.body], "expected_seq": conversation.head + 1}
    elif kind == "id" and conversation.entries:
        taken = life.chance.choice(conversation.entries).id
        body["messages"] = [{**entry.body, "id": taken}]
    else:
        code = "VALIDATION_ERROR"
        body["messages"] = [entry.body, {"role": "system", "content": "no"}]
    answer = life.send("POST", where, body)
    life.check(answer.code == code, f"a refusal ({kind})", answer)
    if kind == "seq":
        life.equal(answer.body["head_seq"], conversation.head, "the head in a conflict")


@act(2)
def export(life: Life, conversation: Conversation) -> None:
    """Export, and now and then import as another conversation, which has the same log."""
    answer = life.get(f"{path(conversation)}/export", is_stream=True)
    lines = [json.loads(line) for line in answer.raw.splitlines()]
    life.check(answer.ok and lines[-1].get("type") == "end", "an export is complete")
    marks = set(MARK.findall(answer.raw.decode()))
    for entry in conversation.entries:
        if not entry.is_redacted and len(entry.text or "") <= OFFLOADED:
            life.check(entry.mark in marks, f"{entry.mark} is in the export")
    if life.chance.random() < 0.5 or len(life.conversations) >= CONVERSATIONS:
        return
    made = life.wire.send(
        life.chance, "POST", "/v1/conversations/import", key=life.name("key"), raw=answer.raw
    )
    life.check(made.status == 201, "an import", made)
    imported = conversation.imported(made.body["conversation_id"])
    life.conversations.append(imported)
    transcript(life, imported)


@act(2)
def as_of(life: Life, conversation: Conversation) -> None:
    """Read the payload of an earlier build again: it has the same bytes."""
    if not conversation.builds:
        return
    build_id, payload = life.chance.choice(conversation.builds)
    answer = life.get(f"{path(conversation)}/context?as_of={quote(build_id)}")
    life.check(answer.ok, "an earlier build", answer)
    digests = [sha256(json.dumps(one).encode()) for one in (answer.body["payload"], payload)]
    life.equal(*(digest.hexdigest() for digest in digests), "the payload of an earlier build")
