"""The requests of one scenario, and the lines that record the answers."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from http.client import HTTPConnection
from typing import Any

ANSWER_SECONDS = 600
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
TIME = re.compile(r'"(\w+_at|timestamp|window_start|window_end)":"\d{4}-\d\d-\d\dT[^"]*"')
_EXCERPT = re.compile(r"(#\d+ [^\\]{1,90}?) \d{4}-\d\d-\d\d \d\d:\d\d: ")
_DURATION = re.compile(r'"duration_ms":\d+')


class Recorder:
    """Sends the requests of one scenario over one connection, and records the answers."""

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self.lines: list[str] = []
        self._connection = HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
        self._ids: dict[str, str] = {}

    def send(self, method: str, path: str, body: object = None, label: str = "") -> Any:
        """Send a request, record the answer under a label, and return its body."""
        status, text = self.ask(method, path, body)
        shown = _DURATION.sub('"duration_ms":0', TIME.sub(r'"\1":"<time>"', text))
        shown = _ID.sub(self._numbered, _EXCERPT.sub(r"\1 <time>: ", shown))
        line = {
            "label": f"{self.name} {len(self.lines):03} {label or method}",
            "status": status,
            "sha256": sha256(shown.encode()).hexdigest(),
            "body": shown,
        }
        self.lines.append(json.dumps(line, ensure_ascii=False) + "\n")
        return json_of(text)

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        """Send a request that is not recorded; return the status and the text of the answer."""
        kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        self._connection.request(method, path, data, {"Content-Type": kind})
        with self._connection.getresponse() as response:
            return response.status, response.read().decode(errors="replace")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _numbered(self, found: re.Match[str]) -> str:
        return self._ids.setdefault(found[0], f"<id {len(self._ids) + 1}>")


def json_of(text: str) -> Any:
    """Return what a text says in JSON, None where it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return None
