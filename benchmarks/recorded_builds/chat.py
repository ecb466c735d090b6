"""A conversation that is driven over HTTP, and the recorded one that it follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from benchmarks.recorded_builds.recorder import Recorder

SUMMARISER = "openai/summariser"
MODELS = {
    "openai_chat": "gpt-4.1",
    "anthropic": "claude-sonnet-4-5",
    "openai_responses": "gpt-5.4",
    "gemini": "gemini-2.5-pro",
    "gemini_interactions": "gemini-2.5-pro",
}
ITEMS = {
    "openai_chat": "messages",
    "anthropic": "messages",
    "openai_responses": "input",
    "gemini": "contents",
    "gemini_interactions": "input",
}
"""Where a payload has its items."""
PROVIDERS = tuple(MODELS)
MAX_MESSAGES = 120
STEPS = 6


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded conversation in the OpenAI chat format, its system messages as sections."""

    name: str
    sections: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    messages: list[dict[str, Any]]

    @classmethod
    def of(cls, name: str, raw: Mapping[str, Any]) -> Trace:
        """Return the conversation of one line of a file, cut to the most messages taken."""
        sections: list[dict[str, Any]] = []
        messages = raw["messages"]
        while messages and messages[0]["role"] in ("system", "developer"):
            content = messages[0]["content"]
            if not isinstance(content, str):
                content = "\n".join(part.get("text", "") for part in content or [])
            sections.append({"name": f"system-{len(sections)}", "content": content})
            messages = messages[1:]
        return cls(name, sections, raw.get("tools") or [], messages[:MAX_MESSAGES])

    def batches(self, steps: int = STEPS) -> Iterator[list[dict[str, Any]]]:
        """Yield the messages in so many batches at most."""
        size = max(4, -(-len(self.messages) // steps))
        for start in range(0, len(self.messages), size):
            yield self.messages[start : start + size]


@dataclass(frozen=True, slots=True)
class Scenario:
    """Requests that depend on each other alone."""

    name: str
    run: Callable[[Recorder], None]


@dataclass(slots=True)
class Chat:
    """A stored conversation; `last` is the newest build of each format."""

    recorder: Recorder
    path: str
    key: str
    last: dict[str, Any] = field(default_factory=dict)
    appended: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def create(cls, recorder: Recorder, key: str = "", **body: Any) -> Chat:
        """Create a conversation under an id made from the scenario's name and a key."""
        cid = str(uuid5(NAMESPACE_URL, f"{recorder.name} {key}"))
        recorder.send("POST", "/v1/conversations", {"conversation_id": cid, **body}, "create")
        return cls(recorder, f"/v1/conversations/{cid}", cid)

    def send(self, method: str, path: str, body: object = None, label: str = "") -> Any:
        """Send a request about this conversation."""
        return self.recorder.send(method, self.path + path, body, label or f"{method} {path}")

    def append(self, messages: Sequence[Mapping[str, Any]], format: str = "openai_chat") -> Any:
        """Append messages, where it can be under ids of their own."""
        count = len(self.appended)
        if format in ("openai_chat", "anthropic"):
            ids = (
                str(uuid5(NAMESPACE_URL, f"{self.key} {count + at}")) for at in range(len(messages))
            )
            messages = [{**message, "id": id} for message, id in zip(messages, ids, strict=True)]
        body = {"messages": messages, "format": format}
        answer = self.send("POST", "/messages", body, f"append {format}")
        self.appended += (answer or {}).get("messages", [])
        return answer

    def build(self, format: str, **body: Any) -> Any:
        """Build a payload, under the format's model unless another is given."""
        asked = {"format": format, "model": MODELS[format], "status": "", **body}
        label = f"build {format}{' delta' if body.get('known') else ''}"
        built = self.send("POST", "/context", asked, label) or {}
        if "payload" in built and "known" not in body:
            self.last[format] = built
        return built

    def build_all(self, **body: Any) -> None:
        """Build a payload in each format."""
        for format in PROVIDERS:
            self.build(format, **body)

    def delta(self, format: str) -> None:
        """Build what is new since the last whole payload of a format."""
        if held := self.last.get(format):
            self.build(format, known={"build_id": held["build_id"]})

    def compactions(self) -> list[dict[str, Any]]:
        """Return the receipts, the newest first."""
        found = self.send("GET", "/compactions") or {}
        return list(found.get("data", []))

    def look(self) -> None:
        """Read all that can be read about it."""
        whole, found = "/messages?limit=1000&content=view", "/messages?query=error"
        for path in ("/state", "/budget", whole, found):
            self.send("GET", path)
        for receipt in self.compactions()[:2]:
            self.send("GET", f"/compactions/{receipt['compaction_id']}/messages", label="expand")
        for format, built in self.last.items():
            self.send("GET", f"/context?as_of={built['build_id']}", label=f"build again {format}")


def policy(window: int, strategy: str = "sandwich", **leaves: Any) -> dict[str, Any]:
    """Return a policy that compacts inside the build; leaves of `compaction` may be given."""
    compaction = {"mode": "inline", "model": "extractive", **leaves.pop("compaction", {})}
    budget = {"context_window": window, "max_output_tokens": 1024}
    return {"strategy": strategy, "budget": budget, "compaction": compaction, **leaves}


def settings(trace: Trace, **body: Any) -> dict[str, Any]:
    """Return the settings of a conversation with the trace's sections and tools."""
    return {"model": "gpt-4.1", "sections": trace.sections, "tools": trace.tools, **body}
