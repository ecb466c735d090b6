"""Request and response schemas of sections and tools."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from fastapi import Query
from pydantic import Field

from app.common import json_text
from app.common.schema_errors import NAME_PATTERN
from app.http.fields import MAX_SEQ, RequestSchema, ResponseSchema, examples
from app.prompt.sections import PromptSection, SectionKind, section_from
from app.prompt.tool_schemas import TOOL_EXAMPLE, AnyTool, StoredTools

MAX_SECTIONS = 200
MAX_CONTENT_CHARS = 2_000_000

_EXAMPLE: dict[str, Any] = {
    "name": "base",
    "content": "You are a careful assistant.",
    "kind": "base",
}


class Section(RequestSchema):
    """One part of the system prompt."""

    model_config = examples(_EXAMPLE)

    name: str = Field(pattern=NAME_PATTERN, max_length=256)
    """Unique in its list. A conversation's section replaces an agent's by name."""
    content: str = Field(max_length=MAX_CONTENT_CHARS)
    """Text of the section."""
    kind: Annotated[SectionKind, Field(strict=False)] | None = None
    """Kind, which sets its position in the prompt: static kinds first."""
    cacheable: bool | None = None
    """Whether a cached prefix may end after it; true by default."""
    order: int | None = Field(default=None, ge=-1_000_000, le=1_000_000)
    """Order inside its kind; by default the position in the list."""


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
    int, Field(ge=0, le=MAX_SEQ, description="Expected newest version; a `409` if it is another.")
]


class SectionList(RequestSchema):
    """All sections of an agent or a conversation."""

    model_config = examples({"sections": [_EXAMPLE], "expected_version": 1})

    sections: StoredSections
    expected_version: ExpectedVersion | None = None


class ToolList(RequestSchema):
    """All tools of an agent or a conversation."""

    model_config = examples({"tools": [TOOL_EXAMPLE], "expected_version": 1})

    tools: StoredTools
    expected_version: ExpectedVersion | None = None


class ShownSections(ResponseSchema):
    """All sections of an agent or a conversation."""

    sections: list[PromptSection]
    """The sections, in the order of the request."""
    version: int
    """Version of the list: 1 for the first one, 0 if none was set."""


class ShownTools(ResponseSchema):
    """All tools of an agent or a conversation."""

    tools: list[AnyTool]
    """The tools, as in the request."""
    version: int
    """Version of the list: 1 for the first one, 0 if none was set."""


Version = Annotated[
    int | None,
    Query(ge=0, le=MAX_SEQ, description="An earlier version; the newest by default."),
]


def sections_to_store(sections: list[Section] | None) -> list[dict[str, Any]]:
    """Return sections of a request as they are stored, without null fields."""
    return [section.model_dump(exclude_none=True) for section in sections or ()]


def sections_answer(stored: str, version: int) -> ShownSections:
    """Return the response for a version of a list of sections."""
    return ShownSections(sections=complete_sections(json_text.loads(stored)), version=version)


def tools_answer(stored: str, version: int) -> ShownTools:
    """Return the response for a version of a list of tools."""
    return ShownTools(tools=json_text.loads(stored), version=version)


def complete_sections(stored: list[dict[str, Any]]) -> list[PromptSection]:
    """Return stored sections with all their fields, their texts as they were given."""
    return [
        replace(section_from(section, position), content=section["content"])
        for position, section in enumerate(stored)
    ]
