"""Recorded conversations: those of `tests/conversations`, or of the folder `CONTEXT_TRACES_DIR`.

The files of `tests/conversations` hold one conversation each, in the format of any provider. Those
of `CONTEXT_TRACES_DIR` hold one a line, in OpenAI Chat form (`.jsonl`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.cli.demo import Trace, read_traces

COMMITTED = Path(__file__).with_name("conversations")
CHAT = "openai_chat"
NOT_CONVERSATIONS = ("mcp_tools.jsonl",)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation of `tests/conversations`, as the provider of its format has it."""

    name: str
    format: str
    tools: list[dict[str, Any]]
    messages: list[dict[str, Any]]


def is_external() -> bool:
    """Whether the conversations are those of `CONTEXT_TRACES_DIR`."""
    return bool(os.environ.get("CONTEXT_TRACES_DIR"))


def traces_dir() -> Path:
    """Return the folder of the conversations; raises SystemExit where the one named is missing."""
    folder = Path(os.environ.get("CONTEXT_TRACES_DIR") or COMMITTED)
    if not folder.is_dir():
        raise SystemExit(f"CONTEXT_TRACES_DIR names {folder}, which is no folder.")
    return folder


def source() -> str:
    """Say where the conversations come from, for the output of a benchmark."""
    return "CONTEXT_TRACES_DIR" if is_external() else "tests/conversations"


def committed() -> list[Conversation]:
    """Return the conversations of the repository, in order of their names."""
    return [_read(path) for path in sorted(COMMITTED.glob("*.json"))]


def trace_files(folder: Path) -> list[Path]:
    """Return the files of conversations in OpenAI Chat form, in order of their names."""
    lines = [path for path in folder.glob("*.jsonl") if path.name not in NOT_CONVERSATIONS]
    return sorted([*lines, *(p for p in folder.glob("*.json") if _read(p).format == CHAT)])


def named_traces(path: Path) -> list[Trace]:
    """Read the conversations of a file; those of one that holds several are numbered."""
    if path.suffix == ".json":
        return [_trace(_read(path))]
    return [
        Trace(f"{path.stem}:{number}", trace.sections, trace.tools, trace.messages)
        for number, trace in enumerate(read_traces(path))
    ]


def _read(path: Path) -> Conversation:
    raw = json.loads(path.read_text(encoding="utf-8"))
    return Conversation(raw["id"], raw["format"], raw["tools"] or [], raw["messages"])


def _trace(conversation: Conversation) -> Trace:
    """Make sections of the system messages at the start."""
    messages = conversation.messages
    opening = next(
        n for n, raw in enumerate(messages) if raw["role"] not in ("system", "developer")
    )
    sections = [
        {"name": f"system-{number}", "content": _text(raw)}
        for number, raw in enumerate(messages[:opening], 1)
    ]
    return Trace(conversation.name, sections, conversation.tools, messages[opening:])


def _text(message: Mapping[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)
