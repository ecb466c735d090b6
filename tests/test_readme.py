"""The README and the pages for beginners do what they say: their sessions run as printed."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

import click
import pytest

from app.cli import cli
from app.policy.policy import AGENT_TOOL_NAMES
from examples.stand_in_model import Handler
from tests.commands import environment
from tests.documents import block, blocks, pasted

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
GETTING_STARTED = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")
WINDOWS = (ROOT / "docs" / "windows-and-snapshots.md").read_text(encoding="utf-8")
TOOL_OUTPUT = (ROOT / "docs" / "tool-output.md").read_text(encoding="utf-8")
MCP = (ROOT / "docs" / "mcp.md").read_text(encoding="utf-8")
OPERATION = (ROOT / "docs" / "operation.md").read_text(encoding="utf-8")
COMPACTION = (ROOT / "docs" / "compaction.md").read_text(encoding="utf-8")
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
    """The sessions of docs/windows-and-snapshots.md run as printed [window.cut]."""
    script = f"SOURCE={served} TARGET={served}\n" + "".join(blocks(WINDOWS, "sh"))
    said = pasted(script.replace(LOCAL, served)).splitlines()
    first, cleared, anew, restored, both, found, *marks, fork, imported = said
    assert "login page" in first and "vault-7" not in first
    assert (cleared, restored) == ("1", "2")
    assert "backups" in anew and "login page" not in anew
    assert "login page" in both and "backups" in both
    assert found == "Rotated: vault-7."
    assert marks == ["1 outside", "2 outside", "3 verbatim", "4 verbatim", "5 verbatim"]
    assert "login page" in fork and "backups" not in fork
    assert json.loads(imported)["conversation_id"]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed here")
def test_mcp_by_hand_can_be_pasted(served: str) -> None:
    """The session of docs/mcp.md runs as printed: a tool is listed and called."""
    name, *answer = pasted(block(MCP, "sh", "mcp()").replace(LOCAL, served)).splitlines()
    assert name in AGENT_TOOL_NAMES
    assert "The staging port is 5433." in answer[0]


def test_the_commands_about_keys_can_be_pasted(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands of docs/operation.md run as printed, with the id of a key that they list."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.setenv("CONTEXT_DATABASE_URL", database_url)
    listed = "context-service keys list\n"
    known = f"{listed}KEY_ID=$(context-service keys list | tail -1 | cut -d' ' -f1)\n"
    script = "".join(blocks(OPERATION, "sh")).replace("KEY_ID", "$KEY_ID").replace(listed, known)
    said = pasted(script)
    assert "dashboard" in said and said.count("acme") > 3


def test_the_receipt_that_a_page_shows_has_the_fields_of_the_api() -> None:
    """Each field of the example in docs/compaction.md is one of a receipt."""
    receipt = json.loads(block(COMPACTION, "json"))
    schemas = json.loads((ROOT / "openapi" / "openapi.json").read_text())["components"]["schemas"]
    assert receipt.keys() <= schemas["ShownReceipt"]["properties"].keys()
    fields = schemas["MadeSummary"]["properties"].keys()
    assert all(each.keys() <= fields for each in receipt["summaries"])


def test_each_shell_block_names_what_there_is() -> None:
    """Blocks can be parsed; targets, modules, files, services and options in them exist."""
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    services = re.findall(r"^  ([a-z]+):$", (ROOT / "docker-compose.yml").read_text(), re.MULTILINE)
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    for script in (script for page in pages for script in blocks(page.read_text("utf-8"), "sh")):
        subprocess.run(["bash", "-n", "-c", script], check=True)
        text = re.sub(r"\\\n\s*", "", re.sub(r"  +#.*", "", script))
        assert set(re.findall(r"^make ([a-z-]+)", text, re.M)) <= set(targets), text
        assert all(map(find_spec, re.findall(r"-m (benchmarks[.\w]*)", text))), text
        named = re.findall(r"(?<![\w./])(?:deploy|examples|openapi|inspector)/[\w./-]+", text)
        assert all((ROOT / name).exists() for name in named), text
        asked = re.findall(r"docker compose (?:exec -T|run --rm|stop|up --detach) (\w+)", text)
        assert set(asked) <= set(services), text
        own = r"^(?:\w+=\S+ )?(?:\.venv/bin/|kubectl .* -- |docker compose run --rm api )?"
        for command in re.findall(rf"{own}(?:context-service |(?<=api ))([a-z].*)$", text, re.M):
            assert_there_is(shlex.split(command.rstrip(" &")))


def assert_there_is(words: list[str]) -> None:
    """Assert that the service has this command, with these options."""
    command: click.Command = cli
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None
        command = found
    options = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    assert {word.split("=")[0] for word in words if word.startswith("--")} <= options, words


@pytest.fixture
def stand_in() -> Iterator[str]:
    """The stand-in of examples/, on a free port; yields its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


def run_python(script: str, served: str, stand_in: str) -> str:
    """Run a script with these in the place of the service and of the model; what it prints."""
    return subprocess.run(
        [sys.executable, "-c", script.replace(LOCAL, served)],
        env=environment(OPENAI_BASE_URL=stand_in, OPENAI_API_KEY="none"),
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_the_agent_of_the_tutorial_compacts(served: str, stand_in: str) -> None:
    """Its summary has what was said in turn 6, the search finds that, and undo is as printed."""
    said = run_python(block(GETTING_STARTED, "python"), served, stand_in)
    (turn, printed), (same, found) = (
        re.findall(r"^(\d+) (\d+) compaction", text, re.MULTILINE)[0]
        for text in (GETTING_STARTED, said)
    )
    assert (same, found) == (turn, printed)
    assert "The budget is 4200 euros." in said
    assert "summarised" in said.splitlines()[-1]
    (active,) = re.findall(r"^(\S+) active$", said, re.MULTILINE)
    undo = block(GETTING_STARTED, "sh", "/undo").replace(LOCAL, served)
    assert json.loads(pasted(undo.replace("COMPACTION", active)))


def test_the_fact_of_the_readme_is_kept(served: str) -> None:
    """A fact of message 3 is in the summary after 1 000 messages, as the README prints it."""
    tokens, _, line = run_python(block(README, "python"), served, "").partition(" ")
    assert int(tokens) < 16_000
    assert f" {line}```" in README and "#3 " in line


def test_the_demo_can_be_pasted(served: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a checkout the demo runs as printed, against the service of the variable named."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.setenv("CONTEXT_URL", served)
    short = block(GETTING_STARTED, "sh", "context-service demo") + " --messages 30"
    said = pasted(short.replace("\n --", " --"))
    assert f"curl '{served}/v1/conversations/" in said and "The payload has:" in said
    assert "`CONTEXT_URL`" in GETTING_STARTED and "`CONTEXT_API_KEY`" in GETTING_STARTED
