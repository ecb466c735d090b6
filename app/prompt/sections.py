"""Sections: the parts of a system prompt, ordered from static to dynamic [sections.order].

1. Kinds have a fixed order: those that change least come first, so that the cached prefix stays
   long. Inside a kind, `order` decides, then the position in the list.
2. Settings levels merge by name: a later level's section replaces an earlier one.
3. Scratchpad and status are dynamic: by default they are in the tail, outside the cached prefix
   [sections.dynamic-in-tail]. So are the notes of the service, whose texts are fixed. A note names
   a tool only where the payload has it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from app.blobs.preview import COMPACT_CONTEXT, TOOL_SEARCH
from app.common.answer_schemas import answer
from app.common.texts import sendable
from app.models.budget import Limits
from app.prompt.agent_tools import deferred_note


class SectionKind(StrEnum):
    """The kind of a section, in the order of the prompt."""

    BASE = "base"
    RULES = "rules"
    MEMORIES = "memories"
    DOCS = "docs"
    SKILL = "skill"
    SCRATCHPAD = "scratchpad"
    STATUS = "status"


_BEGINNING_CHARS = 80
_RANK = {kind: rank for rank, kind in enumerate(SectionKind)}
DYNAMIC_KINDS = (SectionKind.SCRATCHPAD, SectionKind.STATUS)
"""Kinds that may change with every build."""
_CACHED_KINDS = (SectionKind.BASE, SectionKind.RULES, SectionKind.MEMORIES, SectionKind.DOCS)


@answer()
@dataclass(frozen=True, slots=True)
class PromptSection:
    """One part of the system prompt."""

    name: str
    """Unique in its list."""
    content: str
    """Text of the section."""
    kind: SectionKind = SectionKind.BASE
    """Kind, which sets its position in the prompt."""
    cacheable: bool = True
    """Whether a cached prefix may end after it."""
    order: int = 0
    """Order inside its kind."""


def section_from(raw: Mapping[str, Any], index: int) -> PromptSection:
    """Parse the JSON of a section; `index` is its position in the list."""
    return PromptSection(
        name=raw["name"],
        content=sendable(raw["content"]),
        kind=SectionKind(raw.get("kind") or SectionKind.BASE),
        cacheable=raw.get("cacheable") is not False,
        order=raw["order"] if raw.get("order") is not None else index,
    )


def merge_sections(levels: Iterable[Sequence[PromptSection]]) -> tuple[PromptSection, ...]:
    """Return the non-empty sections of all settings levels, merged by name, in prompt order."""
    by_name: dict[str, PromptSection] = {}
    for level in levels:
        for section in level:
            by_name[section.name] = section
    filled = [section for section in by_name.values() if section.content.strip()]
    return tuple(sorted(filled, key=lambda section: (_RANK[section.kind], section.order)))


def static_sections(sections: Iterable[PromptSection]) -> tuple[PromptSection, ...]:
    """Return the sections of the system prompt."""
    return tuple(section for section in sections if section.kind not in DYNAMIC_KINDS)


def dynamic_texts(sections: Sequence[PromptSection], status: str | None = None) -> tuple[str, ...]:
    """Return the labelled dynamic texts, status first.

    The `status` of a build replaces the stored sections of that kind.
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


def changed_text(old: Sequence[PromptSection], new: Sequence[PromptSection]) -> str | None:
    """Return what tells a model of changed sections: empty for no other text, None if unclear.

    A section of the prompt has no name there: an old text is named by its beginning, which has to
    be the only one.
    """
    before, after = ({item.name: item.content for item in items} for items in (old, new))
    changed = [name for name, content in after.items() if before.get(name) != content]
    gone = [name for name in before if name not in after]
    beginnings = {name: content.strip()[:_BEGINNING_CHARS] for name, content in before.items()}
    begin = list(beginnings.values())
    if any(name in before and begin.count(beginnings[name]) > 1 for name in (*changed, *gone)):
        return None
    said = [
        f'Instead of the part that begins with "{beginnings[name]}":\n{after[name]}'
        if name in before
        else f"A new part:\n{after[name]}"
        for name in changed
    ]
    said += [f'The part that begins with "{beginnings[name]}" no longer holds.' for name in gone]
    return (
        "\n\n".join(("[The instructions above have changed from here on.]", *said)) if said else ""
    )


def prefix_end_indices(sections: Sequence[PromptSection]) -> list[int]:
    """Return the indices of sections after which a cached prefix may end: the last of each kind."""
    indices = []
    for index, section in enumerate(sections):
        if not section.cacheable:
            break
        next_kind = sections[index + 1].kind if index + 1 < len(sections) else None
        if section.kind in _CACHED_KINDS and section.kind is not next_kind:
            indices.append(index)
    return indices


@dataclass(frozen=True, slots=True)
class DynamicTexts:
    """Dynamic texts after the history, or before it.

    `as_system` is true if the provider accepts system messages inside a conversation.
    """

    texts: tuple[str, ...] = ()
    as_system: bool = False


NO_DYNAMIC_TEXTS = DynamicTexts()
NOTE_ROUNDS = 3
"""Rounds after which the percentage in a note includes the note."""


def percent_of(used: int, limits: Limits) -> int:
    """Return the used share of the effective window in whole percent."""
    return math.floor(100 * used / limits.effective_window)


@dataclass(frozen=True, slots=True)
class Notes:
    """The notes of a payload: the percentage used, from `notice_at` on, and deferred tools."""

    percent: int | None = None
    deferred: int = 0
    names_compaction: bool = True

    @property
    def texts(self) -> tuple[str, ...]:
        """The notes in their order."""
        notes = [deferred_note(self.deferred)] if self.deferred else []
        if self.percent is not None:
            how = f" You can call {COMPACT_CONTEXT} to free space before continuing with large"
            how = f"{how} operations." if self.names_compaction else ""
            notes.append(f"[Context: {self.percent}% used.{how}]")
        return tuple(notes)

    @property
    def mentions(self) -> frozenset[str]:
        """The agent tools that the notes name."""
        names = {TOOL_SEARCH} if self.deferred else set()
        if self.percent is not None and self.names_compaction:
            names.add(COMPACT_CONTEXT)
        return frozenset(names)
