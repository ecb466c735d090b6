"""Labels: the short texts that stand for content which a format cannot carry.

1. A label says what stood there, with the words of it that tell the most: a query, a title, a URL.
2. What the assistant said stays whole: a refusal, the transcript of its audio.
3. A label is a function of the content alone, so the same content always reads the same (N8).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from app.domain.common.messages import File, Image, Opaque, Text

MAX_DETAIL: Final = 200
"""Characters of a query, a title or an argument that a label shows."""
MAX_SOURCES: Final = 5
"""Search results that a label names."""

_SAYS_MOST: Final = (
    "query",
    "queries",
    "url",
    "command",
    "code",
    "path",
    "pattern",
    "prompt",
    "revised_prompt",
    "title",
    "input",
)
"""Fields that say what a call was for, the best first."""
_SAYS_NOTHING: Final = (
    *("id", "type", "status", "container_id"),
    *("result", "results", "output", "outputs"),
)
_GEMINI_PARTS: Final = {
    "executableCode": "executable_code",
    "codeExecutionResult": "code_execution_result",
    "toolCall": "tool_call",
    "toolResponse": "tool_response",
    "inlineData": "inline_data",
    "fileData": "file_data",
}


def image_label(image: Image) -> str:
    """Describe in text an image that cannot be sent."""
    if image.data is None and image.url is not None and image.url[:5].lower() != "data:":
        return f"[image: {image.url}]"
    return f"[image: {image.media_type}]" if image.media_type else "[image]"


def file_label(file: File) -> str:
    """Describe in text a document that cannot be sent."""
    url = file.url if file.url and file.url[:5].lower() != "data:" else None
    label = file.name or url or file.file_id or file.media_type
    return f"[file: {label}]" if label else "[file]"


def document_text(file: File) -> Text | None:
    """Return a plain text document as text, after its name; None for any other document."""
    if file.text is None or not file.text.strip():
        return None
    return Text(f"{file_label(file)}\n{file.text}" if file.name else file.text)


def label_for(part: Image | File | Opaque) -> Text:
    """Return the label of a part that a format cannot carry."""
    match part:
        case Image():
            return Text(image_label(part), stands_for=("image",))
        case File():
            return Text(file_label(part), stands_for=("file",))
        case Opaque():
            kinds = [kind_of(block) for block in _held_in(part.block)]
            return Text(block_label(part.block), stands_for=tuple(dict.fromkeys(kinds)))


def kind_of(block: Mapping[str, Any]) -> str:
    """Name the type of a provider's block, as its provider does."""
    kind = block.get("type")
    if isinstance(kind, str) and kind:
        return _short(kind, 64)
    for camel, snake in _GEMINI_PARTS.items():
        if block.get(camel) is not None or block.get(snake) is not None:
            return snake
    return "part"


def block_label(block: Mapping[str, Any]) -> str:
    """Describe in text a provider's block."""
    kind = kind_of(block)
    if kind == "message":
        return "\n".join(block_label(held) for held in _held_in(block))
    match kind:
        case "refusal":
            return _label("refusal", _word(block.get("refusal")))
        case "audio" | "input_audio" | "output_audio":
            return _audio_label(block)
        case "server_tool_use" | "mcp_tool_use":
            name = _word(block.get("name")) or kind
            return _call_label(name, block.get("input"))
        case "tool_reference":
            return _label("tool", _word(block.get("tool_name")))
        case "executable_code" | "tool_call":
            return _call_label(kind, _gemini(block, kind))
        case "code_execution_result" | "tool_response":
            return _result_label(kind, _gemini(block, kind))
        case "inline_data" | "file_data":
            return _media_label(_object(_gemini(block, kind)))
        case "image" | "input_image":
            return _label("image", _id_in(block))
        case "video_url" | "input_video":
            return _label("video", _url_in(block.get("video_url")))
        case "document" | "search_result" | "compaction" | "container_upload":
            return _document_label(kind, block)
    if kind.endswith("_result") or kind.endswith("_output"):
        return _result_label(kind.removesuffix("_result").removesuffix("_output"), block)
    if kind.endswith("_call"):
        asked = block.get("action") or block.get("arguments") or block
        return _call_label(kind.removesuffix("_call"), asked)
    return _label(kind, "")


def _held_in(block: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the blocks that a message item of OpenAI Responses holds, or else the block itself."""
    content = block.get("content")
    if block.get("type") != "message" or not isinstance(content, list):
        return [block]
    return [held for held in content if isinstance(held, Mapping) and kind_of(held) != "message"]


def _label(kind: str, detail: str) -> str:
    return f"[{kind}: {detail}]" if detail else f"[{kind}]"


def _call_label(name: str, asked: Any) -> str:
    detail = _detail(asked)
    return f'[{_short(name, 64)} call: "{detail}"]' if detail else f"[{_short(name, 64)} call]"


def _result_label(name: str, block: Any) -> str:
    name = name.removesuffix("_tool").removesuffix("_result")
    return _label(f"{name} result", _short("; ".join(_said_in(block)), 3 * MAX_DETAIL))


def _document_label(kind: str, block: Mapping[str, Any]) -> str:
    """A document or a search result with the text that it holds, which is no medium."""
    title = _word(block.get("title")) or _word(block.get("source")) or _id_in(block)
    label = _label(kind, _short(title, MAX_DETAIL))
    source = _object(block.get("source"))
    texts = [
        text for held in (block.get("content"), source.get("content")) for text in _texts(held)
    ]
    return "\n".join([label, *texts])


def _audio_label(block: Mapping[str, Any]) -> str:
    held = next((_object(block[key]) for key in ("audio", "input_audio") if key in block), block)
    return _label("audio", _word(held.get("transcript")) or _word(held.get("format")))


def _media_label(media: Mapping[str, Any]) -> str:
    kind = _word(media.get("mimeType")) or _word(media.get("mime_type"))
    main = kind.partition("/")[0]
    named = main if main in ("image", "audio", "video") else "file"
    return _label(named, kind)


def _gemini(block: Mapping[str, Any], snake: str) -> Any:
    camel = next(key for key, value in _GEMINI_PARTS.items() if value == snake)
    return block.get(camel, block.get(snake))


def _detail(asked: Any) -> str:
    """Return the words of a call that say what it was for."""
    if isinstance(asked, str):
        return _short(asked, MAX_DETAIL)
    fields = _object(asked)
    for key in _SAYS_MOST:
        value = fields.get(key)
        if isinstance(value, list):
            value = ", ".join(item for item in value if isinstance(item, str))
        if isinstance(value, str) and value.strip():
            return _short(value, MAX_DETAIL)
    said = {key: item for key, item in fields.items() if key not in _SAYS_NOTHING}
    return _short(json.dumps(said, ensure_ascii=False), MAX_DETAIL) if said else ""


def _said_in(block: Any) -> Iterator[str]:
    """Yield what the result of a provider's own tool says: its sources, its text, its error."""
    content = _object(block).get("content", block)
    found = content if isinstance(content, list) else [content]
    for item in found[:MAX_SOURCES]:
        held = _object(item)
        named = _word(held.get("title")), _word(held.get("url"))
        said = (
            _word(held.get("text")),
            _word(held.get("stdout")),
            _word(held.get("output")),
            _word(held.get("stderr")),
            _word(held.get("error_code")),
        )
        words = " ".join(word for word in named if word) or next(filter(None, said), "")
        if words := (words or (item if isinstance(item, str) else "")):
            yield _short(words, MAX_DETAIL)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from filter(str.strip, (value,))
        return
    for item in value if isinstance(value, list) else ():
        text = _word(_object(item).get("text"))
        if text.strip():
            yield text


def _id_in(block: Mapping[str, Any]) -> str:
    source = _object(block.get("source"))
    return _short(_word(block.get("file_id")) or _word(source.get("file_id")), MAX_DETAIL)


def _url_in(value: Any) -> str:
    url = _word(value) or _word(_object(value).get("url"))
    return "" if url[:5].lower() == "data:" else _short(url, MAX_DETAIL)


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _word(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _short(text: str, most: int) -> str:
    """Cut a text for a label, in one line."""
    line = " ".join(text[: most * 4].split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
