"""Gemini, as the google-genai SDK takes it: `model`, `contents` and `config`.

1. The contents start with the user. A role is `user`, `model` or `function`. System text stands
   in `config.system_instruction` alone.
2. A content has parts. Each part has one kind of data, and no text is empty unless a signature
   stands beside it.
3. The model's calls come at once after the user or function responses. The next content answers
   them: as many responses, in the order of the calls, with their names and ids.
4. Gemini 3 and later want the signature of the first call in each step of the current turn.
"""

from __future__ import annotations

import re
from typing import Any

from google.genai import types

from tests.judge.findings import Facts, Finding, Findings, is_empty, objects, repeated
from tests.judge.sdk_types import check_json, check_model

_ASKING = ("user", "function")
_DATA = frozenset(
    (
        "text",
        "inline_data",
        "file_data",
        "function_call",
        "function_response",
        "executable_code",
        "code_execution_result",
        "tool_call",
        "tool_response",
    )
)
NAME = re.compile(r"[A-Za-z_][\w.:-]{0,127}", re.ASCII)
_SIGNING = re.compile(r"(models/)?gemini-([3-9]|\d\d)")
_CAPITAL = re.compile(r"[A-Z]")


def judge(payload: dict[str, Any], _facts: Facts) -> list[Finding]:
    """Return what is wrong with a request to generate content."""
    contents = payload.get("contents")
    if not isinstance(contents, list) or not contents:
        return [Finding("no-contents", "$.contents", "a non-empty array is required")]
    findings = Findings(check_json(payload))
    for key in sorted(payload.keys() - {"model", "contents", "config"}):
        findings.error("sdk-type", f"$.{key}", "is no argument of the SDK")
    for index, content in enumerate(contents):
        findings.found += check_model(content, types.Content, f"$.contents[{index}]")
    config = payload.get("config")
    if isinstance(config, dict):
        _judge_config(config, findings)
    elif config is not None:
        findings.error("sdk-type", "$.config", "is an object")
    if findings.is_mistyped:
        return findings.found
    read = objects(contents)
    if read[0].get("role", "user") != "user":
        findings.error("first-not-user", "$.contents[0]", "the user comes first")
    if read[-1].get("role") == "model":
        findings.warn("last-is-model", "$.contents", "nothing to answer")
    for index, content in enumerate(read):
        _judge_content(content, f"$.contents[{index}]", findings)
    _judge_calls(read, findings)
    if _SIGNING.match(str(payload.get("model", ""))):
        _judge_signatures(read, findings)
    return findings.found


def _judge_config(config: dict[str, Any], findings: Findings) -> None:
    """Check system text and tools by their own types: the SDK's union of them takes anything."""
    rest = {key: value for key, value in config.items() if _snake(key) != "system_instruction"}
    findings.found += check_model(rest, types.GenerateContentConfig, "$.config")
    for key, value in config.items():
        place = f"$.config.{key}"
        if _snake(key) == "system_instruction" and not isinstance(value, str):
            findings.found += check_model(value, types.Content, place)
            if isinstance(value, dict) and not value.get("parts"):
                findings.error("empty-content", place, "there are no parts")
        elif _snake(key) == "tools":
            names: list[Any] = []
            for index, tool in enumerate(value if isinstance(value, list) else []):
                findings.found += check_model(tool, types.Tool, f"{place}[{index}]")
                declared = snake_keys(tool).get("function_declarations")
                names += [item.get("name") for item in objects(declared)]
            for name in names:
                if not NAME.fullmatch(str(name)):
                    findings.error("tool-name", place, repr(name))
            for name in repeated(names):
                findings.error("tool-defined-twice", place, repr(name))


def _judge_content(content: dict[str, Any], place: str, findings: Findings) -> None:
    """Rules 1 and 2."""
    if content.get("role") not in (None, "model", *_ASKING):
        findings.error("role", place, f"{content.get('role')!r} is no role")
    if is_empty(content.get("parts")):
        findings.error("empty-content", place, "there are no parts")
    for index, part in enumerate(parts_of(content)):
        data = [key for key in part if key in _DATA and part[key] is not None]
        at = f"{place}.parts[{index}]"
        if len(data) > 1:
            findings.error("part-of-two-kinds", at, ", ".join(data))
        elif not data and not part.get("thought_signature"):
            findings.error("empty-part", at, "the part has no data")
        elif data == ["text"] and part["text"] == "" and not part.get("thought_signature"):
            findings.error("blank-text", at, "the text is empty")


def _judge_calls(contents: list[dict[str, Any]], findings: Findings) -> None:
    """Rule 3."""
    known: set[str] = set()
    for index, content in enumerate(contents):
        place = f"$.contents[{index}]"
        before = contents[index - 1] if index else {}
        after = contents[index + 1] if index + 1 < len(contents) else {}
        calls, answers = data_of(content, "function_call"), data_of(content, "function_response")
        for call in calls:
            if not NAME.fullmatch(str(call.get("name"))):
                findings.error("tool-name", place, repr(call.get("name")))
        if calls:
            if content.get("role") != "model":
                findings.error("call-role", place, "only the model calls functions")
            if not index or before.get("role") not in _ASKING:
                findings.error("call-place", place, "calls follow the user or responses")
            _judge_answers(calls, data_of(after, "function_response"), place, findings)
        if answers and not data_of(before, "function_call"):
            findings.error("orphan-result", place, "no calls stand right before the responses")
        if answers and content.get("role", "user") not in _ASKING:
            findings.error("response-role", place, "responses are the user's")
        for call_id in (call.get("id") for call in calls):
            if call_id in known:
                findings.error("call-id-reused", place, f"{call_id!r} names an earlier call")
            if isinstance(call_id, str):
                known.add(call_id)


def _judge_answers(
    calls: list[dict[str, Any]], answers: list[dict[str, Any]], place: str, findings: Findings
) -> None:
    if len(calls) != len(answers):
        text = f"{len(calls)} calls, and {len(answers)} responses in the next content"
        findings.error("call-unanswered", place, text)
        return
    for number, (call, answer) in enumerate(zip(calls, answers, strict=True)):
        if call.get("name") != answer.get("name"):
            findings.error("result-name", place, f"response {number} has another name")
        elif None not in (call.get("id"), answer.get("id")) and call["id"] != answer["id"]:
            findings.error("result-id", place, f"response {number} has another id")


def _judge_signatures(contents: list[dict[str, Any]], findings: Findings) -> None:
    """Rule 4. The current turn begins at the user's last content that answers no call."""
    begins = max(
        (
            index
            for index, content in enumerate(contents)
            if content.get("role", "user") == "user" and not data_of(content, "function_response")
        ),
        default=0,
    )
    for index, content in enumerate(contents):
        called = [part for part in parts_of(content) if part.get("function_call") is not None]
        if index > begins and called and not called[0].get("thought_signature"):
            findings.error("no-signature", f"$.contents[{index}]", "the first call has none")


def parts_of(content: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of a content with their fields in snake_case."""
    return [snake_keys(part) for part in objects(content.get("parts"))]


def data_of(content: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the calls or the responses of a content."""
    return objects([part[key] for part in parts_of(content) if part.get(key) is not None])


def snake_keys(value: object) -> dict[str, Any]:
    """Return an object with its fields in snake_case."""
    (found,) = objects([value])
    return {_snake(key): item for key, item in found.items()}


def _snake(key: str) -> str:
    """Return a field's name in snake_case; the SDK takes camelCase as well."""
    return _CAPITAL.sub(lambda letter: f"_{letter[0].lower()}", key)
