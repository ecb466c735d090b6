"""Labels: short texts in the place of content that a format cannot carry.

1. A label has the type of the content and its most useful detail: a query, a title, a URL.
2. Text of the assistant is not shortened: a refusal, the transcript of its audio.
3. A label depends on the content alone, so the same content always has the same label
   [neutral.same-bytes].
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from app.formats.json_fields import object_in, text_in
from app.formats.message import File, Image, Message, Opaque, Part, Text
from app.formats.tool_calls import sendable_id

MAX_DETAIL: Final = 200
"""The maximum characters of a query, a title or an argument in a label."""
MAX_SOURCES: Final = 5
"""The maximum search results in a label."""

_DETAIL_FIELDS: Final = (
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
"""Fields with the purpose of a call, the most useful first."""
_OMITTED_FIELDS: Final = (
    *("id", "type", "status", "container_id"),
    *("result", "results", "output", "outputs"),
)
_RESULT_FIELDS: Final = ("text", "stdout", "output", "stderr", "error_code")
_GEMINI_PARTS: Final = {
    "executableCode": "executable_code",
    "codeExecutionResult": "code_execution_result",
    "toolCall": "tool_call",
    "toolResponse": "tool_response",
    "inlineData": "inline_data",
    "fileData": "file_data",
}


def labelled_result(message: Message) -> tuple[Part, ...]:
    """Return a result as the user's text, where its call is not."""
    label = Text(f"[result of tool call {sendable_id(message.tool_call_id or '')}]")
    return label, *message.parts


def image_label(image: Image) -> str:
    """Return the label of an image."""
    if image.data is None and image.url is not None and image.url[:5].lower() != "data:":
        return f"[image: {image.url}]"
    return f"[image: {image.media_type}]" if image.media_type else "[image]"


def file_label(file: File) -> str:
    """Return the label of a document."""
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
            kinds = [kind_of(block) for block in _content_blocks(part.block)]
            return Text(block_label(part.block), stands_for=tuple(dict.fromkeys(kinds)))


def kind_of(block: Mapping[str, Any]) -> str:
    """Return the type of a provider's block, by the provider's own name."""
    kind = block.get("type")
    if isinstance(kind, str) and kind:
        return _short(kind, 64)
    for camel, snake in _GEMINI_PARTS.items():
        if block.get(camel) is not None or block.get(snake) is not None:
            return snake
    return "part"


def block_label(block: Mapping[str, Any]) -> str:
    """Return the label of a provider's block."""
    kind = kind_of(block)
    if kind == "message":
        return "\n".join(block_label(item) for item in _content_blocks(block))
    match kind:
        case "refusal":
            return _label("refusal", text_in(block, "refusal"))
        case "audio" | "input_audio" | "output_audio":
            return _audio_label(block)
        case "server_tool_use" | "mcp_tool_use":
            name = text_in(block, "name") or kind
            return _call_label(name, block.get("input"))
        case "tool_reference":
            return _label("tool", text_in(block, "tool_name"))
        case "executable_code" | "tool_call":
            return _call_label(kind, _gemini(block, kind))
        case "code_execution_result" | "tool_response":
            return _result_label(kind, _gemini(block, kind))
        case "inline_data" | "file_data":
            return _media_label(_gemini(block, kind))
        case "image" | "input_image":
            return _label("image", _file_id(block))
        case "video_url" | "input_video":
            return _label("video", _url_in(block.get("video_url")))
        case "document" | "search_result" | "compaction" | "container_upload":
            return _document_label(kind, block)
    if kind.endswith("_result") or kind.endswith("_output"):
        return _result_label(kind.removesuffix("_result").removesuffix("_output"), block)
    if kind.endswith("_call"):
        arguments = block.get("action") or block.get("arguments") or block
        return _call_label(kind.removesuffix("_call"), arguments)
    return _label(kind, "")


def _content_blocks(block: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the content of a message item of OpenAI Responses, else the block itself."""
    content = block.get("content")
    if block.get("type") != "message" or not isinstance(content, list):
        return [block]
    return [item for item in content if isinstance(item, Mapping) and kind_of(item) != "message"]


def _label(kind: str, detail: str) -> str:
    return f"[{kind}: {detail}]" if detail else f"[{kind}]"


def _call_label(name: str, arguments: Any) -> str:
    detail = _detail(arguments)
    return f'[{_short(name, 64)} call: "{detail}"]' if detail else f"[{_short(name, 64)} call]"


def _result_label(name: str, block: Any) -> str:
    name = name.removesuffix("_tool").removesuffix("_result")
    return _label(f"{name} result", _short("; ".join(_result_texts(block)), 3 * MAX_DETAIL))


def _document_label(kind: str, block: Mapping[str, Any]) -> str:
    """Return the label of a document or a search result, followed by its text."""
    title = text_in(block, "title") or text_in(block, "source") or _file_id(block)
    label = _label(kind, _short(title, MAX_DETAIL))
    source = object_in(block, "source")
    return "\n".join([label, *_texts(block.get("content")), *_texts(source.get("content"))])


def _audio_label(block: Mapping[str, Any]) -> str:
    key = next((key for key in ("audio", "input_audio") if key in block), None)
    audio = block if key is None else object_in(block, key)
    return _label("audio", text_in(audio, "transcript") or text_in(audio, "format"))


def _media_label(media: Any) -> str:
    media_type = text_in(media, "mimeType") or text_in(media, "mime_type")
    kind = media_type.partition("/")[0]
    return _label(kind if kind in ("image", "audio", "video") else "file", media_type)


def _gemini(block: Mapping[str, Any], snake: str) -> Any:
    camel = next(key for key, value in _GEMINI_PARTS.items() if value == snake)
    return block.get(camel, block.get(snake))


def _detail(arguments: Any) -> str:
    """Return the argument of a call that has its purpose, else all arguments as JSON."""
    if isinstance(arguments, str):
        return _short(arguments, MAX_DETAIL)
    fields: Mapping[str, Any] = arguments if isinstance(arguments, Mapping) else {}
    for key in _DETAIL_FIELDS:
        value = fields.get(key)
        if isinstance(value, list):
            value = ", ".join(item for item in value if isinstance(item, str))
        if isinstance(value, str) and value.strip():
            return _short(value, MAX_DETAIL)
    rest = {key: item for key, item in fields.items() if key not in _OMITTED_FIELDS}
    return _short(json.dumps(rest, ensure_ascii=False), MAX_DETAIL) if rest else ""


def _result_texts(block: Any) -> Iterator[str]:
    """Yield the sources in the result of a provider's own tool, else its text or its error."""
    content = block.get("content", block) if isinstance(block, Mapping) else block
    items = content if isinstance(content, list) else [content]
    for item in items[:MAX_SOURCES]:
        source = " ".join(filter(None, (text_in(item, "title"), text_in(item, "url"))))
        texts = (text_in(item, key) for key in _RESULT_FIELDS)
        text = source or next(filter(None, texts), item if isinstance(item, str) else "")
        if text:
            yield _short(text, MAX_DETAIL)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from filter(str.strip, (value,))
        return
    for item in value if isinstance(value, list) else ():
        text = text_in(item, "text")
        if text.strip():
            yield text


def _file_id(block: Mapping[str, Any]) -> str:
    file_id = text_in(block, "file_id") or text_in(object_in(block, "source"), "file_id")
    return _short(file_id, MAX_DETAIL)


def _url_in(value: Any) -> str:
    url = value if isinstance(value, str) else text_in(value, "url")
    return "" if url[:5].lower() == "data:" else _short(url, MAX_DETAIL)


def _short(text: str, max_chars: int) -> str:
    """Return a text in one line of at most so many characters."""
    line = " ".join(text[: max_chars * 4].split())
    return line if len(line) <= max_chars else f"{line[: max_chars - 1]}…"
