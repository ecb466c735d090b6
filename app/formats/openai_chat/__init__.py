"""OpenAI Chat Completions.

1. One wire message is one neutral message. System text is refused. Audio is sent back by its id,
   to other formats as a label with the transcript.
2. Reasoning has no place in the format itself: providers and gateways add fields of their own
   (`reasoning_fields`). It is replayed as it came, to a model of the family that made it.
3. A tool message carries text only. Its media follow in a user message (`render_media`).
4. A label stands in the place of content that the format cannot carry.
"""

from __future__ import annotations

from app.formats.openai_chat.parsing import RESULT_KEY, parse, results, split
from app.formats.openai_chat.rendering import (
    adapt,
    is_faithful,
    render,
    render_media,
    tool_media,
    tools_to_wire,
)

__all__ = [
    "RESULT_KEY",
    "adapt",
    "is_faithful",
    "parse",
    "render",
    "render_media",
    "results",
    "split",
    "tool_media",
    "tools_to_wire",
]
