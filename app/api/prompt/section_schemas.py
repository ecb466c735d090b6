"""Sections and tools on the wire (G1, decision 21)."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from pydantic import ConfigDict, Field

from app.api.http.fields import (
    MAX_SEQ,
    NAME_PATTERN,
    TOOL_EXAMPLE,
    Answered,
    AnyTool,
    Asked,
    StoredTools,
)
from app.domain.common import json_text
from app.domain.prompt.sections import SectionKind

MAX_SECTIONS = 200
MAX_CONTENT_CHARS = 2_000_000

_EXAMPLE: dict[str, Any] = {
    "name": "base",
    "content": "You are a careful assistant.",
    "kind": "base",
}


class Section(Asked):
    """One part of the system prompt."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    name: str = Field(
        pattern=NAME_PATTERN,
        max_length=256,
        description="Unique in its list; later layers replace by it.",
    )
    content: str = Field(max_length=MAX_CONTENT_CHARS, description="The text.")
    kind: Annotated[SectionKind, Field(strict=False)] | None = Field(
        default=None, description="Where it stands in the prompt: static kinds first."
    )
    cacheable: bool | None = Field(
        default=None, description="Whether a provider's cache may end after it; true by default."
    )
    order: int | None = Field(
        default=None,
        ge=-1_000_000,
        le=1_000_000,
        description="Its order among those of its kind; its place in the list by default.",
    )


Sections = Annotated[
    list[Section], Field(max_length=MAX_SECTIONS, description="Parts of the system prompt.")
]
StoredSections = Annotated[
    list[Section],
    Field(
        max_length=MAX_SECTIONS,
        description="Parts of the system prompt, no two of one name.",
        json_schema_extra={"uniqueItems": True},
    ),
]


ExpectedVersion = Annotated[
    int, Field(ge=0, le=MAX_SEQ, description="409 unless the newest version is this one.")
]


class SectionList(Asked):
    """All sections of an agent or a conversation."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"sections": [_EXAMPLE], "expected_version": 1}]}
    )

    sections: StoredSections
    expected_version: ExpectedVersion | None = None


class ToolList(Asked):
    """All tools of an agent or a conversation, as they were given."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"tools": [TOOL_EXAMPLE], "expected_version": 1}]}
    )

    tools: StoredTools
    expected_version: ExpectedVersion | None = None


class ShownSection(Answered):
    """A section with every setting."""

    name: str = Field(description="Unique in its list.")
    content: str = Field(description="The text.")
    kind: SectionKind = Field(description="Where it stands in the prompt.")
    cacheable: bool = Field(description="Whether a provider's cache may end after it.")
    order: int = Field(description="Its order among those of its kind.")


class ShownSections(Answered):
    """All sections of an agent or a conversation."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"sections": [{**_EXAMPLE, "cacheable": True, "order": 0}], "version": 2}]
        }
    )

    sections: list[ShownSection] = Field(description="In the order they were given.")
    version: int = Field(description="1 for the first that were given, 0 for none.")


class ShownTools(Answered):
    """All tools of an agent or a conversation."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"tools": [TOOL_EXAMPLE], "version": 2}]}
    )

    tools: list[AnyTool] = Field(description="As they were given.")
    version: int = Field(description="1 for the first that were given, 0 for none.")


Version = Annotated[
    int | None,
    Query(ge=0, le=MAX_SEQ, description="An earlier version; the newest by default."),
]


def given(sections: list[Section] | None) -> list[dict[str, Any]]:
    """Return sections as they are stored, without what was left out."""
    return [section.model_dump(exclude_none=True) for section in sections or ()]


def shown_sections(stored: str, version: int) -> dict[str, Any]:
    """Return a version of a list of sections as it is answered."""
    return {"sections": shown(json_text.loads(stored)), "version": version}


def shown_tools(stored: str, version: int) -> dict[str, Any]:
    """Return a version of a list of tools as it is answered."""
    return {"tools": json_text.loads(stored), "version": version}


def shown(stored: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return stored sections with every setting."""
    return [
        {
            "name": section["name"],
            "content": section["content"],
            "kind": section.get("kind", SectionKind.BASE),
            "cacheable": section.get("cacheable", True),
            "order": section.get("order", place),
        }
        for place, section in enumerate(stored)
    ]
