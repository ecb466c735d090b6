"""The assemblers, one per wire format."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from app.formats.message import FormatName
from app.payload.assembler import Assembler
from app.payload.assemblers import anthropic, openai_responses
from app.payload.assemblers.anthropic import AnthropicAssembler
from app.payload.assemblers.gemini import GeminiAssembler
from app.payload.assemblers.openai_chat import ChatAssembler
from app.payload.assemblers.openai_responses import ResponsesAssembler

ASSEMBLERS: Final[Mapping[FormatName, type[Assembler]]] = MappingProxyType(
    {
        FormatName.OPENAI_CHAT: ChatAssembler,
        FormatName.OPENAI_RESPONSES: ResponsesAssembler,
        FormatName.ANTHROPIC: AnthropicAssembler,
        FormatName.GEMINI: GeminiAssembler,
    }
)
BREAKPOINTS_JSON: Final[Mapping[FormatName, bytes]] = MappingProxyType(
    {
        FormatName.OPENAI_RESPONSES: openai_responses.BREAKPOINT_JSON,
        FormatName.ANTHROPIC: anthropic.BREAKPOINT_JSON,
    }
)
"""The JSON that makes a block a breakpoint, in formats whose items have places for it."""
