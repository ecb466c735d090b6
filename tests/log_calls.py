"""Every call of a logger in the app, found in its source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

APP = Path(__file__).parent.parent / "app"
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
LOGGERS = {"_log", "logger"}


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Yield every call of a logger in the app, with its place."""
    for path in sorted(APP.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not any(f"{name}." in text for name in LOGGERS):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                holder = node.func.value
                name = holder.id if isinstance(holder, ast.Name) else ""
                if name in LOGGERS and node.func.attr in LEVELS:
                    yield f"{path.relative_to(APP)}:{node.lineno}", node


FOUND = dict(calls())
