"""The command `compare`, as a user runs it.

[compaction.compare, operation.cli]
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from app.cli import cli
from tests.commands import COMMAND, environment

TALK = Path(__file__).parents[1] / "conversations" / "garden-talk.json"


def compare(folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a directory of its own."""
    return subprocess.run(
        (*COMMAND, "compare", *arguments),
        env=environment(TMPDIR=str(folder), **environ),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_strategies_are_compared_without_a_service(tmp_path: Path) -> None:
    """A table with a column for each; the private database and its directory are gone."""
    ran = compare(
        tmp_path,
        str(TALK),
        *("--strategy", "chain", "--strategy", "sliding_window", "--strategy", "chain"),
        *("--rounds", "2", "--target-tokens", "25%", "--pin", "3"),
        CONTEXT_SUMMARIZER_MODEL="gpt-4o-mini",
        CONTEXT_DATABASE_URL="postgresql://nobody@127.0.0.1:1/unused",
    )
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0].startswith("garden-talk: 236 messages, ") and lines[0].endswith("so far")
    assert lines[2].split() == ["chain", "sliding_window"]
    for name in ("pinned messages", "all statements", "tokens sent to it", "cost, USD"):
        assert any(line.startswith(name) for line in lines), name
    assert "it was not called" in ran.stdout and "Traceback" not in ran.stderr
    assert list(tmp_path.iterdir()) == []


def test_json_is_printed_for_programs(tmp_path: Path) -> None:
    """Nothing but one object on stdout, with a number of tokens as the target."""
    ran = compare(
        tmp_path,
        str(TALK),
        *("--strategy", "sandwich", "--target-tokens", "1500", "--context-window", "9000"),
        "--json",
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["messages"] == 236 and found["context_window"] == 9_000
    (sandwich,) = found["strategies"]
    assert [ended["target_tokens"] for ended in sandwich["rounds"]] == [1_500] * 3
    assert sandwich["statements"] and sandwich["model_calls"] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (("no-such-file.json",), 2, "does not exist"),
        ((str(TALK.parent),), 2, "is a directory"),
        ((str(TALK.parent / "README.md"),), 1, "neither JSON nor lines of JSON"),
        ((str(TALK), "--strategy", "best"), 2, "'best' is not one of sandwich, sliding_window"),
        ((str(TALK), "--format", "xml"), 2, "'xml' is not one of openai_chat"),
        ((str(TALK), "--target-tokens", "0"), 2, "neither a number of tokens nor a percentage"),
        ((str(TALK), "--target-tokens", "101%"), 2, "neither a number of tokens"),
        ((str(TALK), "--target-tokens", "1.5"), 2, "neither a number of tokens"),
        ((str(TALK), "--rounds", "0"), 2, "1<=x<=50"),
        ((str(TALK), "--conversation", "7"), 1, "has no conversation '7'"),
        ((str(TALK), "--call-model"), 2, "--call-model needs --summarizer-model"),
    ],
)
def test_a_wrong_call_is_refused(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int, error: str
) -> None:
    """Before anything is started, in a sentence that names what is wrong."""
    monkeypatch.delenv("CONTEXT_SUMMARIZER_MODEL", raising=False)
    ran = CliRunner().invoke(cli, ["compare", *arguments])
    assert ran.exit_code == code, ran.output
    assert error in " ".join(ran.output.split())
    assert "Traceback" not in ran.output
