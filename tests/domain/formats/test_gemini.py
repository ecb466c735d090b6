"""Gemini: contents in and out, calls known by name, signatures kept or stood in for.

[formats.round-trip]
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from google.genai.types import Content
from hypothesis import given
from hypothesis import strategies as st

from app.common.texts import sendable_json
from app.formats import json_fields, labels
from app.formats.base64_media import is_base64
from app.formats.gemini.parsing import STAND_IN_SIGNATURE
from app.formats.message import (
    EMPTY_RESULT,
    File,
    FormatName,
    Image,
    Message,
    Opaque,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
    clean,
)
from app.formats.registry import gemini
from tests.domain.compaction import strategies_messages as generated
from tests.domain.histories import GEMINI

PNG = generated.png(30, 20)
CALL = {"functionCall": {"name": "f", "args": {"a": 1}}, "thoughtSignature": "c2ln"}
KNOWN = {"function_call": {"id": "q", "name": "g", "args": {}}}
ANSWER = {"functionResponse": {"name": "f", "response": {"output": "ok"}}}
STOOD_IN = {"thoughtSignature": STAND_IN_SIGNATURE}


def parse_one(raw: Mapping[str, Any]) -> Message:
    """Parse a content that makes one neutral message."""
    (message,) = gemini.parse(raw, "/m")
    return message


def said(*parts: Any, role: str = "model") -> dict[str, Any]:
    """Return a content."""
    return {"role": role, "parts": list(parts)}


def assistant(*parts: Part) -> Message:
    """Return an assistant message."""
    return Message(Role.ASSISTANT, parts)


VIDEO = {"fileData": {"fileUri": "https://x.test/a.mp4"}, "videoMetadata": {"fps": 2.0}}
CODE = {"executableCode": {"language": "PYTHON", "code": "1"}}
SIGNED = {"thoughtSignature": "c2ln"}
FAILED = {"function_response": {"id": "q", "name": "g", "response": {"error": "no"}}}
ROWS = {"functionResponse": {"name": "f", "response": {"rows": [1]}}}
METADATA = {"videoMetadata": {"fps": 2.0}}
PARTS: list[tuple[str, dict[str, Any], Part]] = [
    ("user", {"inlineData": {"mimeType": "image/png", "data": PNG}}, Image("image/png", PNG)),
    (
        "user",
        {"inline_data": {"mime_type": "application/pdf", "data": "JVBE", "display_name": "a"}},
        File("application/pdf", "JVBE", name="a"),
    ),
    (
        "user",
        {"fileData": {"fileUri": "https://x.test/a", "mimeType": "image/webp"}},
        Image("image/webp", url="https://x.test/a"),
    ),
    ("user", {"file_data": {"file_uri": "https://x.test/a"}}, File(url="https://x.test/a")),
    (
        "user",
        {"fileData": {"fileUri": "gs://bucket/a.png", "mimeType": "image/png"}},
        File("image/png", file_id="gs://bucket/a.png", format=GEMINI),
    ),
    ("user", VIDEO, File(url="https://x.test/a.mp4", block=METADATA, format=GEMINI)),
    ("user", {"text": "a", "x": {"n": 1}}, Text("a", {"text": "a", "x": {"n": 1}}, GEMINI)),
    ("user", {"text": "a", "thought": None, "inlineData": None}, Text("a")),
    ("user", {"text": " ", **SIGNED}, Text(" ", {"text": " ", **SIGNED}, GEMINI)),
    ("model", {"text": "hm", "thought": True}, Reasoning("hm")),
    (
        "model",
        {"text": "hm", "thought": True, **SIGNED},
        Reasoning("hm", {"text": "hm", "thought": True, **SIGNED}, GEMINI),
    ),
    ("model", {"text": "so", **SIGNED}, Text("so", {"text": "so", **SIGNED}, GEMINI)),
    ("model", {"text": "", **SIGNED}, Reasoning("", {"text": "", **SIGNED}, GEMINI)),
    ("model", CODE, Opaque(CODE, GEMINI)),
    ("model", CALL, ToolCall("f", "f", '{"a":1}', block=CALL, format=GEMINI)),
    ("model", KNOWN, ToolCall("q", "g", "{}", block=KNOWN, format=GEMINI)),
]


@pytest.mark.parametrize(("role", "part", "read"), PARTS)
def test_a_part_is_read(role: str, part: dict[str, Any], read: Part) -> None:
    """Either spelling is read, and unknown parts are kept."""
    of = Role.USER if role == "user" else Role.ASSISTANT
    assert gemini.parse(said(part, role=role), "/m") == (Message(of, (read,)),)


def test_responses_become_messages() -> None:
    """Each response is a message; the other parts of the content are one."""
    raw = said({"text": "go"}, ANSWER, FAILED, ROWS, role="function")
    assert gemini.parse(raw, "/m") == (
        Message(Role.TOOL, (Text("ok", ANSWER, GEMINI),), "f", "f"),
        Message(Role.TOOL, (Text("no", FAILED, GEMINI),), "q", "g", is_error=True),
        Message(Role.TOOL, (Text('{"rows":[1]}', ROWS, GEMINI),), "f#2", "f"),
        Message(Role.USER, (Text("go"),)),
    )
    pieces = gemini.split({**raw, "x": 1})
    assert [piece["parts"] for piece in pieces] == [[ANSWER], [FAILED], [ROWS], [{"text": "go"}]]
    assert pieces[0]["x"] == 1
    assert [call.id for call in parse_one(said(CALL, CALL)).calls] == ["f", "f#2"]


def test_parts_go_back_as_they_came() -> None:
    """Signatures stay at their parts, calls keep their spelling and have no new ids."""
    parts = [
        {"text": "so", "thoughtSignature": "c2ln"},
        {"text": "", "thought_signature": "c2ln"},
        CODE,
        CALL,
        KNOWN,
        CALL,
    ]
    message = clean(parse_one(said({"text": "hm", "thought": True}, *parts)))
    assert gemini.render(message, keep_reasoning=True) == ("model", parts)
    unsigned = {"functionCall": CALL["functionCall"]}
    assert gemini.render(message) == (
        "model",
        [{"text": "so"}, CODE, {**unsigned, **STOOD_IN}, KNOWN, unsigned],
    )
    assert gemini.render(message, {"f": "call_9", "q": "q_2"})[1][3:] == [
        {"function_call": {"id": "q_2", "name": "g", "args": {}}},
        unsigned,
    ]


def test_calls_of_other_providers_have_a_stand_in_signature() -> None:
    """The first call of a step has a signature, whoever made it. [gemini.thought-signatures]"""
    calls = (ToolCall("c1", "f", '{"a":1}'), ToolCall("c2", "a b.c", "oops", custom=True))
    _, parts = gemini.render(assistant(Text("x"), *calls))
    assert parts == [
        {"text": "x"},
        {"functionCall": {"id": "c1", "name": "f", "args": {"a": 1}}, **STOOD_IN},
        {"functionCall": {"id": "c2", "name": "a_b_c", "args": {"arguments": "oops"}}},
    ]
    signed = Reasoning("hm", {"type": "thinking"}, FormatName.ANTHROPIC)
    assert gemini.render(assistant(signed), keep_reasoning=True)[1] == []


def test_responses_carry_the_name_and_id_of_their_call() -> None:
    """A response answers under the name of its call, with an id where that has one."""
    result = Message(Role.TOOL, (Text("ok"),), "c1")
    asked = {"name": "f", "args": {}}
    assert gemini.render(result, call=asked) == ("user", [ANSWER])
    _, (part,) = gemini.render(result, call={**asked, "id": "c1"})
    assert part["functionResponse"]["id"] == "c1"
    failed = Message(Role.TOOL, (Text("no"), Text("way")), "c1", is_error=True)
    _, (part,) = gemini.render(failed, call=asked)
    assert part["functionResponse"]["response"] == {"error": "no\nway"}
    _, (part,) = gemini.render(clean(Message(Role.TOOL, (), "c1")), call=asked)
    assert part["functionResponse"]["response"] == {"output": EMPTY_RESULT}
    object_ = {"functionResponse": {"id": "x", "name": "f", "response": {"rows": [1]}}}
    own = clean(parse_one(said(object_, role="user")))
    assert gemini.render(own)[1] == [object_]
    _, (part,) = gemini.render(own, call={"name": "h"})
    assert part == {"functionResponse": {"name": "h", "response": {"rows": [1]}}}


def test_media_of_results_follow_the_response() -> None:
    """Media of others stand behind the response; Gemini's own stay inside it."""
    image = Image("image/png", PNG)
    result = Message(Role.TOOL, (image,), "c1")
    role, parts = gemini.render(result, call={"name": "f", "id": "c1"})
    inline = {"inlineData": {"mimeType": "image/png", "data": PNG}}
    answer = {"id": "c1", "name": "f", "response": {"output": "[media follows]"}}
    assert (role, parts) == (
        "user",
        [{"functionResponse": answer}, {"text": "[media from tool call c1]"}, inline],
    )
    own = {"functionResponse": {"name": "f", "response": {"output": "x"}, "parts": [inline]}}
    message = clean(parse_one(said(own, role="user")))
    assert message.parts[1:] == (image,)
    assert gemini.render(message)[1] == [own]


MEDIA = [
    (
        Image("image/jpg", "/9j/4AAQ"),
        {"inlineData": {"mimeType": "image/jpeg", "data": "/9j/4AAQ"}},
    ),
    (
        Image("image/png", "iVBO\nRw0K Ggo="),
        {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}},
    ),
    (Image("image/gif", "R0lG"), {"text": "[image: image/gif]"}),
    (Image("image/png", "no base64!"), {"text": "[image: unreadable data]"}),
    (
        Image(url="https://x.test/a.webp?x=1"),
        {"fileData": {"fileUri": "https://x.test/a.webp?x=1", "mimeType": "image/webp"}},
    ),
    (
        Image(url="https://x.test/a"),
        {"fileData": {"fileUri": "https://x.test/a", "mimeType": "image/jpeg"}},
    ),
    (Image(url="ftp://x.test/a.png"), {"text": "[image: ftp://x.test/a.png]"}),
    (
        File("application/pdf", "JVBE", name="a"),
        {"inlineData": {"mimeType": "application/pdf", "data": "JVBE", "displayName": "a"}},
    ),
    (File("application/zip", "AAAA", name="a.zip"), {"text": "[file: a.zip]"}),
    (File(text="body", name="n"), {"text": "[file: n]\nbody"}),
    (File(url="https://x.test/a.pdf"), {"fileData": {"fileUri": "https://x.test/a.pdf"}}),
    (File(file_id="file-1", format=FormatName.OPENAI_CHAT), {"text": "[file: file-1]"}),
]


@pytest.mark.parametrize(("media", "part"), MEDIA)
def test_media_are_sent_or_named(media: Image | File, part: dict[str, Any]) -> None:
    """Media go as data or by URI where Gemini takes them, else as text. [payload.valid]"""
    assert gemini.render(clean(Message(Role.USER, (media,)))) == ("user", [part])
    Content.model_validate(said(part, role="user"))


@pytest.mark.parametrize("data", ["", "AA==", "AAA", "+/AA", "-_AA", "AAAAA", "AB==", "AAB=", "é"])
def test_base64_is_recognised_as_by_strict_readers(data: str) -> None:
    """What the SDK would refuse is not taken for base64. [payload.sdk-call]"""
    part = {"inlineData": {"mimeType": "image/png", "data": data}}
    try:
        Content.model_validate(said(part))
    except ValueError:
        assert not is_base64(data)
    assert is_base64(data) is (data in ("", "AA==", "AAA", "+/AA", "-_AA"))


def sayings(message: Message) -> list[Any]:
    """Return what the parts of a message say, apart from what the wire has no place for."""
    found: list[Any] = []
    for part in message.parts:
        match part:
            case Text():
                found.append(part.text)
            case Image():
                found.append((part.media_type, part.data, part.data is None and part.url))
            case File():
                held = part.file_id if part.format is GEMINI else None
                found.append(
                    (part.data, part.data is None and (held or part.url), part.name or None)
                )
            case ToolCall():
                found.append((part.id, part.name, json.loads(part.arguments)))
            case Reasoning() | Opaque():
                found.append({**(part.block or {}), "thoughtSignature": None})
    return found


@given(message=generated.messages(), keep_reasoning=st.booleans())
def test_round_trip(message: Message, keep_reasoning: bool) -> None:
    """What is rendered is of the SDK's types, and read again it is what is shown of a message.

    [payload.sdk-call]
    """
    said_ = gemini.for_payload(clean(message), keep_reasoning=keep_reasoning)
    role, parts = gemini.render(said_, keep_reasoning=keep_reasoning)
    assert parts and sendable_json(parts) is parts
    Content.model_validate({"role": role, "parts": parts})
    calls = [part for part in parts if "functionCall" in part]
    assert all("thoughtSignature" in part for part in calls[:1])
    back, *rest = gemini.parse({"role": role, "parts": parts}, "/m")
    assert (back.role, back.is_error) == (said_.role, said_.is_error)
    assert back.tool_call_id == said_.tool_call_id
    if media := gemini.apart(said_):
        (follows,) = rest
        assert sayings(follows)[1:] == sayings(Message(Role.USER, media))
        texts = [part for part in said_.parts if isinstance(part, Text)]
        expected = sayings(Message(Role.TOOL, tuple(texts))) or [labels.MEDIA_FOLLOWS]
        assert sayings(back) == expected
    else:
        assert (sayings(back), rest) == (sayings(said_), [])
    assert gemini.adapt(said_) is said_
    assert gemini.for_payload(said_, keep_reasoning=True) is said_


def test_a_response_reads_as_it_is_sent() -> None:
    """What escapes hide in an object is counted as it is sent, and kept as it was."""
    response = {"rows": [1, "\x00"], "more": None}
    part = {"functionResponse": {"name": "f", "response": response}}
    (message,) = gemini.parse({"role": "user", "parts": [part]}, "")
    assert message.parts[0] == Text(json_fields.compact(response), part, FormatName.GEMINI)
    (shown,) = gemini.for_payload(clean(message)).parts
    assert isinstance(shown, Text)
    assert shown.text == json_fields.compact(sendable_json(response))
