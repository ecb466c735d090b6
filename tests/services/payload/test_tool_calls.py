"""Tool calls: answers for the model, and errors for the caller.

[agent-tools.model-errors, tool-output.read-bytes, tool-output.grep, tools.search,
 sections.usage-note]
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from app.blobs.blobs import ToolOutputRef
from app.common.errors import ContextError, Gone, NotFound, ValidationError
from app.compaction.schemas import CompactionRequest
from app.context.tool_calls import ToolCallResult, ToolCallService
from app.conversations.compaction_results import CompactResult
from app.conversations.search.recall import Neighbour, Recalled, RecallPage
from app.formats import ToolDefinition
from app.formats.message import FormatName
from app.prompt.tool_deferral import ToolSearchResult
from app.tool_output.grep import GrepResult, MatchedLine
from app.tool_output.slices import OutputLines

TENANT, CONVERSATION, REF = "default", "0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b", "blob_1"
CHAT, ANTHROPIC = FormatName.OPENAI_CHAT, FormatName.ANTHROPIC
ABSENT = NotFound.conversation(CONVERSATION)


@dataclass
class Readers:
    """Readers that record their arguments, and return or raise a scripted value."""

    found: Any = None
    is_known: bool = True
    asked: list[Any] = field(default_factory=list)

    async def read(self, *place: Any, **how: Any) -> Any:
        """Give the slice or the matches, or raise."""
        self.asked.append((*place, how) if how else place)
        if isinstance(self.found, ContextError):
            raise self.found
        return self.found

    async def compact(
        self, tenant_id: str, conversation_id: str, request: CompactionRequest
    ) -> Any:
        """Give the result of a compaction, or raise."""
        assert request == CompactionRequest()
        return await self.read(tenant_id, conversation_id)

    async def check(self, tenant_id: str, conversation_id: str) -> None:
        """Raise when there is no such conversation."""
        assert (tenant_id, conversation_id) == (TENANT, CONVERSATION)
        if not self.is_known:
            raise ABSENT

    @property
    def service(self) -> ToolCallService:
        """The service over these readers."""
        read = self.read
        blobs: Any = SimpleNamespace(read_lines=read, read_bytes=read, grep=read, check=self.check)
        others: Any = SimpleNamespace(search=read, recall=read, compact=self.compact)
        return ToolCallService(blobs, others, others, others)

    async def call(self, name: str, **arguments: Any) -> ToolCallResult:
        """Execute one call in the form of Chat."""
        function = {"name": name, "arguments": json.dumps(arguments)}
        raw = {"id": "c1", "type": "function", "function": function}
        return await self.service.answer(TENANT, CONVERSATION, CHAT, raw)


async def text_of(found: Any, name: str, **arguments: Any) -> str:
    """Return what the model reads when the readers find this."""
    answered = await Readers(found).call(name, ref_id=REF, **arguments)
    assert not answered.is_error
    text: str = answered.message["content"]
    return text


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (OutputLines("1\ta\n2\tb", 1, 2, 2, None), "1\ta\n2\tb\n[End of output.]"),
        (
            OutputLines("1\ta\n2\tb\n", 1, 2000, 15_000, 2000),
            "1\ta\n2\tb\n[Lines 1-2000 of 15,000. Go on with offset=2000.]",
        ),
        (OutputLines("", 1, 0, 0, None), "[The output is empty.]"),
        (
            OutputLines("", 8, 0, 1200, None),
            "[The output has 1,200 lines; offset=7 is past its end.]",
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
    [
        (2, 2, "narrow the pattern or raise limit"),
        (500, 500, "narrow the pattern"),
    ],
)
async def test_a_note_mentions_further_matches(limit: int, count: int, way: str) -> None:
    """A note suggests a higher limit where that shows more [agent-tools.never-named-absent]."""
    found = GrepResult([match(line, "x") for line in range(count)], True)
    shown = await text_of(found, "tool_output_cache_grep", pattern="x", limit=limit)
    assert shown.endswith(f"[More matches than {count:,}; {way}.]")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (NotFound("No blob", {"ref": REF}), 'no tool output with ref_id "blob_1"'),
        (NotFound("No blob", {"conversation_id": CONVERSATION, "id": REF}), "no tool output"),
        (Gone("Collected", {"id": REF}), 'tool output "blob_1" is no longer stored'),
        (ValidationError.at("/query/pattern", "missing ): (a"), "was not run: missing ): (a"),
    ],
)
async def test_errors_that_the_model_can_correct_are_answered_to_it(
    error: ContextError, told: str
) -> None:
    """An unknown or deleted ref and a bad pattern are answers, not exceptions."""
    answered = await Readers(error).call("tool_output_cache_grep", ref_id=REF, pattern="(a")
    assert answered.is_error and told in answered.message["content"]


# --- search and compaction --------------------------------------------------------------------

WEATHER = ToolDefinition("get_weather", "Weather.", {"type": "object"}, "mcp")
RESULT = CompactResult(
    compacted=True,
    reason=None,
    compaction_id="c1",
    before_tokens=91_200,
    after_tokens=3_980,
    before_msg_count=1_046,
    after_msg_count=12,
    strategies_run=("sandwich",),
    summary_range=(6, 41),
    model="extractive",
    summary_tokens=420,
    cost_usd=0.0,
    duration_ms=12,
)


async def test_a_search_answers_with_definitions() -> None:
    """The query and its limit reach the search; full definitions come back [tools.search]."""
    readers = Readers(ToolSearchResult((WEATHER,), 9, ("get_weather",)))
    answered = await readers.call("tool_search", query="weather")
    assert not answered.is_error
    assert answered.message["content"] == (
        '{"name":"get_weather","description":"Weather.","parameters":{"type":"object"}}'
    )
    await readers.call("tool_search", query="weather", limit=80)
    assert readers.asked == [
        (TENANT, CONVERSATION, "weather", 5, {"promotes": True}),
        (TENANT, CONVERSATION, "weather", 50, {"promotes": True}),
    ]
    nothing = await Readers(ToolSearchResult((), 9, ())).call("tool_search", query="x")
    assert (nothing.is_error, nothing.message["content"]) == (False, "[No tool matches.]")


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (RESULT, "[Compacted: 91,200 tokens became 3,980, 1,046 messages became 12.]"),
        (
            replace(RESULT, compacted=False, reason="not enough messages"),
            "[Nothing was compacted: not enough messages.]",
        ),
    ],
)
async def test_a_compaction_answers_with_its_counts(result: CompactResult, text: str) -> None:
    """A sentence states tokens and messages before and after, or why nothing was done."""
    readers = Readers(result)
    answered = await readers.call("compact_context")
    assert (answered.is_error, answered.message["content"]) == (False, text)
    assert readers.asked == [(TENANT, CONVERSATION)]


AT = datetime(2026, 3, 4, 5, 6, tzinfo=UTC)
REST = ToolOutputRef("blob_1", 48_231, 900)


async def test_recall_answers_with_messages_and_those_around_them() -> None:
    """Seq, role, time and an excerpt, the ref of a cut result, and both sides [search.recall]."""
    asked = Neighbour("user", None, "which port?")
    found = (
        Recalled(12, "user", None, AT, "the port is 5433", None, after=asked),
        Recalled(14, "tool", "shell", AT, "…listening on 5433…", REST, before=asked),
    )
    readers = Readers(RecallPage(found, 10, 13))
    answered = await readers.call("recall", query="which port?", offset=10)
    assert (answered.is_error, answered.message["content"]) == (
        False,
        "#12 user 2026-03-04 05:06: the port is 5433\n"
        "  after, user: which port?\n"
        "#14 tool shell 2026-03-04 05:06: …listening on 5433…"
        ' [48,231 bytes; ref_id="blob_1"]\n'
        "  before, user: which port?\n"
        "[Messages 11-12 of 13, the best first. Go on with offset=12.]",
    )
    assert readers.asked == [(TENANT, CONVERSATION, "which port?", 10)]
