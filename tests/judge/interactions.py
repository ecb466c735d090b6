"""Gemini Interactions: a request that is not stored, as the google-genai SDK takes it.

1. The input begins with the user, and ends with the user or a result. The request is not stored.
2. Calls of functions have ids of their own. The results of a group come before anything else but
   steps of the model that stand before the first of them, each with the id and name of its call.
3. Thoughts are signed, and one precedes the first call after the user or results.
4. The result of a tool that Google runs stands after its call.
5. No content is empty.
"""

from __future__ import annotations

from typing import Any

from google.genai.interactions import CreateModelInteractionParam, StepParam

from tests.judge.findings import Facts, Finding, Findings, is_empty, objects, repeated
from tests.judge.gemini import NAME
from tests.judge.sdk_types import check_json, check_type

CALL, RESULT, USER = "function_call", "function_result", "user_input"


def judge(payload: dict[str, Any], _facts: Facts) -> list[Finding]:
    """Return what is wrong with a request to create an interaction."""
    steps = payload.get("input")
    if not isinstance(steps, list) or not steps:
        return [Finding("no-steps", "$.input", "a non-empty array is required")]
    findings = Findings(check_json(payload))
    rest = {"model": "gemini-3.5-flash", **payload, "input": "x"}
    findings.found += check_type(rest, CreateModelInteractionParam)
    for index, step in enumerate(steps):
        findings.found += check_type(step, StepParam, f"$.input[{index}]")
    if findings.is_mistyped:
        return findings.found
    if payload.get("store", False) or payload.get("previous_interaction_id"):
        findings.error("stored", "$", "the request would be stored, or goes on from one that is")
    names = [tool.get("name") for tool in objects(payload.get("tools"))]
    for name in (name for name in names if name is not None and not NAME.fullmatch(name)):
        findings.error("tool-name", "$.tools", repr(name))
    for name in repeated(names):
        findings.error("tool-defined-twice", "$.tools", repr(name))
    if steps[0]["type"] != USER:
        findings.error("first-not-user", "$.input[0]", "the user comes first")
    if steps[-1]["type"] not in (USER, RESULT):
        findings.warn("last-is-model", "$.input", "nothing to answer")
    judge = _Steps(findings)
    for index, step in enumerate(steps):
        judge.add(step, f"$.input[{index}]")
    judge.end("$.input")
    return findings.found


class _Steps:
    """Reads the steps in their order (rules 2 to 5)."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._open: dict[str, str] = {}  # the names of calls, by id
        self._known: set[str] = set()
        self._server_calls: set[str] = set()
        self._has_result = False  # of the open group
        self._is_signed = False

    def add(self, step: dict[str, Any], place: str) -> None:
        """Judge the next step."""
        kind = step["type"]
        if kind == RESULT:
            self._answer(step, place)
            return
        if kind == USER or self._has_result:
            self.end(place)
        if kind == CALL:
            self._call(step, place)
        elif kind == "thought":
            self._is_signed = bool(step.get("signature"))
            if not self._is_signed:
                self._findings.error("unsigned-thought", place, "a thought has no signature")
        elif kind.endswith("_call"):
            self._server_calls.add(step["id"])
        elif kind.endswith("_result") and step["call_id"] not in self._server_calls:
            self._findings.error("orphan-result", place, f"no call {step['call_id']!r}")
        elif kind == USER and is_empty(step.get("content")):
            self._findings.error("empty-content", place, "the user says nothing")
        for part in objects(step.get("content")):
            if part.get("type") == "text" and not part["text"].strip():
                self._findings.error("blank-text", place, "a text is blank")

    def end(self, place: str) -> None:
        """End a group of calls, all of which have results."""
        for call_id in self._open:
            self._findings.error("call-unanswered", place, f"{call_id!r} has no result")
        self._open, self._has_result, self._is_signed = {}, False, False

    def _call(self, step: dict[str, Any], place: str) -> None:
        call_id, name = step["id"], step["name"]
        if not self._is_signed:
            self._findings.error("no-signature", place, "no signed thought precedes the call")
        if call_id in self._known:
            self._findings.error("call-id-reused", place, f"{call_id!r} names an earlier call")
        if not NAME.fullmatch(name):
            self._findings.error("tool-name", place, repr(name))
        self._known.add(call_id)
        self._open[call_id] = name

    def _answer(self, step: dict[str, Any], place: str) -> None:
        name = self._open.pop(step["call_id"], None)
        self._has_result = True
        if name is None:
            self._findings.error("orphan-result", place, f"no open call {step['call_id']!r}")
        elif step.get("name", name) != name:
            self._findings.error("result-name", place, f"the call is of {name!r}")
