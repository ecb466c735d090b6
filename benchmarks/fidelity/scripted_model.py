"""Scripted models that summarise: one keeps every statement that it is sent, one drops most.

1. Both know what is planted and look for it in the prompt, so nothing depends on how a prompt is
   laid out. Of the statements of one subject, the newest that the prompt has counts.
2. `faithful` lists all of them by kind; `dropping` leaves out instructions, rules and constraints,
   and half of the rest.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

from benchmarks.fidelity.judge import content_texts
from benchmarks.fidelity.planted.generated import Session
from benchmarks.fidelity.planted.wording import Kind
from tests.payload_tokens import text_tokens

FAITHFUL, DROPPING = "faithful", "dropping"
PROVIDER = "openai"
DROPPED = (Kind.SAFETY, Kind.CONSTRAINT, Kind.STANDING, Kind.STANDING_OTHER)
TODOS = "open todo items"
TAG_TOKENS = 60
NOTHING = "Nothing was said that matters."
FRAME_CHARS = 12
_SOURCE = re.compile(r"<(conversation|earlier_\w+|checklist)>(.*?)</\1>", re.DOTALL)


class ScriptedModel:
    """Answers with the planted statements of a prompt; counts calls and input tokens."""

    def __init__(
        self, sessions: Sequence[Session], count: Callable[[str], int] = text_tokens
    ) -> None:
        self.figures: Counter[str] = Counter()
        self._lock, self._count = Lock(), count
        self._chains = {
            tuple(plant.text for plant in chain): str(chain[-1].kind)
            for session in sessions
            for chain in session.chains
        }
        self._todos = sorted({text for session in sessions for text in session.todos})

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the body of one answer."""
        texts = [text for message in body["messages"] for text in content_texts(message)]
        prompt = "\n".join(texts)
        tokens = self._count(prompt)
        with self._lock:
            self.figures["calls"] += 1
            self.figures["input_tokens"] += tokens
        limit = int(body.get("max_tokens") or body.get("max_completion_tokens") or 4_096)
        found = list(self._found(prompt))
        if DROPPING in body["model"]:
            kept = [item for item in found if item[0] not in DROPPED]
            found = kept[::2]
        sources = [match[2] for match in _SOURCE.finditer(prompt)]
        max_chars = sum(map(len, sources or [prompt])) - FRAME_CHARS * len(sources)
        summary = self._rendered(found, limit - TAG_TOKENS, max_chars)
        retain = "<retain>Nothing.</retain>\n" if "<retain>" in prompt else ""
        text = f"{retain}<summary>{summary}</summary>"
        written = self._count(text)
        usage = {"prompt_tokens": tokens, "completion_tokens": written}
        usage["total_tokens"] = tokens + written
        message = {"role": "assistant", "content": text}
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": usage,
        }

    def _found(self, prompt: str) -> Iterator[tuple[str, str]]:
        """Yield the kind and text of each statement in a prompt, of a subject the newest."""
        for texts, kind in self._chains.items():
            newest = next((text for text in reversed(texts) if text in prompt), None)
            if newest is not None:
                yield kind, newest
        for text in self._todos:
            if text in prompt:
                yield TODOS, text

    def _rendered(self, found: Sequence[tuple[str, str]], limit: int, max_chars: int) -> str:
        """Return the statements below headings, as many as the limit of tokens allows.

        Without headings where the text would be longer than its source, which no service accepts.
        """
        order = [*DROPPED, *(kind for kind in Kind if kind not in DROPPED), TODOS]
        lines, heading = [], ""
        for kind, text in sorted(found, key=lambda item: order.index(item[0])):
            new = [f"## {kind.capitalize()}"] if kind != heading else []
            new.append(f"- {text}")
            limit -= sum(self._count(line) + 1 for line in new)
            if limit < 0:
                break
            heading = kind
            lines += new
        text = "\n".join(lines) or NOTHING
        if len(text) > max_chars:
            text = "\n".join(line for line in lines if not line.startswith("#"))
        return text[: max(0, max_chars)] or "-"


@contextmanager
def serving(model: ScriptedModel) -> Iterator[str]:
    """Serve the models on loopback; yield their base URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            data = json.dumps(model.answer(body)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()


def summarised_by(api_base: str) -> dict[str, str]:
    """Return the environment of a service that may call the models, without a limit."""
    names = [f"{PROVIDER}/{FAITHFUL}", f"{PROVIDER}/{DROPPING}"]
    return {
        "CONTEXT_SUMMARIZER_MODEL": names[0],
        "CONTEXT_SUMMARIZER_ALLOWED_MODELS": ",".join(names),
        "CONTEXT_SUMMARIZER_API_BASE": api_base,
        "CONTEXT_SUMMARIZER_API_KEY": "none",
        "CONTEXT_SUMMARIZER_CONTEXT_WINDOW": "128000",
        "CONTEXT_SUMMARIZER_CALLS_PER_HOUR": "1000000",
    }
