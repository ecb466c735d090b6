"""The operations of a life, and the order in which it does them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from random import Random
from threading import Event
from time import monotonic
from typing import Any
from urllib.parse import quote

from tests.payload_tokens import payload_tokens
from tests.torture.admin import KNOWN_SECONDS
from tests.torture.faults import DATABASE, FREEZE
from tests.torture.life import (
    CONVERSATIONS,
    KEPT_LAST,
    MODELS,
    OFFLOADED,
    OUTPUT_TOKENS,
    STRATEGIES,
    TOOLS,
    WINDOWS,
    Act,
    Life,
    Snapshot,
    path,
)
from tests.torture.log import Conversation, Entry
from tests.torture.wire import MARK, Answer, Wire

ACTS: dict[str, tuple[Act, int]] = {}
"""Each operation with how often it is done."""
_pause = Event()


def act(weight: int) -> Callable[[Act], Act]:
    """Register an operation."""

    def register(done: Act) -> Act:
        ACTS[done.__name__] = (done, weight)
        return done

    return register


def live(life: Life, operations: int, acts: Mapping[str, tuple[Act, int]] = ACTS) -> str | None:
    """Do so many operations, then look at everything; returns what is broken, None if well."""

    def all_of_it() -> None:
        if life.surroundings.admin is not None:
            life.wire.key = life.surroundings.admin.create_key(life.tenant)
        for number in range(operations):
            life.begin(str(number))
            _act(life, number, acts)
        inquest(life)

    return life.broken_by(all_of_it)


def look_again(life: Life) -> str | None:
    """Look at everything once more; returns what is broken, None if all is well."""
    return life.broken_by(lambda: inquest(life))


def inquest(life: Life) -> None:
    """Compare all that can be read with the model."""
    life.begin("inquest")
    revoked_keys(life)
    for conversation in life.conversations:
        life.recent.append(f"inquest of {conversation.id}")
        transcript(life, conversation)
        totals(life, conversation)
        receipts(life, conversation)
        exported(life, conversation)
        for job in conversation.jobs:
            life.check(life.get(f"/v1/jobs/{job}").ok, "a job can be read")
        if conversation.active:
            life.build(conversation, life.chance.choice(list(MODELS)), whole=True)
    for conversation in life.deleted:
        answer = life.get(path(conversation))
        life.check(answer.status == 404, "a deleted conversation is not there", answer)
    for mark in life.chance.sample(sorted(life.wire.gone), min(3, len(life.wire.gone))):
        answer = life.get(f"/v1/search?query={mark}")
        life.check(answer.ok and answer.body["data"] == [], f"{mark} is not found", answer)


def _act(life: Life, number: int, acts: Mapping[str, tuple[Act, int]]) -> None:
    life.surroundings.progress.step()
    life.tally["operations"] += 1
    name = "create"
    if not life.conversations:
        create(life)
    else:
        conversation = life.chance.choice(life.conversations)
        (name,) = life.chance.choices(list(acts), [weight for _, weight in acts.values()])
        life.recent.append(f"{number} {name} {conversation.id} (head {conversation.head})")
        acts[name][0](life, conversation)
    life.tally[f"op {name}"] += 1


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
    agent = _agent(life) if chance.random() < 0.4 else None
    body = {
        "conversation_id": id,
        "agent_id": agent,
        "model": MODELS["openai_chat"],
        "policy": policy,
        "sections": [
            {"name": "base", "kind": "base", "content": sections[0]},
            {"name": "rules", "kind": "rules", "content": sections[1]},
        ],
        "tools": TOOLS,
    }
    answer = life.create("/v1/conversations", body, f"/v1/conversations/{id}")
    life.check(answer.ok, "a conversation is created", answer)
    kept = KEPT_LAST if strategy == "sliding_window" else None
    life.conversations.append(Conversation(id, window, sections, kept, agent))


def _agent(life: Life) -> str:
    """Return the agent of the life, which begins with its first conversation."""
    if life.agent is None:
        life.agent = life.name("a")
        body = {"agent_id": life.agent, "name": "torture"}
        answer = life.create("/v1/agents", body, f"/v1/agents/{life.agent}")
        life.check(answer.ok, "an agent is created", answer)
    return life.agent


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
            life.tally["deltas compared with an agent"] += conversation.agent is not None
            life.equal(now.shown, held.shown, "the items of a delta on what was held")
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
    """Search for the mark of a message: it is found, unless it is gone or not yet indexed."""
    if not conversation.entries:
        return
    entry = life.chance.choice(conversation.entries)
    expected = [] if entry.is_redacted else [entry.id]
    own, everywhere = f"{path(conversation)}/messages?content=view&query=", "/v1/search?query="
    both = ((own, "searched_through_seq", "id"), (everywhere, "indexed_before", "message_id"))
    for where, limit, name in both:
        is_indexed = life.get(f"{where}{entry.mark}").body[limit] is None
        hits = life.pages(f"{where}{entry.mark}")
        here = [hit[name] for hit in hits if hit["conversation_id"] == conversation.id]
        if here or is_indexed:
            life.equal(here, expected, f"the hits for {entry.mark}")


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
    body = {"through_seq": at, "conversation_id": id}
    answer = life.create(f"{path(conversation)}/fork", body, f"/v1/conversations/{id}")
    life.check(answer.ok, "a fork", answer)
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
    saved = Snapshot(answer.body["snapshot_id"], conversation, seqs)
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
        active |= saved.source.with_results(saved.seqs)


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
        source, content = saved.source.entry(seq), saved.source.entry(seq).body.get("content")
        life.equal(shown["restored_from"]["message_id"], source.id, "where a copy is from")
        if saved.source.asked.get(seq, seq) not in saved.seqs:  # its call is not copied
            texts = (f"[result of tool call {source.body['tool_call_id']}]", content)
            content = [{"type": "text", "text": text} for text in texts]
            life.equal(shown["role"], "user", f"the role of the copy of {seq}")
        if not source.is_redacted:
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
    conversation.clear()


@act(3)
def rewind(life: Life, conversation: Conversation) -> None:
    """Take the newest messages out of the window, which no result of their calls comes to."""
    to_seq = max(0, conversation.head - life.chance.choice((0, 1, 1, 2, 2, 3, 5, 8, 99)))
    body = {"to_seq": to_seq, "expected_seq": conversation.head}
    answer = life.send("POST", f"{path(conversation)}/rewind", body)
    life.check(answer.ok, "a rewind", answer)
    left = conversation.rewind(to_seq)
    life.equal(answer.body["to_seq"], left.start - 1, "where a rewind goes to")
    if left.active and not answer.resent:  # else a compaction may have come between two tries
        life.equal(answer.body["message_count"], len(left.active), "the messages that leave")
    for call in sorted(left.calls.keys() - conversation.open_calls.keys()):
        late = {"messages": [life.result(call).body]}
        refused = life.send("POST", f"{path(conversation)}/messages", late)
        life.check(refused.code == "UNPAIRED_TOOL_RESULT", "a result of what left", refused)


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
    _deleted(life, [conversation])


@act(1)
def clear_agent(life: Life, conversation: Conversation) -> None:
    """Empty the windows of all conversations of the agent, no others."""
    if life.agent is None:
        return
    answer = life.send("POST", f"/v1/agents/{life.agent}/clear")
    life.check(answer.ok, "a clear of an agent", answer)
    own = _of_agent(life)
    life.equal(answer.body["conversation_count"], len(own), "the conversations of a clear")
    for one in own:
        one.clear()


@act(1)
def delete_agent(life: Life, conversation: Conversation) -> None:
    """Delete the agent with its conversations, perhaps while it is cleared, or one is used."""
    own = _of_agent(life)
    if life.agent is None or len(own) == len(life.conversations):
        return
    where, chance = f"/v1/agents/{life.agent}", life.chance
    draws = [Random(chance.random()) for _ in range(3)]
    others = [
        lambda wire: wire.send(draws[1], "POST", f"{where}/clear"),
        lambda wire: wire.send(draws[2], "GET", path(own[0]) if own else where),
    ]
    deleted, *answers = life.at_once(
        lambda wire: wire.send(draws[0], "DELETE", where),
        *chance.sample(others, chance.randrange(3)),
    )
    life.surroundings.settle()
    gone = deleted.resent and deleted.status == 404
    life.check(deleted.ok or gone, "a deletion of an agent", deleted)
    for answer in answers:
        life.check(answer.ok or answer.status == 404, "a request beside a deletion", answer)
    life.agent = None
    _deleted(life, own)


def _of_agent(life: Life) -> list[Conversation]:
    return [one for one in life.conversations if one.agent is not None]


def _deleted(life: Life, conversations: list[Conversation]) -> None:
    """Their parts of snapshots are gone with them."""
    life.conversations = [one for one in life.conversations if one not in conversations]
    life.deleted += conversations
    life.snapshots = [saved for saved in life.snapshots if saved.source not in conversations]
    _forget(life, [entry for one in conversations for entry in one.entries])


@act(1)
def change_key(life: Life, conversation: Conversation) -> None:
    """Change the key: the new one works at once, the old one until it is revoked."""
    admin, old = life.surroundings.admin, life.wire.key
    if admin is None or old is None:
        return
    new = life.wire.key = admin.create_key(life.tenant)
    for key in (new, old):
        with life.wire.using(key):
            caller = life.get("/v1/caller")
        life.equal(caller.body.get("tenant_id"), life.tenant, "the tenant of a key")
    admin.revoke_key(old)
    life.revoked.append((old, monotonic() + KNOWN_SECONDS))
    with life.wire.using(admin.create_key(life.tenant, read_only=True)):
        life.check(life.get(path(conversation)).ok, "a read-only key reads")
        answer = life.send("POST", f"{path(conversation)}/clear")
    life.check(answer.code == "FORBIDDEN", "a read-only key changes nothing", answer)


def revoked_keys(life: Life) -> None:
    """A revoked key is refused, once every process can know."""
    outages = life.surroundings.outages
    for key, since in life.revoked:
        now = monotonic()
        # While the database is away, a process keeps what it knows.
        if now < since or outages.met(now - 2 * KNOWN_SECONDS, DATABASE, FREEZE):
            continue
        with life.wire.using(key):
            answer = life.get("/v1/caller")
        life.check(answer.status == 401, "a revoked key is refused", answer)
        life.tally["revoked keys tried"] += 1


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


@act(4)
def undo(life: Life, conversation: Conversation) -> None:
    """Undo the newest compaction or rewind."""
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
    if active[0]["trigger"] == "rewind" and life.get(where).body["status"] == "undone":
        conversation.unrewind(*active[0]["hidden_range"])
        life.tally["rewinds undone"] += 1


@act(6)
def report(life: Life, conversation: Conversation) -> None:
    """Report the usage of calls, as much as their payload has; totals have each once."""
    if not conversation.held:
        return
    _, held = life.chance.choice(sorted(conversation.held.items()))
    texts, out = payload_tokens({**held.rest, "messages": held.items}), life.chance.randint(1, 500)
    # Estimates follow what is reported: what no provider reports would make them wrong.
    given = int(texts * life.chance.uniform(1.02, 1.08)) + 4 * len(held.items)
    cached = life.chance.randint(0, given)
    usage = {
        "prompt_tokens": given,
        "completion_tokens": out,
        "total_tokens": given + out,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    body = {"usage": usage, "build_id": held.build_id}
    where = f"{path(conversation)}/usage"
    many = life.chance.choice((1, 1, 1, 2, 4))
    if many == 1:
        answers = [life.post(where, body, compares=False)]
    else:
        draws = [(Random(life.chance.random()), life.name("key")) for _ in range(many)]
        answers = life.at_once(
            *(
                lambda wire, draw=draw: wire.send(draw[0], "POST", where, body, key=draw[1])
                for draw in draws
            )
        )
    for answer in answers:
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

    def write(wire: Wire, place: int) -> Answer:
        body: dict[str, Any] = {"messages": [pair[place].body]}
        if is_strict:
            body["expected_seq"] = conversation.head
        return wire.send(
            chances[place], "POST", f"{path(conversation)}/messages", body, key=keys[place]
        )

    answers = life.at_once(partial(write, place=0), partial(write, place=1))
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
        body["messages"] = [entry.body, {"role": "oracle", "content": "no"}]
    answer = life.send("POST", where, body)
    life.check(answer.code == code, f"a refusal ({kind})", answer)
    if kind == "seq":
        life.equal(answer.body["head_seq"], conversation.head, "the head in a conflict")


def exported(life: Life, conversation: Conversation) -> bytes:
    """Export; it is complete, and has every message."""
    answer = life.get(f"{path(conversation)}/export", is_stream=True)
    lines = [json.loads(line) for line in answer.raw.splitlines()]
    life.check(answer.ok and lines[-1].get("type") == "end", "an export is complete")
    marks = set(MARK.findall(answer.raw.decode()))
    for entry in conversation.entries:
        if not entry.is_redacted and len(entry.text or "") <= OFFLOADED:
            life.check(entry.mark in marks, f"{entry.mark} is in the export")
    return answer.raw


@act(2)
def export(life: Life, conversation: Conversation) -> None:
    """Export, and now and then import as another conversation, which has the same log."""
    lines = exported(life, conversation)
    if life.chance.random() < 0.5 or len(life.conversations) >= CONVERSATIONS:
        return
    made = life.wire.send(life.chance, "POST", "/v1/conversations/import", raw=lines)
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
    again, first = (json.dumps(one) for one in (answer.body["payload"], payload))
    life.equal(again, first, "the payload of an earlier build")
