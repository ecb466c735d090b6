"""Blobs on the wire (F)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import ConfigDict, Field

from app.api.http.fields import Answered, Asked
from app.api.http.pages import Page

REF = "blob_9f86d081884c7d659a2feaa0"
_SHA256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"


class ToolOutputRef(Answered):
    """How a tool result is called for."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"id": REF, "byte_size": 48_231, "line_count": 912}]}
    )

    id: str = Field(description="Id of its blob, or of its message where it has none.")
    byte_size: int = Field(description="Bytes of the whole output.")
    line_count: int = Field(description="Lines of it; what follows the last newline is one.")


_BLOB: dict[str, Any] = {
    "id": REF,
    "byte_size": 48_231,
    "line_count": 912,
    "sha256": _SHA256,
    "media_type": "text/plain; charset=utf-8",
    "tool_name": "shell_exec",
    "tool_call_id": "call_1",
    "attached": True,
    "created_at": "2026-01-05T09:30:00.123456+00:00",
}


class Blob(ToolOutputRef):
    """A stored output; the same bytes are one blob of their conversation."""

    model_config = ConfigDict(json_schema_extra={"examples": [_BLOB]})

    sha256: str = Field(description="Hash of its bytes, in hex.")
    media_type: str = Field(description="What kind of content it is.")
    tool_name: str | None = Field(description="The tool it comes from, if that is known.")
    tool_call_id: str | None = Field(description="The call it answers, if that is known.")
    attached: bool = Field(description="Whether a message refers to it; others are collected.")
    created_at: datetime | None = Field(description="When it was stored.")


class UploadedBlob(Blob):
    """An upload, and how a message that refers to it will show it."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{**_BLOB, "attached": False, "view": "PASS test_one\n"}]}
    )

    view: str = Field(description="The text that a message without content gets for it.")


class BlobPage(Page[Blob]):
    """Blobs of a conversation, newest first."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"data": [_BLOB], "next_cursor": None}]}
    )


class LineSlice(Answered):
    """Some lines, numbered as an editor's read tool shows them."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "text": "   101\tPASS test_one\n   102\tFAIL test_two",
                    "first_line": 101,
                    "line_count": 2,
                    "total_lines": 912,
                    "next_offset": 102,
                }
            ]
        }
    )

    text: str = Field(description="The lines, each after its number and a tab.")
    first_line: int = Field(description="Number of the first of them, from 1.")
    line_count: int = Field(description="How many there are.")
    total_lines: int = Field(description="Lines of the whole output.")
    next_offset: int | None = Field(description="The next `offset`; null at the end.")


class ByteSlice(Answered):
    """The text of some bytes; no character of it is split."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "text": "PASS test_one\n",
                    "offset": 0,
                    "byte_count": 14,
                    "total_bytes": 48_231,
                    "next_offset": 14,
                }
            ]
        }
    )

    text: str = Field(description="What the bytes say as UTF-8.")
    offset: int = Field(description="Where they begin; a character's start at or after the asked.")
    byte_count: int = Field(description="How many there are.")
    total_bytes: int = Field(description="Bytes of the whole output.")
    next_offset: int | None = Field(description="The next `offset`; null at the end.")


class GrepMatch(Answered):
    """A line that matches, with its neighbours."""

    line: int = Field(description="Its number, from 1.")
    text: str = Field(description="The line; a long one around what matches.")
    before: list[str] = Field(description="The lines before it, as many as asked for.")
    after: list[str] = Field(description="The lines after it, as many as asked for.")


class GrepMatches(Answered):
    """The lines that match, in order."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "matches": [
                        {
                            "line": 102,
                            "text": "FAIL test_two",
                            "before": ["PASS test_one"],
                            "after": [],
                        }
                    ],
                    "truncated": False,
                }
            ]
        }
    )

    matches: list[GrepMatch] = Field(description="At most `limit` of them.")
    truncated: bool = Field(description="Whether more lines match.")


class CollectRequest(Asked):
    """How to collect."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"dry_run": True}]})

    dry_run: bool = Field(default=False, description="true: only tell what would be taken.")


class CollectedBlobs(Answered):
    """What a collection took, or would take."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "dry_run": True,
                    "collected": [{"id": REF, "byte_size": 48_231, "line_count": 912}],
                    "byte_size": 48_231,
                    "uploads": 0,
                }
            ]
        }
    )

    dry_run: bool = Field(description="Whether nothing was taken.")
    collected: list[ToolOutputRef] = Field(description="The blobs; reading one is a 410 from now.")
    byte_size: int = Field(description="Bytes of them together.")
    uploads: int = Field(description="Uploads that did not end, and were dropped.")
