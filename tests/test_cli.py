"""The command line, as a user runs it: help, refusals, and a service from start to SIGTERM.

[operation.cli]
"""

from __future__ import annotations

import http.client
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import httpx
import pytest
from click.testing import CliRunner

from app.cli import cli
from app.database.embedded import running
from tests.api.talk import talk
from tests.commands import environment, serving, stop
from tests.fake_llm import FakeLLM, slow
from tests.fake_llm import answer as reply
from tests.patience import PATIENCE_SECONDS
from tests.processes import until


@pytest.fixture
def new_dir(tmp_path: Path) -> Iterator[Path]:
    """A data directory that is not there yet, whose server is stopped afterwards."""
    yield tmp_path / "new"
    if (tmp_path / "new" / "postgres" / "postmaster.pid").exists():
        with running(tmp_path / "new"):
            pass


def invoke(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run one command in this process, without the seconds that a new one imports for.

    An error that the command line does not turn into a sentence is raised.
    """
    with mock.patch.dict(os.environ, environment(**environ), clear=True):
        result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    return subprocess.CompletedProcess(arguments, result.exit_code, result.stdout, result.stderr)


def status(port: int, path: str, key: str | None = None) -> int:
    """Return the status of one GET, with a key or without."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        connection.request("GET", path, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def status_or_none(port: int, path: str) -> int | None:
    """Return the same, None when nobody listens."""
    try:
        return status(port, path)
    except OSError:
        return None


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGHUP])
def test_a_request_under_way_is_answered_after_a_signal(
    new_dir: Path, database_url: str, fake_llm: FakeLLM, sign: signal.Signals
) -> None:
    """SIGTERM, or a closed terminal, lets what runs finish: a compaction that waits for its model.

    [operation.shutdown]
    """
    released, arrived = threading.Event(), threading.Event()
    fake_llm.always(slow(released, reply("<summary>All of it, in short.</summary>"), arrived))
    environ = {
        "CONTEXT_DATABASE_URL": database_url,
        "CONTEXT_SUMMARIZER_MODEL": "openai/fake",
        "CONTEXT_SUMMARIZER_API_BASE": fake_llm.api_base,
        "CONTEXT_SUMMARIZER_API_KEY": "test",
        "CONTEXT_WORKER": "false",
        "CONTEXT_ACCESS_LOG": "false",
    }
    before = signal.signal(sign, signal.SIG_DFL)  # `nohup` would have it ignored
    with serving(new_dir, environ=environ) as (process, port):
        signal.signal(sign, before)
        base = f"http://127.0.0.1:{port}/v1/conversations"
        with httpx.Client(timeout=PATIENCE_SECONDS) as client, ThreadPoolExecutor(1) as pool:
            body = {"model": "gpt-4o", "policy": {"budget": {"context_window": 8192}}}
            path = f"{base}/{client.post(base, json=body).json()['conversation_id']}"
            client.post(f"{path}/messages", json={"messages": talk(40)}).raise_for_status()
            compacting = pool.submit(httpx.post, f"{path}/compact", timeout=PATIENCE_SECONDS)
            assert arrived.wait(PATIENCE_SECONDS)
            process.send_signal(sign)
            until(lambda: status_or_none(port, "/healthz") is None, "the port is closed")
            released.set()
            answer = compacting.result(PATIENCE_SECONDS).raise_for_status()
        assert answer.json()["compacted"]
        process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 0


def test_keys_are_made_listed_and_revoked(new_dir: Path) -> None:
    """`keys create` starts and migrates the database; the key is the last word on stdout.

    It goes on beside a running service on the same data directory, which obeys it.

    [tenancy.keys-cli]
    """
    here = ("--data-dir", str(new_dir))
    made = invoke("keys", "create", "--tenant", "acme", "--name", "ci", *here)
    assert made.returncode == 0, made.stderr
    new = f"in the private PostgreSQL of {new_dir}, which is new: "
    assert new in made.stderr
    key = made.stdout.split()[-1]
    key_id = key.split("_")[1]
    with serving(new_dir, environ={"CONTEXT_WORKER": "false"}) as (process, port):
        assert status(port, "/v1/agents") == 401
        assert status(port, "/v1/agents", key) == 200
        made = invoke("keys", "create", "--tenant", "other", *here)
        assert f"in the private PostgreSQL of {new_dir}. " in made.stderr
        other = made.stdout.split()[-1]
        assert status(port, "/v1/agents", other) == 200
        stop(process)
    assert not (new_dir / "postgres" / "postmaster.pid").exists()
    listed = invoke("keys", "list", *here).stdout.splitlines()
    rows = [line.split() for line in listed[1:]]
    assert [[*row[:4], row[-1]] for row in rows] == [
        [key_id, "acme", "ci", "usable", "full"],
        [other.split("_")[1], "other", "-", "usable", "full"],
    ]
    assert key.split("_", 2)[2] not in "\n".join(listed)
    with running(new_dir):  # which each command would start
        revoked = invoke("keys", "revoke", key_id, *here)
        assert revoked.stdout == f"Revoked {key_id} of tenant acme.\n"
        again = invoke("keys", "revoke", key_id, *here)
        assert again.stdout.startswith(f"{key_id} of tenant acme was revoked already at 2")


def test_with_a_key_the_service_may_be_public(database_url: str) -> None:
    """With a key it would listen; the port is taken, so that nothing here ever does."""
    here = ("--database-url", database_url)
    assert invoke("keys", "create", "--tenant", "acme", *here).returncode == 0
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = invoke("serve", "--host", "0.0.0.0", "--port", port, *here)
    assert result.returncode == 1
    assert f"Cannot listen on 0.0.0.0 port {port}" in result.stderr


@pytest.mark.parametrize(
    ("code", "command", "said"),
    [
        (1, "serve --host 0.0.0.0 --data-dir {here}", "CONTEXT_ALLOW_UNAUTHENTICATED=true"),
        (1, "keys create --tenant / --database-url {database}", "tenant"),
        (1, "keys revoke nothing --database-url {database}", "nothing"),
        (1, "tenants limit / --database-url {database}", "--create creates one"),
        (1, "openapi --output {here}/openapi.json", "No such file or directory"),
        (1, "demo --url {served}/v1", "leave out a path such as /v1"),
        (2, "keys list --data-dir {here}", "There is no database in {here}: "),
        (2, "keys revoke nothing --data-dir {here}", "There is no database in {here}: "),
        (2, "migrate --database-url postgresql://127.0.0.1:1/none", "does not answer"),
    ],
)
def test_an_error_is_one_sentence_with_a_code(
    code: int, command: str, said: str, new_dir: Path, served: str, database_url: str
) -> None:
    """Of the table of `--help`; no database is made. [tenancy.key-required]"""
    given = {"here": new_dir, "served": served, "database": database_url}
    failed = invoke(*command.format(**given).split())
    assert (failed.returncode, failed.stdout) == (code, "")
    assert failed.stderr.startswith("Error: ") and failed.stderr.count("\n") == 1
    assert said.format(**given) in failed.stderr
    assert not new_dir.exists()


def test_the_help_has_whole_summaries_and_exit_codes() -> None:
    """No summary is cut off."""
    shown = invoke("--help").stdout
    assert re.findall(r"^    (\d)  ", shown, re.MULTILINE) == ["0", "1", "2", "3"]
    shown = " ".join(f"{shown} {invoke('keys', '--help').stdout}".split())
    assert "by `pg_dump`, while the service runs." in shown and "times and scope, without" in shown


def test_on_a_terminal_lines_are_for_people(new_dir: Path) -> None:
    """A bar moves while the database starts; a line names the pages; logs are no JSON.

    [operation.logs]
    """
    script = "from app.cli import database, main; database.QUIET_SECONDS = 0.1; main()"
    command = (sys.executable, "-c", script, "serve", "--port", "0", "--data-dir", new_dir)
    screen, theirs = pty.openpty()
    shown = ""
    with subprocess.Popen(command, env=environment(), stderr=theirs, text=True) as process:
        while " info    worker_started concurrency=" not in shown:
            shown += os.read(screen, 4096).decode()
        stop(process)
    os.close(theirs)
    os.close(screen)
    assert re.search(r"Starting PostgreSQL  \[-*#-*\]", shown)
    assert re.search(r"(http://127\.0\.0\.1:\d+), with \1/inspector and \1/docs\r\n", shown)
    assert "{" not in shown


def test_wrong_setting_is_one_sentence() -> None:
    """A variable that cannot be right is named, and a misspelt one is warned of.

    Those of clients are often set beside the settings, and are not misspelt.

    [policy.environment]
    """
    clients = {"CONTEXT_URL": "http://127.0.0.1:8080", "CONTEXT_API_KEY": "ctx_1_b"}
    result = invoke("serve", CONTEXT_WORKERS="none", CONTEXT_PROT="1", **clients)
    assert result.returncode == 2
    assert "CONTEXT_WORKERS" in result.stderr
    assert "Warning: CONTEXT_PROT" in result.stderr
    assert result.stderr.count("Warning") == 1
    assert "Traceback" not in result.stderr


def test_a_service_whose_private_database_is_gone_ends(data_dir: Path) -> None:
    """Where the cluster is gone for good the service ends with a line and a code of its own."""
    with serving(data_dir) as (process, port):
        assert status(port, "/readyz") == 200
        pid = int((data_dir / "postgres" / "postmaster.pid").read_text().split()[0])
        (data_dir / "postgres").rename(data_dir / "elsewhere")
        os.kill(pid, signal.SIGKILL)
        _, log = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 3
    assert "was deleted" in log.splitlines()[-1]
    assert "Traceback" not in log


def test_serve_after_kill(data_dir: Path) -> None:
    """A service killed with -9 starts again on its directory and then stops everything.

    The new one has several processes, which answer on one port and stop together.

    [operation.worker]
    """
    with serving(data_dir) as (process, port):
        process.kill()
        process.communicate()
    assert (data_dir / "postgres" / "postmaster.pid").exists()
    with serving(data_dir, "--workers", "2") as (process, port):
        assert status(port, "/readyz") == 200
        stop(process)
    assert not (data_dir / "postgres" / "postmaster.pid").exists()
