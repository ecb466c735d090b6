"""Every optional field of the SDKs' types of messages comes back in payloads of its own format.

[formats.fields-kept, formats.malformed-refused]
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from functools import partial
from typing import Any

import pytest
from anthropic.types import MessageParam
from google.genai.interactions import StepParam
from google.genai.types import Content
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import ResponseInputItemParam

from app.common.errors import ValidationError
from app.conversations.view import View
from app.formats import PROVIDERS
from app.formats import reasoning as reasoning_families
from app.formats.message import FormatName
from app.payload.format_assemblers import assembler_of
from tests.domain.formats.sdk_fields import samples
from tests.domain.histories import (
    ANTHROPIC,
    CHAT,
    GEMINI,
    INTERACTIONS,
    RESPONSES,
    RawLog,
    rows_of,
    third,
)

HINTS: list[tuple[FormatName, Any]] = [
    (CHAT, ChatCompletionMessageParam),
    (RESPONSES, ResponseInputItemParam),
    (ANTHROPIC, MessageParam),
    (GEMINI, Content),
    (INTERACTIONS, StepParam),
]
EXCEPTIONS = {
    "AssistantMessageParam.*DocumentBlockParam*": "the API takes no documents of the assistant",
    "AssistantMessageParam.*ImageBlockParam*": "the API takes no images of the assistant",
    "AssistantMessageParam.content: *": "the same",
    "ChatCompletionAssistantMessageParam.function_call is refused*": "deprecated",
    "*.file_id+filename: *": "an uploaded file has its own name",
    "*Output*.id: .id": "callers make the ids of outputs, which OpenAI refuses",
    "*.call_id: .*id": "the same",
    "Content.Part.functionResponse+thoughtSignature: *": "a signature belongs to what a model made",
    "Content.Part.text+thought: *": "a thought without a signature is never sent",
    "ThoughtStepParam.*summary*": "the same",
    ": .*": "the same",
    "ModelOutputStepParam.error*: .error": "a step without content is not sent",
}
"""What does not come back, each with the reason."""


def built(format: FormatName, sent: Mapping[str, Any], target: FormatName) -> list[Any]:
    """Append a message where a conversation may have it, and return the items of a payload."""
    rows = rows_of(RawLog([*before(format, sent), (format, dict(sent))]), target)
    view = View(reasoning_of=(reasoning_families.ANTHROPIC,))
    assembler = assembler_of(target)(view, third, defined_tools={"text"})
    for row in rows:
        assembler.add(row)
    assembler.finish()
    return list(map(json.loads, assembler.items().wire_items))


def before(format: FormatName, sent: Mapping[str, Any]) -> Iterator[tuple[FormatName, Any]]:
    """Yield the message with the calls that a result answers."""
    match format:
        case FormatName.OPENAI_CHAT if "tool_call_id" in sent:
            function = {"name": "f", "arguments": "{}"}
            call: Any = {"id": sent["tool_call_id"], "type": "function", "function": function}
            yield format, {"role": "assistant", "content": None, "tool_calls": [call]}
        case FormatName.OPENAI_RESPONSES if str(sent.get("type")).endswith("_output"):
            kind = sent["type"].removesuffix("_output")
            call_id = sent.get("call_id", sent.get("id"))
            kind = {"tool_search": "tool_search_call"}.get(kind, kind)
            call = {"type": kind, "call_id": call_id, "name": "f", "input": "", "arguments": "{}"}
            if kind != "program":
                yield (
                    format,
                    call | {"action": {}, "operation": {}, "id": "x1", "status": "completed"},
                )
        case FormatName.ANTHROPIC if isinstance(sent["content"], list):
            for block in sent["content"]:
                if block.get("type") == "tool_result":
                    call = {
                        "type": "tool_use",
                        "id": block["tool_use_id"],
                        "name": "f",
                        "input": {},
                    }
                    yield format, {"role": "assistant", "content": [call]}
        case FormatName.INTERACTIONS if "call_id" in sent:
            kind = sent["type"].removesuffix("result") + "call"
            named = {"id": sent["call_id"], "name": sent.get("name", "f"), "arguments": {}}
            yield format, {"type": kind, **named}
        case FormatName.GEMINI:
            for part in sent["parts"]:
                if answer := part.get("functionResponse"):
                    known = {"id": answer["id"]} if "id" in answer else {}
                    call = {"functionCall": {"name": answer["name"], "args": {}, **known}}
                    yield format, {"role": "model", "parts": [call]}


def units(format: FormatName, item: Mapping[str, Any]) -> list[Any]:
    """Return what stays whole of a message: its blocks where neighbours of a role share one."""
    key = PROVIDERS[format].blocks_key
    if format is ANTHROPIC and isinstance(item["content"], str):
        return [{"type": "text", "text": item["content"]}]
    is_whole = not isinstance(item.get(key), list) or (key == "output" and "type" in item)
    return [item] if is_whole else list(item[key])


def lost(sent: Any, found: Any, at: str = "") -> list[str]:
    """Return the places of a sent value that are not in a found one."""
    if isinstance(sent, dict) and isinstance(found, dict):  # nulls are not sent
        return [
            place
            for key, item in sent.items()
            if item is not None
            for place in lost(item, found.get(key), f"{at}.{key}")
        ]
    sent, found = unwrapped(sent), unwrapped(found)
    if isinstance(sent, list) and isinstance(found, list) and len(sent) == len(found):
        return [place for a, b in zip(sent, found, strict=True) for place in lost(a, b, f"{at}[]")]
    return [] if sent == found else [at or "."]


def unwrapped(value: Any) -> Any:
    """Return the text of a content that is one text."""
    match value:
        case [{"type": "text" | "input_text", "text": text, **others}] if not others:
            return text
        case _:
            return value


def sendable(format: FormatName, hint: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the samples of messages, as a caller would append each."""
    for label, value in samples(hint):
        if value.get("role") in ("system", "developer") or value.get("type") == "compaction":
            continue  # a section; what only a payload has that begins with it
        if format is GEMINI:
            yield from ((label, {**value, "role": role}) for role in ("user", "model"))
        elif value.get("type") == "thought":
            said = {"type": "model_output", "content": [{"type": "text", "text": "so"}]}
            yield label, {"role": "assistant", "output": [value, said]}
        elif format is RESPONSES and value.get("type") == "reasoning":
            said = {"type": "message", "role": "assistant", "content": "so"}
            yield label, {"role": "assistant", "output": [value, said]}
        else:
            yield label, value


def problems(format: FormatName, hint: Any) -> Iterator[str]:
    """Yield what does not come back, and what no role of a message may have."""
    refused: dict[str, str] = {}
    accepted = set()
    for label, sent in sendable(format, hint):
        field = label.partition(".")[2]
        try:
            items = built(format, sent, format)
        except ValidationError as error:
            refused.setdefault(field, f"{label} is refused: {error.problems[0].detail}")
            continue
        accepted.add(field)
        for other in FormatName:
            assert built(format, sent, other)  # it crashes no format
        blocks = [block for item in items for block in units(format, item)]
        for unit in units(format, sent):
            places = min((lost(unit, block) for block in blocks), key=len)
            yield from (f"{label}: {place}" for place in places)
    yield from (text for field, text in refused.items() if field not in accepted)


@pytest.mark.parametrize(("format", "hint"), HINTS)
def test_every_optional_field_comes_back(format: FormatName, hint: Any) -> None:
    """Deep-equal, cache marks aside."""
    found = sorted(set(problems(format, hint)))
    assert [p for p in found if not any(map(partial(fnmatch, p), EXCEPTIONS))] == []
