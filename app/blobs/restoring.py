"""Restoring an offloaded result from its blob, and comparing it with a result sent again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from app.blobs.blobs import decode_lossy, encode
from app.blobs.offloading import main_blob_id
from app.blobs.result_content import (
    has_content,
    is_object,
    replace_content,
    result_in,
    text_positions,
)
from app.blobs.stored_output import StoredOutput
from app.common import json_text
from app.common.json_structure import MESSAGE_LIMITS
from app.formats import PROVIDERS
from app.formats.message import FormatName


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
        if main_blob_id(message) != output.ref or is_object(sent, format) < output.is_object:
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
