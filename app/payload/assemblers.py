"""The assemblers of the wire formats."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from app.formats import PROVIDERS
from app.formats.message import FormatName
from app.payload.assembler import Assembler
from app.payload.merging import AnthropicAssembler, GeminiAssembler
from app.payload.separate import ChatAssembler, ResponsesAssembler

_ASSEMBLERS = (ChatAssembler, ResponsesAssembler, AnthropicAssembler, GeminiAssembler)


def assembler_of(format: FormatName) -> Callable[..., Assembler]:
    """Return what makes the assembler of a provider, or of the one whose subclass it is."""
    provider = PROVIDERS[format]
    kind = next(kind for kind in _ASSEMBLERS if isinstance(provider, kind.provider_type))
    return partial(kind, provider)
