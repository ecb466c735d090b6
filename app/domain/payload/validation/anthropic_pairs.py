"""Calls and results of Anthropic Messages (`A2` to `A5`, `A14`).

1. Neighbours of one role are one message to the provider, but results stand in a single one (`A3`).
2. A call of a server's tool may wait for its result: at the end, or behind a user message that has
   results only (`A5`).
3. A compaction request is not answered, so a call left open at its end breaks `A14` instead of
   `A2`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from app.domain.payload.validation.rules import Check
from app.domain.payload.validation.shapes import Object, blocks_of, string_of

SERVER_CALLS: Final = ("server_tool_use", "mcp_tool_use")
SERVER_ID: Final = "srvtoolu_"

_ID = re.compile(r"[a-zA-Z0-9_-]+")
_Blocks = Sequence[tuple[str, Object]]


def is_server_result(block: Object) -> bool:
    """Whether a block is the result of one of the provider's own tools."""
    kind = string_of(block.get("type"))
    return kind != "tool_result" and kind.endswith("_tool_result")


def judge(check: Check) -> None:
    """Judge that every call has its result where the provider looks for it."""
    walk = _Walk(check)
    for at, raw in check.objects():
        if raw.get("role") == "assistant":
            walk.add_assistant(at, blocks_of(raw))
        elif raw.get("role") == "user":
            walk.add_user(at, blocks_of(raw))
        elif walk.waiting and not walk.users:
            check.add("A2", at, "stands between calls and their results")
    rule = "A14" if check.payload.get("compaction") else "A2"
    check.add_all(rule, walk.waiting.values(), "the call has no result")


@dataclass(slots=True)
class _Walk:
    """The state of a walk through a conversation; calls are stored as pointers by id.

    `waiting` are calls of the newest assistant message, `users` the user messages since, `hosted`
    the calls of the server's tools without a result.
    """

    check: Check
    seen: set[str] = field(default_factory=set)
    waiting: dict[str, str] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)
    hosted: dict[str, str] = field(default_factory=dict)
    users: int = 0

    def add_assistant(self, at: str, blocks: _Blocks) -> None:
        if self.users:
            message = "the call has no result in the next message"
            self.check.add_all("A2", self.waiting.values(), message)
            self.waiting, self.answered, self.users = {}, set(), 0
        for path, block in blocks:
            kind, pointer = string_of(block.get("type")), f"{at}{path}"
            if kind == "tool_use":
                self._call(string_of(block.get("id")), pointer)
            elif kind in SERVER_CALLS:
                self.hosted[string_of(block.get("id"))] = pointer
            elif kind == "tool_result":
                self.check.add("A4", pointer, "a result stands in a user message")
            elif is_server_result(block) and not self._is_hosted(block):
                self.check.add("A5", pointer, "the server's call that led to this is gone")

    def _call(self, call_id: str, pointer: str) -> None:
        if call_id in self.seen:
            self.check.add("A4", f"{pointer}/id", "another call has this id")
        elif not _ID.fullmatch(call_id):
            self.check.add("N3", f"{pointer}/id", "an id has letters, digits, _ and - only")
        self.seen.add(call_id)
        self.waiting[call_id] = pointer

    def _is_hosted(self, result: Object) -> bool:
        return self.hosted.pop(string_of(result.get("tool_use_id")), None) is not None

    def add_user(self, at: str, blocks: _Blocks) -> None:
        is_result = [block.get("type") == "tool_result" for _, block in blocks]
        results = sum(is_result)
        if self.hosted and not (results and all(is_result)):
            message = "the server's call waits for its result behind other things than results"
            self.check.add_all("A5", self.hosted.values(), message)
            self.hosted = {}
        if self.users and self.waiting and results:
            self.check.add("A3", at, "all results of a message stand in one message")
        elif not all(is_result[:results]):
            self.check.add("A3", at, "results stand before everything else")
        for path, block in blocks:
            if block.get("type") == "tool_result":
                self._result(block.get("tool_use_id"), f"{at}{path}")
            elif block.get("type") == "tool_use":
                self.check.add("A2", f"{at}{path}", "a call stands in an assistant message")
        self.users += 1

    def _result(self, value: object, pointer: str) -> None:
        call_id = string_of(value)
        if not call_id:
            self.check.add("N1", pointer, "the result names no call")
        elif call_id in self.waiting:
            del self.waiting[call_id]
            self.answered.add(call_id)
        elif call_id.startswith(SERVER_ID) or call_id in self.hosted:
            self.check.add("A5", pointer, "the server's tools are answered by the server")
        elif call_id in self.answered:
            self.check.add("A4", pointer, "the call has a result already")
        else:
            self.check.add("A4", pointer, "no call of the message before has this id")
