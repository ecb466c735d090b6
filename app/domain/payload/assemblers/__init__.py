"""The assemblers, one per wire format."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from app.domain.common.messages import FormatName
from app.domain.payload.assembler import Assembler
from app.domain.payload.assemblers import anthropic, openai_responses
from app.domain.payload.assemblers.anthropic import AnthropicAssembler
from app.domain.payload.assemblers.gemini import GeminiAssembler
from app.domain.payload.assemblers.openai_chat import ChatAssembler
from app.domain.payload.assemblers.openai_responses import ResponsesAssembler

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
