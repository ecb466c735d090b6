"""The scenarios of a recording: always the same requests.

1. A scenario has conversations, agents and models of its own, under ids made from its name. So none
   depends on another, nor on the order in which they run.
2. Each build gives its `status`. The one that the service makes by itself holds the time.
3. Most scenarios run without a worker. Those of `background` wait for the end of each job.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from benchmarks.recorded_builds.chat import (
    ITEMS,
    MODELS,
    PROVIDERS,
    SUMMARISER,
    Chat,
    Scenario,
    Trace,
    policy,
    settings,
)
from benchmarks.recorded_builds.recorder import Recorder

REDUCING = ("sandwich", "retain_summary", "tree_summary", "chain")
STRATEGIES = (*REDUCING, "sliding_window", "full_history")
LONG = 60
"""Messages from which on a conversation runs under three strategies."""
JOB_SECONDS = 12
_TOO_LONG = {"error": {"code": "context_length_exceeded", "message": "The prompt is too long."}}


def grow(trace: Trace, strategy: str, window: int, recorder: Recorder, **leaves: Any) -> None:
    """Append step by step; after each build two formats and a delta, in the end all."""
    chat = Chat.create(recorder, **settings(trace, policy=policy(window, strategy, **leaves)))
    for step, batch in enumerate(trace.batches()):
        chat.append(batch)
        chat.delta(PROVIDERS[step % len(PROVIDERS)])
        chat.build(PROVIDERS[step % len(PROVIDERS)])
        chat.build(PROVIDERS[(step + 1) % len(PROVIDERS)])
    chat.build_all()
    chat.look()


def summarised(trace: Trace, recorder: Recorder) -> None:
    """Grow with summaries of a model, under directives of the policy's own."""
    strategy = REDUCING[len(trace.messages) % len(REDUCING)]
    own = {
        "model": SUMMARISER,
        "retain_directives": ["Keep paths."],
        "summary_directives": ["Short."],
    }
    leaves = {"summary_role": "system", "preserve_user_messages": len(trace.messages) % 3 == 0}
    grow(trace, strategy, 8_000, recorder, compaction=own, **leaves)


def other_formats(trace: Trace, recorder: Recorder) -> None:
    """Append what was built in one format to a conversation of that format."""
    whole = policy(1_000_000, "full_history", tool_output={"enabled": False})
    source = Chat.create(recorder, **settings(trace, policy=whole))
    source.append(trace.messages)
    source.build_all()
    for format in PROVIDERS[1:]:
        made = source.last.get(format, {"payload": {}})["payload"].get(ITEMS[format], [])
        chat = Chat.create(recorder, format, **settings(trace, policy=policy(16_000)))
        for start in range(0, len(made), 40):
            chat.append(made[start : start + 40], format)
            chat.build(format)
        chat.build_all()
        chat.delta(format)


def tool_output(trace: Trace, recorder: Recorder) -> None:
    """Keep results outside, clear old ones, and read them in every way."""
    own = {"offload_threshold_bytes": 1024, "max_message_bytes": 3000, "max_line_length": 200}
    own |= {"context_budget_tokens": 1500, "clear_at_least": 300}
    for view in ("truncate", "reference"):
        leaves: dict[str, Any] = {"tool_output": {**own, "view": view}}
        chat = Chat.create(recorder, view, **settings(trace, policy=policy(64_000, **leaves)))
        for step, batch in enumerate(trace.batches(6)):
            chat.append(batch)
            chat.build(PROVIDERS[step % len(PROVIDERS)])
            chat.build(PROVIDERS[(step + 1) % len(PROVIDERS)])
        chat.build_all()
        refs = [stored["output_ref"]["id"] for stored in chat.appended if stored["output_ref"]]
        for ref in refs[:3]:
            for part in ("", "/content", "/lines?limit=5", "/bytes?limit=300", "/grep?pattern=e.r"):
                chat.send("GET", f"/blobs/{ref}{part}", label=f"blob {part}")
            for name in ("tool_output_cache", "tool_output_cache_grep", "read_result"):
                called(chat, name, f'{{"ref_id": "{ref}", "pattern": "the", "limit": 5}}')
        chat.send("GET", "/blobs")
        chat.send("POST", "/blobs/collect", {"dry_run": True})
        chat.send("POST", "/blobs?tool_name=upload", b"first line\nsecond line\n" * 400, "upload")
        chat.look()


def called(chat: Chat, name: str, arguments: str) -> None:
    """Have a call of agent tools answered."""
    function = {"name": name, "arguments": arguments}
    call = {"id": f"call_{name}", "type": "function", "function": function}
    chat.send("POST", "/tool-calls", {"tool_call": call}, f"call {name}")


def overflow(trace: Trace, recorder: Recorder) -> None:
    """Recover from refusals of a provider, again and again."""
    chat = Chat.create(
        recorder, **settings(trace, policy=policy(48_000, compaction={"auto": False}))
    )
    chat.append(trace.messages)
    chat.build_all()
    for format in (*PROVIDERS, *PROVIDERS):
        asked = {"format": format, "model": MODELS[format], "status": "", "error": _TOO_LONG}
        chat.send("POST", "/overflow", asked, f"overflow build {format}")
    chat.build_all(context_window=12_000)
    chat.look()
    if found := chat.compactions():
        chat.send("POST", f"/compactions/{found[0]['compaction_id']}/undo", label="undo")
    chat.build_all()


def pins(trace: Trace, recorder: Recorder) -> None:
    """Pin, compact by force under each strategy, undo, unpin."""
    strategy = REDUCING[len(trace.messages) % len(REDUCING)]
    chat = Chat.create(recorder, **settings(trace, policy=policy(24_000, strategy)))
    *first, last = trace.batches(4)
    for batch in first:
        chat.append(batch)
    middle = chat.appended[len(chat.appended) // 2 :] if chat.appended else []
    for scope, stored in zip(("message", "turn", "turn"), middle, strict=False):
        chat.send("PUT", f"/messages/{stored['id']}/pin?scope={scope}", label="pin")
    for name in REDUCING:
        asked = {"strategy": name, "target_tokens": 2000, "instructions": "Keep the names."}
        chat.send("POST", "/compact", {**asked, "dry_run": True}, "dry run")
        chat.send("POST", "/compact", {**asked, "model": SUMMARISER}, f"compact {name}")
        chat.build_all()
    for receipt in chat.compactions()[:2]:
        chat.send("POST", f"/compactions/{receipt['compaction_id']}/undo", label="undo")
        chat.build_all()
    for stored in middle[:1]:
        chat.send("DELETE", f"/messages/{stored['id']}/pin?scope=turn", label="unpin")
    chat.append(last)
    chat.send("POST", "/compact", label="compact")
    chat.build_all()
    chat.look()


def snapshots(trace: Trace, recorder: Recorder) -> None:
    """Save, clear, restore, import and fork the conversations of an agent."""
    agent = str(uuid5(NAMESPACE_URL, recorder.name))
    made = settings(
        trace, policy=policy(16_000), agent_id=agent, name="A", rolling_window_seconds=None
    )
    recorder.send("POST", "/v1/agents", made, "create agent")
    chat, other = (Chat.create(recorder, key, agent_id=agent) for key in ("own", "other"))
    half = len(trace.messages) // 2
    chat.append(trace.messages[:half])
    chat.build_all()
    saved = chat.send("POST", "/snapshots", {"description": "half"}, "save") or {}
    session = f"/v1/snapshots/{saved.get('snapshot_id')}"
    file = recorder.send("GET", f"{session}?download=true", label="download")
    chat.append(trace.messages[half:])
    chat.build_all()
    chat.send("POST", "/clear")
    chat.append([{"role": "user", "content": "What comes next?"}])
    chat.build_all()
    other.append([{"role": "user", "content": "Where were we?"}])
    for target in (chat, other):
        recorder.send("POST", f"{session}/restore", {"conversation_id": target.key}, "restore")
        target.build_all()
    file = {**(file or {}), "snapshot_id": str(uuid5(NAMESPACE_URL, f"{recorder.name} import"))}
    recorder.send("POST", "/v1/snapshots", file, "import")
    recorder.send("POST", f"/v1/snapshots/{file['snapshot_id']}/restore", {}, "restore import")
    for at_seq in (1, half or 1, None):
        fork = str(uuid5(NAMESPACE_URL, f"{recorder.name} fork {at_seq}"))
        chat.send("POST", "/fork", {"conversation_id": fork, "through_seq": at_seq}, "fork")
        forked = Chat(recorder, f"/v1/conversations/{fork}", fork)
        forked.build_all()
        forked.look()
    recorder.send("GET", f"/v1/snapshots?agent_id={agent}", label="snapshots")


def tool(number: int) -> dict[str, Any]:
    """Return the definition of one of many tools."""
    noun = ("invoice", "flight", "photo", "meeting", "recipe", "server")[number % 6]
    verb = ("find", "create", "delete", "share", "compare")[number % 5]
    properties = {noun: {"type": "string", "description": f"Id of the {noun} to {verb}."}}
    parameters = {"type": "object", "properties": properties, "required": [noun]}
    about = f"Use it to {verb} a {noun} of account {number}. " * 3
    function = {"name": f"{verb}_{noun}_{number}", "description": about, "parameters": parameters}
    return {"type": "function", "function": function}


def assembled(trace: Trace, recorder: Recorder) -> None:
    """Put prompts together from an agent, a conversation and each request."""
    agent = str(uuid5(NAMESPACE_URL, recorder.name))
    kinds = ("base", "rules", "memories", "docs", "skill", "scratchpad", "status")
    sections = [{"name": kind, "kind": kind, "content": f"The {kind}. " * 20} for kind in kinds]
    body = {"agent_id": agent, "name": "A", "sections": sections, "rolling_window_seconds": None}
    body["tools"] = [tool(number) for number in range(60)]
    recorder.send("POST", "/v1/agents", body, "create agent")
    for position in ("tail", "system", "before_window"):
        leaves: dict[str, Any] = {"tool_deferral_threshold": 0.05, "dynamic_position": position}
        own = settings(trace, agent_id=agent, policy=policy(24_000, **leaves))
        chat = Chat.create(recorder, position, **own)
        batches = list(trace.batches(5))
        chat.append(batches[0])
        chat.build_all()
        for format in PROVIDERS:
            asked = {"query": "compare a flight", "limit": 3, "format": format}
            chat.send("POST", "/tools/search", asked, f"search {format}")
        called(chat, "tool_search", '{"query": "delete photo"}')
        chat.build_all()
        extra = {"name": "scratchpad", "kind": "scratchpad", "content": "Seen: 3 of 7."}
        chat.build_all(
            sections=[extra], tools=[tool(99)], status="All is well.", max_output_tokens=500
        )
        for batch in batches[1:]:
            chat.append(batch)
            chat.build_all()
        changed = [*trace.sections, {"name": "rules", "content": "New rules.", "cacheable": True}]
        chat.send("PATCH", "", {"sections": changed}, "put sections")
        chat.build_all()
        chat.send("PATCH", "", {"tools": [tool(n) for n in range(70, 75)]}, "put tools")
        chat.build_all()
        chat.send("PATCH", "", {"policy": {"agent_tools": ["recall"], "summary_role": "user"}})
        called(chat, "recall", '{"query": "error in the file"}')
        chat.build_all()


def oversized(trace: Trace, recorder: Recorder) -> None:
    """Build with texts that are larger than the window."""
    text = "\n".join(str(message.get("content")) for message in trace.messages)
    text = (text + "\n") * (60_000 // max(1, len(text)) + 1)
    messages: list[dict[str, Any]] = [
        *trace.messages[:8],
        {"role": "user", "content": text[:60_000]},
    ]
    for strategy in ("sandwich", "full_history"):
        for offloads in (True, False):
            leaves = {"messages": {"offload_oversized": offloads}}
            own = settings(trace, policy=policy(12_000, strategy, **leaves))
            chat = Chat.create(recorder, f"{strategy} {offloads}", **own)
            chat.append(messages)
            chat.build_all()
            chat.append(
                [{"role": "assistant", "content": "Read."}, {"role": "user", "content": "And?"}]
            )
            chat.build_all()
            chat.look()


def stateless(trace: Trace, recorder: Recorder) -> None:
    """Build, compress and count without stored state."""
    asked: dict[str, Any] = {"context_window": 4_000, "preserve_top": 2, "preserve_bottom": 3}
    state = None
    for end in range(10, len(trace.messages) + 10, 10):
        body = {**asked, "messages": trace.messages[:end]}
        recorder.send("POST", "/v1/context/needs-compression", body)
        built = recorder.send(
            "POST", "/v1/context/build", {**body, "cached_state": state}, "stateless build"
        )
        state = (built or {}).get("new_state") or state
    for model in ("extractive", SUMMARISER):
        body = {"messages": trace.messages[:40], "model": model}
        recorder.send("POST", "/v1/context/compress", body, "compress")
    for counter in ("tokenizer", "bytes_4", "chars_4", "chars_2_5"):
        body = {"messages": trace.messages[:40], "tools": trace.tools, "counter": counter}
        recorder.send("POST", "/v1/tokens/count", body, "count")


def usage(trace: Trace, recorder: Recorder) -> None:
    """Build for a model whose provider reports more tokens than were counted."""
    model = f"own-{uuid5(NAMESPACE_URL, recorder.name)}"
    entry = {"context_window": 64_000, "max_output_tokens": 4_096}
    recorder.send("PUT", f"/v1/models/{model}", entry, "put model")
    chat = Chat.create(recorder, **settings(trace, policy=policy(24_000)))
    for batch in trace.batches(6):
        chat.append(batch)
        built = chat.build("openai_chat", model=model)
        reported = {
            "prompt_tokens": int(built.get("tokens_used", 0) * 1.3),
            "completion_tokens": 50,
        }
        body = {"usage": reported, "model": model, "build_id": built.get("build_id")}
        chat.send("POST", "/usage", body, "usage")
        chat.build("openai_chat", model=model)
    chat.look()


SPECIAL = (
    summarised,
    other_formats,
    tool_output,
    overflow,
    pins,
    snapshots,
    assembled,
    oversized,
    stateless,
    usage,
)


def foreground(traces: Sequence[Trace]) -> list[Scenario]:
    """Return the scenarios that need no worker."""
    found = []
    windows = cycle((8_000, 32_000, 4_000, 128_000))
    for number, (trace, window) in enumerate(zip(traces, windows, strict=False)):
        for more in range(3 if len(trace.messages) >= LONG else 1):
            strategy = STRATEGIES[(number + 2 * more) % len(STRATEGIES)]
            name = f"{strategy}-{window}/{trace.name}"
            found.append(Scenario(name, partial(grow, trace, strategy, window)))
    eventful = [trace for trace in traces if len(trace.messages) >= 8]
    for special, trace in zip(cycle(SPECIAL), eventful, strict=False):
        found.append(Scenario(f"{special.__name__}/{trace.name}", partial(special, trace)))
    return found


def background(traces: Sequence[Trace]) -> list[Scenario]:
    """Return the scenarios in which jobs compact: one for each strategy that does."""
    longest = sorted(traces, key=lambda trace: len(trace.messages), reverse=True)
    return [
        Scenario(f"background-{strategy}/{trace.name}", partial(jobs, trace, strategy))
        for trace, strategy in zip(longest, REDUCING, strict=False)
    ]


def jobs(trace: Trace, strategy: str, recorder: Recorder) -> None:
    """Compact by jobs, those that messages and builds make due and those that are asked for."""
    own = policy(16_000, strategy, compaction={"mode": "background"})
    chat = Chat.create(recorder, **settings(trace, policy=own))
    worker = Worker(chat)
    for batch in trace.batches(8):
        worker.wait(chat.append(batch))
        for format in PROVIDERS:
            worker.wait(chat.build(format))
    job = chat.send("POST", "/compact?wait=false", {"target_tokens": 3000}, "start job") or {}
    path = f"/v1/jobs/{job.get('job_id')}"
    _wait_until(
        lambda: json.loads(recorder.ask("GET", path)[1]).get("status") in ("done", "failed")
    )
    recorder.send("GET", path, label="job")
    chat.build_all()
    chat.look()


class Worker:
    """Tells from a conversation's events when the worker has done its work."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._from = self._events().partition("id: ")[2].split()[0]
        self._ended = 0
        self._is_idle = False

    def wait(self, answer: Any) -> None:
        """Wait for the compaction that an answer's pressure makes due.

        One may end without a trace. The worker then leaves the conversation as it is.
        """
        is_due = (answer or {}).get("pressure") not in (None, "ok")
        if is_due and not self._is_idle:
            self._is_idle = not _wait_until(lambda: self._count() > self._ended)
        ended = self._count()
        if ended > self._ended:
            self._ended, self._is_idle = ended, False

    def _count(self) -> int:
        text = self._events(f"&last_event_id={self._from}")
        return len(re.findall("event: (?:compacted|failed)", text))

    def _events(self, more: str = "") -> str:
        return self._chat.recorder.ask("GET", f"{self._chat.path}/events?follow=false{more}")[1]


def _wait_until(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + JOB_SECONDS
    while not (held := holds()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return held
