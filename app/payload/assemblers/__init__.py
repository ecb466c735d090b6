"""The assemblers, one per wire format."""

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
from app.payload.assemblers.anthropic import AnthropicAssembler
from app.payload.assemblers.gemini import GeminiAssembler
from app.payload.assemblers.openai_chat import ChatAssembler
from app.payload.assemblers.openai_responses import ResponsesAssembler

_ASSEMBLERS: Final[Mapping[type[Provider], type[Assembler]]] = {
    OpenAIChat: ChatAssembler,
    OpenAIResponses: ResponsesAssembler,
    Anthropic: AnthropicAssembler,
    Gemini: GeminiAssembler,
}


def assembler_of(format: FormatName) -> Callable[..., Assembler]:
    """Return what makes the assembler of a provider, or of the one whose subclass it is."""
    provider = PROVIDERS[format]
    kinds = (_ASSEMBLERS.get(base) for base in type(provider).__mro__)
    return partial(next(filter(None, kinds)), provider)
