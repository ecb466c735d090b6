"""Records what a version of the service answers to fixed requests, and compares two recordings.

    python -m benchmarks.recorded_builds record before.jsonl --checkout ../before
    python -m benchmarks.recorded_builds record after.jsonl
    python -m benchmarks.recorded_builds compare before.jsonl after.jsonl

1. `record` starts `serve` from a checkout, over a database of its own, and talks to it over HTTP
   alone. So any version can be recorded that answers the same requests.
2. The requests are those of `recorded_requests`: scenarios over recorded conversations. Scenarios
   run side by side, the requests of one scenario one after another.
3. Each line of a recording is one answer: label, status, SHA-256 and body as text. Four things in
   a body differ from run to run, and are replaced before it is hashed: UUIDs of version 7, which
   the service makes, become `<id N>` by their first appearance in the scenario; the values of the
   fields of `_TIME` and the time before each excerpt of `recall` become `<time>`; `duration_ms`
   becomes 0. Nothing else is changed.
4. The model that summarises is a stand-in whose answer depends on every byte of the prompt: another
   prompt leads to another payload.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from benchmarks.recorded_requests import SAMPLE, SUMMARISER, Scenario, Trace, background, foreground

ROOT = Path(__file__).parents[1]
TRACES = ROOT / "tests" / "conversations"
"""Where conversations are taken from without CONTEXT_TRACES_DIR."""
CONNECTIONS = 2
_START_SECONDS, _ANSWER_SECONDS = 60, 120
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_TIME = re.compile(r'"(\w+_at|timestamp|window_start|window_end)":"\d{4}-\d\d-\d\dT[^"]*"')
_EXCERPT = re.compile(r"(#\d+ [^\\]{1,90}?) \d{4}-\d\d-\d\d \d\d:\d\d: ")
_DURATION = re.compile(r'"duration_ms":\d+')


class Talk:
    """The requests of one scenario over one connection, and the lines that record the answers."""

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self.lines: list[str] = []
        self._connection = HTTPConnection("127.0.0.1", port, timeout=_ANSWER_SECONDS)
        self._ids: dict[str, str] = {}

    def send(self, method: str, path: str, body: object = None, label: str = "") -> Any:
        """Send a request, record the answer under a label, and return its body."""
        status, text = self.ask(method, path, body)
        shown = _DURATION.sub('"duration_ms":0', _TIME.sub(r'"\1":"<time>"', text))
        shown = _ID.sub(self._numbered, _EXCERPT.sub(r"\1 <time>: ", shown))
        line = {
            "label": f"{self.name} {len(self.lines):03} {label or method}",
            "status": status,
            "sha256": sha256(shown.encode()).hexdigest(),
            "body": shown,
        }
        self.lines.append(json.dumps(line, ensure_ascii=False) + "\n")
        return _json(text)

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


def record(out: Path, checkout: Path, python: str, traces: Path) -> None:
    """Write the recording of a checkout's service to `out`."""
    conversations = _traces(traces)
    began, counted = time.perf_counter(), Counter[str]()
    with (
        tempfile.TemporaryDirectory(prefix="recorded-builds-") as folder,
        _summariser() as api_base,
        out.open("w", encoding="utf-8") as file,
    ):
        environ = {
            "CONTEXT_SUMMARIZER_MODEL": SUMMARISER,
            "CONTEXT_SUMMARIZER_API_BASE": api_base,
            "CONTEXT_SUMMARIZER_API_KEY": "none",
            "CONTEXT_SUMMARIZER_CALLS_PER_HOUR": "1000000",
        }
        parts: tuple[tuple[list[Scenario], list[str]], ...] = (
            (foreground(conversations), ["--no-worker"]),
            (background(conversations), []),
        )
        for scenarios, flags in parts:
            command = [python, "-c", "from app.cli import main; main()", "serve", *flags]
            with _served(command, checkout, Path(folder), environ) as port:
                for lines in _run_all(scenarios, port):
                    file.writelines(lines)
                    counted.update(_kind(json.loads(line)) for line in lines)
    seconds = time.perf_counter() - began
    print(f"{counted['build']} builds, {counted['answer']} other answers, in {seconds:.0f} s")


def compare(before: Path, after: Path, shown: int) -> bool:
    """Print how two recordings differ; return whether they are equal."""
    places = dict(_places(before))
    counted, differences = Counter[tuple[str, str]](), list[str]()
    with before.open("rb") as old_file, after.open("rb") as new_file:
        for text in new_file:
            new = json.loads(text)
            place = places.pop(new["label"], None)
            if place is None:
                counted[_kind(new), "only in the second"] += 1
                continue
            old_file.seek(place)
            old = json.loads(old_file.readline())
            outcome = _outcome(old, new)
            counted[_kind(new), outcome] += 1
            if outcome != "equal" and len(differences) < shown:
                differences.append(f"{new['label']}: {outcome}\n{_difference(old, new)}")
    for kind in ("build", "answer"):
        found = {outcome: number for (of, outcome), number in counted.items() if of == kind}
        parts = ", ".join(f"{number} {outcome}" for outcome, number in sorted(found.items()))
        print(f"{'builds' if kind == 'build' else 'other answers'}: {sum(found.values())}: {parts}")
    print(f"only in the first: {len(places)}")
    print(*differences, sep="\n")
    return not places and all(outcome == "equal" for _, outcome in counted)


def _outcome(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Name how two answers compare; the order of keys counts inside of payloads alone."""
    if (old["status"], old["sha256"]) == (new["status"], new["sha256"]):
        return "equal"
    bodies = _json(old["body"]), _json(new["body"])
    if old["status"] != new["status"] or bodies[0] is None or bodies[0] != bodies[1]:
        return "different"
    payloads = [json.dumps(body.get("payload")) for body in bodies if isinstance(body, dict)]
    return "in another order" if len({*payloads}) <= 1 else "different"


def _difference(old: Mapping[str, Any], new: Mapping[str, Any], around: int = 150) -> str:
    pairs = zip(old["body"], new["body"], strict=False)
    at = next((at for at, (one, other) in enumerate(pairs) if one != other), 0)
    lines = [f"  at character {at} of {len(old['body'])} and {len(new['body'])}"]
    for sign, line in (("-", old), ("+", new)):
        lines.append(
            f"  {sign} {line['status']} …{line['body'][max(0, at - around) : at + around]}"
        )
    return "\n".join(lines)


def _kind(line: Mapping[str, Any]) -> str:
    return "build" if " build " in line["label"] else "answer"


def _places(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the label of each line, and where the line begins."""
    place = 0
    with path.open("rb") as file:
        for text in file:
            yield json.loads(text)["label"], place
            place += len(text)


def _traces(folder: Path) -> list[Trace]:
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
            raw = json.loads(line)
            if isinstance(raw.get("messages"), list):
                found.append(Trace.of(f"{path.stem}:{number}", raw))
    if not found:
        raise SystemExit(f"No conversations in {folder}; set CONTEXT_TRACES_DIR")
    return found[:: max(1, len(found) // SAMPLE)]


def _run_all(scenarios: Sequence[Scenario], port: int) -> Iterator[list[str]]:
    """Run the scenarios, and yield the lines of each in the order given."""

    def run(scenario: Scenario) -> list[str]:
        talk = Talk(scenario.name, port)
        try:
            scenario.run(talk)
        except Exception as exc:
            raise RuntimeError(f"{scenario.name} after {talk.lines[-1:]}") from exc
        finally:
            talk.close()
        return talk.lines

    pool = ThreadPoolExecutor(CONNECTIONS)
    try:
        for number, lines in enumerate(pool.map(run, scenarios), 1):
            if number % 20 == 0:
                print(f"{number} of {len(scenarios)} scenarios", file=sys.stderr, flush=True)
            yield lines
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _served(
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
        deadline = time.monotonic() + _START_SECONDS
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
def _summariser() -> Iterator[str]:
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


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recorded_builds")
    commands = parser.add_subparsers(required=True, dest="command")
    recording = commands.add_parser("record", help="record a checkout's service")
    recording.add_argument("out", type=Path, help="file to write, JSON lines")
    recording.add_argument("--checkout", type=Path, default=ROOT, help="folder with app/ in it")
    recording.add_argument("--python", default=sys.executable, help="interpreter of the service")
    comparing = commands.add_parser("compare", help="compare two recordings")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--show", type=int, default=5, help="differences to print (5)")
    given = parser.parse_args()
    if given.command == "compare":
        sys.exit(0 if compare(given.before, given.after, given.show) else 1)
    traces = Path(os.environ.get("CONTEXT_TRACES_DIR") or TRACES)
    record(given.out, given.checkout.resolve(), given.python, traces)


if __name__ == "__main__":
    main()
