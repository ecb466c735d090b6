"""Logs: one JSON object a line on stderr, a constant event name with data beside it.

Never content: what callers sent stands in no event, nor do the words of an exception, which may
quote it. The standard library does it; structlog would be a fifth of the start-up time.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime


class JsonLines(logging.Formatter):
    """Writes `log.info("event", extra={"data": {...}})` as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **getattr(record, "data", {}),
        }
        return json.dumps(line, default=str)


def configure(level: str) -> None:
    """Send what the service logs to stderr, from this level on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("app")
    logger.handlers = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
