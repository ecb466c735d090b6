"""Media as callers really send them: wrong types, broken data, URLs as data, parts of MCP.

[formats.media]
"""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.formats.media import strict_base64
from app.formats.message import GOOGLE_FORMATS, FormatName
from tests.domain.compaction.strategies_messages import png
from tests.domain.histories import ANTHROPIC, CHAT, GEMINI, INTERACTIONS, RESPONSES, RawLog
from tests.domain.payload.test_names_and_ids import items, values

PNG, JPEG, PDF = png(2, 3), base64.b64encode(b"\xff\xd8\xff\xe0" + b"\0" * 32).decode(), "JVBERi0x"


def image(format: FormatName, media_type: str, data: str) -> dict[str, Any]:
    """Return a user message of a format with an image in base64."""
    url = f"data:{media_type};base64,{data}"
    source = {"type": "base64", "media_type": media_type, "data": data}
    blob = {"mimeType": media_type, "data": data}
    parts = {
        CHAT: {"type": "image_url", "image_url": {"url": url}},
        RESPONSES: {"type": "input_image", "image_url": url, "detail": "auto"},
        ANTHROPIC: {"type": "image", "source": source},
        GEMINI: {"inlineData": blob},
        INTERACTIONS: {"type": "image", "mime_type": media_type, "data": data},
    }
    if format is INTERACTIONS:
        return {"type": "user_input", "content": [parts[format]]}
    return {"role": "user", "parts" if format is GEMINI else "content": [parts[format]]}


_TYPES = ("media_type", "mimeType", "mime_type")


def found(sent: Any) -> list[tuple[str, str]]:
    """Return the type and the data of all media in a payload."""
    urls = [v for key in ("url", "image_url", "file_data") for v in values(sent, key)]
    split = [url[5:].split(";base64,") for url in urls if isinstance(url, str)]
    types = [kind for key in _TYPES for kind in values(sent, key)]
    return [(kind, data) for kind, data in split] + [
        (kind, data) for kind, data in zip(types, values(sent, "data"), strict=True)
    ]


@pytest.mark.parametrize("target", FormatName)
@pytest.mark.parametrize("format", FormatName)
@given(kind=st.sampled_from(("png", "jpeg", "pdf")), broken=st.booleans(), spaced=st.booleans())
def test_data_have_the_type_that_they_show(
    format: FormatName, target: FormatName, kind: str, broken: bool, spaced: bool
) -> None:
    """And one line of strict base64; a label stands for what nobody can read."""
    data = {"png": PNG, "jpeg": JPEG, "pdf": PDF}[kind]
    written = f"{data[:12]}\r\n {data[12:]}" if spaced else data
    raw = image(format, "image/png", f"{written}!" if broken else written)
    sent = items(RawLog([(format, raw)]), target)
    if broken:
        assert "[image: unreadable data]" in json.dumps(sent)
        assert found(sent) == []
    else:
        shown = "application/pdf" if kind == "pdf" else f"image/{kind}"
        assert found(sent) == [(shown, data)]


@given(data=st.binary(min_size=1), safe=st.booleans(), padded=st.booleans(), cut=st.integers(0, 3))
def test_base64_is_written_as_strict_readers_take_it(
    data: bytes, safe: bool, padded: bool, cut: int
) -> None:
    """Whatever its alphabet and padding; what is cut off inside a byte is no base64."""
    written = (base64.urlsafe_b64encode if safe else base64.b64encode)(data).decode()
    strict = strict_base64(written if padded else written.rstrip("="))
    assert strict == base64.b64encode(data).decode()
    if (cut_off := strict_base64(written.rstrip("=")[: -cut or None])) is not None:
        assert base64.b64encode(base64.b64decode(cut_off, validate=True)).decode() == cut_off


@pytest.mark.parametrize("target", FormatName)
@pytest.mark.parametrize("format", [CHAT, RESPONSES, ANTHROPIC, INTERACTIONS])
def test_parts_of_mcp_are_read_in_results(format: FormatName, target: FormatName) -> None:
    """An image is an image, a text resource is a document, a link is named."""
    content: list[dict[str, Any]] = [
        {"type": "image", "data": PNG, "mimeType": "image/png"},
        {"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav"},
        {"type": "resource", "resource": {"uri": "file:///a.txt", "text": "words"}},
        {"type": "resource", "resource": {"uri": "b", "mimeType": "image/png", "blob": PNG}},
        {"type": "resource_link", "uri": "file:///c", "name": "c"},
    ]
    function = {"name": "f", "arguments": "{}"}
    call = {"id": "c1", "type": "function", "function": function}
    result: dict[str, Any] = {"role": "tool", "tool_call_id": "c1", "content": content}
    if format is RESPONSES:
        result = {"type": "function_call_output", "call_id": "c1", "output": content}
    elif format is INTERACTIONS:
        result = {"type": "function_result", "call_id": "c1", "result": content}
    elif format is ANTHROPIC:
        block = {"type": "tool_result", "tool_use_id": "c1", "content": content}
        result = {"role": "user", "content": [block]}
    asked = {"role": "assistant", "content": None, "tool_calls": [call]}
    sent = items(
        RawLog([(CHAT, {"role": "user", "content": "go"}), (CHAT, asked), (format, result)]), target
    )
    assert [item for item in found(sent) if item[0] == "image/png"] == [("image/png", PNG)] * 2
    text = json.dumps(sent)
    assert "words" in text and "[resource: c file:///c]" in text
    assert ("audio/wav" in text) and ('"UklGRg=="' in text) is (target in GOOGLE_FORMATS)
