"""Logs on stderr: lines for people on a terminal, else one JSON object each; names are constant.

1. No content: of what a caller sent events contain only ids, and no text of an exception, which
   can quote it. An exception is logged by its type and traceback lines.
2. Messages of other libraries are logged as their template, with `…` for each argument (rule 1).
3. A line written during a request has its `request_id`; every line has its process id.

This uses the standard library because structlog would add a fifth to the startup time.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import traceback
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

import orjson

OURS = "app"
"""The parent of the service's own loggers."""

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""The id of the current request; empty outside requests."""

_BROKEN_OFF = "ASGI callable returned without completing response."
"""uvicorn's message for an answer that ended early; the request log says why it ended."""
_ARGUMENT = re.compile(r"%(?:\(\w+\))?[-#+ 0-9.]*[a-zA-Z]")
_LIBRARIES = ("uvicorn", "uvicorn.error")
"""Loggers whose own handlers would write lines that are not JSON."""


class JsonLines(logging.Formatter):
    """Writes `log.info("event", extra={"data": {...}})` as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = self.fields(record)
        try:
            return orjson.dumps(line, default=str).decode()
        except TypeError:  # a lone surrogate, which only the standard library writes
            return json.dumps(line, default=str)

    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """Return what the line says."""
        is_ours = record.name == OURS or record.name.startswith(f"{OURS}.")
        event = record.getMessage() if is_ours else str(record.msg).partition("\n")[0]
        if not is_ours:  # rule 2
            event = _ARGUMENT.sub("…", event)
        line = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "event": event,
        }
        if current := request_id.get():
            line["request_id"] = current
        if record.exc_info and record.exc_info[1] is not None:
            line |= {
                "error": type(record.exc_info[1]).__name__,
                "places": places(record.exc_info[1]),
            }
        return line | getattr(record, "data", {})


class PlainLines(JsonLines):
    """Writes the same for people: the local time, level and event, then the data."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = self.fields(record)
        at, level, event, *_ = map(line.pop, ("time", "level", "event", "logger", "pid"))
        data = (f"{name}={value}" for name, value in line.items() if value not in (None, ""))
        return " ".join((f"{at.astimezone():%H:%M:%S}", f"{level:7}", event, *data))


def configure(level: str) -> None:
    """Log to stderr: the service's own loggers from this level on, libraries from WARNING on."""
    # No line shows threads and source lines, and looking them up is a fifth of a line's cost.
    logging.logThreads = logging.logMultiprocessing = False
    logging._srcfile = None
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PlainLines() if sys.stderr.isatty() else JsonLines())
    logger = logging.getLogger(OURS)
    logger.handlers = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    for name in _LIBRARIES:
        library = logging.getLogger(name)
        library.handlers = []
        library.propagate = True
        library.addFilter(lambda record: record.msg != _BROKEN_OFF)


def places(error: BaseException) -> list[str]:
    """Return the traceback of an error as lines, the innermost last."""
    frames = traceback.extract_tb(error.__traceback__)[-8:]
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
