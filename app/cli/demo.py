"""The demo: replays a long session in a small context window, beside two usual ways to keep one.

1. It does what an agent backend does: it appends every message, and builds a payload before each
   answer of the assistant and at the end, in the request that appends what came since.
2. Each conversation is kept three times: by the service's default in a small context window, as the
   last messages in the same one, and as the whole log in one that has room for it.
3. Instead of a model the demo reports the usage: the tokens that the payload has, and as cached
   those that a provider can have from the payload before. The service counts what that costs.
4. A system or developer message at the start becomes a section; `tools` become the
   conversation's tools.
5. A refused request is listed with its reason, and the replay continues. A refused key ends it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import webbrowser
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any

import click
import httpx

from app.cli import demo_session
from app.cli.database import exiting_on_sigterm, waiting
from app.common import json_text
from app.common.environment import PREFIX

DEFAULT_URL = "http://127.0.0.1:8080"
MODEL = "gpt-5-mini"
WINDOW, WIDE_WINDOW = 16_000, 400_000
MAX_OUTPUT_TOKENS = 1_000
TIMEOUT_SECONDS = 120
LIMITS = httpx.Limits(keepalive_expiry=2.0)
"""A server may close a connection that was idle for longer."""
SERVICE, SLIDING, APPEND_ONLY = "the service", "last messages", "append-only"
COLUMNS = ("", "window", "largest payload", "sent", "cached", "cost of input", "knows message 9")
FIXED = ("system_prompt", "skill_prompts", "tool_descriptions")
BAR = 18  # a line fits 80 columns


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
class Lane:
    """One way to keep a conversation, and what came of it."""

    name: str
    context_window: int
    path: str
    builds: int = 0
    largest: int = 0
    """The tokens of the largest payload."""
    sent: int = 0
    """The tokens of all payloads."""
    cached: int = 0
    """How many of them the payload before had, so that a provider can have cached them."""
    newest: int = 0
    cost: float = 0.0
    """What the calls cost without their answers, in USD."""
    report: dict[str, Any] | None = None
    """The usage of the last call, for the next request."""
    known: dict[str, Any] | None = None
    """The last build, on which the next is a delta."""
    payload: Any = None
    """The last payload or delta."""
    refused: list[str] = field(default_factory=list)

    def step(self, client: Client, batch: Sequence[object], *, is_last: bool) -> str | None:
        """Append messages and build (rule 1); returns what was compacted in words, if anything."""
        known = None if is_last else self.known  # with it the answer has what is new alone
        body = {"append": {"messages": batch}, "report": self.report, "known": known}
        answer = client.send("POST", f"{self.path}/context", body)
        if not answer.accepted:
            self.refused.append(f"{self.name}, call {self.builds + 1}: {answer.reason}")
            return None
        built = answer.body
        before, used = self.newest, built["tokens_used"]
        if (reason := built["cache_break_reason"]) is not None:
            budget = built["diagnostics"]["budget"]
            before = sum(budget[part] for part in FIXED if reason != "tools_changed")
        cached = min(before, used)
        usage = {"prompt_tokens": used, "prompt_tokens_details": {"cached_tokens": cached}}
        self.report = {"build_id": built["build_id"], "usage": {**usage, "completion_tokens": 0}}
        self.known = {"build_id": built["build_id"]}
        self.builds += 1
        self.largest = max(self.largest, used)
        self.sent, self.cached, self.newest = self.sent + used, self.cached + cached, used
        self.payload = built["payload"]
        done = built["diagnostics"]["compaction"]
        return f"{done['before_tokens']:,} → {used:,}" if done and done["compacted"] else None

    def end(self, client: Client) -> None:
        """Report the last call, and read what all of them cost."""
        if self.report is not None:
            client.send("POST", f"{self.path}/usage", self.report)
            self.cost = client.send("GET", f"{self.path}/usage").body["totals"]["cost_usd"] or 0.0

    @property
    def share(self) -> str:
        """The cached share of all payloads."""
        return f"{self.cached / max(1, self.sent):.0%}"

    @property
    def row(self) -> tuple[str, ...]:
        """Its line of the table."""
        counts = (f"{count:,}" for count in (self.context_window, self.largest, self.sent))
        knows = "yes" if demo_session.FACT in json_text.dumps(self.payload) else "no"
        return (self.name, *counts, self.share, f"${self.cost:.3f}", knows)


def run(traces: Path | None, url: str | None, key: str | None, count: int, *, opens: bool) -> None:
    """Replay the conversations of a file, or a made one of so many messages, and print the bills.

    Without an address it is the service on the default port, or one that is started for the demo.

    Raises click.ClickException if the service at `url` does not answer or rejects the key, if a
    line of the file is not a conversation, and, after printing, if a request was refused.
    """
    key = (key or "").strip() or None  # a variable read from a file often ends in a newline
    sections = [{"name": "system", "content": demo_session.SYSTEM}]
    made = Trace("a long session", sections, demo_session.tools(), demo_session.messages(count))
    conversations = read_traces(traces) if traces else [made]
    if not conversations:
        raise click.ClickException("The file holds no conversation.")
    with _service(url) as (address, is_own), closing(Client(address, key)) as client:
        if not client.send("GET", "/v1/agents").accepted:  # before anything is printed
            raise Unreachable(f"{client.url} is not the service: leave out a path such as /v1.")
        lanes = []
        for trace in conversations:
            lanes += replay(client, trace, opens=opens)
            opens = False
        if refused := [f"  {reason}" for lane in lanes for reason in lane.refused]:
            click.echo("\n".join(["", "Refused by the service:", *refused[:10]]))
            raise click.ClickException(f"Requests that the service refused: {len(refused)}.")
        if is_own:
            click.pause("\nThe service of this demo ends, and its page, when you press a key.")


@contextmanager
def _service(url: str | None) -> Iterator[tuple[str, bool]]:
    """Yield the address of a service, and whether it was started for this block."""
    if url is not None or _answers(DEFAULT_URL):
        yield url or DEFAULT_URL, False
        return
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    click.echo(f"No service answers at {DEFAULT_URL}: one is started at {address}.", err=True)
    # Its database is its own, whatever the environment says.
    environ = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    command = (sys.executable, "-m", "app.cli", "serve", "--port", str(port))
    with (
        exiting_on_sigterm(),
        TemporaryDirectory(prefix="context-demo-") as folder,
        subprocess.Popen((*command, "--data-dir", folder), env=environ, stderr=-3) as process,
    ):
        try:
            with waiting("Starting it"):
                while not _answers(address):
                    if process.poll() is not None:
                        raise Unreachable("It did not start: see `context-service serve`.")
                    sleep(0.1)
            yield address, True
        finally:
            process.terminate()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=TIMEOUT_SECONDS, trust_env=False).is_success
    except httpx.TransportError:
        return False


def read_traces(path: Path) -> list[Trace]:
    """Read one conversation per line; raises click.ClickException that names an invalid line."""
    with path.open(encoding="utf-8") as lines:
        return [
            _trace(line, f"{path.name}, line {number}", str(number))
            for number, line in enumerate(lines, 1)
            if line.strip()
        ]


def replay(
    client: Client, trace: Trace, context_window: int = WINDOW, *, opens: bool = False
) -> list[Lane]:
    """Keep one conversation in three ways, and print what happens to it and the bill."""
    lanes = [_lane(client, trace, name, context_window) for name in (SERVICE, SLIDING, APPEND_ONLY)]
    page = f"{client.url}/inspector#{lanes[0].path.replace('/v1/conversations', '/c')}/time"
    click.echo(f"{trace.name}, {len(trace.messages):,} messages: watch it at {page}")
    if opens and not webbrowser.open(page):
        click.echo("No browser was found: open this page in one.")
    done, total = 0, len(trace.messages)
    for batch in _steps(trace.messages):
        done += len(batch)
        change, *_ = [lane.step(client, batch, is_last=done == total) for lane in lanes]
        _draw(lanes[0], done, total, change)
    for lane in lanes:
        lane.end(client)
    click.echo(report(client, lanes))
    return lanes


def _lane(client: Client, trace: Trace, name: str, context_window: int) -> Lane:
    tokens = sum(map(len, map(json_text.dumps, trace.messages))) / 4
    kept = max(2, int(len(trace.messages) * context_window * 2 / 3 / max(1, tokens)))
    policies: dict[str, dict[str, Any]] = {
        SERVICE: {"compaction": {"mode": "inline"}},
        SLIDING: {"strategy": "sliding_window", "sliding_window": {"keep_last_n": kept}},
        APPEND_ONLY: {"strategy": "full_history"},
    }
    context_window = WIDE_WINDOW if name == APPEND_ONLY else context_window
    budget = {"context_window": context_window, "max_output_tokens": MAX_OUTPUT_TOKENS}
    title = f"Demo: {trace.name} ({name})"
    body: dict[str, Any] = {"model": MODEL, "policy": {**policies[name], "budget": budget}}
    body |= {"sections": trace.sections, "tools": trace.tools, "metadata": {"title": title}}
    created = client.send("POST", "/v1/conversations", body)
    if not created.accepted:
        raise click.ClickException(f"The service refused the conversation: {created.reason}")
    return Lane(name, context_window, f"/v1/conversations/{created.body['conversation_id']}")


def _steps(messages: Sequence[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """Yield the messages in parts, each of which ends where a model is called (rule 1)."""
    batch: list[Mapping[str, Any]] = []
    for number, message in enumerate(messages, 1):
        batch.append(message)
        if number == len(messages) or messages[number].get("role") == "assistant":
            yield batch
            batch = []


def _draw(lane: Lane, done: int, total: int, change: str | None) -> None:
    """Show the payload as a bar on a terminal; a compaction becomes a line that stays."""
    erase = "\r\033[K" if sys.stderr.isatty() else ""
    if change:
        click.echo(f"{erase}  message {done:>5,}: compacted, {change} tokens")
    if erase:
        filled = round(BAR * lane.newest / lane.context_window)
        share = f"{lane.newest:>7,} of {lane.context_window:,} tokens, {lane.share} cached"
        bar = f"{'█' * filled}{'░' * (BAR - filled)} {share}" if done < total else ""
        click.echo(f"{erase}  message {done:>5,} of {total:,} {bar}", nl=done == total, err=True)


def report(client: Client, lanes: Sequence[Lane]) -> str:
    """Return what to print at the end: the bills, and where an early fact is."""
    rows = [COLUMNS, *(lane.row for lane in lanes)]
    has_fact = demo_session.FACT in json_text.dumps(lanes[-1].payload)
    rows = [row if has_fact else row[:-1] for row in rows]  # a file has no such fact
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [""]
    for name, *cells in rows:
        aligned = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        lines.append("  ".join((name.ljust(widths[0]), *aligned)).rstrip())
    if has_fact:
        said = "\n".join(str(each.get("content")) for each in lanes[0].payload["messages"])
        found = next((line for line in said.splitlines() if demo_session.FACT in line), "nothing")
        where = f"curl '{client.url}{lanes[0].path}/messages?query=freeze'"
        lines += ["", f"Asked at the end: {demo_session.QUESTION}"]
        lines += [f"The payload has:  {found.strip()}", f"The log has all:  {where}"]
    note = f"cached: the share that a provider's cache can hold. cost: at the price of {MODEL}."
    return "\n".join([*lines, "", note])


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
