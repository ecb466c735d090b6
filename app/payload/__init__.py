"""From the log rows that a view shows to the items of a payload."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from app.formats import PROVIDERS
from app.formats.anthropic import Anthropic
from app.formats.base import Provider
from app.formats.gemini import Gemini
from app.formats.message import FormatName
from app.formats.openai_chat import OpenAIChat
from app.formats.openai_responses import OpenAIResponses
from app.payload.assembler import Assembler
from app.payload.items import AnthropicAssembler, ChatAssembler, GeminiAssembler, ResponsesAssembler

_ASSEMBLERS: Final[Mapping[type[Provider], type[Assembler]]] = {
    OpenAIChat: ChatAssembler,
    OpenAIResponses: ResponsesAssembler,
    Anthropic: AnthropicAssembler,
    Gemini: GeminiAssembler,
}


def assembler_of(format: FormatName) -> Callable[..., Assembler]:
    """Return what makes the assembler of a provider, or of the one whose subclass it is."""
    provider = PROVIDERS[format]
    kind = next(kind for of, kind in _ASSEMBLERS.items() if isinstance(provider, of))
    return partial(kind, provider)
