"""Changed sections and tools as items of an epoch: where they stand, and what they say.

[epochs.changes]
"""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from app.conversations.epoch import PromptChange
from app.formats import PROVIDERS, ToolDefinition
from app.formats.message import FormatName
from app.formats.tools import ToolChange, tool_change
from app.payload.format_assemblers import assembler_of
from app.prompt.sections import DynamicTexts, PromptSection, SectionKind, changed_text
from tests.domain.histories import ANTHROPIC, QUICK, RESPONSES, third
from tests.domain.payload.builders import Case, cases
from tests.judge import Facts, refusals
from tests.judge.epochs import ITEMS

MODELS = {RESPONSES: "gpt-5.6", ANTHROPIC: "claude-opus-5"}
TAKES_SYSTEM = Facts(takes_system=True, betas=["inline-tools-2026-09-15"])
TAIL = DynamicTexts(("[Status]\nAll is well.",), as_system=True)
SCHEMA = {"type": "object", "properties": {}}
CRANE, BUOY = (ToolDefinition(name, f"A {name}.", SCHEMA) for name in ("crane", "buoy"))


def change_at(after: int, number: int, format: FormatName) -> PromptChange:
    """Return a change of text and tools behind a message."""
    tools = ToolChange(added=(replace(CRANE, name=f"crane_{number}"),))
    items = PROVIDERS[format].change(MODELS[format], f"Change {number}.", tools)
    assert items is not None
    return PromptChange(after, "", "", tuple(items))


@given(cases(st.sampled_from([*MODELS])), st.data())
@QUICK
def test_a_change_extends_the_payload_before_it(case: Case, data: st.DataObject) -> None:
    """Whatever the log: where a change has its place, all items before it stay byte for byte, the
    payload is valid, and a cold build has the same one.
    """
    make = assembler_of(case.format)
    warm, cold = make(case.view, third), make(case.view, third)
    for assembler in (warm, cold):
        assembler.expect(case.shown)
    changes: tuple[PromptChange, ...] = ()
    rows = case.shown
    for row in rows:
        warm.add(row)
        for _ in range(data.draw(st.sampled_from((0, 0, 1, 2))) if row.seq >= case.state else 0):
            warm.finish()
            before, is_placed = warm.items(), not warm.misplaced
            changes = (*changes, change_at(row.seq, len(changes), case.format))
            warm.changes = changes
            warm.finish()
            after = warm.items()
            assert (
                after.wire_items[: before.stable_items] == before.wire_items[: before.stable_items]
            )
            assert warm.point_at(row.seq) is None or (
                warm.point_at(row.seq).stable_items <= before.stable_items  # type: ignore[union-attr]
            )
            if warm.misplaced:
                continue
            assert is_placed
            assert (after.tokens, after.sealed_tokens) == (before.tokens, before.sealed_tokens)
            old, new = (b",".join(items.wire_items) for items in (before, after))
            assert new.startswith(old.removesuffix(b"]}"))
            wire = warm.items(TAIL).wire_items
            read = {ITEMS[case.format]: [json.loads(item) for item in wire]}
            assert refusals(case.format, read, TAKES_SYSTEM) == []
            assert warm.seq_of(len(after.wire_items) - 1) == row.seq
    cold.changes = changes
    for row in rows:
        cold.add(row)
    for assembler in (warm, cold):
        assembler.finish()
    assert (cold.items(), cold.misplaced) == (warm.items(), warm.misplaced)
    if not warm.misplaced:
        wire = [json.loads(item) for item in warm.items().wire_items]
        assert refusals(case.format, {ITEMS[case.format]: wire}, TAKES_SYSTEM) == []


def test_a_text_names_old_sections_by_their_beginning() -> None:
    """New ones are given whole; what is only moved or renamed in kind needs no text."""
    long = "Be kind. " * 40
    old = (PromptSection("a", long), PromptSection("b", "Never lie."), PromptSection("c", "Hum."))
    moved = (old[1], replace(old[0], kind=SectionKind.RULES), old[2])
    assert changed_text(old, moved) == ""
    new = (replace(old[0], content="Be quick."), old[2], PromptSection("d", "Whistle."))
    text = changed_text(old, new)
    assert text is not None and long not in text and "Hum." not in text
    parts = text.split("\n\n")
    assert parts[1].startswith('Instead of the part that begins with "Be kind. Be kind.')
    assert parts[1].endswith('":\nBe quick.')
    assert parts[2:] == [
        "A new part:\nWhistle.",
        'The part that begins with "Never lie." no longer holds.',
    ]


def test_two_sections_that_begin_alike_cannot_be_told_apart() -> None:
    """Then no text says which of them changed."""
    old = [PromptSection(name, f"{'The same. ' * 20}{name}") for name in "ab"]
    assert changed_text(old, old[:1]) is None
    assert changed_text(old, [*old, PromptSection("c", "Other.")]) is not None


def test_items_are_those_of_the_family() -> None:
    """OpenAI adds tools alone; Claude's own API redefines and removes them as well."""
    others = tool_change(
        (CRANE, BUOY), (replace(CRANE, description="New."), replace(BUOY, name="cat"))
    )
    assert [tool.name for tool in (*others.added, *others.redefined)] == ["cat", "crane"]
    assert others.removed == ("buoy",)
    assert not any(tool_change((CRANE, BUOY), (replace(BUOY, category="mcp"), CRANE)))
    responses, claude = PROVIDERS[RESPONSES], PROVIDERS[ANTHROPIC]
    assert responses.change("gpt-5.6", "Text.", others) is None
    assert responses.change("grok-4", "Text.", ToolChange()) is None
    blocks = claude.change("claude-opus-5", "", others) or []
    assert [block["type"] for block in blocks] == ["tool_addition"] * 2 + ["tool_removal"]
    assert claude.betas_of(blocks) == ("inline-tools-2026-09-15",)
    for model in ("bedrock/anthropic.claude-opus-5", "claude-opus-5@20260101"):
        assert claude.change(model, "Text.", others) is None
        assert claude.change(model, "Text.", ToolChange()) == [{"type": "text", "text": "Text."}]
    for format in (FormatName.OPENAI_CHAT, FormatName.GEMINI, FormatName.INTERACTIONS):
        assert PROVIDERS[format].change("gpt-5.6", "Text.", ToolChange()) is None
