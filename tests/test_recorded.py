"""The conversations that tests replay, and the line that names the tests that did not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import not_run
from tests.recorded import (
    COMMITTED,
    committed,
    is_external,
    named_traces,
    source,
    trace_files,
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


def test_another_folder_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its files hold a conversation a line; a folder that is missing is an error, not a skip."""
    monkeypatch.setenv("CONTEXT_TRACES_DIR", str(tmp_path / "missing"))
    with pytest.raises(SystemExit, match="is no folder"):
        traces_dir()
    monkeypatch.setenv("CONTEXT_TRACES_DIR", str(tmp_path))
    line = '{"messages": [{"role": "user", "content": "Hi."}]}\n'
    (tmp_path / "talks.jsonl").write_text(line * 2)
    (tmp_path / "mcp_tools.jsonl").write_text("{}\n")
    assert (traces_dir(), source()) == (tmp_path, "CONTEXT_TRACES_DIR")
    (path,) = trace_files(tmp_path)
    assert [trace.name for trace in named_traces(path)] == ["talks:0", "talks:1"]


def test_tests_that_did_not_run_are_counted() -> None:
    """One line has their number and their reasons."""
    skipped = [("a.py", 1, "Skipped: no curl"), ("b.py", 2, "Skipped: no curl"), ("c.py", 3, "x")]
    assert not_run(skipped) == "Tests not run: 3 (2 because no curl; 1 because x)"
    assert not_run([]) == "Tests not run: 0"
