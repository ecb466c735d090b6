"""The README and the pages for beginners do what they say: their sessions run as printed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from examples.stand_in_model import Handler
from tests.commands import environment
from tests.documents import block, blocks, pasted

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
GETTING_STARTED = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")
WINDOWS = (ROOT / "docs" / "windows-and-snapshots.md").read_text(encoding="utf-8")
TOOL_OUTPUT = (ROOT / "docs" / "tool-output.md").read_text(encoding="utf-8")
LOCAL = "http://127.0.0.1:8080"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed here")
def test_the_curl_session_can_be_pasted(served: str) -> None:
    """The shell session runs as printed, a line for each answer, two payloads at its end."""
    script = block(GETTING_STARTED, "sh", "BASE=").replace(LOCAL, served)
    appended, chat, anthropic = map(json.loads, pasted(script).splitlines())
    assert appended["head_seq"] == 3
    assert [item["role"] for item in chat["payload"]["messages"]][:2] == ["system", "user"]
    assert anthropic["payload"]["max_tokens"] == 4096
    assert anthropic["diagnostics"]["budget"]["context_window"] == 32000


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed here")
def test_the_session_from_offload_to_read_can_be_pasted(served: str, tmp_path: Path) -> None:
    """The sessions of docs/tool-output.md run as printed, one after the other."""
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
    """The session of docs/windows-and-snapshots.md runs as printed [window.cut]."""
    said = pasted(block(WINDOWS, "sh").replace(LOCAL, served)).splitlines()
    first, cleared, anew, restored, both, found, *marks, fork = said
    assert "login page" in first and "vault-7" not in first
    assert (cleared, restored) == ("1", "2")
    assert "backups" in anew and "login page" not in anew
    assert "login page" in both and "backups" in both
    assert found == "Rotated: vault-7."
    assert marks == ["1 outside", "2 outside", "3 verbatim", "4 verbatim", "5 verbatim"]
    assert "login page" in fork and "backups" not in fork


@pytest.fixture
def stand_in() -> Iterator[str]:
    """The stand-in of examples/, on a free port; yields its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


def test_the_python_session_can_be_pasted(served: str, stand_in: str) -> None:
    """The Python session runs as printed, with the stand-in for the model."""
    script = block(README, "python").replace(LOCAL, served)
    given = {"OPENAI_BASE_URL": stand_in, "OPENAI_API_KEY": "none"}
    said = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(**given),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert [line.partition(", ")[2] for line in said.splitlines()] == [
        "You said: My name is Ada.",
        "You said: What is my name?",
    ]
    assert all(name in block(README, "sh", "export") for name in given)


def test_every_page_that_the_readme_links_exists() -> None:
    """No link of the README leads to a page that is missing."""
    linked = re.findall(r"\]\(([\w./-]+\.md)", README)
    assert linked
    assert [page for page in linked if not (ROOT / page).exists()] == []


def test_the_demo_can_be_pasted(served: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a checkout the demo runs as printed, against the service of the variable named."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.setenv("CONTEXT_URL", served)
    said = pasted(block(GETTING_STARTED, "sh", "context-service demo"))
    assert f"curl '{served}/v1/conversations/" in said
    assert "`CONTEXT_URL`" in GETTING_STARTED and "`CONTEXT_API_KEY`" in GETTING_STARTED
