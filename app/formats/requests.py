"""What goes to a provider and comes back beside messages: requests, calls of tools, answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from app.formats.json_fields import Fields


class AgentCall(NamedTuple):
    """A call of a tool as a provider's client has it; `at` is the JSON pointer of its fields.

    `arguments` are in the field `key`; an absent one is None. Only Gemini's calls may lack an `id`.
    `is_search` is true for the call of a provider's own tool search, which has no name.
    """

    id: str | None
    fields: Fields
    key: str
    is_search: bool = False


@dataclass(frozen=True, slots=True)
class SystemPrompt:
    """The texts of a system prompt: its static sections, and those that change.

    It is rendered as one text where breakpoints were wrong, and the format has blocks.
    """

    sections: tuple[str, ...]
    dynamic_texts: tuple[str, ...]
    as_blocks: bool = True

    @property
    def static(self) -> str:
        """The static sections as one text."""
        return "\n\n".join(self.sections)

    @property
    def texts(self) -> list[str]:
        """The static text, where there is one, and the others."""
        return [*([self.static] if self.sections else []), *self.dynamic_texts]


class System(NamedTuple):
    """A rendered system prompt: items before the history, or a field of the request.

    `hashed` is its JSON for the prefix hash.
    """

    items: tuple[bytes, ...] = ()
    field_value: Any = None
    hashed: bytes = b""


class RequestFields(NamedTuple):
    """What a request has beside its model; `tools` and `cache_key` are fields or nothing."""

    items: Any
    max_output: int
    system: Any
    tools: Mapping[str, Any]
    cache_key: Mapping[str, str]


class Compaction(NamedTuple):
    """Fields of a request, the betas that it needs, and what a call of its own consists of."""

    added: Mapping[str, Any] = MappingProxyType({})
    betas: tuple[str, ...] = ()
