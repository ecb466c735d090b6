"""Token counts of messages, tool definitions and payloads, and of the media in them.

1. The text that is sent is counted, part by part with a `CountText`. A message costs the sum over
   its parts.
2. Every wire message costs `MESSAGE_OVERHEAD`, and every call in it `CALL_OVERHEAD`.
3. An Anthropic tool result is a block, a Gemini one a part. In a wire message with others it costs
   its id and its content, without an overhead. So k neutral messages merged into one wire message
   cost the sum of their counts minus (k - 1) * `MESSAGE_OVERHEAD`. Consecutive Responses items of
   the model count as one message.
4. A call's arguments are counted unchanged where a format sends them as text, and as compact JSON
   where it sends an object (Anthropic, Gemini). Gemini sends a result as an object, too: it is
   counted as JSON, with its name.
5. Fields beside the text of an original block (citations, annotations) are sent to its own provider
   only, and are counted there as JSON.
6. Content that a format cannot carry is counted after its `adapt`. In most cases that is the
   stored count, that of the openai_chat item (`counts_as_stored`).
7. Reasoning is counted apart, since most payloads leave it out. It costs the whole block that is
   replayed: text, signature, encrypted data. The signature of a call or of a text is reasoning.

Media are never counted by their base64 text:

8. An image counts its pixels / 750, at least 85 and at most 1600 tokens; the size is read from its
   header. Without a known size it counts 1000 tokens. Plain text counts as text, also in base64.
9. A document counts 2000 tokens a page: providers charge about 1500 to 3000 for the text and the
   image of a page. A PDF's pages are counted in its first megabytes and extrapolated. Where no page
   is recognised, 20 KB count as a page.
10. Audio and video count by their bytes: 32 tokens a second of sound at the usual rates.
11. Text that only its provider can read, such as encrypted reasoning, counts by its length
    [tokens.sealed].
12. A URL, a provider's file id and what a hosted tool adds have flat values. A name is counted. The
    work is bounded, and so are the tokens of a document.

What providers take in one request beside tokens is from Anthropic's, OpenAI's and Google's pages on
vision and on request sizes. Others publish no such limits, or none that all their models share.
"""

from __future__ import annotations

import base64
import io
import math
import operator
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

from app.common.texts import sendable
from app.formats import LOG_PROVIDER, PROVIDERS, ToolDefinition, json_fields
from app.formats.base import Original, Provider
from app.formats.media import media_type_of, sniffed_type, split_data_url, strict_base64
from app.formats.message import (
    LOG_FORMAT,
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
)
from app.formats.reasoning import ANTHROPIC, GEMINI, OPENAI
from app.formats.tools import hosted_definition, sent_as_object
from app.policy.policy import CounterName

CountText = Callable[[str], int]
IMAGE_TOKENS: Final = 1000
FILE_TOKENS: Final = 2000
"""Tokens of a page, and of a file with unknown content."""
MAX_PAGES: Final = 1000
MAX_ESTIMATED_PAGES: Final = 100
"""The maximum of estimated pages; providers accept 100 to 1000."""
_PIXELS_PER_TOKEN = 750
_IMAGE_TOKEN_RANGE = (85, 1600)
_HEADER_CHARS = 1 << 18  # base64 characters read for the size; a JPEG's comes after its metadata
_BYTES_PER_PAGE = 20_000
_MEDIA_BYTES_PER_TOKEN = 250
_RAW_AUDIO_BYTES_PER_TOKEN = 1_500
_RAW_AUDIO = ("audio/wav", "audio/x-wav", "audio/wave", "audio/pcm", "audio/pcm16", "audio/l16")
_TEXT_TYPES = ("application/json", "application/xml", "application/yaml", "application/javascript")
_PDF = "application/pdf"
_URL_FIELDS = ("url", "image_url", "file_data", "video_url")
MAX_SEARCH_TOKENS: Final = 6_000
"""The maximum for the pages of one search: a provider sends parts of each page."""
_SEARCH_RESULTS, _GENERATED_IMAGE = "web_search_tool_result", "image_generation_call"
_REDACTED = ("redacted_thinking", "reasoning.encrypted")
_SEALED = re.compile(r"encrypted_|signature$|Signature$|^redacted")
_CIPHERTEXT = re.compile(r"[\w+/=.:-]{64,}", re.ASCII)
_FERNET = "gAAAA"
"""How OpenAI's sealed text begins: AES and base64, so four characters of it stand for three."""
_THOUGHT_SIGNATURES = ("thoughtSignature", "thought_signature")
_MAX_THOUGHT_CHARS = 1 << 17
"""A longer one of Gemini seals an image: its thoughts have at most 32,768 tokens."""
_SCANNED_CHARS = 1 << 22
_PAGE = re.compile(rb"/Type\s{0,8}/Page(?![A-Za-z])")
_OBJECTS = re.compile(rb"/ObjStm")
_STREAM = re.compile(rb"[^>]{0,400}>>\s{0,8}stream\r?\n")
_MAX_STREAMS = 64
_MAX_PACKED_BYTES = 1 << 18
_MAX_UNPACKED_BYTES = 1 << 19
_MB: Final = 1_000_000
_LARGE_WINDOW: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """The limits of a request; `many` is the number of images above which none is larger than
    `many_pixels` a side.
    """

    bytes: int
    media: int
    many: int | None = None
    many_pixels: int = 0


_BY_FAMILY: Final[Mapping[str, MediaLimits]] = {
    ANTHROPIC: MediaLimits(32 * _MB, 100, 20, 2000),
    OPENAI: MediaLimits(50 * _MB, 500),
    GEMINI: MediaLimits(20 * _MB, 3000),
}
_ANTHROPIC_LARGE_WINDOW: Final = 600


def image_tokens(image: Image, count: CountText) -> int:
    """Count an image by its pixels; an image by URL has a flat value."""
    if image.data is None:
        return max(IMAGE_TOKENS, count(image.url or ""))
    return _image_data_tokens(image.data)


def file_tokens(file: File, count: CountText) -> int:
    """Count a document, with its name."""
    name_tokens = count(file.name) if file.name else 0
    if file.data is not None:
        return name_tokens + data_tokens(media_type_of(file) or "", file.data, count)
    if file.text is not None and file.text.strip():
        return name_tokens + count(file.text)
    return name_tokens + max(FILE_TOKENS, count(file.url or file.file_id or ""))


def data_tokens(media_type: str, data: str, count: CountText) -> int:
    """Count base64 data of a media type, which may be empty."""
    kind = media_type.lower()
    size = len(data) * 3 // 4
    if kind.startswith("image/"):
        return _image_data_tokens(data)
    if kind.startswith(("audio/", "video/")):
        is_raw = kind in _RAW_AUDIO
        return -(-size // (_RAW_AUDIO_BYTES_PER_TOKEN if is_raw else _MEDIA_BYTES_PER_TOKEN))
    if kind.startswith("text/") or kind in _TEXT_TYPES:
        try:
            return count(base64.b64decode(data).decode())
        except ValueError:
            return -(-size // 4)
    return FILE_TOKENS * (_pdf_pages(data) if kind == _PDF else _estimated_pages(data))


class Block(NamedTuple):
    """A provider's block without its data, and the tokens of its media and of its sealed text."""

    rest: Any
    media: int = 0
    sealed: int = 0


def without_data(value: Any, count: CountText) -> Block:
    """Remove base64 media and sealed text from a provider's block, and count them."""
    match value:
        case list():
            items = [without_data(item, count) for item in value]
            rest: Any = [item.rest for item in items]
            media, sealed = sum(item.media for item in items), sum(item.sealed for item in items)
            return Block(rest, media, sealed)
        case Mapping():
            found, is_redacted = _media_in(value), value.get("type") in _REDACTED
            seals = {
                key: _sealed_tokens(key, text)
                for key, text in value.items()
                if isinstance(text, str)
                and (_SEALED.search(key) or (is_redacted and key == "data"))
                and _CIPHERTEXT.fullmatch(text)
            }
            media = sum(data_tokens(kind, data, count) for kind, data in found.values())
            names = [key for key in value if key not in found and key not in seals]
            inner = without_data([value[key] for key in names], count)
            sealed = inner.sealed + sum(seals.values())
            if value.get("type") == _SEARCH_RESULTS:
                sealed = min(sealed, MAX_SEARCH_TOKENS)
            rest = dict(zip(names, inner.rest, strict=True))
            return Block(rest, media + inner.media, sealed)
        case _:
            return Block(value)


def _sealed_tokens(name: str, text: str) -> int:
    """Count the sealed text of a field, by what providers bill for it."""
    if text.startswith(_FERNET):
        return len(text) * 3 // 20
    if "signature" not in name.lower():
        return -(-len(text) // 4)
    is_image = name in _THOUGHT_SIGNATURES and len(text) > _MAX_THOUGHT_CHARS
    return _IMAGE_TOKEN_RANGE[1] if is_image else -(-len(text) // 5)


def _media_in(block: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the fields of a block that hold base64, each with its media type and its data."""
    media: dict[str, tuple[str, str]] = {}
    is_image = block.get("type") == _GENERATED_IMAGE
    for key, text in block.items():
        if not isinstance(text, str):
            continue
        inline = split_data_url(text) if key in _URL_FIELDS else None
        if inline is not None and strict_base64(inline[1]) is not None:
            media[key] = (inline[0] or "", inline[1])
        elif is_image and key == "result":
            media[key] = (sniffed_type(text) or "image/png", text)
    named = [block.get(key) for key in ("media_type", "mimeType", "mime_type")]
    named += [f"audio/{block['format']}" if isinstance(block.get("format"), str) else None]
    kind, data = next((kind for kind in named if isinstance(kind, str)), None), block.get("data")
    is_text = block.get("type") == "text"
    if kind is not None and isinstance(data, str) and not is_text and strict_base64(data):
        media["data"] = (kind, data)
    return media


def _image_data_tokens(data: str) -> int:
    size = pixel_size(data)
    if size is None:
        return IMAGE_TOKENS
    low, high = _IMAGE_TOKEN_RANGE
    return min(high, max(low, math.ceil(size[0] * size[1] / _PIXELS_PER_TOKEN)))


def pixel_size(data: str) -> tuple[int, int] | None:
    """Read the size of common image types only; the package has larger parsers for others."""
    if sniffed_type(data) is None:
        return None
    import imagesize  # which imports parsers of XML and URLs

    try:
        width, height = imagesize.get(io.BytesIO(_decoded(data[:_HEADER_CHARS])))
    except (ValueError, struct.error):
        return None
    return (width, height) if width > 0 and height > 0 else None


def _decoded(data: str) -> bytes:
    """Decode base64 that may be cut: only whole groups of four characters."""
    return base64.b64decode(data[: len(data) // 4 * 4])


def _estimated_pages(data: str) -> int:
    return min(MAX_ESTIMATED_PAGES, max(1, -(-len(data) * 3 // 4 // _BYTES_PER_PAGE)))


def _pdf_pages(data: str) -> int:
    scanned = data[:_SCANNED_CHARS]
    try:
        content = _decoded(scanned)
    except ValueError:
        return _estimated_pages(data)
    pages = len(_PAGE.findall(content)) or _packed_pages(content)
    if not pages:
        return _estimated_pages(data)
    return min(MAX_PAGES, math.ceil(pages * len(data) / len(scanned)))


def _packed_pages(content: bytes) -> int:
    """Count the pages in compressed object streams."""
    pages = 0
    for objects in islice(_OBJECTS.finditer(content), _MAX_STREAMS):
        start = _STREAM.match(content, objects.end())
        if start is None:
            continue
        packed = memoryview(content)[start.end() : start.end() + _MAX_PACKED_BYTES]
        with suppress(zlib.error):
            unpacked = zlib.decompressobj().decompress(packed, _MAX_UNPACKED_BYTES)
            pages += len(_PAGE.findall(unpacked))
    return pages


def media_limits(model: str, format: FormatName, context_window: int | None) -> MediaLimits | None:
    """Return the limits of a model's family, None where they are unknown."""
    limits = _BY_FAMILY.get(next(iter(PROVIDERS[format].accepted_families(model)), ""))
    if limits is None or limits.many is None:
        return limits
    is_large = context_window is not None and context_window >= _LARGE_WINDOW
    return replace(limits, media=_ANTHROPIC_LARGE_WINDOW) if is_large else limits


MESSAGE_OVERHEAD: Final = 4
CALL_OVERHEAD: Final = 4
TOOL_OVERHEAD: Final = 8
HOSTED_TOOL_TOKENS: Final = 735
"""What a provider adds for a hosted tool: the largest number that one publishes, for one tool."""


class Tokenizer(Protocol):
    """Counts tokens."""

    def count(self, text: str) -> int:
        """Return the number of tokens of the text; never raises, whatever the text."""
        ...


@dataclass(frozen=True, slots=True)
class MessageTokens:
    """The tokens of one message: those in every payload, and those of its reasoning."""

    visible: int
    reasoning: int

    @property
    def total(self) -> int:
        """Visible tokens and reasoning."""
        return self.visible + self.reasoning


def count_message(
    message: Message, count: CountText, format: FormatName = LOG_FORMAT
) -> MessageTokens:
    """Count a clean message as a format sends it; an append does so once, for the log.

    The count is exact for a message that the format has adapted.
    """
    return MessageTokens(count_visible(message, count, format), count_reasoning(message, count))


def count_visible(message: Message, count: CountText, format: FormatName = LOG_FORMAT) -> int:
    """Count the parts of a clean message that are in every payload of a format."""
    provider = PROVIDERS[format]
    visible = MESSAGE_OVERHEAD + _count_extra_fields(message, provider, count)
    is_object = provider.results_are_objects and message.role is Role.TOOL
    for part in message.parts:
        match part:
            case Reasoning():
                pass
            case Text():
                visible += _count_extra_fields(part, provider, count)
                visible += 0 if is_object else count(part.text)
            case Image():
                visible += image_tokens(part, count)
                visible += _count_extra_fields(part, provider, count)
            case File():
                visible += file_tokens(part, count)
                visible += _count_extra_fields(part, provider, count)
            case ToolCall():
                arguments = part.arguments
                if provider.sends_objects:
                    arguments = sendable(sent_as_object(arguments))
                visible += CALL_OVERHEAD + sum(
                    map(count, (sendable(part.id), part.name, arguments))
                )
                visible += _count_extra_fields(part, provider, count)
            case Opaque():
                visible += count_json(part.block, count)
    if is_object:
        visible += sum(count(sendable(text)) for text in provider.result_texts(message))
    if message.tool_call_id is not None:
        visible += count(sendable(message.tool_call_id))
    if message.name is not None and message.role is not Role.TOOL:
        visible += count(message.name)
    return visible


def count_reasoning(message: Message, count: CountText) -> int:
    """Count the reasoning of a clean message, and the signatures of its other parts."""
    tokens = 0
    for part in message.parts:
        if not isinstance(part, Reasoning):
            signature = _signature_of(part)  # which belongs to the reasoning before the part
            tokens += count_json(signature, count) if signature else 0
        elif part.block is None:
            tokens += count(part.text)
        else:
            # What a block seals is the reasoning that its text shows or sums up.
            rest, media_tokens, sealed = without_data(part.block, count)
            tokens += media_tokens + max(_count_text(rest, count), sealed)
    return tokens


def count_sealed(message: Message, format: FormatName, count: CountText) -> int:
    """Count the sealed text in the visible parts of a message, which its count includes."""
    tokens = 0
    for part in message.parts:
        match part:
            case Opaque():
                tokens += without_data(part.block, count).sealed
            case Text() | ToolCall() if part.block is not None:
                tokens += without_data(PROVIDERS[format].extra_fields(part), count).sealed
    return tokens


def counts_as_stored(message: Message, sent: Message, format: FormatName) -> bool:
    """Return whether a clean message costs what its chat item does where a format sends `sent`.

    Reasoning is not compared.
    """
    provider = PROVIDERS[format]
    if LOG_PROVIDER.adapt(message) is not message:
        return False
    if provider.results_are_objects and message.role is Role.TOOL:
        return False
    if not all(_counts_alike(part, provider) for part in (sent, *sent.parts)):
        return False
    if (message.name, message.tool_call_id) != (sent.name, sent.tool_call_id):
        return False
    visible = [part for part in message.parts if not isinstance(part, Reasoning)]
    sent_parts = [part for part in sent.parts if not isinstance(part, Reasoning)]
    return len(visible) == len(sent_parts) and all(map(operator.is_, visible, sent_parts))


def count_replayed(
    stored: int, message: Message, sent: Message, count: CountText, format: FormatName
) -> int:
    """Count the reasoning that is replayed: only that of the provider itself
    [neutral.opaque-family].

    `stored` is the count of all the message's reasoning; `sent` has the reasoning that is replayed,
    and the signatures that this format sends.
    """
    all_parts = signed_parts(message)
    replayed = [part for part in signed_parts(sent) if part.format is format] if stored else []
    if len(replayed) == len(all_parts) and all(map(operator.is_, replayed, all_parts)):
        return stored if replayed else 0
    return count_reasoning(replace(sent, parts=tuple(replayed)), count) if replayed else 0


def count_json(value: Any, count: CountText) -> int:
    """Count a JSON value as it is sent, its media and its sealed text by what they stand for."""
    rest, media_tokens, sealed = without_data(value, count)
    return media_tokens + sealed + _count_text(rest, count)


def _count_text(value: Any, count: CountText) -> int:
    return count(sendable(json_fields.compact(value)))


def media_overhead(format: FormatName, message: Message, count: CountText) -> int:
    """Count what is added to a tool message's media that a format sends apart; 0 without media.

    OpenAI Chat has a user message for them [openai-chat.sizes], Gemini parts after the responses.
    The message is adapted; its own count has the media themselves.
    """
    provider = PROVIDERS[format]
    texts = provider.apart_texts(message)
    overhead = MESSAGE_OVERHEAD if texts and provider.sends_apart_message else 0
    return overhead + sum(map(count, texts))


def count_system(text: str, count: CountText) -> int:
    """Count a system prompt sent as one message or one top-level field."""
    return MESSAGE_OVERHEAD + count(text)


def count_payload_messages(
    format: FormatName, messages: Sequence[Mapping[str, Any]], count: CountText
) -> int:
    """Count a payload's messages from scratch, by parsing them.

    Raises `ValidationError` for a message that the format does not have.
    """
    total = 0
    for index, raw in PROVIDERS[format].group_items(messages):
        is_system = raw.get("role") in ("system", "developer")
        wire = {**raw, "role": "user"} if is_system else raw
        parsed = PROVIDERS[format].parse(wire, f"/messages/{index}")
        counted = [count_message(message, count, format).total for message in parsed]
        total += sum(counted) - MESSAGE_OVERHEAD * (len(counted) - 1)
    return total


def estimate_tool_defs_tokens(tools: Iterable[ToolDefinition], count: CountText) -> int:
    """Count tool definitions: name, description and schema.

    A hosted tool costs its definition and `HOSTED_TOOL_TOKENS`.
    """
    tokens = 0
    for tool in tools:
        if tool.hosted is not None:
            tokens += HOSTED_TOOL_TOKENS + count_json(hosted_definition(tool.hosted), count)
        else:
            texts = (sendable(tool.description), sendable(json_fields.compact(tool.parameters)))
            tokens += TOOL_OVERHEAD + sum(map(count, (tool.name, *texts)))
    return tokens


def _counts_alike(part: Message | Part, provider: Provider) -> bool:
    """Return whether a provider sends for a part, or beside all parts, the same text as chat."""
    if isinstance(part, Reasoning | Opaque):
        return True
    text = part.arguments if isinstance(part, ToolCall) and provider.sends_objects else ""
    return sent_as_object(text) == text and not provider.extra_fields(part)


def _count_extra_fields(part: Original, provider: Provider, count: CountText) -> int:
    rest = provider.extra_fields(part) if part.block is not None else None
    return count_json(rest, count) if rest else 0


def _signature_of(part: Part) -> Mapping[str, Any]:
    """Return the fields with the signature of a call or a text, empty without one."""
    if not isinstance(part, Text | ToolCall) or part.block is None or part.format is None:
        return {}
    return PROVIDERS[part.format].signature_of(part)


def signed_parts(message: Message) -> list[Reasoning | Text | ToolCall]:
    """Return the parts that are reasoning or have a signature."""
    return [
        part
        for part in message.parts
        if isinstance(part, Reasoning)
        or (isinstance(part, Text | ToolCall) and bool(_signature_of(part)))
    ]


def _bytes_4(text: str) -> int:
    return (len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))) // 4


ESTIMATES: Final[Mapping[CounterName, CountText]] = {
    CounterName.BYTES_4: _bytes_4,
    CounterName.CHARS_4: lambda text: len(text) // 4,
    CounterName.CHARS_2_5: lambda text: len(text) * 2 // 5,
}
"""The rules of thumb for one text, each rounded down."""


def estimate_messages(messages: Sequence[Message], counter: CounterName) -> int:
    """Estimate by the rule of a counter's name: content text alone, without overheads.

    `chars_4` rounds once, the others for each message. Calls, media, reasoning, ids and names come
    on top, as a build counts them.
    """
    count = ESTIMATES[counter]
    texts = ["".join(p.text for p in m.parts if isinstance(p, Text)) for m in messages]
    tokens = count("".join(texts)) if counter is CounterName.CHARS_4 else sum(map(count, texts))
    for message in messages:
        apart = tuple(part for part in message.parts if not isinstance(part, Text))
        tokens += count_message(replace(message, parts=apart), count).total - MESSAGE_OVERHEAD
    return tokens
