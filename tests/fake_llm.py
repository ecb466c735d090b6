"""A real HTTP server on the loopback that speaks the OpenAI protocol and misbehaves on demand.

Script it call by call; when the script is used up, `always` decides (a good answer at first):

    fake_llm.script(status(500), answer("<summary>second try</summary>"))
    fake_llm.always(no_tags())
    CONTEXT_SUMMARIZER_API_BASE = fake_llm.api_base, model "openai/anything"

As the real protocol, it refuses with 400 a request whose assistant tool calls lack results.
"""

from __future__ import annotations

import json
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Any

import pytest

from tests.patience import PATIENCE_SECONDS

GOOD_TEXT = "<summary>The user wants tea. Decided: green tea.</summary>"


@dataclass(frozen=True)
class Request:
    """One request as it arrived."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def text(self) -> str:
        """The last message's content, which carries the instructions."""
        return str(self.body["messages"][-1]["content"])


@dataclass(frozen=True)
class Behaviour:
    """What the server does with one call, once it is let go."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    reset: bool = False
    truncate: bool = False
    released: Event | None = None
    arrived: Event | None = None
    events: tuple[dict[str, Any], ...] = ()


Answering = Behaviour | Callable[[Request], Behaviour]


def completion_body(
    content: str | None,
    finish_reason: str = "stop",
    tool_calls: list[dict[str, Any]] | None = None,
    refusal: str | None = None,
) -> dict[str, Any]:
    """Return a chat completion as the OpenAI protocol has it."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if tool_calls:
        message["tool_calls"] = tool_calls
    if refusal is not None:
        message["refusal"] = refusal
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "fake",
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
    }


def answer(text: str = GOOD_TEXT, finish_reason: str = "stop") -> Behaviour:
    """Answer with this text."""
    return Behaviour(body=completion_body(text, finish_reason))


def slow(released: Event, then: Behaviour | None = None, arrived: Event | None = None) -> Behaviour:
    """Hold the answer back until `released` is set; `arrived` is set when the call is there."""
    then = then or answer()
    return Behaviour(then.status, then.body, then.headers, released=released, arrived=arrived)


def status(code: int, message: str = "broken", kind: str = "server_error") -> Behaviour:
    """Answer with an error status such as 429 or 500."""
    return Behaviour(status=code, body={"error": {"message": message, "type": kind, "code": None}})


def context_too_long() -> Behaviour:
    """Answer 400 as OpenAI does when the input is larger than the window."""
    message = "This model's maximum context length is 8192 tokens. Please reduce the length."
    error = {"message": message, "type": "invalid_request_error", "code": "context_length_exceeded"}
    return Behaviour(status=400, body={"error": error})


def connection_reset() -> Behaviour:
    """Drop the connection without an answer."""
    return Behaviour(reset=True)


def truncated_body() -> Behaviour:
    """Announce a whole answer, send half of it, and hang up."""
    return Behaviour(body=completion_body(GOOD_TEXT), truncate=True)


def refusal() -> Behaviour:
    """Answer that the model will not do it."""
    return Behaviour(body=completion_body(None, refusal="I cannot help with that."))


def empty() -> Behaviour:
    """Answer with tags and nothing between them."""
    return answer("<summary>  </summary>")


def no_tags() -> Behaviour:
    """Answer with a summary outside any tags."""
    return answer("The user wants tea.")


def too_long() -> Behaviour:
    """Answer with a summary larger than what was condensed."""
    return Behaviour(body=completion_body(f"<summary>{'blah ' * 15_000}</summary>"))


def tool_call() -> Behaviour:
    """Answer with a tool call although no tools were sent."""
    call = {"id": "c1", "type": "function", "function": {"name": "shell", "arguments": "{}"}}
    return Behaviour(body=completion_body(GOOD_TEXT, "tool_calls", [call]))


def cut_off() -> Behaviour:
    """Answer with a text that the output limit cut."""
    return answer("<summary>The user wan", "length")


def echo(text_of: Callable[[Request], str]) -> Callable[[Request], Behaviour]:
    """Answer with a text made from the request."""
    return lambda request: answer(text_of(request))


class FakeLLM:
    """The server; `requests` holds all that arrived, refused ones too."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self._script: deque[Answering] = deque()
        self._always: Answering = answer()
        self._lock = Lock()
        self._stopped = Event()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def api_base(self) -> str:
        """The address to give a client, which ends in `/v1`."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def calls(self) -> int:
        """How many requests arrived."""
        return len(self.requests)

    def knows(self, path: str) -> bool:
        """Return whether the protocol has this path."""
        return path in {"/chat/completions", "/v1/chat/completions"}

    def script(self, *behaviours: Answering) -> None:
        """Line up what to do with the next calls, one each."""
        with self._lock:
            self._script.extend(behaviours)

    def always(self, behaviour: Answering) -> None:
        """Set what to do when the script is used up."""
        self._always = behaviour

    def take(self, request: Request) -> Behaviour:
        """Record the request and return what to do with it."""
        with self._lock:
            self.requests.append(request)
            if problem := self.complaint(request):
                return status(400, problem, "invalid_request_error")
            behaviour = self._script.popleft() if self._script else self._always
        return behaviour(request) if callable(behaviour) else behaviour

    def complaint(self, request: Request) -> str | None:
        """Return what the protocol has against the request, None when it takes it."""
        return unpaired(request.body.get("messages", []))

    def wait(self, event: Event) -> None:
        """Wait until the event is set or the server stops."""
        waited = 0.0
        while waited < PATIENCE_SECONDS and not self._stopped.is_set():
            if event.wait(0.05):
                return
            waited += 0.05

    def stop(self) -> None:
        """Let go of every held call and close the port."""
        self._stopped.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def unpaired(messages: list[dict[str, Any]]) -> str | None:
    """Return the protocol's complaint about calls without results, None when all is paired."""
    open_calls: set[str] = set()
    for message in messages:
        if message.get("role") == "tool":
            if message.get("tool_call_id") not in open_calls:
                return "messages with role 'tool' must follow a message with 'tool_calls'"
            open_calls.discard(message["tool_call_id"])
        elif open_calls:
            break
        else:
            open_calls = {call["id"] for call in message.get("tool_calls") or []}
    if open_calls:
        return "An assistant message with 'tool_calls' must be followed by tool messages"
    return None


def event_lines(event: dict[str, Any]) -> str:
    """Return an event as a stream has it."""
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event)}\n\n"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients that hang up are part of the tests."""


def _handler(fake: FakeLLM) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if not fake.knows(self.path):
                self._send(status(404, "no such path"))
                return
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.path, headers, json.loads(body))
            behaviour = fake.take(request)
            if behaviour.arrived is not None:
                behaviour.arrived.set()
            if behaviour.released is not None:
                fake.wait(behaviour.released)
            if behaviour.reset:
                self._reset()
            else:
                self._send(behaviour)

        def _send(self, behaviour: Behaviour) -> None:
            data = json.dumps(behaviour.body).encode()
            if behaviour.events:  # of a stream, which ends as OpenAI's do
                data = "".join(map(event_lines, behaviour.events)).encode() + b"data: [DONE]\n\n"
            self.send_response(behaviour.status)
            kind = "text/event-stream" if behaviour.events else "application/json"
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            for name, value in behaviour.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data[: len(data) // 2] if behaviour.truncate else data)
            self.close_connection = self.close_connection or behaviour.truncate

        def _reset(self) -> None:
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.close_connection = True
            self.connection.close()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    return Handler


@pytest.fixture
def fake_llm() -> Iterator[FakeLLM]:
    """A fresh scriptable model endpoint."""
    server = FakeLLM()
    yield server
    server.stop()
