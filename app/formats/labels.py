"""Labels: short texts in the place of content that a format cannot carry.

1. A label has the type of the content and its most useful detail: a query, a title, a URL.
2. Text of the assistant is not shortened: a refusal, the transcript of its audio.
3. A label depends on the content alone, so the same content always has the same label
   [neutral.same-bytes].
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from app.formats.json_fields import OBJECT, Raw, camel, object_in, text_in
from app.formats.message import File, Image, Message, Opaque, Part, Text
from app.formats.tools import sendable_id

SYSTEM_LABEL: Final = "[System]"
"""What precedes a system message where a format has none inside a conversation."""
MEDIA_FOLLOWS: Final = "[media follows]"
"""The text of a result that consists of media, which are sent apart."""
MAX_DETAIL: Final = 200
"""The maximum characters of a query, a title or an argument in a label."""
MAX_SOURCES: Final = 5
"""The maximum search results in a label."""

_PURPOSES: Final = (
    *("query", "queries", "url", "command", "code", "path", "pattern", "prompt"),
    *("revised_prompt", "title", "input"),
)
"""Fields with the purpose of a call, the most useful first."""
_OMITTED_FIELDS: Final = (
    *("id", "type", "status", "container_id"),
    *("result", "results", "output", "outputs"),
)
_RESULT_FIELDS: Final = ("text", "stdout", "output", "stderr", "error_code")
_DETAILS: Final = ("refusal", "transcript", "format", "tool_name", "title", "source", "url")
"""Fields that say what any other part is, the most useful first."""
_NAMES: Final = {
    **{"tool_reference": "tool", "input_image": "image", "video_url": "video"},
    **{"input_video": "video", "input_audio": "audio", "output_audio": "audio"},
}
_RESULT: Final = re.compile("(_tool)?_(result|output|response)$")
_GEMINI_PARTS: Final = (
    *("executable_code", "code_execution_result", "tool_call", "tool_response"),
    *("inline_data", "file_data"),
)


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


def kind_of(block: Raw) -> str:
    """Return the type of a provider's block, by the provider's own name."""
    kind = block.get("type")
    if isinstance(kind, str) and kind:
        return _short(kind, 64)
    return next((kind for kind in _GEMINI_PARTS if block.get(camel(kind)) is not None), "part")


def block_label(block: Raw) -> str:
    """Return the label of a provider's block."""
    kind = kind_of(block)
    held = block.get(kind) or block.get(camel(kind))
    held = held if isinstance(held, OBJECT) else block
    if kind == "message":
        return "\n".join(block_label(item) for item in _content_blocks(block))
    if kind in ("server_tool_use", "mcp_tool_use"):
        return _call_label(text_in(block, "name") or kind, block.get("input"))
    if kind.endswith("_call") or kind == "executable_code":
        arguments = held.get("action") or held.get("arguments") or held
        return _call_label(kind if held is not block else kind.removesuffix("_call"), arguments)
    if _RESULT.search(kind) and kind != "search_result":
        return _result_label(_RESULT.sub("", kind), held)
    if kind in ("inline_data", "file_data"):
        media_type = text_in(held, "mimeType")
        name = media_type.partition("/")[0]
        return _label(name if name in ("image", "audio", "video") else "file", media_type)
    source = object_in(block, "source")
    places = [(each, key) for each in (held, block) for key in _DETAILS]
    texts = (text_in(*place) for place in (*places, (block, "file_id"), (source, "file_id")))
    detail = next(filter(None, texts), "")
    if kind not in ("refusal", "audio", "input_audio", "output_audio"):
        detail = _short(_web(detail), MAX_DETAIL)
    label = _label(_NAMES.get(kind, kind), detail)
    return "\n".join([label, *_texts(block.get("content")), *_texts(source.get("content"))])


def _content_blocks(block: Raw) -> list[Raw]:
    """Return the content of a message item of OpenAI Responses, else the block itself."""
    content = block.get("content")
    if block.get("type") != "message" or not isinstance(content, list):
        return [block]
    return [item for item in content if isinstance(item, Mapping) and kind_of(item) != "message"]


def _label(kind: str, detail: str) -> str:
    return f"[{kind}: {detail}]" if detail else f"[{kind}]"


def _call_label(name: str, arguments: Any) -> str:
    """Return a call with the argument that has its purpose, else with all arguments as JSON."""
    fields: Raw = arguments if isinstance(arguments, Mapping) else {}
    texts = (_joined(fields.get(key)) for key in _PURPOSES)
    rest = {key: item for key, item in fields.items() if key not in _OMITTED_FIELDS}
    detail = arguments if isinstance(arguments, str) else next(filter(str.strip, texts), "")
    detail = _short(detail or (json.dumps(rest, ensure_ascii=False) if rest else ""), MAX_DETAIL)
    return f'[{_short(name, 64)} call: "{detail}"]' if detail else f"[{_short(name, 64)} call]"


def _joined(value: Any) -> str:
    items = value if isinstance(value, list) else [value]
    return ", ".join(item for item in items if isinstance(item, str))


def _result_label(name: str, block: Raw) -> str:
    """Return the sources in the result of a provider's own tool, else its text or its error."""
    content = block.get("content", block)
    found: list[str] = []
    for item in (content if isinstance(content, list) else [content])[:MAX_SOURCES]:
        source = " ".join(filter(None, (text_in(item, "title"), text_in(item, "url"))))
        texts = (text_in(item, key) for key in _RESULT_FIELDS)
        text = source or next(filter(None, texts), item if isinstance(item, str) else "")
        found += [_short(text, MAX_DETAIL)] if text else []
    return _label(f"{name} result", _short("; ".join(found), 3 * MAX_DETAIL))


def _texts(value: Any) -> list[str]:
    items = [{"text": value}] if isinstance(value, str) else value
    texts = (text_in(item, "text") for item in (items if isinstance(items, list) else ()))
    return [text for text in texts if text.strip()]


def _web(url: str | None) -> str:
    return "" if url is None or url[:5].lower() == "data:" else url


def _short(text: str, max_chars: int) -> str:
    """Return a text in one line of at most so many characters."""
    line = " ".join(text[: max_chars * 4].split())
    return line if len(line) <= max_chars else f"{line[: max_chars - 1]}…"
