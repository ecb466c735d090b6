"""Offloading of a tool result on append: its blob, preview and stored message, and the way back.

1. The output of a result is its text. Several parts are joined by newlines. An inline image or
   document has a blob of its own, and a line with that blob's id in the joined text
   [tool-output.media].
2. A large output is stored whole in a blob; the message keeps previews of its texts. Media stay in
   the message [tool-output.offload].
3. Results of agent tools are never offloaded, nor are results whose texts cannot be
   replaced, such as the output of a Responses tool search [tool-output.own-tools-inline].
4. For an object of Gemini the output is its JSON, and `{"output": preview}` replaces it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from app.blobs.chunks import TEXT, Blob, Chunk, Chunker, blob_id, decode_lossy, encode
from app.blobs.preview import Preview, PreviewKind, preview_of_texts, should_offload
from app.blobs.stored_output import StoredOutput, inline_output, part_text
from app.common import json_text
from app.common.errors import ValidationError
from app.common.json_text import MESSAGE_LIMITS
from app.formats import PROVIDERS
from app.formats.media import media_type_of
from app.formats.message import File, FormatName, Image, Message, Part, Text
from app.policy.policy import AGENT_TOOL_NAMES, ToolOutputPolicy

OPAQUE = "application/octet-stream"

_NO_CONTENT: tuple[Any, ...] = (None, "", [])

NewBlob = tuple[Blob, tuple[Chunk, ...]]
"""A blob without a content id, with all its chunks."""
_ToolCall = tuple[str | None, str | None]  # the tool's name and the call's id


@dataclass(frozen=True, slots=True)
class OffloadRules:
    """The policy, the names of tools by call id, and stored blobs that messages refer to, by id.

    Each of these blobs has its preview under the policy.
    """

    policy: ToolOutputPolicy = field(default_factory=ToolOutputPolicy)
    tool_names: Mapping[str, str] = field(default_factory=dict)
    attached_blobs: Mapping[str, tuple[Blob, Preview]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OffloadedResult:
    """A result to append: the message to store, its output, and its new or attached blobs."""

    raw_message: dict[str, Any]
    output: StoredOutput
    blobs: tuple[NewBlob, ...] = ()
    attached_blob_id: str | None = None


@dataclass(frozen=True, slots=True)
class _OutputPart:
    """The bytes of a part, and its text in the joined output.

    `media_type` is set for a part that has a blob of its own.
    """

    data: bytes
    line: bytes
    media_type: str | None = None
    is_text: bool = False


def offload_result(
    raw_message: dict[str, Any],
    message: Message,
    format: FormatName,
    rules: OffloadRules,
    pointer: str,
) -> OffloadedResult:
    """Return a tool message as it is stored, offloaded if the policy requires it."""
    name = rules.tool_names.get(message.tool_call_id or "") or message.name
    ref = attached_ref(raw_message, format, pointer)
    if ref is not None:
        if ref not in rules.attached_blobs:
            detail = f"No blob {ref!r} in this conversation: upload it first"
            raise ValidationError.at(f"{pointer}/output_ref", detail)
        return _attach(raw_message, format, *rules.attached_blobs[ref])
    if name in AGENT_TOOL_NAMES:
        return OffloadedResult(raw_message, inline_output(message))
    parts = [_output_part(part) for part in message.parts]
    if not _is_replaceable(raw_message, parts, format):
        return OffloadedResult(raw_message, inline_output(message))
    size = sum(len(part.data) for part in parts) + len(parts) - 1
    if should_offload(size, rules.policy):
        return _offload(raw_message, parts, format, rules.policy, (name, message.tool_call_id))
    return OffloadedResult(raw_message, inline_output(message))


def _main_blob_id(message: Message) -> str:
    """Return the id of the blob that a result has if it is offloaded."""
    parts = [_output_part(part) for part in message.parts]
    main = _joined(parts)
    return blob_id(sha256(parts[0].data if main is None else main).hexdigest())


def _attach(
    raw_message: dict[str, Any], format: FormatName, blob: Blob, preview: Preview
) -> OffloadedResult:
    output = StoredOutput(blob.byte_size, blob.line_count, blob.id)
    if not has_content(raw_message, format):
        raw_message = deepcopy(raw_message)
        replace_content(raw_message, format, preview.texts[0])
        texts = ((0, blob.byte_size),)
        output = replace(output, preview=replace(preview, texts=()), texts=texts)
    return OffloadedResult(raw_message, output, attached_blob_id=blob.id)


def _offload(
    raw_message: dict[str, Any],
    parts: Sequence[_OutputPart],
    format: FormatName,
    policy: ToolOutputPolicy,
    call: _ToolCall,
) -> OffloadedResult:
    main = _joined(parts)
    blobs = [_new_blob(part.data, part.media_type, call) for part in parts if part.media_type]
    if main is not None:
        blobs.insert(0, _new_blob(main, TEXT, call))
    blob, _ = blobs[0]
    output = StoredOutput(blob.byte_size, blob.line_count, blob.id)
    if main is None:
        return OffloadedResult(raw_message, output, tuple(blobs))
    has_object = is_object(raw_message, format)
    texts = [container[key] for container, key in text_positions(raw_message, format)]
    if has_object:
        texts = [decode_lossy(part.data) for part in parts if part.is_text]
    preview = preview_of_texts(texts, policy, blob.ref, call[0])
    is_cut = preview.kind is not PreviewKind.WHOLE
    if is_cut:
        raw_message = deepcopy(raw_message)
        if has_object:
            replace_content(raw_message, format, "")
        for (container, key), text in zip(
            text_positions(raw_message, format), preview.texts, strict=True
        ):
            container[key] = text
    output = replace(
        output,
        preview=replace(preview, texts=()),
        texts=tuple(_text_ranges(parts)),
        is_object=has_object and is_cut,
    )
    return OffloadedResult(
        raw_message, output, tuple({item[0].id: item for item in blobs}.values())
    )


def _output_part(part: Part) -> _OutputPart:
    if isinstance(part, Image | File) and (data := _inline_bytes(part)) is not None:
        media_type = media_type_of(part) or OPAQUE
        ref = blob_id(sha256(data).hexdigest())
        line = encode(f"[{media_type}; {len(data):,} bytes; ref={ref}]")
        return _OutputPart(data, line, media_type)
    text = encode(part_text(part))
    return _OutputPart(text, text, is_text=isinstance(part, Text))


def _inline_bytes(part: Image | File) -> bytes | None:
    """Return the bytes of an inline image or document, None without valid inline data."""
    if not part.data:
        return None
    data = "".join(part.data.split()).rstrip("=")  # may have line breaks and any padding
    try:
        return base64.b64decode(data + "=" * (-len(data) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


def _joined(parts: Sequence[_OutputPart]) -> bytes | None:
    """Return the main blob's bytes; None for a single image or document, whose blob is its own."""
    if len(parts) == 1 and parts[0].media_type is not None:
        return None
    return b"\n".join(part.line for part in parts)


def _text_ranges(parts: Iterable[_OutputPart]) -> Iterator[tuple[int, int]]:
    """Yield the start and length of each text in the main blob."""
    start = 0
    for part in parts:
        size = len(part.line)
        if part.is_text:
            yield start, size
        start += size + 1


def _is_replaceable(raw_message: Any, parts: Sequence[_OutputPart], format: FormatName) -> bool:
    """Whether each text of a result can be replaced by its preview."""
    texts = sum(part.is_text for part in parts)
    return is_object(raw_message, format) or texts == sum(
        1 for _ in text_positions(raw_message, format)
    )


def _new_blob(data: bytes, media_type: str, call: _ToolCall) -> NewBlob:
    chunker = Chunker()
    chunks = (*chunker.feed(data), *chunker.finish())
    return chunker.blob(media_type, *call), chunks


def restore_result(
    body: str, format: FormatName, output: StoredOutput, content: bytes
) -> dict[str, Any]:
    """Return a stored message with its original texts, taken from the blob's bytes."""
    raw_message: dict[str, Any] = json_text.loads(body)
    texts = [decode_lossy(content[start : start + length]) for start, length in output.texts]
    if output.is_object:
        (text,) = texts
        result_in(raw_message, format)[PROVIDERS[format].result_key] = json_text.loads_within(
            text, MESSAGE_LIMITS, json_text.loads_exact
        )
        return raw_message
    for (container, key), text in zip(text_positions(raw_message, format), texts, strict=True):
        container[key] = text
    return raw_message


def is_same_result(
    body: str, output: StoredOutput, raw_message: Mapping[str, Any], format: FormatName
) -> bool:
    """Whether a stored result with a blob was sent with the same content as `raw_message`.

    The blob's id is the hash of its content, so the blob is not read. The result does not depend
    on the policies under which the two were offloaded, nor on whether the blob was collected.
    """
    stored: dict[str, Any] = json_text.loads(body)
    sent: dict[str, Any] = json_text.loads(json_text.dump_stored(raw_message))
    output_ref = result_in(sent, format).get("output_ref")
    if output_ref != result_in(stored, format).get("output_ref"):
        return False
    if output_ref is None:
        (message,) = PROVIDERS[format].parse(sent, "")
        if _main_blob_id(message) != output.ref or is_object(sent, format) < output.is_object:
            return False
        if output.is_object:
            replace_content(sent, format, "")
            replace_content(stored, format, "")
        elif not is_object(sent, format):
            lengths = [
                len(encode(container[key])) for container, key in text_positions(sent, format)
            ]
            if len(lengths) != len(output.texts):
                return False
            _replace_texts(sent, format, lengths)
            _replace_texts(stored, format, (length for _, length in output.texts))
    elif output.texts:
        if has_content(sent, format):
            return False
        key = PROVIDERS[format].result_key
        result_in(sent, format).pop(key, None)
        result_in(stored, format).pop(key, None)
    return sent == stored


def _replace_texts(raw_message: Any, format: FormatName, lengths: Iterable[int]) -> None:
    for (container, key), length in zip(text_positions(raw_message, format), lengths, strict=True):
        container[key] = length


# --- the content of a result inside a native message ---


def result_in(raw_message: Any, format: FormatName) -> Any:
    """Return the object that holds the result's content: the message, or its one block."""
    return PROVIDERS[format].results(raw_message)[0][1]


def attached_ref(raw_message: Mapping[str, Any], format: FormatName, pointer: str) -> str | None:
    """Return the blob id in `output_ref` of a tool message, None without one."""
    output_ref = result_in(raw_message, format).get("output_ref")
    if output_ref is None:
        return None
    ref = output_ref.get("id") if isinstance(output_ref, Mapping) else output_ref
    if not isinstance(ref, str) or not ref:
        raise ValidationError.at(f"{pointer}/output_ref", "must be an object with the id of a blob")
    return ref


def has_content(raw_message: Mapping[str, Any], format: FormatName) -> bool:
    """Whether a tool message has content of its own, beside an `output_ref`."""
    return result_in(raw_message, format).get(PROVIDERS[format].result_key) not in _NO_CONTENT


def is_object(raw_message: Any, format: FormatName) -> bool:
    """Whether the content is an object instead of a text."""
    provider = PROVIDERS[format]
    return provider.is_object(result_in(raw_message, format).get(provider.result_key))


def text_positions(raw_message: Any, format: FormatName) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the container and key of every text of a result, in order."""
    provider = PROVIDERS[format]
    container, key = result_in(raw_message, format), provider.result_key
    content = container.get(key)
    if isinstance(content, str):
        yield container, key
    elif isinstance(content, list):
        for part in content:
            if part.get("type") in ("text", "input_text"):
                yield part, "text"
    elif content and (text_key := provider.text_key(content)):
        yield content, text_key


def replace_content(raw_message: Any, format: FormatName, text: str) -> None:
    """Replace the whole content of a result by a text."""
    provider = PROVIDERS[format]
    result_in(raw_message, format)[provider.result_key] = provider.result_content(text)
