"""The README does what it says: its first session runs, its tables are complete."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app.domain.common.policy import DEFAULTS
from app.settings import Settings, policy_variables, variable
from tests.documents import block, blocks, pasted

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
WINDOWS = (ROOT / "docs" / "windows-and-snapshots.md").read_text(encoding="utf-8")
TOOL_OUTPUT = (ROOT / "docs" / "tool-output.md").read_text(encoding="utf-8")
LOCAL = "http://127.0.0.1:8080"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed here")
def test_the_curl_session_can_be_pasted(served: str) -> None:
    """The shell session runs as printed, a line for each answer, two payloads at its end (K1)."""
    script = block(README, "sh", "BASE=").replace(LOCAL, served)
    appended, chat, anthropic = map(json.loads, pasted(script).splitlines())
    assert appended["head_seq"] == 3
    assert [item["role"] for item in chat["payload"]["messages"]][:2] == ["system", "user"]
    assert anthropic["payload"]["max_tokens"] == 4096
    assert anthropic["budget"]["total"] == 32000


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed here")
def test_the_session_from_offload_to_read_can_be_pasted(served: str, tmp_path: Path) -> None:
    """The sessions of docs/tool-output.md run as printed, one after the other (F1, F4, F5, L1)."""
    script = (
        "".join(blocks(TOOL_OUTPUT, "sh")).replace(LOCAL, served).replace("/tmp/", f"{tmp_path}/")
    )
    said = pasted(script)
    assert "or search it with tool_output_cache_grep.]\ntool_output_cache_grep\n" in said
    assert "14143:14142 FAILED test_case_14142\n14144-14143 passed" in said
    assert "14143 passed test_case_14143\n5\n" in said
    assert " 14143\t14142 FAILED test_case_14142\n" in said
    assert "00000 passed test_case_0\n0000" in said
    assert "19999 passed test_case_19999\nblob_" in said


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed here")
def test_a_day_of_an_agent_can_be_pasted(served: str) -> None:
    """The session of docs/windows-and-snapshots.md runs as printed (B2, B3, I1, I4, I6, A6)."""
    said = pasted(block(WINDOWS, "sh").replace(LOCAL, served)).splitlines()
    first, cleared, anew, restored, both, found, *marks, fork = said
    assert "login page" in first and "vault-7" not in first
    assert (cleared, restored) == ("1", "2")
    assert "backups" in anew and "login page" not in anew
    assert "login page" in both and "backups" in both
    assert found == "Rotated: vault-7."
    assert marks == ["1 outside", "2 outside", "3 verbatim", "4 verbatim", "5 verbatim"]
    assert "login page" in fork and "backups" not in fork


def test_the_python_session_can_be_pasted(served: str) -> None:
    """The Python session runs as printed (K1, E7)."""
    script = block(README, "python", "httpx.Client").replace(LOCAL, served)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert lines[1].endswith("-> You said: What did I say first?")
    assert "'compacted': False" in lines[2]


def test_the_demo_can_be_pasted(served: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a checkout the demo runs as printed, against the service of the variable named (K1)."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.setenv("CONTEXT_URL", served)
    said = pasted(block(README, "sh", "context-service demo"))
    assert f"curl '{served}/v1/conversations/" in said
    assert "`CONTEXT_URL`" in README and "`CONTEXT_API_KEY`" in README


@pytest.mark.parametrize("name", sorted(Settings.__dataclass_fields__))
def test_every_setting_is_in_the_table(name: str) -> None:
    """The table of settings lists each variable (api.md, command line)."""
    if name != "policy_overrides":
        assert f"| `{variable(name)}` |" in README


@pytest.mark.parametrize(("name", "path"), sorted(policy_variables(DEFAULTS)))
def test_every_policy_leaf_is_in_the_table(name: str, path: tuple[str, ...]) -> None:
    """The table of policy leaves lists each with its default and its variable (decision 22)."""
    value: object = DEFAULTS
    for key in path:
        assert isinstance(value, dict)
        value = value[key]
    shown = "[]" if value == () else json.dumps(value)
    assert f"| `{'.'.join(path)}` | `{shown}` | `{name}` |".replace('"', "") in README
