"""The conversations that tests replay, and the line that names the tests that did not run."""

from __future__ import annotations

import pytest

from tests.recorded import (
    COMMITTED,
    committed,
    is_external,
    named_traces,
    source,
    traces_dir,
)

MAX_BYTES = 600_000


def test_there_are_conversations_of_every_format() -> None:
    """The repository has small conversations of all four formats, each named after its file."""
    found = committed()
    assert {one.format for one in found} == {
        "openai_chat",
        "openai_responses",
        "anthropic",
        "gemini",
    }
    paths = sorted(COMMITTED.glob("*.json"))
    assert [one.name for one in found] == [path.stem for path in paths]
    assert sum(path.stat().st_size for path in paths) < MAX_BYTES


def test_the_repository_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without CONTEXT_TRACES_DIR the conversations are those of the repository."""
    monkeypatch.delenv("CONTEXT_TRACES_DIR", raising=False)
    assert (traces_dir(), source(), is_external()) == (COMMITTED, "tests/conversations", False)
    (editor,) = named_traces(COMMITTED / "editor.json")
    assert [section["name"] for section in editor.sections] == ["system-1", "system-2", "system-3"]
    assert editor.messages[0]["role"] == "user"
