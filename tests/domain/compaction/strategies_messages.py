"""Hypothesis strategies for texts, neutral messages and paired logs, shared by the domain tests."""

from __future__ import annotations

import base64
import functools
import json
import operator
import struct
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from app.formats.media import clean
from app.formats.message import (
    File,
    FormatName,
    Image,
    Message,
    Opaque,
    Reasoning,
    Role,
    Text,
    ToolCall,
)

NASTY = st.sampled_from(
    [
        "",
        " ",
        "\n\n",
        "\x00",
        "a\x00b",
        "\ud800",
        "x\udfffy",
        "日本語",
        "👩‍👩‍👧",
        "e\u0301",
        "\u202e",
    ]
)
HOSTILE = st.builds(
    operator.mul,
    st.sampled_from(
        [
            "\n \t",
            '");\n',
            "\x1b[0m",
            "\\",
            '"',
            "\u202eabc",
            "\x00\ud83d",
            "é\u0301日本",
            "👩\u200d👩\u200d👧",
            '{"a": "\\n"}\r\n',
        ]
    ),
    st.integers(1, 60),
)
"""Texts that cost another number of tokens as soon as something is escaped or stripped."""
_SPACES = st.builds(operator.mul, st.sampled_from(["\n \t", " ", "\r\n\t"]), st.integers(0, 300))
_HELD_IMAGE = {"type": "input_image", "file_id": "file-1", "detail": "auto"}
_AUDIO = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
SHOWN_IDS = st.text("abcXYZ019_-", min_size=1, max_size=40)
ANY_IDS = st.one_of(SHOWN_IDS, st.text(min_size=1, max_size=60))


@functools.cache
def texts(max_size: int = 40) -> st.SearchStrategy[str]:
    """Any text a log may hold: blank, with NUL, with lone surrogates, in any script."""
    any_character = st.characters(exclude_categories=())
    return st.one_of(st.text(max_size=max_size), st.text(any_character, max_size=max_size), NASTY)


@functools.cache
def json_values(max_leaves: int = 8) -> st.SearchStrategy[Any]:
    """Any finite JSON value."""
    leaves = (
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**63)
        | st.floats(allow_nan=False, allow_infinity=False)
        | texts(12)
    )
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts(8), inner, max_size=4),
        max_leaves=max_leaves,
    )


@functools.cache
def json_objects() -> st.SearchStrategy[dict[str, Any]]:
    """Any JSON object."""
    return st.dictionaries(texts(8), json_values(), max_size=4)


@functools.cache
def arguments() -> st.SearchStrategy[str]:
    """Call arguments as models write them: mostly JSON objects, sometimes not JSON at all."""
    spelled = st.builds(
        lambda value, ascii_only, indent: json.dumps(value, ensure_ascii=ascii_only, indent=indent),
        json_objects(),
        st.booleans(),
        st.sampled_from([None, None, 4]),
    )
    spaced = st.builds('{{{0}"a":{0}{1}{0}}}{0}'.format, _SPACES, HOSTILE.map(json.dumps))
    nested = HOSTILE.map(lambda text: json.dumps({"a": json.dumps({"b": json.dumps(text)})}))
    twice = HOSTILE.map(lambda text: f'{{"a":{json.dumps(text)},"a":1}}')
    return st.one_of(
        spelled,
        spaced,
        nested,
        twice,
        HOSTILE,
        st.sampled_from(["", "{}", "null", "[1]", "{", "NaN", '{"a":1e999}']),
        texts(20),
    )


def png(width: int, height: int) -> str:
    """Return the base64 of a PNG header with this size, enough to read the size."""
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(
        ">I4sIIBBBBB", 13, b"IHDR", width, height, 8, 6, 0, 0, 0
    )
    return base64.b64encode(head + b"\0" * 8).decode()


def images() -> st.SearchStrategy[Image]:
    """Images every format can send, by data or by URL."""
    sized = st.builds(png, st.integers(1, 4000), st.integers(1, 4000))
    return st.one_of(
        st.builds(Image, media_type=st.just("image/png"), data=sized),
        st.builds(Image, url=st.sampled_from(["https://example.org/a.png", "http://x.test/b"])),
    )


def images_with_fields() -> st.SearchStrategy[Image]:
    """Images with more fields of one format."""
    kept = {"transformations": {"oversized_image": "error"}}
    framed = {"inlineData": {"displayName": "a"}, "videoMetadata": {"fps": 1.0}}
    blocks = st.sampled_from([(kept, FormatName.ANTHROPIC), (framed, FormatName.GEMINI)])
    return st.builds(
        lambda image, own: replace(image, data=png(3, 4), url=None, block=own[0], format=own[1]),
        images(),
        blocks,
    )


def odd_images() -> st.SearchStrategy[Image]:
    """Images some format cannot send as they are."""
    return st.builds(
        Image,
        media_type=st.sampled_from(
            [None, "image/png", "image/bmp", "image/jpg", "x,y", "IMAGE/PNG"]
        ),
        data=st.none() | st.sampled_from(["Qk0=", "/9j/4AAQ", "no base64!", png(300, 300)]),
        url=st.none() | st.sampled_from(["gs://bucket/a.png", "https://example.org/a.png"]),
        detail=st.sampled_from([None, "low", "original"]),
    )


def files() -> st.SearchStrategy[File]:
    """Documents by data, text, URL and provider id."""
    return st.builds(
        File,
        media_type=st.sampled_from([None, "application/pdf", "text/plain", "application/zip"]),
        data=st.none() | st.sampled_from(["JVBERi0xLjQ=", "aGVsbG8=", "%%"]),
        url=st.none() | st.just("https://example.org/a.pdf"),
        file_id=st.none() | st.just("file-1"),
        text=st.none() | texts(),
        name=st.none() | st.sampled_from(["a.pdf", ""]),
        format=st.none() | st.sampled_from(FormatName),
    )


def user_opaques() -> st.SearchStrategy[Opaque]:
    """Parts of a user message that one format alone understands."""
    upload = {"type": "container_upload", "file_id": "file_1"}
    clip = {"videoMetadata": {"fps": 1.0}, "toolCall": {"id": "t1"}}
    return st.sampled_from(
        [
            Opaque(_AUDIO, FormatName.OPENAI_CHAT),
            Opaque(_HELD_IMAGE, FormatName.OPENAI_RESPONSES),
            Opaque(upload, FormatName.ANTHROPIC),
            Opaque(clip, FormatName.GEMINI),
        ]
    )


def tool_opaques() -> st.SearchStrategy[Opaque]:
    """Parts of a tool result that one format alone understands."""
    found = {"type": "search_result", "source": "s", "title": "t", "content": []}
    return st.sampled_from(
        [
            Opaque(_AUDIO, FormatName.OPENAI_CHAT),
            Opaque(_HELD_IMAGE, FormatName.OPENAI_RESPONSES),
            Opaque(found, FormatName.ANTHROPIC),
            Opaque({"text": "x", "videoMetadata": {}}, FormatName.GEMINI),
        ]
    )


def assistant_opaques() -> st.SearchStrategy[Opaque]:
    """Parts of an assistant message that one format alone understands."""
    refusal = {"type": "refusal", "refusal": "No."}
    server = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    hosted: dict[str, Any] = {"type": "tool_search_call", "execution": "server"}
    hosted |= {"call_id": None, "arguments": {}}
    action = {"type": "search", "query": "q"}
    web = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": action}
    code = {"executableCode": {"language": "PYTHON", "code": "1"}, "thoughtSignature": "c2ln"}
    return st.sampled_from(
        [
            Opaque(refusal, FormatName.OPENAI_CHAT),
            Opaque(server, FormatName.ANTHROPIC),
            Opaque(hosted, FormatName.OPENAI_RESPONSES),
            Opaque(web, FormatName.OPENAI_RESPONSES),
            Opaque(code, FormatName.GEMINI),
        ]
    )


def originals() -> st.SearchStrategy[Text]:
    """Texts of a format that has more fields than the text."""
    said = {"type": "output_text", "text": "said", "annotations": []}
    item = {"type": "message", "role": "assistant", "content": [said], "status": "completed"}
    cited = {"type": "char_location", "cited_text": "a", "document_index": 0}
    cited |= {"document_title": None, "start_char_index": 0, "end_char_index": 1}
    return st.sampled_from(
        [
            Text("said", {**item, "id": "msg_1"}, FormatName.OPENAI_RESPONSES),
            Text(
                "said", {"type": "text", "text": "said", "citations": [cited]}, FormatName.ANTHROPIC
            ),
            Text("said", {"text": "said", "thoughtSignature": "c2ln"}, FormatName.GEMINI),
        ]
    )


def reasonings() -> st.SearchStrategy[Reasoning]:
    """Thinking in plain text, signed, and redacted."""

    def signed(text: str) -> Reasoning:
        block = {"type": "thinking", "thinking": text, "signature": "c2ln"}
        return Reasoning(text, block, FormatName.ANTHROPIC)

    redacted = {"type": "redacted_thinking", "data": "ZGF0YQ=="}
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "eA=="}
    compacted = {"type": "compaction", "id": "cmp_1", "encrypted_content": "eA=="}
    return st.one_of(
        st.builds(Reasoning, texts()),
        st.builds(signed, texts()),
        st.sampled_from(
            [
                Reasoning("", redacted, FormatName.ANTHROPIC),
                Reasoning("", item, FormatName.OPENAI_RESPONSES),
                Reasoning("", compacted, FormatName.OPENAI_RESPONSES),
                Reasoning("", {"text": "", "thoughtSignature": "c2ln"}, FormatName.GEMINI),
            ]
        ),
    )


def calls(ids: st.SearchStrategy[str] = ANY_IDS) -> st.SearchStrategy[ToolCall]:
    """Tool calls, their names and arguments as irregular as in real logs."""
    names = st.sampled_from(["read_file", "search-1", "", "bad name!", "x" * 80]) | texts(10)
    return st.builds(
        ToolCall, id=ids, name=names, arguments=arguments(), custom=st.booleans()
    ).flatmap(lambda call: st.sampled_from([call, call, *_with_originals(call)]))


def _with_originals(call: ToolCall) -> list[ToolCall]:
    """Return the call with the provider fields that each format adds."""
    item = {"type": "function_call", "id": "fc_1", "call_id": call.id, "status": "completed"}
    item |= {"name": call.name, "arguments": call.arguments}
    part = {"functionCall": {"name": "f", "args": {"a": 1}}, "thoughtSignature": "c2ln"}
    patch = {"type": "apply_patch_call", "call_id": call.id, "status": "completed"}
    operation = {"type": "delete_file", "path": "a"}
    caller = {"caller": {"type": "direct"}, "toolset_name": "browser"}
    return [
        replace(call, custom=False, block=item, format=FormatName.OPENAI_RESPONSES),
        replace(call, custom=False, block=caller, format=FormatName.ANTHROPIC),
        ToolCall(
            call.id,
            "apply_patch",
            json.dumps(operation, separators=(",", ":")),
            block={**patch, "operation": operation},
            format=FormatName.OPENAI_RESPONSES,
        ),
        ToolCall("f", "f", '{"a":1}', block=part, format=FormatName.GEMINI),
    ]


def user_messages() -> st.SearchStrategy[Message]:
    """User messages with any mix of content."""
    part = st.one_of(
        texts().map(Text), images(), images_with_fields(), odd_images(), files(), user_opaques()
    )
    names = st.none() | st.sampled_from(["ann", "not a name"])
    return st.builds(
        lambda parts, name: Message(Role.USER, tuple(parts), name=name),
        st.lists(part, max_size=4),
        names,
    )


def assistant_messages() -> st.SearchStrategy[Message]:
    """Assistant messages with reasoning, text and calls whose ids differ."""
    part = st.one_of(texts().map(Text), originals(), assistant_opaques(), images())
    said = st.lists(part, max_size=3)
    return st.builds(
        lambda thought, parts, asked: Message(Role.ASSISTANT, (*thought, *parts, *asked)),
        st.lists(reasonings(), max_size=2),
        said,
        st.lists(calls(), max_size=3, unique_by=lambda call: call.id),
    )


def tool_messages(ids: st.SearchStrategy[str] = ANY_IDS) -> st.SearchStrategy[Message]:
    """Tool results with text and media."""
    part = st.one_of(texts().map(Text), images(), odd_images(), files(), tool_opaques())
    return st.builds(
        lambda parts, call_id, is_error: Message(
            Role.TOOL, tuple(parts), call_id, is_error=is_error
        ),
        st.lists(part, max_size=3),
        ids,
        st.booleans(),
    )


def messages() -> st.SearchStrategy[Message]:
    """Any single message that says something: no format renders reasoning alone."""
    drawn = st.one_of(user_messages(), assistant_messages(), tool_messages())
    return drawn.filter(says_something)


def says_something(message: Message) -> bool:
    """Whether a message has more than reasoning."""
    return any(not isinstance(part, Reasoning) for part in clean(message).parts)


@st.composite
def logs(draw: st.DrawFn, max_turns: int = 4) -> list[Message]:
    """Draw a log whose results answer open calls; some calls stay open, ids may return later."""
    log: list[Message] = []
    for _ in range(draw(st.integers(1, max_turns))):
        log.append(draw(user_messages()))
        for _ in range(draw(st.integers(0, 2))):
            assistant = draw(assistant_messages())
            log.append(assistant)
            answered = draw(st.permutations(assistant.calls))
            for call in answered[: draw(st.integers(0, len(answered)))]:
                log.append(draw(tool_messages(st.just(call.id))))
    return log
