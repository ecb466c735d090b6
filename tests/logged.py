"""What is logged, as it would be written."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from app.common.logs import JsonLines


class Lines(logging.Handler):
    """Every line of the log, as it would be written."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(JsonLines())
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the line."""
        self.texts.append(self.format(record))

    def told(self, event: str) -> list[dict[str, Any]]:
        """Return the lines of an event."""
        return [line for line in map(json.loads, self.texts) if line["event"] == event]


@pytest.fixture
def lines() -> Iterator[Lines]:
    """What is logged during the test: by the service from `info` on, by libraries as they like."""
    kept, ours, root = Lines(), logging.getLogger("app"), logging.getLogger()
    before = ours.level
    ours.setLevel(logging.INFO)
    root.addHandler(kept)
    yield kept
    root.removeHandler(kept)
    ours.setLevel(before)
