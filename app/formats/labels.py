"""Labels: short texts in the place of content that a format cannot carry.

1. A label has the type of the content and its most useful detail: a query, a title, a URL.
2. Text of the assistant is not shortened: a refusal, the transcript of its audio.
3. A label depends on the content alone, so the same content always has the same label
   [neutral.same-bytes].
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from app.formats.json_fields import object_in, text_in
from app.formats.message import File, Image, Message, Opaque, Part, Text
from app.formats.tool_calls import sendable_id

SYSTEM_LABEL: Final = "[System]"
"""What precedes a system message where a format has none inside a conversation."""
MEDIA_FOLLOWS: Final = "[media follows]"
"""The text of a result that consists of media, which are sent apart."""
MAX_DETAIL: Final = 200
"""The maximum characters of a query, a title or an argument in a label."""
MAX_SOURCES: Final = 5
"""The maximum search results in a label."""

_DETAIL_FIELDS: Final = (
    *("query", "queries", "url", "command", "code", "path", "pattern", "prompt"),
    *("revised_prompt", "title", "input"),
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


def media_label(message: Message) -> str:
    """Return the text before the media of an adapted tool message, where they are sent apart."""
    return f"[media from tool call {message.tool_call_id}]"


def join_texts(texts: Sequence[Text]) -> Text:
    """Join texts where a format has room for one."""
    stands_for = tuple(kind for text in texts for kind in text.stands_for)
    return Text("\n".join(text.text for text in texts), stands_for=stands_for)


def image_label(image: Image) -> str:
    """Return the label of an image."""
    url = _web(image.url) if image.data is None else ""
    return _label("image", url or image.media_type or "")


def file_label(file: File) -> str:
    """Return the label of a document."""
    return _label("file", file.name or _web(file.url) or file.file_id or file.media_type or "")


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
    camel = next((key for key, snake in _GEMINI_PARTS.items() if snake == kind), kind)
    held = block.get(camel, block.get(kind))
    match kind:
        case "message":
            return "\n".join(block_label(item) for item in _content_blocks(block))
        case "refusal":
            return _label("refusal", text_in(block, "refusal"))
        case "audio" | "input_audio" | "output_audio":
            audio = object_in(block, "audio") or object_in(block, "input_audio") or block
            return _label("audio", text_in(audio, "transcript") or text_in(audio, "format"))
        case "server_tool_use" | "mcp_tool_use":
            return _call_label(text_in(block, "name") or kind, block.get("input"))
        case "tool_reference":
            return _label("tool", text_in(block, "tool_name"))
        case "executable_code" | "tool_call":
            return _call_label(kind, held)
        case "code_execution_result" | "tool_response":
            return _result_label(kind, held)
        case "inline_data" | "file_data":
            media_type = text_in(held, "mimeType") or text_in(held, "mime_type")
            of_media = media_type.partition("/")[0]
            return _label(
                of_media if of_media in ("image", "audio", "video") else "file", media_type
            )
        case "image" | "input_image":
            return _label("image", _file_id(block))
        case "video_url" | "input_video":
            video = block.get("video_url")
            url = video if isinstance(video, str) else text_in(video, "url")
            return _label("video", _short(_web(url), MAX_DETAIL))
        case "document" | "search_result" | "compaction" | "container_upload":
            title = text_in(block, "title") or text_in(block, "source") or _file_id(block)
            label = _label(kind, _short(title, MAX_DETAIL))
            source = object_in(block, "source").get("content")
            return "\n".join([label, *_texts(block.get("content")), *_texts(source)])
    if kind.endswith(("_result", "_output")):
        return _result_label(kind.removesuffix("_output"), block)
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
    """Return a call with the argument that has its purpose, else with all arguments as JSON."""
    fields: Mapping[str, Any] = arguments if isinstance(arguments, Mapping) else {}
    texts = (_joined(fields.get(key)) for key in _DETAIL_FIELDS)
    detail = next((text for text in texts if text.strip()), "")
    detail = arguments if isinstance(arguments, str) else detail
    rest = {key: item for key, item in fields.items() if key not in _OMITTED_FIELDS}
    if not detail and rest:
        detail = json.dumps(rest, ensure_ascii=False)
    detail = _short(detail, MAX_DETAIL)
    return f'[{_short(name, 64)} call: "{detail}"]' if detail else f"[{_short(name, 64)} call]"


def _joined(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(item for item in value if isinstance(item, str))
    return value if isinstance(value, str) else ""


def _result_label(name: str, block: Any) -> str:
    """Return the sources in the result of a provider's own tool, else its text or its error."""
    content = block.get("content", block) if isinstance(block, Mapping) else block
    found: list[str] = []
    for item in (content if isinstance(content, list) else [content])[:MAX_SOURCES]:
        source = " ".join(filter(None, (text_in(item, "title"), text_in(item, "url"))))
        texts = (text_in(item, key) for key in _RESULT_FIELDS)
        text = source or next(filter(None, texts), item if isinstance(item, str) else "")
        found += [_short(text, MAX_DETAIL)] if text else []
    name = name.removesuffix("_result").removesuffix("_tool").removesuffix("_result")
    return _label(f"{name} result", _short("; ".join(found), 3 * MAX_DETAIL))


def _texts(value: Any) -> list[str]:
    items = [{"text": value}] if isinstance(value, str) else value
    texts = (text_in(item, "text") for item in (items if isinstance(items, list) else ()))
    return [text for text in texts if text.strip()]


def _file_id(block: Mapping[str, Any]) -> str:
    file_id = text_in(block, "file_id") or text_in(object_in(block, "source"), "file_id")
    return _short(file_id, MAX_DETAIL)


def _web(url: str | None) -> str:
    return "" if url is None or url[:5].lower() == "data:" else url


def _short(text: str, max_chars: int) -> str:
    """Return a text in one line of at most so many characters."""
    line = " ".join(text[: max_chars * 4].split())
    return line if len(line) <= max_chars else f"{line[: max_chars - 1]}…"
