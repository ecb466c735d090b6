"""Tool calls: answers for the model, and errors for the caller.

[agent-tools.model-errors, tool-output.read-bytes, tool-output.grep, tools.search]
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from app.common.errors import ContextError, Gone, NotFound, ValidationError
from app.context.agent_tool_calls import ToolCallResult, ToolCallService
from app.formats.message import FormatName
from app.tool_output.grep import GrepResult, MatchedLine
from app.tool_output.slices import OutputLines

TENANT, CONVERSATION, REF = "default", "0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b", "blob_1"
CHAT = FormatName.OPENAI_CHAT


async def answered(found: Any, name: str, **arguments: Any) -> ToolCallResult:
    """Execute one call in the form of Chat, for which the readers return or raise this."""

    async def read(*_place: Any, **_how: Any) -> Any:
        if isinstance(found, ContextError):
            raise found
        return found

    blobs: Any = SimpleNamespace(read_lines=read, read_bytes=read, grep=read)
    none: Any = None
    function = {"name": name, "arguments": json.dumps({"ref_id": REF, **arguments})}
    raw = {"id": "c1", "type": "function", "function": function}
    service = ToolCallService(blobs, none, none, none, none)
    return await service.answer(TENANT, CONVERSATION, CHAT, raw)


async def text_of(found: Any, name: str, **arguments: Any) -> str:
    """Return what the model reads when the readers find this."""
    answer = await answered(found, name, **arguments)
    assert not answer.is_error
    text: str = answer.message["content"]
    return text


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (OutputLines("1\ta\n2\tb", 0, 2, None), "1\ta\n2\tb\n[End of output.]"),
        (
            OutputLines("1\ta\n2\tb\n", 0, 15_000, 2000),
            "1\ta\n2\tb\n[Lines 1-2000 of 15,000. Go on with offset=2000.]",
        ),
        (OutputLines("", 0, 0, None), "[The output is empty.]"),
        (
            OutputLines("", 1200, 1200, None),
            "[The output has 1,200 lines; offset=1200 is past its end.]",
        ),
    ],
)
async def test_lines_end_with_a_note_on_how_to_read_on(lines: OutputLines, text: str) -> None:
    """Numbered lines, then the offset to go on with, or the end of the output."""
    assert await text_of(lines, "tool_output_cache", offset=7) == text


def match(line: int, text: str, *, before: Any = (), after: Any = ()) -> MatchedLine:
    """Return one match with the lines around it."""
    return MatchedLine(line, text, before, after)


@pytest.mark.parametrize(
    ("matches", "arguments", "text"),
    [
        ([], {}, "[No line matches.]"),
        ([match(12, "x"), match(40, "x")], {}, "12:x\n40:x"),
        (
            [match(12, "x", before=("a",), after=("b",)), match(40, "y", before=("c",))],
            {"before": 1, "after": 1},
            "11-a\n12:x\n13-b\n--\n39-c\n40:y",
        ),
        (
            [
                match(3, "x", before=("a", "b"), after=("c", "y")),
                match(5, "y", before=("x", "c"), after=("d", "e")),
                match(8, "z", before=("d", "e")),
            ],
            {"before": 2, "after": 2},
            "1-a\n2-b\n3:x\n4-c\n5:y\n6-d\n7-e\n8:z",
        ),
        ([match(1, "")], {"before": 3}, "1:"),
    ],
)
async def test_matches_are_shown_as_grep_prints_them(
    matches: list[MatchedLine], arguments: dict[str, Any], text: str
) -> None:
    """Each line once, matches by colon, lines around them by dash, groups apart."""
    found = GrepResult(matches, False)
    shown = await text_of(found, "tool_output_cache_grep", pattern="x", **arguments)
    assert shown == text


@pytest.mark.parametrize(
    ("limit", "count", "way"),
    [(2, 2, "narrow the pattern or raise limit"), (500, 500, "narrow the pattern")],
)
async def test_a_note_mentions_further_matches(limit: int, count: int, way: str) -> None:
    """A note suggests a higher limit where that shows more [agent-tools.never-named-absent]."""
    found = GrepResult([match(line, "x") for line in range(count)], True)
    shown = await text_of(found, "tool_output_cache_grep", pattern="x", limit=limit)
    assert shown.endswith(f"[More matches than {count:,}; {way}.]")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (NotFound("No blob", {"ref_id": REF}), 'no tool output with ref_id "blob_1"'),
        (NotFound("No blob", {"conversation_id": CONVERSATION, "id": REF}), "no tool output"),
        (Gone("Collected", {"id": REF}), 'tool output "blob_1" is no longer stored'),
        (ValidationError.at("/query/pattern", "missing ): (a"), "was not run: missing ): (a"),
    ],
)
async def test_errors_that_the_model_can_correct_are_answered_to_it(
    error: ContextError, told: str
) -> None:
    """An unknown or deleted ref and a bad pattern are answers, not exceptions."""
    answer = await answered(error, "tool_output_cache_grep", pattern="(a")
    assert answer.is_error and told in answer.message["content"]
