"""Counts the tokens of a finished payload, with no code of the service.

1. The payload is JSON as a client gets it. Every string that a model reads is counted by itself
   with tiktoken: texts, names, call ids, arguments, labels, definitions.
2. An object that a model reads as one thing (a call's input, a response, a schema) counts as its
   JSON, compact and without ASCII escapes.
3. Left out are what the protocol needs (types, roles, ids of items), base64 media, signatures and
   encrypted reasoning, and definitions of tools that the provider holds back.

So the sum is the least that a payload can cost: a provider adds its own frame to each message.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import tiktoken

LONGEST: Final = 100_000
"""Characters that the library is given at once: a longer run of spaces takes too long."""

_ENVELOPE: Final = ("model", "max_tokens", "max_completion_tokens", "max_output_tokens")
_PROTOCOL: Final = (
    "type",
    "role",
    "status",
    "phase",
    "detail",
    "media_type",
    "mimeType",
    "mime_type",
    "format",
    "cache_control",
    "prompt_cache_breakpoint",
    "prompt_cache_key",
    "strict",
)
_SEALED: Final = ("signature", "thoughtSignature", "thought_signature", "encrypted_content")
_OBJECTS: Final = (
    "input",
    "args",
    "response",
    "parameters",
    "input_schema",
    "parametersJsonSchema",
    "action",
    "operation",
)
_MEDIA: Final = ("data", "file_data", "url", "image_url", "file_url", "fileUri", "file_uri")


def payload_tokens(payload: Mapping[str, Any]) -> int:
    """Return the tokens of all that a model reads of a payload, in any format."""
    return sum(map(text_tokens, payload_texts(payload)))


def payload_texts(payload: Mapping[str, Any]) -> Iterator[str]:
    """Yield every text of a payload that a model reads."""
    for key, value in payload.items():
        if key in _ENVELOPE or key in _PROTOCOL:
            continue
        if key == "input":  # the items of OpenAI Responses
            yield from _texts(value)
        else:
            yield from _texts({key: value})


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from _texts(item)
        case dict():
            if not value.get("defer_loading"):
                for key, item in value.items():
                    yield from _field(value, key, item)
        case _:
            pass


def _field(owner: Mapping[str, Any], key: str, value: Any) -> Iterator[str]:
    if key in _PROTOCOL or key in _SEALED:
        return
    if key == "id" and owner.get("type") not in ("function", "custom", "tool_use", None):
        return
    if key in _OBJECTS and isinstance(value, dict):
        yield json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    elif not (key in _MEDIA and isinstance(value, str) and _is_media(owner, value)):
        yield from _texts(value)


def _is_media(owner: Mapping[str, Any], value: str) -> bool:
    """Whether a string is base64, which no model reads as text."""
    if value.startswith("data:"):
        return True
    typed = any(key in owner for key in ("media_type", "mimeType", "mime_type", "format"))
    is_sealed = owner.get("type") == "redacted_thinking"
    return is_sealed or (typed and "data" in owner and owner.get("type") != "text")


@lru_cache(maxsize=50_000)
def text_tokens(text: str) -> int:
    """Return the tokens of one text."""
    encode = encoding().encode_ordinary
    return sum(len(encode(text[start : start + LONGEST])) for start in range(0, len(text), LONGEST))


@lru_cache(maxsize=1)
def encoding() -> tiktoken.Encoding:
    """Load the vocabulary from LiteLLM's copy, so that nothing is downloaded."""
    spec = importlib.util.find_spec("litellm")
    if spec is not None and spec.origin is not None:
        bundled = Path(spec.origin).parent / "litellm_core_utils" / "tokenizers"
        os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(bundled))
    return tiktoken.get_encoding("o200k_base")
