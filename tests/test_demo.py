"""The demo, as a newcomer runs it: against a served app, and against nothing."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from app.cli import cli
from app.cli.demo import MAX_OUTPUT_TOKENS, SAMPLE_WINDOW, SAMPLES, read_traces
from app.settings import Settings
from tests import keys
from tests.commands import COMMAND, environment
from tests.conftest import in_thread


def demo(*arguments: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(cli, ["demo", *arguments])


def row(output: str, name: str) -> list[str]:
    """Return the cells of a conversation's line, or of the totals."""
    line = next(line for line in output.splitlines() if line.startswith(name))
    return re.split(r"\s{2,}", line)


def test_samples_are_replayed_and_compacted(served: str) -> None:
    """The samples outgrow the demo's window, are compacted, and every payload fits."""
    result = demo("--url", served)
    assert result.exit_code == 0, result.output
    traces = read_traces(SAMPLES)
    for trace in traces:
        assert row(result.output, trace.name)[1] == f"{len(trace.messages):,}"
    totals = row(result.output, f"{len(traces)} conversations")
    assert int(totals[5]) >= 3
    assert 50 < int(totals[6].removesuffix("%")) < 100
    assert int(totals[4].replace(",", "")) <= SAMPLE_WINDOW - MAX_OUTPUT_TOKENS
    assert "Refused" not in result.output


def test_the_demo_opens_the_inspector(served: str, tmp_path: Path) -> None:
    """With `--open` the browser is sent to the inspector of the service. [inspector.page]"""
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > "{opened}"\n', encoding="utf-8")
    browser.chmod(0o755)
    trace = tmp_path / "one.jsonl"
    trace.write_text(SAMPLES.read_text(encoding="utf-8").splitlines()[-1], encoding="utf-8")
    done = subprocess.run(
        [*COMMAND, "demo", str(trace), "--url", served, "--open"],
        env=environment(BROWSER=f"{browser} %s"),
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert opened.read_text(encoding="utf-8") == f"{served}/inspector"
    assert f"{served}/inspector" in done.stdout


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
