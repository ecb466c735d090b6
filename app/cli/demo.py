"""The demo: replays conversations against a running service and prints the result of each.

1. It does what an agent backend does: it appends every message, and builds a payload before each
   answer of the assistant and at the end, in the request that appends the message before it.
2. A system or developer message at the start becomes a section; `tools` become the
   conversation's tools.
3. The window is small, so that short conversations outgrow it and are compacted.
4. A refused request is listed with its reason, and the replay continues. A refused key ends it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import click
import httpx

from app.common import json_text

SAMPLES = Path(__file__).with_name("samples.jsonl")
MODEL = "gpt-4o-mini"
SAMPLE_WINDOW = 5_000
TRACE_WINDOW = 32_000
MAX_OUTPUT_TOKENS = 500
TIMEOUT_SECONDS = 120
LIMITS = httpx.Limits(keepalive_expiry=2.0)
"""A server may close a connection that was idle for longer."""
COLUMNS = (
    "conversation",
    "messages",
    "tokens",
    "builds",
    "largest",
    "compactions",
    "cached",
    "before → after",
)
_LONGEST_NAME = 24


class Unreachable(click.ClickException):
    """The service does not answer; the message says what to do."""


class Unauthorized(click.ClickException):
    """The service requires an API key or rejects it; the message does not contain the key."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer with its JSON body, and how long it took."""

    status: int
    body: Any
    seconds: float

    @property
    def accepted(self) -> bool:
        """Whether the status is a success."""
        return 200 <= self.status < 300

    @property
    def reason(self) -> str:
        """Return the problem of the answer in one line."""
        problem = self.body if isinstance(self.body, dict) else {}
        code, detail = problem.get("code", "no problem code"), problem.get("detail", "")
        return f"{self.status} {code}: {detail}".rstrip(": ")


class Client:
    """A JSON client of the service that keeps its connection open."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url = url.rstrip("/") if "://" in url else f"http://{url.rstrip('/')}"
        if key and not (key.isascii() and key.isprintable()):
            raise Unauthorized("The API key contains a character that no key has.")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            self._http = httpx.Client(
                base_url=self.url,
                headers=headers,
                timeout=TIMEOUT_SECONDS,
                limits=LIMITS,
                trust_env=False,  # a proxy of the environment must not see a local service
            )
        except httpx.InvalidURL as exc:
            raise Unreachable(f"{url} is not an http address.") from exc
        if self._http.base_url.scheme not in ("http", "https") or not self._http.base_url.host:
            raise Unreachable(f"{url} is not an http address.")
        self._has_key = bool(key)

    def send(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send one request and read its answer.

        Raises Unreachable if there is no answer, and Unauthorized if it is 401.
        """
        text = None if body is None else json_text.dumps(body).encode()
        kind = {"Content-Type": "application/json"} if text is not None else {}
        started = perf_counter()
        try:
            response = self._http.request(
                method, path, content=text, headers={**kind, **(headers or {})}
            )
        except httpx.TransportError as exc:
            reason = str(exc) or type(exc).__name__
            raise Unreachable(
                f"No service answers at {self.url} ({reason}): start one with"
                " `context-service serve`, or give its address with --url."
            ) from exc
        seconds = perf_counter() - started
        if response.status_code == httpx.codes.UNAUTHORIZED:
            wish = "requires an API key: give one with --key, or in CONTEXT_API_KEY."
            if self._has_key:
                wish = (
                    "rejects the API key of --key or CONTEXT_API_KEY: it is unknown, revoked or"
                    " expired."
                )
            raise Unauthorized(f"The service at {self.url} {wish}")
        return Answer(response.status_code, _json(response.content), seconds)

    def close(self) -> None:
        """Close the connection."""
        self._http.close()


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded conversation, ready to be replayed."""

    name: str
    sections: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    messages: list[dict[str, Any]]


@dataclass(slots=True)
class Outcome:
    """The result of one conversation."""

    name: str
    conversation_id: str = ""
    messages: int = 0
    tokens: int = 0
    builds: int = 0
    largest: int = 0
    """The tokens of the largest payload."""
    compactions: int = 0
    sent: int = 0
    """The tokens of all payloads."""
    cached: int = 0
    """How many of them the payload before had, so that a provider can have cached them."""
    newest: int = 0
    change: str = ""
    """The tokens of the payload around the last compaction."""
    degraded: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    @property
    def row(self) -> tuple[str, ...]:
        """Its line of the table."""
        name = self.name
        if len(name) > _LONGEST_NAME:
            name = f"{name[: _LONGEST_NAME - 1]}…"
        counts = (self.messages, self.tokens, self.builds, self.largest, self.compactions)
        cached = f"{self.cached / max(1, self.sent):.0%}"
        return (name, *(f"{count:,}" for count in counts), cached, self.change)


def run(traces: Path | None, url: str, key: str | None) -> str:
    """Replay the conversations of a file, or the samples, and print a line for each.

    Returns the address of the page that shows them.

    Raises click.ClickException if the service at `url` does not answer or rejects the key, if a
    line of the file is not a conversation, and, after printing, if a request was refused.
    """
    key = (key or "").strip()  # a variable read from a file often ends in a newline
    conversations = read_traces(traces or SAMPLES)
    if not conversations:
        raise click.ClickException("The file holds no conversation.")
    window = TRACE_WINDOW if traces else SAMPLE_WINDOW
    with closing(Client(url, key or None)) as client:
        client.send("GET", "/v1/agents")  # fails before the progress bar appears
        length = sum(len(trace.messages) for trace in conversations)
        with click.progressbar(length=length, label="Replaying", file=sys.stderr) as bar:
            outcomes = [
                replay(client, trace, window, lambda: bar.update(1)) for trace in conversations
            ]
        page = f"{client.url}/inspector"
    click.echo(report(outcomes, window, url, has_key=bool(key)))
    if refused := sum(len(outcome.refused) for outcome in outcomes):
        raise click.ClickException(f"Requests that the service refused: {refused}.")
    click.echo(f"See what fills each window: {page}")
    return page


def read_traces(path: Path) -> list[Trace]:
    """Read one conversation per line; raises click.ClickException that names an invalid line."""
    with path.open(encoding="utf-8") as lines:
        return [
            _trace(line, f"{path.name}, line {number}", str(number))
            for number, line in enumerate(lines, 1)
            if line.strip()
        ]


def replay(client: Client, trace: Trace, window: int, done: Callable[[], None]) -> Outcome:
    """Replay one conversation in a window of so many tokens; `done` is called per message."""
    outcome = Outcome(trace.name)
    body = {
        "model": MODEL,
        "policy": {"budget": {"context_window": window, "max_output_tokens": MAX_OUTPUT_TOKENS}},
        "sections": trace.sections,
        "tools": trace.tools,
        "metadata": {"demo": trace.name},
    }
    created = client.send("POST", "/v1/conversations", body)
    if not created.accepted:
        outcome.refused.append(f"conversation: {created.reason}")
        return outcome
    outcome.conversation_id = created.body["conversation_id"]
    following = [message.get("role") for message in trace.messages[1:]] + ["assistant"]
    for number, (message, role) in enumerate(zip(trace.messages, following, strict=True), 1):
        _send(client, outcome, number, message, builds=role == "assistant")
        done()
    return outcome


def _send(
    client: Client, outcome: Outcome, number: int, message: Mapping[str, Any], *, builds: bool
) -> None:
    """Append a message, and build a payload in the same request before an answer (rule 1)."""
    path = f"/v1/conversations/{outcome.conversation_id}"
    batch: dict[str, Any] = {"messages": [message]}
    if builds:
        answer = client.send("POST", f"{path}/context", {"append": batch})
        appended = answer.body.get("appended") if isinstance(answer.body, dict) else None
    else:
        answer = client.send("POST", f"{path}/messages", batch)
        appended = answer.body if answer.accepted else None
    if appended is None:
        outcome.refused.append(f"message {number}: {answer.reason}")
        return
    outcome.messages += 1
    outcome.tokens += sum(stored["token_count"] for stored in appended["messages"])
    if not builds:
        return
    if not answer.accepted:
        outcome.refused.append(f"build after message {number}: {answer.reason}")
        return
    used, compaction = answer.body["tokens_used"], answer.body["diagnostics"]["compaction"]
    outcome.builds += 1
    outcome.largest = max(outcome.largest, used)
    if (reason := answer.body["cache_break_reason"]) is not None:
        budget = answer.body["diagnostics"]["budget"]
        fixed = ("system_prompt", "skill_prompts", "tool_descriptions")
        outcome.newest = sum(budget[part] for part in fixed if reason != "tools_changed")
    outcome.cached += min(outcome.newest, used)
    outcome.sent += used
    outcome.newest = used
    outcome.degraded += answer.body["degraded"]
    if compaction and compaction["compacted"]:
        outcome.compactions += 1
        outcome.change = f"{compaction['before_tokens']:,} → {used:,}"


def report(outcomes: Sequence[Outcome], window: int, url: str, *, has_key: bool) -> str:
    """Return what to print: a table, its totals, and what was refused."""
    largest = max(outcome.largest for outcome in outcomes)
    total = Outcome(f"{len(outcomes)} conversations", largest=largest)
    for name in ("messages", "tokens", "builds", "compactions", "sent", "cached"):
        setattr(total, name, sum(getattr(outcome, name) for outcome in outcomes))
    rows = [COLUMNS, *(outcome.row for outcome in outcomes), total.row]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *cells in rows:
        aligned = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        lines.append("  ".join((name.ljust(widths[0]), *aligned)).rstrip())
    rule = "-" * len(lines[0])
    lines = [
        *(lines[0], rule, *lines[1:-1], rule, lines[-1], ""),
        f"Window {window:,} tokens, {MAX_OUTPUT_TOKENS:,} of them kept for the answer: a payload"
        f" may take {window - MAX_OUTPUT_TOKENS:,}, and the largest took {largest:,}.",
        "tokens: the whole log. cached: the share of the payloads that a provider's cache can hold."
        " before → after: the payload around the last compaction.",
    ]
    if steps := Counter(step for outcome in outcomes for step in outcome.degraded):
        counted = ", ".join(f"{step} {count}" for step, count in sorted(steps.items()))
        lines.append(f"Other steps taken so that a payload fits: {counted}.")
    if compacted := next((each for each in outcomes if each.compactions), None):
        where = f"{url.rstrip('/')}/v1/conversations/{compacted.conversation_id}"
        header = ' -H "Authorization: Bearer $CONTEXT_API_KEY"' if has_key else ""
        lines.append(
            f"Nothing is lost: curl '{where}/messages?limit=1000'{header} has every message."
        )
    if refused := [f"  {each.name}: {reason}" for each in outcomes for reason in each.refused]:
        lines += ["", "Refused by the service:", *refused]
    return "\n".join(lines)


def _trace(line: str, place: str, name: str) -> Trace:
    try:
        raw = json_text.loads(line)
    except ValueError as exc:
        raise click.ClickException(f"{place}: no JSON ({exc}).") from exc
    messages = raw.get("messages") if isinstance(raw, dict) else None
    if not isinstance(messages, list) or not all(isinstance(item, dict) for item in messages):
        raise click.ClickException(f"{place}: no conversation, `messages` is missing.")
    sections: list[dict[str, Any]] = []
    while messages and messages[0].get("role") in ("system", "developer"):  # rule 2
        number = f"-{len(sections) + 1}" if sections else ""
        content = _text_of(messages[0].get("content"))
        sections.append({"name": f"system{number}", "content": content})
        messages = messages[1:]
    return Trace(str(raw.get("id") or name), sections, raw.get("tools") or [], messages)


def _text_of(content: object) -> str:
    """Return a system message's text, whose content may be a list of text parts."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    texts = (part.get("text") for part in content if isinstance(part, dict))
    return "\n".join(text for text in texts if isinstance(text, str))


def _json(raw: bytes) -> Any:
    try:
        return json_text.loads(raw)
    except ValueError:
        return None
