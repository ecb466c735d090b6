"""The assemblers: one for every wire format (K1)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final

from app.domain.common.messages import FormatName
from app.domain.conversations.view import View
from app.domain.models.tokens import CountText
from app.domain.payload.assembler import ALL_TOOLS, NO_NAMES, Assembler
from app.domain.payload.assemblers import anthropic, openai_responses
from app.domain.payload.assemblers.anthropic import AnthropicAssembler
from app.domain.payload.assemblers.gemini import GeminiAssembler
from app.domain.payload.assemblers.openai_chat import ChatAssembler
from app.domain.payload.assemblers.openai_responses import ResponsesAssembler
from app.domain.prompt.sections import NO_TAIL, Tail

ASSEMBLERS: Final[Mapping[FormatName, type[Assembler]]] = MappingProxyType(
    {
        FormatName.OPENAI_CHAT: ChatAssembler,
        FormatName.OPENAI_RESPONSES: ResponsesAssembler,
        FormatName.ANTHROPIC: AnthropicAssembler,
        FormatName.GEMINI: GeminiAssembler,
    }
)
CACHE_MARKS: Final[Mapping[FormatName, bytes]] = MappingProxyType(
    {
        FormatName.OPENAI_RESPONSES: openai_responses.CACHE_MARK,
        FormatName.ANTHROPIC: anthropic.CACHE_MARK,
    }
)
"""What a mark adds to a block, in formats whose items have places for marks (G2)."""


def assembler_for(
    format: FormatName,
    view: View,
    count: CountText,
    tools: Collection[str] = ALL_TOOLS,
    opening: Tail = NO_TAIL,
    defined: Collection[str] = NO_NAMES,
) -> Assembler:
    """Return a fresh assembler for a format, which may name these of the agent's own tools."""
    return ASSEMBLERS[format](view, count, tools, opening, defined)
