"""Results on their way into the log and back: kept, shown, known again.

[tool-output.byte-exact, tool-output.same-content-once, log.message-id]
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from copy import deepcopy
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.blobs.chunks import TEXT, Blob, blob_id
from app.blobs.offloading import (
    OffloadedResult,
    OffloadRules,
    is_same_result,
    offload_result,
    restore_result,
)
from app.blobs.preview import Preview
from app.blobs.stored_output import inline_output, stored_output_from
from app.common import json_text
from app.formats import PROVIDERS
from app.formats.message import FormatName, Message
from app.policy.policy import AGENT_TOOL_NAMES, PreviewMode, ToolOutputPolicy

CHAT, RESPONSES = FormatName.OPENAI_CHAT, FormatName.OPENAI_RESPONSES
ANTHROPIC, GEMINI = FormatName.ANTHROPIC, FormatName.GEMINI
INTERACTIONS = FormatName.INTERACTIONS
"""Formats whose results hold a list of parts; Gemini's hold an object."""
TIGHT = ToolOutputPolicy(offload_threshold_bytes=10, max_message_bytes=20, max_line_length=6)
REFERENCE = TIGHT.model_copy(update={"view": PreviewMode.REFERENCE})
OFF = TIGHT.model_copy(update={"enabled": False})
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 20


def text(words: str, format: FormatName = CHAT) -> dict[str, Any]:
    """Return a text part."""
    return {"type": "input_text" if format is RESPONSES else "text", "text": words}


def image(data: str = base64.b64encode(PNG).decode(), format: FormatName = CHAT) -> dict[str, Any]:
    """Return an image part."""
    if format is RESPONSES:
        return {"type": "input_image", "image_url": f"data:image/png;base64,{data}"}
    if format is INTERACTIONS:
        return {"type": "image", "data": data, "mime_type": "image/png"}
    if format is ANTHROPIC:
        source = {"type": "base64", "media_type": "image/png", "data": data}
        return {"type": "image", "source": source}
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def document(words: str) -> dict[str, Any]:
    """Return an Anthropic document of plain text."""
    return {"type": "document", "source": {"type": "text", "media_type": TEXT, "data": words}}


def result(content: Any, format: FormatName = CHAT, **more: Any) -> dict[str, Any]:
    """Return a message with one result."""
    match format:
        case FormatName.OPENAI_CHAT:
            return {"role": "tool", "tool_call_id": "c", "content": content, **more}
        case FormatName.OPENAI_RESPONSES:
            kind = {"type": "function_call_output", "call_id": "c"}
            return {**kind, "output": content, **more}
        case FormatName.ANTHROPIC:
            block = {"type": "tool_result", "tool_use_id": "c", "content": content, **more}
            return {"role": "user", "content": [block]}
        case FormatName.INTERACTIONS:
            return {"type": "function_result", "call_id": "c", "result": content, **more}
        case FormatName.GEMINI:
            said = {"output": content} if isinstance(content, str) and content else content or None
            answer = {"id": "c", "name": "shell", "response": said, **more}
            return {"role": "user", "parts": [{"functionResponse": answer}]}


def holder_of(piece: Any, format: FormatName) -> Any:
    """Return the object that holds a result's content."""
    return PROVIDERS[format].results(piece)[0][1]


def key_of(format: FormatName) -> str:
    """Return the field that a result's content is in."""
    return PROVIDERS[format].result_key


def message_of(piece: Mapping[str, Any], format: FormatName = CHAT) -> Message:
    """Return the parsed message of a piece."""
    (message,) = PROVIDERS[format].parse(piece, "")
    return message


def offloaded(
    piece: dict[str, Any],
    policy: ToolOutputPolicy = TIGHT,
    format: FormatName = CHAT,
    name: str = "shell",
    **attached: tuple[Blob, Preview],
) -> OffloadedResult:
    """Take a piece in."""
    terms = OffloadRules(
        policy, {"c": name}, {f"blob_{ref}": item for ref, item in attached.items()}
    )
    return offload_result(piece, message_of(piece, format), format, terms, "/messages/0")


def contents(found: OffloadedResult) -> dict[str, bytes]:
    """Return the bytes of the blobs by id, and check that each id is their hash."""
    held = {
        blob.id: b"".join(chunk.data or b"" for chunk in chunks) for blob, chunks in found.blobs
    }
    for blob, _ in found.blobs:
        data = held[blob.id]
        assert blob.sha256 == sha256(data).hexdigest() and blob.id == blob_id(blob.sha256)
        assert blob.byte_size == len(data)
    return held


def original(found: OffloadedResult, format: FormatName) -> Any:
    """Return the original piece, restored from the stored data."""
    body = json_text.dump_stored(found.raw_message).decode()
    output = stored_output_from(found.output.as_json())
    assert output == found.output
    if not output.is_cut:
        return json_text.loads(body)
    return restore_result(body, format, output, contents(found)[output.ref or ""])


@pytest.mark.parametrize(("size", "is_offloaded"), [(0, False), (4096, False), (4097, True)])
@pytest.mark.parametrize("shape", ["string", "parts", "image", "document", "unknown"])
def test_the_threshold_is_in_bytes(shape: str, size: int, is_offloaded: bool) -> None:
    """4096 bytes stay in the message and 4097 do not, for any characters."""
    format = CHAT
    content: Any = "é" * (size // 2) + "x" * (size % 2)
    match shape:
        case "parts":
            half = size // 2
            content = [text("x" * half), text("x" * (size - half - 1))] if size else []
        case "image":
            content = [image(base64.b64encode(bytes(size or 1)).decode())]
        case "document":
            format, content = ANTHROPIC, [document("x" * size)]
        case "unknown":
            format, block = ANTHROPIC, {"type": "search_result", "x": ""}
            size = max(size, len(json_text.dumps(block)))
            content = [block | {"x": "x" * (size - len(json_text.dumps(block)))}]
    found = offloaded(result(content, format), ToolOutputPolicy(), format)
    assert bool(found.blobs) == is_offloaded
    assert found.output.ref == (found.blobs[0][0].id if is_offloaded else None)
    if shape != "image" or is_offloaded:
        assert found.output.byte_size == size


@pytest.mark.parametrize("name", AGENT_TOOL_NAMES)
def test_results_of_the_services_tools_are_not_offloaded(name: str) -> None:
    """Results of agent tools are never offloaded."""
    piece = result("x" * 100_000)
    assert not offloaded(piece, name=name).blobs
    named = result("x" * 100_000, name=name)
    assert not offload_result(named, message_of(named), CHAT, OffloadRules(TIGHT), "").blobs
    assert offloaded(piece, name="shell").blobs
    assert not offloaded(piece, OFF).blobs


# Two halves of a pair side by side are one character once they have been JSON.
odd = st.text(st.characters(codec=None), max_size=30).map(
    lambda words: str(json_text.loads(json_text.dumps(words)))
) | st.sampled_from(
    [
        "",
        "\n",
        "a\r\nb\r\n",
        "\x00",
        "\ud800",
        "\udc00\ud800",
        "😀" * 9,
        "one line " * 20,
        "a\nb" * 9,
    ]
)


def contents_of(format: FormatName) -> st.SearchStrategy[Any]:
    """Every content of a result: a text, or parts of all kinds."""
    if format is GEMINI:
        keys = st.sampled_from(["output", "error", "result", "rows"])
        return odd | st.dictionaries(keys, odd | st.lists(odd | st.floats(-9, 9), max_size=2))
    data = st.binary(min_size=1, max_size=40).map(lambda raw: base64.b64encode(raw).decode())
    kinds = [odd.map(lambda words: text(words, format))]
    kinds.append(data.map(lambda found: image(found, format)))
    kinds.append(st.sampled_from(["!", "AAA", "AA AA"]).map(lambda bad: image(bad, format)))
    kinds.append(odd.map(lambda words: {"type": "other", "x": words}))
    if format is ANTHROPIC:
        kinds.append(odd.map(document))
    if format is INTERACTIONS:
        kinds.append(odd.map(lambda words: {"type": "function", "name": words}))
        rows = st.dictionaries(st.sampled_from(["type", "rows"]), odd, min_size=1)
        return odd | rows | st.lists(st.one_of(*kinds), max_size=5)
    return odd | st.lists(st.one_of(*kinds), max_size=5)


@st.composite
def results(draw: st.DrawFn) -> tuple[dict[str, Any], FormatName]:
    """A result of any kind, with unknown fields."""
    format = draw(st.sampled_from(FormatName))
    more = draw(st.dictionaries(st.sampled_from(["x", "is_error_"]), odd, max_size=1))
    return result(draw(contents_of(format)), format, **more), format


policies = st.builds(
    ToolOutputPolicy,
    enabled=st.sampled_from([True, True, True, False]),
    offload_threshold_bytes=st.integers(0, 30),
    max_message_bytes=st.integers(1, 30),
    max_line_length=st.integers(1, 12),
    view=st.sampled_from(PreviewMode),
)


@given(results(), policies)
def test_an_offloaded_result_is_restored_exactly(
    came: tuple[dict[str, Any], FormatName], policy: Any
) -> None:
    """Any result is restored with identical strings under any policy."""
    piece, format = came
    before = json_text.dumps(piece)
    found = offloaded(piece, policy, format)
    assert json_text.dumps(piece) == before
    assert json_text.dumps(original(found, format)) == before
    held = contents(found)
    if found.output.ref is None:
        assert (found.raw_message, found.output) == (
            piece,
            inline_output(message_of(piece, format)),
        )
        return
    main = held[found.output.ref]
    assert found.output.byte_size == len(main)
    assert found.output.line_count == main.count(b"\n") + (main[-1:] not in (b"", b"\n"))
    assert len(held) == len(found.blobs)
    # Deterministic: the same result is the same preview and blobs.
    assert offloaded(piece, policy, format) == found


@given(results(), policies, policies, st.booleans())
def test_a_result_is_the_same_under_every_policy(
    came: tuple[dict[str, Any], FormatName], policy: Any, later: Any, is_said_otherwise: bool
) -> None:
    """The same result is recognised under any policy, a different one never. [log.message-id]"""
    piece, format = came
    all_of_them = policy.model_copy(update={"enabled": True, "offload_threshold_bytes": 0})
    found = offloaded(piece, all_of_them, format)
    if found.output.ref is None:
        return
    body = json_text.dump_stored(found.raw_message).decode()
    assert is_same_result(body, found.output, piece, format)
    other = deepcopy(piece)
    if is_said_otherwise:
        holder, key = holder_of(other, format), key_of(format)
        said = f"{holder[key]}x"
        holder[key] = {"output": said} if format is GEMINI else said
    else:
        other["more"] = 1
    assert not is_same_result(body, found.output, other, format)
    again = offloaded(piece, later, format)
    assert again.output.ref in (found.output.ref, None)
