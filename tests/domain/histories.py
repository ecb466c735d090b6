"""Hypothesis strategies for whole logs: raw messages, their rows, their planning entries."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from app.domain.log import Draft, LogRow, draft
from app.domain.messages import FormatName, Role
from app.domain.turns import Entry, entry
from tests.domain import strategies_messages as given_

CHAT, ANTHROPIC = FormatName.OPENAI_CHAT, FormatName.ANTHROPIC
QUICK = settings(max_examples=50, deadline=None)
"""For properties of whole logs, whose examples take milliseconds each."""

CALL_IDS = ("c1", "c2", "c3", "toolu_A", "bad id!", "é", "x" * 60)
"""Few, so that logs use them again; some that no provider takes."""

IMAGE_DATA = given_.png(640, 480)


def third(text: str) -> int:
    """Count a token per three characters, rounded up: cheap, and not additive over parts."""
    return -(-len(text) // 3)


@functools.cache
def provider_validate() -> ModuleType:
    """Import the checker of payloads against the SDK types, or skip where it is not at hand."""
    root = Path(__file__).parents[2]
    shared = Path(os.environ.get("CONTEXT_SHARED_DIR", root.parent / "shared"))
    path = shared / "tools" / "provider_validate.py"
    if not path.exists():
        pytest.skip(f"{path.name} is not there: set CONTEXT_SHARED_DIR")
    spec = importlib.util.spec_from_file_location("provider_validate", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault("provider_validate", module)
    spec.loader.exec_module(module)
    return module


# --- planning entries -----------------------------------------------------------------------


@st.composite
def entries(draw: st.DrawFn, max_groups: int = 12) -> list[Entry]:
    """Draw a history for planners: turns, groups of parallel results, now and then huge ones."""
    sizes = st.one_of(st.integers(1, 60), st.integers(1, 60), st.integers(100, 900))
    found: list[Entry] = []

    def put(role: Role) -> None:
        found.append(entry(len(found) + 1, role, draw(sizes)))

    for _ in range(draw(st.integers(1, max_groups))):
        put(draw(st.sampled_from((Role.USER, Role.ASSISTANT, Role.ASSISTANT))))
        if found[-1].role is Role.ASSISTANT:
            for _ in range(draw(st.sampled_from((0, 0, 1, 1, 2, 5)))):
                put(Role.TOOL)
    return found


def pinned_at(history: Iterable[Entry], seqs: Iterable[int]) -> list[Entry]:
    """Return the history with exactly these seqs pinned."""
    pins = set(seqs)
    return [entry(item.seq, item.role, item.tokens, item.seq in pins) for item in history]


# --- raw logs -------------------------------------------------------------------------------


@dataclass
class RawLog:
    """Messages as they would be appended, each with its format, pairing intact."""

    messages: list[tuple[FormatName, dict[str, Any]]] = field(default_factory=list)
    open_calls: list[str] = field(default_factory=list)


def texts() -> st.SearchStrategy[str]:
    """Texts of a log: ordinary, odd, long."""
    long = st.integers(100, 900).map(lambda words: "lorem ipsum " * words)
    plain = st.text("abc \né日", max_size=60)
    return st.one_of(plain, plain, given_.texts(20), long)


def _chat_user(draw: st.DrawFn) -> dict[str, Any]:
    if draw(st.integers(0, 3)):
        return {"role": "user", "content": draw(texts())}
    parts = [{"type": "text", "text": draw(texts())}]
    if draw(st.booleans()):
        url = f"data:image/png;base64,{IMAGE_DATA}"
        parts.append({"type": "image_url", "image_url": {"url": url}})  # type: ignore[dict-item]
    return {"role": "user", "content": parts, "name": draw(st.sampled_from(("ann", "no name")))}


def _chat_assistant(draw: st.DrawFn, ids: list[str]) -> dict[str, Any]:
    content = draw(st.one_of(st.none(), texts()))
    calls = [
        {
            "id": call_id,
            "type": "function",
            "function": {"name": "read_file", "arguments": draw(given_.arguments())},
        }
        for call_id in ids
    ]
    raw: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        raw["tool_calls"] = calls
    if draw(st.integers(0, 4)) == 0:
        raw["reasoning_content"] = draw(texts())
    return raw


def _chat_result(draw: st.DrawFn, call_id: str) -> dict[str, Any]:
    content: Any = draw(texts())
    if draw(st.integers(0, 3)) == 0:
        url = f"data:image/png;base64,{IMAGE_DATA}"
        content = [
            {"type": "text", "text": content},
            {"type": "image_url", "image_url": {"url": url}},
        ]
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def _block(draw: st.DrawFn) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": IMAGE_DATA}
    if draw(st.integers(0, 3)) == 0:
        return {"type": "image", "source": source}
    return {"type": "text", "text": draw(texts())}


def _anthropic_user(draw: st.DrawFn) -> dict[str, Any]:
    if draw(st.booleans()):
        return {"role": "user", "content": draw(texts())}
    return {"role": "user", "content": [_block(draw) for _ in range(draw(st.integers(1, 3)))]}


def _anthropic_assistant(draw: st.DrawFn, ids: list[str]) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = []
    thinking = st.sampled_from(
        (
            {"type": "thinking", "thinking": "step by step", "signature": "c2ln"},
            {"type": "thinking", "thinking": "unsigned thoughts"},
            {"type": "redacted_thinking", "data": "ZGF0YQ=="},
        )
    )
    for _ in range(draw(st.sampled_from((0, 0, 1, 2)))):
        blocks.append(dict(draw(thinking)))
    if draw(st.booleans()):
        blocks.append({"type": "text", "text": draw(texts())})
    blocks += [
        {"type": "tool_use", "id": call_id, "name": "read_file", "input": {"path": draw(texts())}}
        for call_id in ids
    ]
    if draw(st.integers(0, 5)) == 0:
        blocks.append(dict(draw(thinking)))
    return {"role": "assistant", "content": blocks}


def _anthropic_results(draw: st.DrawFn, ids: list[str]) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = []
    for call_id in ids:
        content: Any = draw(texts())
        if draw(st.integers(0, 3)) == 0:
            content = [_block(draw) for _ in range(draw(st.integers(0, 2)))]
        block = {"type": "tool_result", "tool_use_id": call_id, "content": content}
        blocks.append(block | ({"is_error": True} if draw(st.booleans()) else {}))
    if draw(st.booleans()):
        blocks.append({"type": "text", "text": draw(texts())})
    return {"role": "user", "content": blocks}


@st.composite
def raw_logs(draw: st.DrawFn, max_steps: int = 10) -> RawLog:
    """Draw a log in mixed formats: parallel and pending calls, ids used again, odd content."""
    log = RawLog()
    for _ in range(draw(st.integers(1, max_steps))):
        format = draw(st.sampled_from((CHAT, ANTHROPIC)))
        kind = draw(st.sampled_from(("user", "assistant", "calls", "calls", "results", "results")))
        if kind == "results" and not log.open_calls:
            kind = "user"
        match kind:
            case "user":
                raw = _chat_user(draw) if format is CHAT else _anthropic_user(draw)
                log.messages.append((format, raw))
                log.open_calls = []
            case "results":
                order = draw(st.permutations(log.open_calls))
                answered = order[: draw(st.integers(1, len(order)))]
                _answer(draw, log, format, list(answered))
            case _:
                ids = []
                if kind == "calls":
                    some = st.lists(st.sampled_from(CALL_IDS), min_size=1, max_size=3, unique=True)
                    ids = draw(some)
                make = _chat_assistant if format is CHAT else _anthropic_assistant
                log.messages.append((format, make(draw, ids)))
                log.open_calls = ids
    return log


def _answer(draw: st.DrawFn, log: RawLog, format: FormatName, answered: list[str]) -> None:
    if format is CHAT:
        log.messages += [(CHAT, _chat_result(draw, call_id)) for call_id in answered]
        log.open_calls = [call_id for call_id in log.open_calls if call_id not in answered]
        return
    raw = _anthropic_results(draw, answered)
    log.messages.append((ANTHROPIC, raw))
    has_text = raw["content"][-1]["type"] == "text"
    left = [call_id for call_id in log.open_calls if call_id not in answered]
    log.open_calls = [] if has_text else left


def drafts_of(log: RawLog) -> list[tuple[FormatName, Draft]]:
    """Return every draft of a log with the format it came in."""
    return [
        (format, made) for format, raw in log.messages for made in draft(raw, format, third, "")
    ]


def rows_of(log: RawLog, wanted: FormatName) -> list[LogRow]:
    """Return the rows a build of the wanted format reads, as the database gives them."""
    found = []
    for seq, (format, made) in enumerate(drafts_of(log), 1):
        as_chat = wanted is CHAT and not made.has_media
        found.append(
            LogRow(
                id=f"0190f3a0-0000-7000-8000-{seq:012d}",
                seq=seq,
                role=made.role,
                tokens=made.tokens,
                reasoning_tokens=made.reasoning_tokens,
                call_ids=made.call_ids,
                has_media=made.has_media,
                format=CHAT if as_chat else format,
                text=(made.fragment or made.body) if as_chat else made.body,
            )
        )
    return found


def entries_of(rows: list[LogRow]) -> list[Entry]:
    """Return what planning needs of rows."""
    return [entry(row.seq, row.role, row.tokens) for row in rows]
