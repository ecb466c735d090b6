"""The log: JSON lines with constant names, and nothing that anybody said. [operation.logs]"""

from __future__ import annotations

import ast
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.common.logs import JsonLines, request_id
from tests.log_calls import FOUND


def line_of(name: str, message: str, *arguments: Any, **more: Any) -> dict[str, Any]:
    """Return what is written of one record."""
    record = logging.LogRecord(name, logging.INFO, "here.py", 1, message, arguments, None)
    vars(record).update(more)
    line: dict[str, Any] = json.loads(JsonLines().format(record))
    return line


def test_a_line_of_ours() -> None:
    """Name and data stand beside each other, with time, level, process and request."""
    token = request_id.set("r-1")
    try:
        line = line_of("app.log", "jobs_released", data={"count": 2, "path": Path("x")})
    finally:
        request_id.reset(token)
    assert line.pop("time").endswith("+00:00") and line.pop("pid") > 0
    assert line == {
        "level": "info",
        "logger": "app.log",
        "event": "jobs_released",
        "request_id": "r-1",
        "count": 2,
        "path": "x",
    }


def test_a_line_of_a_library() -> None:
    """Of other libraries the first line of the template is told, without its arguments."""
    line = line_of("asyncio", "Task %s failed\nfuture: secret", "secret words")
    assert line["event"] == "Task … failed"
    assert "secret" not in json.dumps(line)


SCRIPT = """
import logging, sys
from app.common import logs
handler = logging.StreamHandler(sys.stderr)
logging.getLogger("uvicorn").handlers = [handler]
logging.getLogger("uvicorn").propagate = False
logging.getLogger("uvicorn.error").setLevel("INFO")
logs.configure("warning")
logging.getLogger("app.worker").info("worker_started")
logging.getLogger("app.worker").warning("job_interrupted", extra={"data": {"attempts": 1}})
logging.getLogger("uvicorn.error").info("Started server process [%d]", 1)
logging.getLogger("somebody").info("chatter")
logging.getLogger("somebody").warning("It is %s", "secret")
"""


def test_all_of_a_process_is_json() -> None:
    """After `configure` every line is JSON, of libraries the warnings and what uvicorn says."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    told = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(line["logger"], line["event"]) for line in told] == [
        ("app.worker", "job_interrupted"),
        ("uvicorn.error", "Started server process […]"),
        ("somebody", "It is …"),
    ]
    assert told[0]["attempts"] == 1


@pytest.mark.parametrize("place", FOUND)
def test_every_call_of_a_logger(place: str) -> None:
    """An event has a constant name, and its data stands under `data`, where it is written."""
    call = FOUND[place]
    (name,) = call.args
    assert isinstance(name, ast.Constant) and isinstance(name.value, str), place
    assert name.value.replace("_", "").isalpha() and name.value.islower(), place
    assert {keyword.arg for keyword in call.keywords} <= {"extra", "exc_info"}, place
    for extra in (keyword.value for keyword in call.keywords if keyword.arg == "extra"):
        assert isinstance(extra, ast.Dict), place
        keys = [key.value for key in extra.keys if isinstance(key, ast.Constant)]
        assert keys == ["data"] and len(extra.keys) == 1, place
