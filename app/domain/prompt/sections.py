"""Sections: the parts of a system prompt, ordered static to dynamic (G1).

1. Kinds have a fixed order, what changes least first, so that a provider's cache holds longest.
   Inside a kind, `order` decides, then the place in the list.
2. Layers merge by name: a later layer's section replaces an earlier one's (decision 21).
3. Every kind belongs to one budget component: skills to `skill_prompts`, all others to
   `system_prompt` (C1).
4. Scratchpad and status are dynamic: by default they stand in the tail, where their changes break
   no cached prefix (G5).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from app.domain.common.messages import sendable


class SectionKind(StrEnum):
    """What a section holds, in the order of the prompt."""

    BASE = "base"
    RULES = "rules"
    MEMORIES = "memories"
    DOCS = "docs"
    SKILL = "skill"
    SCRATCHPAD = "scratchpad"
    STATUS = "status"


_RANK = {kind: rank for rank, kind in enumerate(SectionKind)}
DYNAMIC_KINDS = (SectionKind.SCRATCHPAD, SectionKind.STATUS)
"""What may change with every build."""
_CACHED_KINDS = (SectionKind.BASE, SectionKind.RULES, SectionKind.MEMORIES, SectionKind.DOCS)


@dataclass(frozen=True, slots=True)
class PromptSection:
    """One part of the system prompt; S2's PromptSection with its kind and order."""

    name: str
    content: str
    kind: SectionKind = SectionKind.BASE
    cacheable: bool = True
    order: int = 0

    @property
    def is_dynamic(self) -> bool:
        """Whether it may change with every build (rule 4)."""
        return self.kind in DYNAMIC_KINDS

    @property
    def ends_a_prefix(self) -> bool:
        """Whether a cache breakpoint is of use after it (S2 section 4)."""
        return self.cacheable and self.kind in _CACHED_KINDS


def section_from(raw: Mapping[str, Any], place: int) -> PromptSection:
    """Read a stored or given section; `place` is its index in its list."""
    return PromptSection(
        name=raw["name"],
        content=sendable(raw["content"]),
        kind=SectionKind(raw.get("kind") or SectionKind.BASE),
        cacheable=raw.get("cacheable", True),
        order=raw["order"] if raw.get("order") is not None else place,
    )


def merge_sections(layers: Iterable[Sequence[PromptSection]]) -> tuple[PromptSection, ...]:
    """Return the sections of all layers by name, in prompt order, the empty ones left out."""
    by_name: dict[str, PromptSection] = {}
    for layer in layers:
        for section in layer:
            by_name[section.name] = section
    shown = [section for section in by_name.values() if section.content.strip()]
    return tuple(sorted(shown, key=lambda section: (_RANK[section.kind], section.order)))


def static_sections(sections: Iterable[PromptSection]) -> tuple[PromptSection, ...]:
    """Return the sections that make the system prompt."""
    return tuple(section for section in sections if not section.is_dynamic)


def dynamic_texts(sections: Sequence[PromptSection], status: str | None = None) -> tuple[str, ...]:
    """Return what stands outside the system prompt, each labelled, status first (B4).

    `status` is given with a build and stands for the stored sections of that kind.
    """
    preambles = [section.content for section in sections if section.kind is SectionKind.STATUS]
    if status is not None:
        preambles = [sendable(status)] if status.strip() else []
    pads = [section.content for section in sections if section.kind is SectionKind.SCRATCHPAD]
    labelled = [("Status", text) for text in preambles] + [("Scratchpad", text) for text in pads]
    return tuple(f"[{label}]\n{text}" for label, text in labelled)


def system_text(sections: Sequence[PromptSection]) -> str:
    """Return the system prompt as one text."""
    return "\n\n".join(section.content for section in sections)


def prefix_sections(sections: Sequence[PromptSection]) -> list[int]:
    """Return the indices of sections a cacheable prefix may end with: the last of each kind."""
    found = []
    for index, section in enumerate(sections):
        following = sections[index + 1] if index + 1 < len(sections) else None
        if not section.cacheable:
            break
        if section.ends_a_prefix and (following is None or following.kind is not section.kind):
            found.append(index)
    return found


@dataclass(frozen=True, slots=True)
class Tail:
    """Texts that are no messages: after the history, or as an opening before it (G5, B4).

    `as_system` where the provider takes system text inside a conversation.
    """

    texts: tuple[str, ...] = ()
    as_system: bool = False


NO_TAIL = Tail()
