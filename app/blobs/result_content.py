"""Access to the content of a tool result inside a native message of any format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from app.common.errors import ValidationError
from app.formats import PROVIDERS
from app.formats.message import FormatName

_NO_CONTENT: tuple[Any, ...] = (None, "", [])


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
    content = result_in(raw_message, format).get(provider.result_key)
    return provider.results_are_objects and bool(content) and provider.text_key(content) is None


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
