"""The demo, as a newcomer runs it: against a served app, and against nothing."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from app.cli import cli
from app.cli.demo import APPEND_ONLY, MAX_OUTPUT_TOKENS, SERVICE, SLIDING, WINDOW
from app.cli.demo_session import STATED
from app.settings import Settings
from tests import keys
from tests.commands import COMMAND, environment, free_port
from tests.conftest import in_thread

WAYS = (SERVICE, SLIDING, APPEND_ONLY)


def demo(*arguments: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(cli, ["demo", *arguments])


def test_a_session_is_held_in_its_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a service one is started; the session is compacted, and an early fact stays known.

    The payloads fit, and cost less than those of the last messages. [inspector.page]
    """
    monkeypatch.setattr("app.cli.demo.DEFAULT_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("CONTEXT_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    result = demo("--messages", "170")
    assert result.exit_code == 0, result.output
    assert len(re.findall(r"compacted, [\d,]+ → [\d,]+ tokens$", result.output, re.M)) >= 2
    found = [re.findall(rf"^{name} .*$", result.output, re.M)[0] for name in WAYS]
    ours, sliding, whole = (re.split(r"\s{2,}", line)[1:] for line in found)
    assert (ours[-1], sliding[-1], whole[-1]) == ("yes", "no", "yes")
    assert int(ours[1].replace(",", "")) <= WINDOW - MAX_OUTPUT_TOKENS
    assert int(whole[1].replace(",", "")) > WINDOW
    assert 100 > int(ours[3].removesuffix("%")) > int(sliding[3].removesuffix("%"))
    assert float(ours[4].removeprefix("$")) < float(sliding[4].removeprefix("$"))
    assert f"The payload has:  - {STATED}\n" in result.output


def test_the_demo_opens_the_inspector(served: str, tmp_path: Path) -> None:
    """With `--open` the browser is sent to the page of the conversation. [inspector.page]"""
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > "{opened}"\n', encoding="utf-8")
    browser.chmod(0o755)
    trace = tmp_path / "one.jsonl"
    trace.write_text('{"messages": [{"role": "user", "content": "Hello."}]}\n', encoding="utf-8")
    done = subprocess.run(
        [*COMMAND, "demo", str(trace), "--url", served, "--open"],
        env=environment(BROWSER=f"{browser} %s"),
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    page = opened.read_text(encoding="utf-8")
    assert page.startswith(f"{served}/inspector#/c/") and f"watch it at {page}\n" in done.stdout


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "requires an API key: give one with --key, or in CONTEXT_API_KEY."),
        (("--key", "ctx_000000000000_secret"), "is unknown, revoked or expired."),
        (("--key", "ctx_a\r\nX: secret"), "contains a character that no key has."),
    ],
)
def test_a_key_that_is_refused_ends_the_demo(
    given: tuple[str, ...], said: str, served: str, settings: Settings
) -> None:
    """The first 401 is said in one sentence without the key, and nothing is replayed."""
    in_thread(keys.create, "acme", "demo", None, settings)
    result = demo("--url", served, *given)
    assert result.exit_code == 1
    assert result.output.startswith("Error: ") and result.output.endswith(f"{said}\n")
    assert result.output.count("\n") == 1
    assert "secret" not in result.output
