"""The processes of a recording: the service of a checkout, and the stand-in for a model."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

START_SECONDS = 60


@contextmanager
def served(
    command: Sequence[str], checkout: Path, folder: Path, environ: Mapping[str, str]
) -> Iterator[int]:
    """Run the service of a checkout over a data directory; yield its port once it is ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [*command, "--port", str(port), "--data-dir", str(folder / "data")]
    kept = {name: text for name, text in os.environ.items() if not name.startswith("CONTEXT_")}
    environ = {**kept, **environ, "PYTHONPATH": str(checkout)}
    log = folder / "service.log"
    with log.open("ab") as output:
        process = subprocess.Popen(command, cwd=checkout, env=environ, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _is_ready(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"The service does not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.05)
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def _is_ready(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    with suppress(OSError, HTTPException):
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    return False


@dataclass(frozen=True, slots=True)
class _Summary:
    """What the stand-in answers to a request: a few words of the prompt, and its hash."""

    prompt: str
    hash: str

    @property
    def text(self) -> str:
        words = self.prompt.split()
        taken = " ".join(word[:24] for word in words[:: max(1, len(words) // 40)][:40])
        retain = "<retain>Kept word for word.</retain>\n" if "<retain>" in self.prompt else ""
        return f"{retain}<summary>Prompt {self.hash}: {taken.replace('<', '(')}</summary>"


@contextmanager
def summariser() -> Iterator[str]:
    """Serve the stand-in for the model that summarises; yield its base URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked = json.dumps([body["messages"], body.get("max_tokens")])
            text = _Summary(
                body["messages"][-1]["content"], sha256(asked.encode()).hexdigest()
            ).text
            message = {"role": "assistant", "content": text}
            answer = {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150},
            }
            data = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
