"""The assemblers: one for every wire format (K1)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final

from app.domain.assemblers.anthropic import AnthropicAssembler
from app.domain.assemblers.openai_chat import ChatAssembler
from app.domain.messages import FormatName
from app.domain.prompt import ALL_TOOLS, NO_NAMES, NO_TAIL, Assembler, Tail
from app.domain.tokens import CountText
from app.domain.views import View

ASSEMBLERS: Final[Mapping[FormatName, type[Assembler]]] = MappingProxyType(
    {FormatName.OPENAI_CHAT: ChatAssembler, FormatName.ANTHROPIC: AnthropicAssembler}
)


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
