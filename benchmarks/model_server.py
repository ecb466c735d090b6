"""A model that only summarises: a process that speaks the OpenAI chat protocol.

`python -m benchmarks.model_server --port 9000 --delay 20` answers each call after 20 s with a
short summary in the tags that are asked for: words of the transcript, a tenth of them at most.
`GET /figures` tells how many calls came, their input tokens by o200k, and how many are waiting.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any

from app.models.tokenizer import TiktokenTokenizer
from tests.fake_llm import completion_body, unpaired

SHARE = 0.1
MAX_WORDS = 150
MAX_WORD_CHARS = 24
_EXCERPT = re.compile(r"<conversation>\n---\n(.*)\n---\n</conversation>", re.DOTALL)


def summary_of(prompt: str, max_tokens: int) -> str:
    """Return a summary of the transcript in a prompt: its words at even distances, in tags."""
    found = _EXCERPT.search(prompt)
    words = (found[1] if found else prompt).split()
    count = max(1, min(int(len(words) * SHARE), max_tokens // 4, MAX_WORDS))
    taken = (words[place * len(words) // count][:MAX_WORD_CHARS] for place in range(count))
    summary = f"<summary>{' '.join(taken)}</summary>"
    return f"<retain>{words[0]}</retain>\n{summary}" if "<retain>" in prompt else summary


class Model:
    """The requests that the server received, and the delay of its answers."""

    def __init__(self, delay_seconds: float) -> None:
        self._delay_seconds = delay_seconds
        self._lock = Lock()
        self._tokenizer = TiktokenTokenizer()
        self.figures = {
            "calls": 0,
            "refused": 0,
            "input_tokens": 0,
            "waiting": 0,
            "most_waiting": 0,
        }

    def answer(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return the status and the body of one answer, after the delay."""
        contents = [str(message["content"]) for message in body["messages"]]
        tokens = sum(map(self._tokenizer.count, contents))
        problem = unpaired(body["messages"])
        with self._lock:
            self.figures["calls"] += 1
            self.figures["refused"] += problem is not None
            self.figures["input_tokens"] += tokens
            self.figures["waiting"] += 1
            waiting = self.figures["waiting"]
            self.figures["most_waiting"] = max(self.figures["most_waiting"], waiting)
        time.sleep(self._delay_seconds)
        with self._lock:
            self.figures["waiting"] -= 1
        if problem is not None:
            return 400, {"error": {"message": problem, "type": "invalid_request_error"}}
        text = summary_of(contents[-1], int(body.get("max_tokens") or 1024))
        written = self._tokenizer.count(text)
        usage = {"prompt_tokens": tokens, "completion_tokens": written}
        usage["total_tokens"] = tokens + written
        return 200, {**completion_body(text), "usage": usage}


def _handler(model: Model) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            self._send(*model.answer(json.loads(self.rfile.read(length))))

        def do_GET(self) -> None:
            self._send(200, model.figures)

        def _send(self, status: int, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.model_server", description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="port on loopback")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before each answer")
    arguments = parser.parse_args()
    _Server(("127.0.0.1", arguments.port), _handler(Model(arguments.delay))).serve_forever()


if __name__ == "__main__":
    main()
