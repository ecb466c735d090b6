"""Logs: one JSON object a line on stderr, a constant event name with data beside it.

1. Never content: what callers sent stands in no event, nor do the words of an exception, which may
   quote it. Of an exception its kind is told, and where it happened.
2. What other libraries log is told by its template. Only numbers are filled in, all else is `…`
   (rule 1).
3. A line written during a request carries its `request_id`; every line its process.

The standard library does it; structlog would be a fifth of the start-up time.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

import orjson

OURS = "app"
"""The logger above all of the service's own."""

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""The id of the request that is being answered, empty outside of any."""

_BROKEN_OFF = "ASGI callable returned without completing response."
"""uvicorn's message for an answer that ended early; the request log says why it ended."""
_LIBRARIES = ("uvicorn", "uvicorn.error")
"""Loggers with handlers of their own, which would write lines that are no JSON."""


class JsonLines(logging.Formatter):
    """Writes `log.info("event", extra={"data": {...}})` as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "event": _event(record),
        }
        if current := request_id.get():
            line["request_id"] = current
        if record.exc_info and record.exc_info[1] is not None:
            line |= {
                "error": type(record.exc_info[1]).__name__,
                "places": places(record.exc_info[1]),
            }
        line.update(getattr(record, "data", {}))
        return _dumped(line)


def configure(level: str) -> None:
    """Send what the service logs to stderr, from this level on, and the warnings of libraries."""
    # None of it is written, and looking it up is a fifth of what a line costs.
    logging.logThreads = logging.logMultiprocessing = False
    logging._srcfile = None
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
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
        library.addFilter(_is_news)


def places(error: BaseException) -> list[str]:
    """Return where an error happened, the innermost place last."""
    resolver = traceback.extract_tb(error.__traceback__)[-8:]
    return [f"{resolved.filename}:{resolved.lineno} {resolved.name}" for resolved in resolver]


def _event(record: logging.LogRecord) -> str:
    """Return the name of the event, of a library's the first line of its template (rule 2)."""
    if record.name == OURS or record.name.startswith(f"{OURS}."):
        return record.getMessage()
    return _filled(str(record.msg), record.args).partition("\n")[0]


def _filled(template: str, given: object) -> str:
    """Return a template with its numbers filled in, as it is where that cannot be done."""
    if not given:
        return template
    try:
        if isinstance(given, Mapping):
            return template % {name: _told(value) for name, value in given.items()}
        return template % tuple(map(_told, given if isinstance(given, tuple) else (given,)))
    except (TypeError, ValueError, KeyError):
        return template


def _told(value: object) -> object:
    return value if isinstance(value, int | float) else _Untold()


class _Untold:
    """Stands for what may be content."""

    def __repr__(self) -> str:
        return "…"


def _is_news(record: logging.LogRecord) -> bool:
    return record.msg != _BROKEN_OFF


def _dumped(line: dict[str, Any]) -> str:
    try:
        return orjson.dumps(line, default=str).decode()
    except TypeError:  # a lone surrogate, which only the standard library writes
        return json.dumps(line, default=str)
